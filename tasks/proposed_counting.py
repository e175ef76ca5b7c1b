"""Asymmetric self-play: a proposer says how many objects a new picture is to show, solvers count them.

They share one policy and are told apart by their prompts (`Observation.role`). What is asked is drawn, so that every
answer can be checked. Held-out samples are plain counting, which nobody proposes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from rewards import parse
from rewards.boxes import exact_count
from tasks.base import FORM, Rendered, SingleTurn, Task, answer_markup, check, check_weights, generator
from tasks.counting import Counting
from tasks.rendering import scenes
from vlrl.types import Annotation, Environment, Episode, Frame, Observation, Sample, Score, Split, Step

PROPOSER, SOLVER = ROLES = ("proposer", "solver")
WEIGHTS = {"solved": 1.0, "valid": 0.0, **FORM}
ASK = "Somebody will count every {label} in a new picture. How many shall it show, 1 to {most}?"
Question = tuple[Observation, int]  # what a solver sees, and the right number


class ProposedCounting(Task):
    """Samples: a picture to propose from; held out: those of `counting`. Turns: the proposal, then `attempts` answers.

    Parts: `solved`, the share of right answers; `valid`, 0 or 1, whether the proposal could be drawn; `format`, the
    share of turns with an answer. An answer's step earns 1 where it is right (`Step.reward`); who is to be paid for
    what else is a process reward's (`proposer_solver`). Correct: solved. Raises UserError for options out of range.

    Args:
        attempts: answers to each proposal.
        most: objects that may be proposed; a picture shows as many as it has room for.
    """

    def __init__(
        self, *, pool: int = 100_000, held_out: int = 512, size: tuple[int, int] = (64, 64),
        objects: tuple[int, int] = (2, 5), attempts: int = 4, most: int = 9,
        weights: Mapping[str, float] = WEIGHTS, seed: int = 0,
    ):  # fmt: skip
        check(attempts >= 1, "attempts", attempts, "at least 1")
        check(1 <= most <= 50, "most", most, "1 to 50")
        self.weights, self.attempts, self.most = check_weights(weights, tuple(WEIGHTS)), attempts, most
        self._counting = Counting(pool=pool, held_out=held_out, size=size, objects=objects, source="plain", seed=seed)
        self._pool, self._size, self._seed = pool, tuple(size), seed

    def samples(self, split: Split) -> Sequence[Sample]:
        return Rendered(self._pool, self._source) if split == "train" else self._counting.samples(split)

    def _source(self, index: int) -> Sample:
        """A picture, and the question for how many of its label the next one is to show."""
        rng = generator(self._seed, "train", index)
        label, labels = scenes.choose_labels(rng, scenes.SOURCES["plain"].labels, (2, 4), 0.0)
        image, _ = scenes.SOURCES["plain"].draw(rng, "train", labels, self._size, (0.12, 0.2))
        prompt = Observation((image, ASK.format(label=label, most=self.most)), role=PROPOSER)
        return Sample(f"proposed_counting/train/{index:06d}", prompt, tags={"label": label})

    def environment(self, sample: Sample) -> Environment:
        if sample.prompt.role != PROPOSER:
            return SingleTurn(sample.prompt)
        return Proposed(sample.prompt, self.attempts, lambda count: self._question(sample, count))

    def _question(self, sample: Sample, count: int | None) -> Question | None:
        """A new picture of what was proposed, the same whenever the same is; None: it cannot be drawn."""
        if count is None or not 1 <= count <= self.most:
            return None
        rng, label = np.random.default_rng([self._seed, int(sample.id[-6:]), count]), sample.tags["label"]
        image, objects = scenes.SOURCES["plain"].draw(rng, "train", [label] * count, self._size, (0.12, 0.2))
        return Observation((image, f"Count every {label}."), role=SOLVER), len(objects)

    def score(self, episode: Episode) -> Score:
        answers = [parse.answer(str(turn.decision.action), False, parse.count) for turn in episode.turns]
        read = sum(each.reason is None for each in answers) / len(answers)
        if episode.sample.answer is not None:  # a held-out question
            exact = 0.0 if answers[0].reason else exact_count(answers[0].value, episode.sample.answer)
            return Score({"solved": exact, "valid": 1.0, "format": read}, exact, answers[0].value, answers[0].reason)
        solved = [turn.step.reward for turn in episode.turns[1:]]
        share = sum(solved) / len(solved) if solved else 0.0
        marks = (Annotation("prediction", "text", label=f"proposed {answers[0].value}"),)
        parts = {"solved": share, "valid": float(bool(solved)), "format": read}
        return Score(parts, share, answers[0].value, answers[0].reason, marks)

    def gold(self, sample: Sample, frames: Sequence[Frame]) -> str | None:
        """The right number of a held-out question; training's environments know theirs."""
        return None if sample.answer is None else self._counting.gold(sample, frames)

    def metrics(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """The share of turns that could be read."""
        return {"format": sum(e.score.part("format") for e in episodes) / max(1, len(episodes))}


class Proposed(Environment):
    """Asks the proposer, then `attempts` solvers the same question, each of whom sees it alone."""

    def __init__(self, prompt: Observation, attempts: int, draw: Callable[[int | None], Question | None]):
        self._prompt, self._left, self._draw = prompt, attempts, draw
        self._question: Question | None = None

    def reset(self) -> Observation:
        return self._prompt

    def gold(self, frames: Sequence[Frame]) -> str:
        """The right answer; of the proposer one that is easy to answer."""
        return answer_markup(str(self._question[1] if self._question else 1), False)

    def step(self, action: str | np.ndarray, frames: Sequence[Frame] = ()) -> Step:
        parsed = parse.answer(str(action), False, parse.count)
        number = None if parsed.reason else parsed.value
        if self._question is None:
            self._question = self._draw(number)
            return Step(self._question[0] if self._question else self._prompt, terminated=self._question is None)
        self._left -= 1
        observation, truth = self._question
        return Step(observation, float(number is not None and exact_count(number, truth)), terminated=self._left == 0)
