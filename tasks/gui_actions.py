"""GUI action prediction: the next action on a screen, as UI-R1, GUI-R1 or GUI-G1 ask for it and pay for it.

Rendered screens, or files of ScreenSpot, UI-R1, GUI-R1, GUI-G1, OS-Atlas and GUI-Odyssey (docs/gui_data.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Literal

from rewards.gui import PLACED, Action
from tasks.base import FORM, OWN_DATA, Task, check, check_weights, generator, rows_or_drawn
from tasks.data import actions
from tasks.data.images import open_image
from tasks.gui_formats import SYSTEMS, GuiTruth, ParsedAnswer, System, right_step
from tasks.metrics import ScoredStep
from tasks.metrics import metrics as metrics_metrics
from tasks.rendering import screens
from tasks.rendering.screens import question, two_steps
from vlrl.types import Annotation, Data, Episode, Frame, Observation, Sample, Score, Split

Name = Literal[
    "ui_r1", "ui_r1_e", "ui_r1_nothink", "gui_r1", "gui_r1_low", "gui_r1_android", "gui_r1_odyssey",
    "gui_r1_omniact_web", "gui_g1", "plain",
]  # fmt: skip
WEIGHTS = {"accuracy": 1.0, **FORM}  # of `plain`


class GuiActions(Task):
    """Samples: (screen, instruction, history) -> the right action, a `gui_formats.GuiTruth` in pixels of the screen.

    `system` is how a paper asks and pays (gui_prompts.py): its prompt byte for byte, its kinds of actions, its
    reward parts and weights; `plain` is short and without thoughts. Correct: kind and argument are right, whatever is
    paid; UI-R1's prompt has no place for a text, so there only the place of a click is an argument.
    A split for which `data` names no file is rendered, as in GUI grounding: `pool` training and `held_out` test screens
    of `size` pixels with up to `objects` widgets, of which `text_share` carry a word; `widget` bounds their side as a
    share of the screen's shorter side. `level` high names two steps, of which the first may be in the history.
    A data set's weight of a row (GUI-G1's `rate`) becomes the sample's.
    Raises UserError for options out of range and, with `on_bad: stop`, for a bad row of a file.
    """

    def __init__(
        self,
        *,
        data: Data = OWN_DATA,
        system: Name = "plain",
        level: Literal["low", "high"] = "low",
        pool: int = 100_000,
        held_out: int = 512,
        size: tuple[int, int] = (64, 64),
        objects: int = 3,
        text_share: float = 0.2,
        widget: tuple[float, float] = (0.2, 0.34),
        weights: Mapping[str, float] | None = None,
        seed: int = 0,
    ):
        check(seed >= 0, "seed", seed, "at least 0")
        check(pool > 0, "pool", pool, "at least 1")
        check(held_out > 0, "held_out", held_out, "at least 1")
        check(min(size) >= 48, "size", size, "at least 48 x 48 pixels")
        check(1 <= objects <= len(screens.SHAPES) * len(screens.COLORS), "objects", objects, "1 to 36")
        check(0 <= text_share <= 1, "text_share", text_share, "between 0 and 1")
        check(0.02 <= widget[0] <= widget[1] <= 0.5, "widget", widget, "a smallest and a largest share in 0.02 to 0.5")
        check(system in SYSTEMS, "system", system, f"one of {', '.join(SYSTEMS)}")
        self.system: System = SYSTEMS[system]
        paid = WEIGHTS if system == "plain" else self.system.family.weights
        self.weights = check_weights(paid if weights is None else weights, tuple(paid))
        self.thinking, self.level, self.seed = self.system.thinking, level, seed
        self._render = partial(
            screens.render, size=tuple(size), objects=objects, text_share=text_share, widget=tuple(widget)
        )
        self._rendered = {"train": pool, "test": held_out}
        boxes = "hit" in paid  # GUI-G1 answers with a box
        self._rows, self.bad_rows = actions(data, self.system.kinds, self.system.texts, boxes)

    def samples(self, split: Split) -> Sequence[Sample]:
        return rows_or_drawn(split, self._rows, self._from_file, self._rendered, self._from_seed)

    def _from_seed(self, split: Split, index: int) -> Sample:
        rng = generator(self.seed, split, index)
        theme = tuple(screens.THEMES)[rng.integers(len(screens.THEMES))]
        image, widgets = self._render(rng, theme=theme)
        if self.level == "high":
            shows_history = "{history}" in self.system.template
            instruction, history, truth = two_steps(rng, widgets, self.system.kinds, shows_history)
        else:
            (instruction, truth), history = question(rng, widgets, self.system.kinds), "None"
        prompt = Observation(self.system.content(image, f"{instruction}.", history))
        return Sample(f"gui_actions/{split}/{index:06d}", prompt, self._judged(truth))

    def _from_file(self, split: Split, index: int) -> Sample:
        row = self._rows[split][index]
        system = SYSTEMS[self.system.low] if row.level == "low" and self.system.low else self.system
        prompt = Observation(system.content(open_image(row.image), row.instruction, row.history))
        return Sample(row.id, prompt, self._judged(row.truth), weight=row.weight, tags=row.tags)

    def _judged(self, truth: GuiTruth) -> GuiTruth:
        """The truth without what the prompt gives no way to say."""
        return truth if self.system.texts else replace(truth, text="")

    def score(self, episode: Episode) -> Score:
        """The system's reward parts, in pixels of the image. A click beside the image is wrong."""
        truth, frame, family = _truth(episode.sample.answer), episode.frames[0], self.system.family
        parsed = family.read(episode.completion, self.thinking)
        answer = parsed.value.in_pixels(frame) if parsed.value else None
        marks = _truth_marks(truth)
        if answer is None or not all(map(math.isfinite, (*(answer.action.point or ()), *answer.box))):
            nothing = dict.fromkeys(family.weights, 0.0)
            return Score(nothing, 0.0, reason=parsed.reason or "not_finite", marks=marks)
        return Score(
            family.parts(answer, truth, frame),
            correct=right_step(answer.action, truth, frame.original),
            answer=asdict(answer.action),
            marks=(*marks, *_marks(answer)),
        )

    def gold(self, sample: Sample, frames: Sequence[Frame]) -> str:
        """The completion with the highest score that the frame can express."""
        family = self.system.family
        return family.write(family.gold(_truth(sample.answer), frames[0]), self.thinking)

    def metrics(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """See `tasks.metrics.metrics`."""
        return metrics_metrics([ScoredStep(_truth(e.sample.answer), _action(e.score.answer), e) for e in episodes])


def _truth(answer: Any) -> GuiTruth:
    """The truth of a sample; a saved row has it as plain data."""
    return answer if isinstance(answer, GuiTruth) else GuiTruth(**answer)


def _action(answer: Mapping[str, Any] | None) -> Action | None:
    """The action that a score holds."""
    return Action(**answer) if answer else None


def _truth_marks(truth: GuiTruth) -> tuple[Annotation, ...]:
    if truth.kind in PLACED:
        return (Annotation("truth", "box" if truth.box else "point", truth.region, truth.kind),)
    return (Annotation("truth", "text", label=" ".join(filter(None, (truth.kind, truth.text)))),)


def _marks(answer: ParsedAnswer) -> tuple[Annotation, ...]:
    action = answer.action
    if answer.box:
        return (Annotation("prediction", "box", answer.box, action.kind),)
    if action.kind in PLACED and action.position:
        return (Annotation("prediction", "point", action.position, action.kind),)
    return (Annotation("prediction", "text", label=" ".join(filter(None, (action.kind, action.words)))),)
