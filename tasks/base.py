"""What every task shares: weighing, one-turn environments, lazily rendered samples, the text of an answer."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import metadata
from typing import Any

import numpy as np

from vlrl.types import (  # fmt: skip
    BASELINE,
    MALFORMED,
    BaseTask,
    Data,
    Environment,
    Frame,
    Observation,
    Sample,
    Score,
    Split,
    Step,
    UserError,
)

THINK = "First think inside <think> </think>, then answer inside <answer> </answer>."
FORM = {"format": 0.0, MALFORMED: -0.25}  # form earns nothing, so that no wrong answer does; to lack it costs a quarter
OWN_DATA = Data()  # what the task renders or bundles


class SingleTurn(Environment):
    """An environment of one turn: shows the prompt, takes the answer, is over."""

    def __init__(self, prompt: Observation):
        self.prompt = prompt
        self._turns_left: int | None = None

    def reset(self) -> Observation:
        if self._turns_left is not None:
            raise RuntimeError("an environment is made for one episode: make a new one")
        self._turns_left = 1
        return self.prompt

    def step(self, action: str | np.ndarray, frames: Sequence[Frame] = ()) -> Step:
        if self._turns_left != 1:
            raise RuntimeError("one step after one reset, then make a new environment")
        self._turns_left = 0
        return Step(self.prompt, terminated=True)


class Rendered(Sequence[Sample]):
    """`n` samples made when asked for; `make(index)` must return the same sample for the same index."""

    def __init__(self, n: int, make: Callable[[int], Sample]):
        self._n, self._make = n, make

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self._make(i) for i in range(*index.indices(self._n))]
        return self._make(range(self._n)[index])


def rows_or_drawn(
    split: Split,
    rows: Mapping[Split, Sequence],
    from_file: Callable[[Split, int], Sample],
    drawn: Mapping[Any, int],
    from_seed: Callable[[Split, int], Sample],
) -> Rendered:
    """A split's samples: those of its file where one was named, else as many as are to be drawn."""
    if split in rows:
        return Rendered(len(rows[split]), partial(from_file, split))
    return Rendered(drawn[split], partial(from_seed, split))


class Task(BaseTask):
    """A task of one turn, rewarded by weighted parts; a subclass has `weights`, `samples`, `score` and `gold`."""

    def environment(self, sample: Sample) -> Environment:
        return SingleTurn(sample.prompt)

    @classmethod
    def takes_turns(cls) -> bool:
        return cls.environment is not Task.environment

    def reward(self, score: Score) -> float:
        """The weighted sum of the score's parts."""
        return sum(weight * score.part(name) for name, weight in self.weights.items())


def generator(seed: int, split: Split, index: int) -> np.random.Generator:
    """The random numbers of one rendered sample: no other sample's, and the same on every machine."""
    return np.random.default_rng([seed, zlib.crc32(split.encode()), index])


def format_question(question: str, thinking: bool) -> str:
    """A question of a data set, which asks for thoughts where they are wanted."""
    return f"{question} {THINK}" if thinking and "<think>" not in question else question


def answer_markup(text: str, thinking: bool, thought: str = "I look at the image.") -> str:
    """The completion that answers `text` in the form that `rewards.parse.answer_text` asks for."""
    return f"<think>{thought}</think>\n<answer>{text}</answer>" if thinking else f"<answer>{text}</answer>"


def count_from(baseline: float, weights: Mapping[str, float]) -> dict[str, float]:
    """The weights with `baseline` taken from every answer: what the best one earns that ignores its sample.

    For graded credit, of which such an answer earns more than its accuracy. Advantages subtract a mean, so that a
    constant changes none of them; `vlrl check-task --table` measures what it must be.
    """
    return {**weights, BASELINE: -baseline}


def check_weights(weights: Mapping[str, float], parts: Sequence[str]) -> dict[str, float]:
    """The weights, or UserError where one names no part of the reward."""
    for name in weights:
        if name not in (*parts, BASELINE):
            raise UserError(f"task.weights.{name}: no such part of the reward; parts are {', '.join(parts)}")
    return dict(weights)


def check(ok: bool, key: str, value: object, need: str) -> None:
    """UserError naming the key, its value and what it must be, unless `ok`."""
    if not ok:
        raise UserError(f"task.{key}: {value!r}: must be {need}")


def find_version(module: str) -> str:
    """The version of the package that a module belongs to; '' where it has none."""
    owners = metadata.packages_distributions().get(module.partition(".")[0], [])
    return metadata.version(owners[0]) if owners else ""
