"""Plays episodes to be trained on later: by the policy, or by a task's own gold actions with some of the policy's."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vlrl import registry
from vlrl.algorithms.rollout_common import decide_gold
from vlrl.algorithms.samplers import Shuffled
from vlrl.config import Config
from vlrl.engines import load_policy
from vlrl.episode_store import recorded_write
from vlrl.io import check_free
from vlrl.logging import Progress
from vlrl.rollout import collect, open_environment
from vlrl.types import Decision, Environment, Episode, Observation, Policy, Sample, Split, Turn, UserError

BATCH = 16  # episodes that the policy plays at a time

Player = Literal["policy", "gold"]


@dataclass
class RecordingStats:
    """What was recorded so far, in sums."""

    episodes: int = 0
    correct: float = 0.0
    reward: float = 0.0
    turns: int = 0

    def add(self, episode: Episode) -> None:
        self.episodes += 1
        self.correct += episode.score.correct
        self.reward += episode.reward
        self.turns += len(episode.turns)

    def __str__(self) -> str:
        n = max(1, self.episodes)
        return f"success {self.correct / n:.3f}, reward {self.reward / n:.3f}, turns {self.turns / n:.1f}"


def record(
    config: Config, *, episodes: int, out: str, by: Player, noise: float = 0.0, split: Split = "train"
) -> RecordingStats:
    """Plays `episodes` samples of a split, in the order of a shuffled epoch, and writes them to the folder `out`.

    Args:
        by: `policy` samples from the config's policy. `gold` takes the task's gold answer, or in an environment with a
            method `gold(frames)` its next gold action, in the coordinates of the policy.
        noise: with `gold`, the probability that a turn's action is sampled from the policy instead.

    Raises:
        UserError: the folder is not free, or the config's task or model is not as it should be.
    """
    check_free(Path(out))
    task = registry.make_task(config)
    policy = load_policy(config.policy, shared_prefix=config.train.shared_prefix, seed=config.seed)
    if not policy.writes_text:
        raise UserError("policy.model: `vlrl record` keeps what language models write; `vlrl demos` records robots")
    pool, tally = task.samples(split), RecordingStats()
    samples = [pool[i] for i in Shuffled(len(pool), config.seed).draw(episodes)]
    rng = np.random.default_rng([config.seed, 1])
    played = _by_gold(policy, task, samples, noise, rng) if by == "gold" else _by_policy(policy, task, samples)
    with Progress(episodes) as progress:

        def counted() -> Iterator[Episode]:
            for episode in played:
                tally.add(episode)
                progress.note(f"episode {tally.episodes}/{episodes}  {tally}")
                yield episode

        try:
            recorded_write(out, counted())
        except BaseException:
            if Path(out).exists():
                print(f"\nthe episodes until here are kept in {out}", file=sys.stderr)
            raise
    return tally


def _by_policy(policy: Policy, task: Any, samples: Sequence[Sample]) -> Iterator[Episode]:
    for start in range(0, len(samples), BATCH):
        yield from collect(policy, task, samples[start : start + BATCH], group_size=1)


def _by_gold(
    policy: Policy, task: Any, samples: Sequence[Sample], noise: float, rng: np.random.Generator
) -> Iterator[Episode]:
    """One episode at a time: a gold action is asked of the environment that it is meant for."""
    for sample in samples:
        episode = Episode(sample, group=0)
        environment = open_environment(task, sample)
        try:
            _play(policy, task, environment, episode, noise, rng)
        finally:
            environment.close()
        episode.score = task.score(episode)
        episode.reward = task.reward(episode.score)
        yield episode


def _play(
    policy: Policy, task: Any, environment: Environment, episode: Episode, noise: float, rng: np.random.Generator
) -> None:
    observation, over = environment.reset(), False
    while not over:
        strays = rng.random() < noise
        decision = (
            policy.act([episode], [observation])[0]
            if strays
            else _gold(policy, task, environment, episode, observation)
        )
        step = environment.step(decision.action, decision.frames)
        episode.turns.append(Turn(observation, decision, step))
        observation, over = step.observation, step.terminated or step.truncated


def _gold(policy: Any, task: Any, environment: Environment, episode: Episode, shown: Observation) -> Decision:
    decision = decide_gold(policy, task, environment, episode, shown)
    if decision is None:
        raise UserError(f"sample {episode.sample.id}: no gold action is known; choose others, or record --by policy")
    return decision
