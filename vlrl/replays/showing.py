"""A task's gold episodes as lessons that are shown to the policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vlrl.types import Decision, Environment, Episode, Lesson, Observation, Sample, Turn, UserError


def check_shows(policy: Any, name: str) -> None:
    """UserError where nothing can be shown: gold answers are text."""
    if not hasattr(policy, "ids"):
        raise UserError(f"replay: {name} shows a language model what to write; leave it out for other policies")


def shown(policy: Any, task: Any, samples: Sequence[Sample], group: int) -> list[Lesson]:
    """Each sample's gold episode, scored, with credit 0: a group of its own, numbered from `group`.

    Log-probabilities are those under the present policy, which did not sample them.

    Raises:
        UserError: no gold action to a sample is known.
    """
    import torch

    from vlrl.strategies.earlier import evaluated

    episodes = [_played(policy, task, sample, number) for number, sample in enumerate(samples, start=group)]
    return [
        Lesson(episode, tuple(torch.zeros_like(turn.decision.logprobs) for turn in episode.turns))
        for episode in (evaluated(policy, episodes) if episodes else [])
    ]


def _played(policy: Any, task: Any, sample: Sample, group: int) -> Episode:
    episode, environment = Episode(sample, group, shown=True), task.environment(sample)
    try:
        observation, over = environment.reset(), False
        while not over:
            decision = _gold(policy, task, environment, sample, observation)
            step = environment.step(decision.action, decision.frames)
            episode.turns.append(Turn(observation, decision, step))
            observation, over = step.observation, step.done or step.cut
    finally:
        environment.close()
    score = task.score(episode)
    return replace(episode, score=score, reward=task.reward(score))


def _gold(policy: Any, task: Any, environment: Environment, sample: Sample, observation: Observation) -> Decision:
    """The task's gold answer, or the next gold action of an environment that knows one."""
    frames = policy.prompt(observation, sample.id).frames
    own = getattr(environment, "gold", None)
    text = own(frames) if own else task.gold(sample, frames)
    if text is None:
        raise UserError(f"sample {sample.id}: no gold action is known to be shown; choose a task that knows one")
    return policy.decide(observation, text, key=sample.id)
