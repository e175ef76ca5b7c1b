"""GUI grounding: click what the instruction names. Rendered screens, or files such as ScreenSpot's (tasks/readers).

The answer is one point `[x, y]` in the coordinates of the policy's frame; it is scored in pixels of the task's image.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

from rewards import parse
from rewards.boxes import in_box
from tasks.base import FORM, OWN_DATA, THINK, Task, answer_markup, check, check_weights, generator, rows_or_drawn
from tasks.data import targets
from tasks.data.images import open_image
from tasks.gui_formats import expressible, format_numbers
from tasks.metrics import accuracy_by, best_constant_click, mean, parse_failures
from tasks.rendering import screens
from vlrl.types import Annotation, Data, Episode, Frame, Observation, Sample, Score, Split

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

TEMPLATES = {
    "short": "{instruction}",
    "guided": "{instruction} Give the point to click as <answer>[x, y]</answer>.",
}
WEIGHTS = {"hit": 1.0, **FORM}
# tags that results are broken down by; `macro` is the mean over the first of these that the samples have
SPLITS = (
    *(("platform", "type"), ("group",), ("type",), ("platform",)),
    *(("ui_type",), ("group", "ui_type"), ("application",), ("kind",)),
)


class GuiGrounding(Task):
    """Samples: (screen, instruction) -> the target's box (x1, y1, x2, y2) in pixels of the screen.

    A split for which `data` names no file is rendered: `pool` training screens, `held_out` others for testing, each of
    `size` (width, height) pixels with up to `objects` widgets, of which `text_share` on average carry a word; `widget`
    bounds their side as a share of the screen's shorter side. `per_screen` consecutive samples ask about one screen.
    Reward parts, both 0 or 1: `hit` (the point is in the box) and `format` (the completion holds a point, in tags).
    Raises UserError for options out of range and, with `on_bad: stop`, for a bad row of a file.
    """

    def __init__(
        self,
        *,
        data: Data = OWN_DATA,
        pool: int = 100_000,
        held_out: int = 512,
        size: tuple[int, int] = (64, 64),
        objects: int = 3,
        text_share: float = 0.2,
        per_screen: int = 1,
        themes: tuple[str, ...] = tuple(screens.THEMES),
        widget: tuple[float, float] = (0.2, 0.34),
        thinking: bool = False,
        template: Literal["short", "guided"] = "short",
        weights: Mapping[str, float] = WEIGHTS,
        seed: int = 0,
    ):
        check(seed >= 0, "seed", seed, "at least 0")
        check(pool > 0, "pool", pool, "at least 1")
        check(held_out > 0, "held_out", held_out, "at least 1")
        check(min(size) >= 48, "size", size, "at least 48 x 48 pixels")
        check(1 <= objects <= len(screens.SHAPES) * len(screens.COLORS), "objects", objects, "1 to 36")
        check(0 <= text_share <= 1, "text_share", text_share, "between 0 and 1")
        check(0.02 <= widget[0] <= widget[1] <= 0.5, "widget", widget, "a smallest and a largest share in 0.02 to 0.5")
        check(len(themes) > 0, "themes", themes, "at least one theme")
        for theme in themes:
            check(theme in screens.THEMES, "themes", theme, f"one of {', '.join(screens.THEMES)}")
        check(template in TEMPLATES, "template", template, f"one of {', '.join(TEMPLATES)}")
        self.weights = check_weights(weights, tuple(WEIGHTS))
        check(per_screen > 0, "per_screen", per_screen, "at least 1")
        self.per_screen = per_screen
        self.thinking, self.template, self.seed, self.themes = thinking, template, seed, tuple(themes)
        self._render = partial(
            screens.render, size=tuple(size), objects=objects, text_share=text_share, widget=tuple(widget)
        )
        self._rendered = {"train": pool, "test": held_out}
        self._targets, self.bad_rows = targets(data)

    def samples(self, split: Split) -> Sequence[Sample]:
        return rows_or_drawn(split, self._targets, self._from_file, self._rendered, self._from_seed)

    def _from_seed(self, split: Split, index: int) -> Sample:
        screen, question = divmod(index, self.per_screen)
        rng = generator(self.seed, split, screen)
        image, widgets = self.render_screen(rng)
        target = widgets[(int(rng.integers(len(widgets))) + question) % len(widgets)]
        prompt = Observation((image, self._text(describe_target(target))))
        box = tuple(map(float, target.box))
        return Sample(f"gui_grounding/{split}/{index:06d}", prompt, box, tags={"type": target.kind})

    def render_screen(self, rng: np.random.Generator) -> tuple[Image.Image, list[screens.Widget]]:
        """A screen in one of the themes, and what can be clicked on it."""
        return self._render(rng, theme=self.themes[rng.integers(len(self.themes))])

    def _from_file(self, split: Split, index: int) -> Sample:
        row = self._targets[split][index]
        prompt = Observation((open_image(row.image), self._text(row.instruction)))
        return Sample(row.id, prompt, row.truth.box, weight=row.weight, tags=row.tags)

    def _text(self, instruction: str) -> str:
        text = TEMPLATES[self.template].format(instruction=instruction)
        return f"{text} {THINK}" if self.thinking else text

    def score(self, episode: Episode) -> Score:
        """Parts `hit` and `format`; a point outside the image is refused, not moved to its border."""
        box, frame = episode.sample.answer, episode.frames[0]
        parsed = parse.answer(episode.completion, self.thinking, read_point)
        formatted = float(parsed.reason is None)
        marks = (Annotation("truth", "box", box),)
        if parsed.reason:
            return Score({"hit": 0.0, "format": formatted}, 0.0, reason=parsed.reason, marks=marks)
        xy = frame.to_original(*parsed.value)
        width, height = frame.original
        inside = 0 <= xy[0] <= width and 0 <= xy[1] <= height
        hit = in_box(xy, box) if inside else 0.0
        return Score(
            {"hit": hit, "format": formatted},
            correct=hit,
            answer=xy if inside else None,
            reason=None if inside else "outside_image",
            marks=(*marks, Annotation("prediction", "point", xy)),
        )

    def gold(self, sample: Sample, frames: Sequence[Frame]) -> str:
        """The completion with the highest score that the frame can express."""
        point = format_numbers(frames[0], expressible(frames[0], sample.answer))
        return answer_markup(json.dumps(point), self.thinking)

    def metrics(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Accuracy by every category that the samples are tagged with, each of them kept, hit or not.

        `micro`: over samples; `macro`: the mean of SeeClick's splits (platform/type), or of ScreenSpot-Pro's groups.
        `best_constant` (`_x`, `_y`): what the best single point, in shares of the image, would hit without looking.
        `zero_hit`: the number of categories without a hit. `parse_fail`: the share of completions that hold no point.
        """
        splits = [accuracy for keys in SPLITS if (accuracy := accuracy_by(episodes, *keys))]
        best, x, y = best_constant_click([e.sample.answer for e in episodes], [e.frames[0].original for e in episodes])
        values = {name: value for accuracy in splits for name, value in accuracy.items()}
        return {
            **{f"by/{name}": value for name, value in values.items()},
            "micro": mean([e.score.correct for e in episodes]),
            **({"macro": mean(list(splits[0].values()))} if splits else {}),
            "best_constant": best, "best_constant_x": x, "best_constant_y": y,
            "zero_hit": float(sum(value == 0 for value in values.values())),
            "parse_fail": parse_failures(episodes),
        }  # fmt: skip


def describe_target(target: screens.Widget) -> str:
    """The instruction to click it."""
    if target.kind == "text":
        return f'Click the {target.color} button "{target.name}".'
    return f"Click the {target.color} {target.name}."


def read_point(text: str) -> parse.Parsed:
    """A point `[x, y]` in a frame's coordinates."""
    literal = parse.literal(text)
    return literal if literal.reason else parse.point(literal.value)
