"""Two agents count: a solver answers, a checker sees the picture and the answer, and has the last word.

They share one policy and one outcome, and are told apart by their prompts (`Observation.role`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rewards import parse
from rewards.boxes import exact_count
from tasks.base import FORM, Task, check_weights
from tasks.counting import Counting
from vlrl.types import Annotation, Environment, Episode, Frame, Observation, Sample, Score, Split, Step

ROLES = ("solver", "checker")
WEIGHTS = {"final": 1.0, "solver": 0.5, **FORM}


class CheckedCounting(Task):
    """Samples: those of `counting`, drawn; two turns. Parts: `final` and `solver`, 0 or 1, whether the checker's and
    the solver's number is right, and `format`, the share of turns with an answer. Correct: final.

    Raises UserError for options out of range.
    """

    def __init__(
        self, *, pool: int = 100_000, held_out: int = 512, size: tuple[int, int] = (64, 64),
        objects: tuple[int, int] = (2, 5), thinking: bool = False, weights: Mapping[str, float] = WEIGHTS,
        seed: int = 0,
    ):  # fmt: skip
        self.weights, self.thinking = check_weights(weights, tuple(WEIGHTS)), thinking
        self._counting = Counting(
            pool=pool, held_out=held_out, size=size, objects=objects, thinking=thinking, seed=seed
        )

    def samples(self, split: Split) -> Sequence[Sample]:
        return self._counting.samples(split)

    def environment(self, sample: Sample) -> Checked:
        return Checked(sample.prompt, self.thinking)

    def score(self, episode: Episode) -> Score:
        truth = episode.sample.answer
        parsed = [parse.answer(str(turn.decision.action), self.thinking, parse.count) for turn in episode.turns]
        right = [0.0 if each.reason else exact_count(each.value, truth) for each in parsed]
        read = sum(each.reason is None for each in parsed)
        parts = {"final": right[-1], "solver": right[0], "format": read / len(parsed)}
        annotations = [Annotation("prediction", "text", label=str(each.value), image=i)
                for i, each in enumerate(parsed) if each.reason is None]  # fmt: skip
        marks = (Annotation("truth", "text", label=str(truth)), *annotations)
        return Score(parts, right[-1], parsed[-1].value, parsed[-1].reason, marks)

    def gold(self, sample: Sample, frames: Sequence[Frame]) -> str:
        """The right number, of either role."""
        return self._counting.gold(sample, frames)

    def metrics(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """How often the checker put a wrong answer right, and a right one wrong, of all episodes."""
        both = [(episode.score.parts["solver"], episode.score.parts["final"]) for episode in episodes]
        return {
            "mended": sum(after > before for before, after in both) / max(1, len(both)),
            "spoilt": sum(after < before for before, after in both) / max(1, len(both)),
        }


class Checked(Environment):
    """Asks the solver, then the checker with the number that was read off the solver's answer."""

    def __init__(self, prompt: Observation, thinking: bool):
        self._prompt, self._thinking = prompt, thinking
        self._turn: int | None = None

    def reset(self) -> Observation:
        if self._turn is not None:
            raise RuntimeError("an environment is made for one episode: make a new one")
        self._turn = 0
        return Observation(self._prompt.content, role=ROLES[0])

    def step(self, action: str | np.ndarray, frames: Sequence[Frame] = ()) -> Step:
        if self._turn not in (0, 1):
            raise RuntimeError("two steps after one reset, then make a new environment")
        self._turn += 1
        parsed = parse.answer(str(action), self._thinking, parse.count)
        claim = "Somebody gave no number." if parsed.reason else f"Somebody says {parsed.value}."
        observation = Observation((*self._prompt.content, f"{claim} Check it."), role=ROLES[1])
        return Step(observation, terminated=self._turn == 2)
