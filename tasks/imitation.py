"""A robot's script as questions: what would it do now? For the supervised start of a language model that moves robots.

The same scenes, words and pictures as `tasks/manipulation.py` plays with. States come from episodes of the script with
noise, so that a model also learns to come back.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from robot import registry
from robot.demos import SEEDS
from robot.workers import RobotPool
from tasks.base import Rendered, Task, check, count_from
from tasks.robot_helpers import Demonstrated, Speech, add_spoken_state, demonstrated, read_speech, write_speech
from vlrl.types import Episode, Frame, Sample, Score, Split

SPOKEN = Speech()
WEIGHTS = count_from(0.15, {"near": 1.0})
FAR = 0.1  # of the limits' width; most actions of other moments are farther from each other


class Imitation(Task):
    """Samples: decisions of `episodes` of a script for training, of `held_out` others (validation scenes) for testing.

    Reward part `near`: 1 at the script's action, falling to 0 where the numbers are FAR from it on average; correct:
    the same words. They are played when first asked for.

    Args:
        robot, horizon, chunk, speech: as of `manipulation`.
        noise: on what is carried out, in halves of the limits' width.
    """

    weights = WEIGHTS

    def __init__(
        self,
        *,
        robot: str | Mapping[str, Any] = "tabletop",
        horizon: int = 160,
        chunk: int = 8,
        speech: Speech = SPOKEN,
        episodes: int = 20,
        held_out: int = 4,
        noise: float = 0.4,
        seed: int = 0,
    ):
        check(min(horizon, chunk, episodes, held_out) > 0, "horizon, chunk, episodes, held_out",
              (horizon, chunk, episodes, held_out), "at least 1")  # fmt: skip
        check(noise >= 0, "noise", noise, "at least 0")
        _, target, options = registry.chosen(robot)
        self._pool = RobotPool(target, options, size=1)
        self.horizon, self.chunk, self.speech, self.noise, self.seed = horizon, chunk, speech, noise, seed
        self._episodes: dict[Split, int] = {"train": episodes, "test": held_out}
        self._decisions = functools.cache(self._play)  # of this task alone: its workers end with it

    def samples(self, split: Split) -> Sequence[Sample]:
        return Rendered(len(self._decisions(split)), functools.partial(self._sample, split))

    def _sample(self, split: Split, index: int) -> Sample:
        observation, plan = self._decisions(split)[index]
        prompt = add_spoken_state(observation, self._pool.info.names, self.speech)
        return Sample(
            f"imitation/{split}/{index:06d}", prompt, write_speech(plan, self._pool.info.controls, self.speech)
        )

    def _play(self, split: Split) -> Sequence[Demonstrated]:
        scenes = SEEDS["train" if split == "train" else "validation"]
        count, seed = self._episodes[split], self.seed
        played = demonstrated(self._pool, scenes, self.horizon, self.chunk, count=count, noise=self.noise, seed=seed)
        return [decision for episode in played for decision in episode]

    def score(self, episode: Episode) -> Score:
        controls, right = self._pool.info.controls, episode.sample.answer
        speech = read_speech(episode.completion, self.chunk, controls, self.speech)
        if speech is None:
            return Score({"near": 0.0}, 0.0, None, "no_action")
        meant = read_speech(right, self.chunk, controls, self.speech)
        off = np.abs(speech - meant) / (controls.high - controls.low)
        same = write_speech(speech, controls, self.speech) == right
        return Score({"near": max(0.0, 1.0 - float(off.mean()) / FAR)}, float(same), episode.completion.strip())

    def gold(self, sample: Sample, frames: Sequence[Frame]) -> str:
        return sample.answer

    def close(self) -> None:
        """Ends the worker; without it it ends with the program."""
        self._pool.close()
