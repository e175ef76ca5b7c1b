"""Two agents answer: a solver, then a checker that sees the question and the solver's answer, and has the last word.

They share one policy and one outcome, and are told apart by their prompts (`Observation.role`). Over any task of one
answer.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from vlrl import registry
from vlrl.config import DataSection, MixturePart, Plugin
from vlrl.types import (
    BASELINE,
    MALFORMED,
    BadRow,
    BaseTask,
    Data,
    Decision,
    Environment,
    Episode,
    Frame,
    Observation,
    Policy,
    Sample,
    Score,
    Split,
    Step,
    TaggedSamples,
    Turn,
    UserError,
)

ROLES = ("solver", "checker")
WEIGHTS = {"final": 1.0, "solver": 0.5, MALFORMED: -0.25}
PARTS = ("final", "solver", "format", MALFORMED, BASELINE)
NO_DATA = Data()


class Checked(BaseTask):
    """Samples: those of another task, in two turns. Correct: as the checker's answer is.

    Parts: `final` and `solver`, how right the checker's and the solver's answer is, in [0, 1], and `format`, the share
    of turns with an answer that can be read. The checker is told what was read off the solver's answer, no word more.

    Args:
        task: whose samples they are: its name, or its name with options.
        data: its files, if it reads any.
        weights: part -> weight.

    Raises:
        UserError: the task has turns of its own; or as it raises.
    """

    def __init__(self, *, task: Plugin, data: Data = NO_DATA, weights: Mapping[str, float] = WEIGHTS):
        for name in weights:
            if name not in PARTS:
                raise UserError(f"task.weights.{name}: no such part of the reward; parts are {', '.join(PARTS)}")
        self.weights = dict(weights)
        part = MixturePart(task=task, data=DataSection(**asdict(data)))
        if registry.find("task", part.task.name, "task.task.name").takes_turns():
            raise UserError(f"task.task: {part.task.name}: has turns of its own: name a task of one answer")
        self._task = registry.make_task(part, "task.task")

    def __copy__(self) -> Checked:
        """One whose task is told of steps apart from this one's."""
        twin = object.__new__(type(self))
        twin.__dict__ |= self.__dict__ | {"_task": copy.copy(self._task)}
        return twin

    @property
    def bad_rows(self) -> Sequence[BadRow]:
        return self._task.bad_rows

    @bad_rows.setter
    def bad_rows(self, rows: Sequence[BadRow]) -> None:
        raise AttributeError("bad rows are the inner task's")

    def samples(self, split: Split) -> Sequence[Sample]:
        return Asked(self._task.samples(split))

    def environment(self, sample: Sample) -> Environment:
        return CheckedEpisode(sample, self._task)

    def score(self, episode: Episode) -> Score:
        scores = [self._task.score(replace(episode, turns=[turn])) for turn in episode.turns]
        read = sum(each.reason is None for each in scores) / len(scores)
        return replace(scores[-1], parts={"final": scores[-1].correct, "solver": scores[0].correct, "format": read})

    def reward(self, score: Score) -> float:
        return sum(weight * score.part(name) for name, weight in self.weights.items())

    def gold(self, sample: Sample, frames: Sequence[Frame]) -> str | None:
        """The right answer, of either role."""
        return self._task.gold(sample, frames)

    def truth(self, value: object) -> object:
        return self._task.truth(value)

    def truths(self, sample: Sample) -> Sequence[str]:
        return self._task.truths(sample)

    def metrics(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """How often the checker put a wrong answer right, and a right one wrong, of all episodes."""
        both = [(episode.score.part("solver"), episode.score.part("final")) for episode in episodes]
        return {
            "mended": sum(after > before for before, after in both) / max(1, len(both)),
            "spoilt": sum(after < before for before, after in both) / max(1, len(both)),
        }

    def facts(self, episodes: Sequence[Episode]) -> Mapping[str, str]:
        return self._task.facts(episodes)

    def at_step(self, step: int) -> None:
        self._task.at_step(step)

    def fits(self, policy: Policy) -> None:
        self._task.fits(policy)

    def close(self) -> None:
        self._task.close()


class Asked(TaggedSamples):
    """Another task's samples, each asked of the solver."""

    def __init__(self, inner: Sequence[Sample]):
        self._inner = inner

    def __len__(self) -> int:
        return len(self._inner)

    def __getitem__(self, position):
        if isinstance(position, slice):
            return [self[i] for i in range(*position.indices(len(self)))]
        sample = self._inner[position]
        return replace(sample, prompt=Observation(sample.prompt.content, role=ROLES[0]))

    def tag_of(self, position: int, tag: str) -> str | None:
        return self._inner.tag_of(position, tag) if isinstance(self._inner, TaggedSamples) else None


class CheckedEpisode(Environment):
    """Asks the solver, then the checker with what the task reads off the solver's answer."""

    def __init__(self, sample: Sample, task: BaseTask):
        self._sample, self._task = sample, task
        self._turn: int | None = None

    def reset(self) -> Observation:
        if self._turn is not None:
            raise RuntimeError("an environment is made for one episode: make a new one")
        self._turn = 0
        return self._sample.prompt

    def step(self, action: str | np.ndarray, frames: Sequence[Frame] = ()) -> Step:
        if self._turn not in (0, 1):
            raise RuntimeError("two steps after one reset, then make a new environment")
        self._turn += 1
        if self._turn == 2:  # nobody is shown anything more
            return Step(self._sample.prompt, terminated=True)
        none: Any = None  # log-probabilities, which no score reads
        decision = Decision(action, none, none, truncated=False, frames=tuple(frames))
        turn = Turn(self._sample.prompt, decision, Step(self._sample.prompt, terminated=True))
        score = self._task.score(Episode(self._sample, 0, [turn]))
        claim = "Somebody gave no answer." if score.reason else f"Somebody says {score.answer}."
        question = (*self._sample.prompt.content, f"{claim} Check it.")
        return Step(Observation(question, role=ROLES[1]))
