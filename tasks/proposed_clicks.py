"""Asymmetric self-play: a proposer points at a control of a screen, solvers click what is then described in words.

They share one policy and are told apart by their prompts (`Observation.role`). A proposal is a place, and the question
about it is drawn, so that every answer can be checked. Held-out samples are plain GUI grounding, which nobody proposes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np

from rewards import parse
from rewards.boxes import in_box
from tasks.base import FORM, Rendered, SingleTurn, Task, answer_markup, check, check_weights, generator
from tasks.gui_formats import expressible, format_numbers
from tasks.gui_grounding import GuiGrounding, describe_target, read_point
from tasks.rendering import screens
from vlrl.types import Annotation, Environment, Episode, Frame, Observation, Sample, Score, Split, Step

PROPOSER, SOLVER = ROLES = ("proposer", "solver")
WEIGHTS = {"solved": 1.0, "valid": 0.0, **FORM}
ASK = "Click the {color}."  # ambiguous: the question then names kind, name and color of what is clicked


class ProposedClicks(Task):
    """Samples: a screen to propose from; held out: those of `gui_grounding`. Turns: a proposal, then `attempts` clicks.

    Parts: `solved`, the share of hits; `valid`, 0 or 1, whether the proposal lies on a control; `format`, the share of
    turns with a point. A click's step earns 1 where it hits (`Step.reward`); who is to be paid for what else is a
    process reward's (`proposer_solver`). Correct: solved. Raises UserError for options out of range.

    Args:
        attempts: clicks for each proposal.
        ask: the proposer's instruction; a random color in the place of {color} keeps proposals diverse.
    """

    def __init__(
        self, *, pool: int = 100_000, held_out: int = 512, size: tuple[int, int] = (64, 64), objects: int = 4,
        text_share: float = 0.5, widget: tuple[float, float] = (0.14, 0.28), attempts: int = 4,
        ask: str = ASK, weights: Mapping[str, float] = WEIGHTS, seed: int = 0,
    ):  # fmt: skip
        self.clicks = GuiGrounding(
            pool=pool, held_out=held_out, size=size, objects=objects, text_share=text_share, widget=widget, seed=seed
        )
        check(attempts >= 1, "attempts", attempts, "at least 1")
        self.weights, self.attempts = check_weights(weights, tuple(WEIGHTS)), attempts
        self._ask, self._pool, self._seed = ask, pool, seed

    def samples(self, split: Split) -> Sequence[Sample]:
        return Rendered(self._pool, self._screen) if split == "train" else self.clicks.samples(split)

    def _screen(self, index: int) -> Sample:
        rng = generator(self._seed, "train", index)
        image, _ = self.clicks.render_screen(rng)
        ask = self._ask.replace("{color}", rng.choice(tuple(screens.COLORS)))
        return Sample(f"proposed_clicks/train/{index:06d}", Observation((image, ask), role=PROPOSER))

    def environment(self, sample: Sample) -> Environment:
        if sample.prompt.role != PROPOSER:
            return SingleTurn(sample.prompt)
        _, widgets = self.clicks.render_screen(generator(self._seed, "train", int(sample.id.rpartition("/")[2])))
        return Proposed(sample.prompt, widgets, self.attempts)

    def score(self, episode: Episode) -> Score:
        if episode.sample.answer is not None:  # a held-out question
            plain = self.clicks.score(episode)
            parts = {"solved": plain.parts["hit"], "valid": 1.0, "format": plain.parts["format"]}
            return Score(parts, plain.correct, plain.answer, plain.reason, plain.marks)
        points = [parse.answer(str(turn.decision.action), False, read_point) for turn in episode.turns]
        solved = [turn.step.reward for turn in episode.turns[1:]]
        share = sum(solved) / len(solved) if solved else 0.0
        read = sum(each.reason is None for each in points) / len(points)
        first, marks = points[0], ()
        if first.reason is None:
            xy = episode.turns[0].decision.frames[0].to_original(*first.value)
            marks = (Annotation("prediction", "point", xy, label="proposed"),)
        parts = {"solved": share, "valid": float(bool(solved)), "format": read}
        return Score(parts, share, first.value, first.reason, marks)

    def gold(self, sample: Sample, frames: Sequence[Frame]) -> str | None:
        """The completion with the highest score of a held-out question; training's environments know theirs."""
        return None if sample.answer is None else self.clicks.gold(sample, frames)

    def metrics(self, episodes: Sequence[Episode]) -> dict[str, float]:
        return self.clicks.metrics(episodes)


class Proposed(Environment):
    """Asks the proposer, then `attempts` solvers for what it pointed at, each of whom sees the question alone."""

    def __init__(self, prompt: Observation, widgets: Sequence[screens.Widget], attempts: int):
        self._prompt, self._widgets, self._left = prompt, widgets, attempts
        self._target: screens.Widget | None = None

    def reset(self) -> Observation:
        return self._prompt

    def gold(self, frames: Sequence[Frame]) -> str:
        """The click on the target; of the proposer, one on any control."""
        box = (self._target or self._widgets[0]).box
        point = format_numbers(frames[0], expressible(frames[0], tuple(map(float, box))))
        return answer_markup(json.dumps(point), False)

    def step(self, action: str | np.ndarray, frames: Sequence[Frame] = ()) -> Step:
        point = parse.answer(str(action), False, read_point)
        xy = None if point.reason else frames[0].to_original(*point.value)
        if self._target is None:
            self._target = next((each for each in self._widgets if xy and in_box(xy, each.box)), None)
            if self._target is None:
                return Step(self._prompt, terminated=True)
            self._prompt = Observation((*self._prompt.images, describe_target(self._target)), role=SOLVER)
            return Step(self._prompt)
        self._left -= 1
        hit = 0.0 if xy is None else in_box(xy, self._target.box)
        return Step(self._prompt, hit, terminated=self._left == 0)
