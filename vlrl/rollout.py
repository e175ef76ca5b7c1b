"""Collecting episodes: draw samples, let the policy act until every environment is done, score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vlrl.types import Episode, Observation, Policy, Sample, Turn


def collect(policy: Policy, task: Any, samples: Sequence[Sample], group_size: int, **act: Any) -> list[Episode]:
    """`group_size` scored episodes of each sample, in order. Environments are made for one episode and always closed.

    Args:
        act: passed on to `policy.act`, for example `greedy=True`.
    """
    episodes = [Episode(sample, group) for group, sample in enumerate(samples) for _ in range(group_size)]
    environments = [task.environment(episode.sample) for episode in episodes]
    try:
        observations: list[Observation] = [environment.reset() for environment in environments]
        active = list(range(len(episodes)))
        while active:
            decisions = policy.act([episodes[i] for i in active], [observations[i] for i in active], **act)
            still = []
            for i, decision in zip(active, decisions, strict=True):
                step = environments[i].step(decision.action)
                episodes[i].turns.append(Turn(observations[i], decision, step))
                observations[i] = step.observation
                if not (step.done or step.cut):
                    still.append(i)
            active = still
    finally:
        for environment in environments:
            environment.close()
    for episode in episodes:
        episode.score = task.score(episode)
        episode.reward = task.reward(episode.score)
    return episodes
