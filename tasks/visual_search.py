"""Visual search: a question about a detail that is lost when the image is scaled to what the model takes.

Drawn scenes of shapes that carry a small digit each, or files of large images (V*Bench, DeepEyes). The model calls
tools to look closer (tasks/image_tools.py), each in a turn of its own, and then answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from PIL import Image, ImageDraw

from rewards import parse
from rewards import text as rewards_text
from rewards.text import TextTruth
from tasks.base import FORM, OWN_DATA, THINK, Task, answer_markup, check, check_weights, generator, rows_or_drawn
from tasks.context import (
    FULL,
    ContextStrategy,
    ToolEnvironment,
    tool_metrics,
    with_context,
    write_call,
)
from tasks.data import questions
from tasks.data.images import open_image
from tasks.data.rows import read
from tasks.metrics import accuracy_by, parse_failures
from tasks.rendering import scenes, screens
from tasks.rendering.figures import write_quiz
from tasks.rendering.scenes import SceneObject
from tasks.tools import SECONDS, load_tools
from vlrl.types import Annotation, Data, Environment, Episode, Frame, Message, Observation, Sample, Score, Split

SHAPES = ("circle", "square", "triangle", "cross")  # which have room for a digit in their middle
LETTERS = "ABCDEFGHIJ"
ASKS = "Look closer with the tools where you need to, then answer inside <answer> </answer>."
DIGIT = 0.72  # of a font's size, the height of its digits
LIGHT = 382  # the sum of a light colour's channels
STRIPES = ("across", "down", "rising", "falling")
SHADE = 0.3  # of a colour, what its stripes keep
GRAIN = 60  # levels of noise, in which drowns what scaling leaves of stripes
QUESTIONS = {"digit": "Which digit is on the {}?", "stripes": "How do the stripes on the {} run?"}
MARGIN = 0.1  # of a box's longer side, around what a gold answer looks at
WEIGHTS = {"accuracy": 1.0, "tool": 0.0, **FORM}


@dataclass(frozen=True)
class SearchTruth:
    """The right answer, and where it is seen: boxes in pixels of the image, none where that is not known."""

    text: TextTruth
    boxes: tuple[tuple[float, float, float, float], ...] = ()


class VisualSearch(Task):
    """Samples: (image, question) -> a `SearchTruth`.

    A split for which `data` names no file is drawn: shapes of different looks, each with a digit in its middle. With 64
    pixels a side for the model (`policy.max_pixels: 4096`) digits of the default cannot be read. Files:
    `questions.SEARCH`.
    Parts: `accuracy` in [0, 1]; `tool`, 1 for a right answer after a call (DeepEyes pays for that; weight 0); `format`,
    0 where the answer's tags are wrong, else the share of turns without a malformed call.

    Args:
        mark: what a shape carries: a digit, or stripes, which run one of four ways and are easier to tell apart
        detail: the height of a digit, or the distance of two stripes, as a share of its shape's
        digits: those that shapes may carry
        photo_share: of drawn images, those on a photograph, of the split's own (scikit-image's and scikit-learn's)
        tools: names of tasks/image_tools.py, or my_module:function
        tool_timeout_s: seconds that a call may take
        turns: of an episode at most
        look: of an image's sides, the share that gold conversations look at, or more where the target is larger; 0:
            the target alone
        lesson: what a supervised start learns of a sample: its `answer`, or the `call` that looks at the target
        context: what of the conversation is shown: full, last_images or summary (tasks/context.py)
        system: a system message

    Raises UserError for options out of range, unknown tools and bad rows.
    """

    def __init__(
        self,
        *,
        data: Data = OWN_DATA,
        pool: int = 100_000,
        held_out: int = 512,
        size: tuple[int, int] = (512, 512),
        objects: tuple[int, int] = (3, 5),
        side: tuple[float, float] = (0.12, 0.16),
        mark: Literal["digit", "stripes"] = "digit",
        detail: float = 0.15,
        digits: str = "0123456789",
        photo_share: float = 0.0,
        tools: tuple[str, ...] = ("zoom",),
        tool_timeout_s: float = SECONDS,
        turns: int = 3,
        look: float = 0.0,
        lesson: Literal["answer", "call"] = "answer",
        context: ContextStrategy = FULL,
        system: str = "",
        thinking: bool = False,
        template: Literal["short", "guided"] = "guided",
        weights: Mapping[str, float] = WEIGHTS,
        seed: int = 0,
    ):
        scenes.check_drawing("plain", pool, held_out, size, objects, side)
        check(objects[1] <= len(SHAPES) * len(screens.COLORS), "objects", objects, "looks that differ: 24 at most")
        check(0 < detail <= 0.5, "detail", detail, "above 0 and at most 0.5")
        check(len(set(digits)) > 1 and digits.isdigit() and digits.isascii(), "digits", digits, "two digits or more")
        check(0 <= photo_share <= 1, "photo_share", photo_share, "a share, 0 to 1")
        check(0 <= look <= 1, "look", look, "a share, 0 to 1")
        check(turns > 0, "turns", turns, "at least 1")
        check(tool_timeout_s > 0, "tool_timeout_s", tool_timeout_s, "above 0 seconds")
        check(template in ("short", "guided"), "template", template, "short or guided")
        check(seed >= 0, "seed", seed, "at least 0")
        self.weights = check_weights(weights, tuple(WEIGHTS))
        self.toolbox, self.context, self.turns, self.tool_timeout_s = load_tools(tools), context, turns, tool_timeout_s
        self.thinking, self.template, self.system, self.seed = thinking, template, system, seed
        self.look, self.mark, self.lesson = look, mark, lesson
        self._draw = partial(
            draw_search, size=tuple(size), objects=tuple(objects), side=tuple(side), detail=detail, digits=digits,
            photo_share=photo_share, mark=mark,
        )  # fmt: skip
        self._drawn = {"train": pool, "test": held_out}
        self._rows, self.bad_rows = read(data, questions.SEARCH)

    def samples(self, split: Split) -> Sequence[Sample]:
        return rows_or_drawn(split, self._rows, self._from_file, self._drawn, self._from_seed)

    def _from_seed(self, split: Split, index: int) -> Sample:
        image, look, truth = self._draw(generator(self.seed, split, index), split)
        question = QUESTIONS[self.mark].format(look)
        if self.mark == "stripes" and self.template == "guided":
            question = f"{question[:-1]}: {', '.join(STRIPES[:-1])} or {STRIPES[-1]}?"
        prompt = self._prompt((image,), question, truth.text)
        return Sample(f"visual_search/{split}/{index:06d}", prompt, truth)

    def _from_file(self, split: Split, index: int) -> Sample:
        row = self._rows[split][index]
        images = tuple(map(open_image, row.images))
        prompt = self._prompt(images, row.question, row.truth)
        return Sample(row.id, prompt, SearchTruth(row.truth, row.boxes), row.weight, {**row.tags})

    def _prompt(self, images: Sequence[Image.Image], question: str, truth: TextTruth) -> Observation:
        listed = "".join(f"\n({letter}) {option}" for letter, option in zip(LETTERS, truth.options, strict=False))
        asks = [ASKS] if self.template == "guided" else []
        text = " ".join([question + listed, *asks, *([THINK] if self.thinking else [])])
        system = [Message("system", (self.system,))] if self.system else []
        return Observation.from_messages([*system, Message("user", (*images, text))], self.toolbox.schemas)

    def environment(self, sample: Sample) -> Environment:
        script = [partial(self._look, sample)] if {"zoom", "crop"} & self.toolbox.tools.keys() else []
        script = [*script, partial(self.gold, sample)][-self.turns :]
        inner = ToolEnvironment(sample.prompt, self.toolbox, self.turns, self.tool_timeout_s, script)
        return with_context(inner, self.context)

    def _look(self, sample: Sample, frames: Sequence[Frame]) -> str:
        """The call that looks at all that the answer needs."""
        width, height = sample.prompt.images[0].size
        boxes = sample.answer.boxes or ((0, 0, width, height),)
        x1, y1, x2, y2 = (edge(box[i] for box in boxes) for i, edge in enumerate((min, min, max, max)))
        margin = 2 * MARGIN * max(x2 - x1, y2 - y1)
        x1, x2 = _widen(x1, x2, max(x2 - x1 + margin, self.look * width), width)
        y1, y2 = _widen(y1, y2, max(y2 - y1 + margin, self.look * height), height)
        start, end = frames[0].from_original(x1, y1), frames[0].from_original(x2, y2)
        box = [number if frames[0].space == "rel1" else int(number) for number in (*start, *end)]
        thought = "<think>I look closer.</think>\n" if self.thinking else ""
        return thought + write_call("zoom" if "zoom" in self.toolbox.tools else "crop", {"box": box})

    def score(self, episode: Episode) -> Score:
        """Parts `accuracy`, `tool` and `format`; what is no answer in its tags earns nothing."""
        truth: TextTruth = episode.sample.answer.text
        calls, malformed = (
            sum(turn.step.info.get(name, 0.0) > 0 for turn in episode.turns)
            for name in ("tool_calls", "malformed_calls")
        )
        form = 1 - malformed / max(1, len(episode.turns))
        parsed = parse.answer_text(episode.completion, self.thinking)
        marks = (Annotation("truth", "text", label=truth.answer), *_boxes(episode.sample.answer))
        if parsed.reason or not parsed.value.strip():
            parts = {"accuracy": 0.0, "tool": 0.0, "format": 0.0}
            return Score(parts, 0.0, reason=parsed.reason or "empty_answer", marks=marks)
        grade = rewards_text.grade(parsed.value, truth)
        parts = {"accuracy": grade.value, "tool": float(grade.correct > 0 and calls > malformed), "format": form}
        if grade.reason:
            return Score(parts, 0.0, reason=grade.reason, marks=marks)
        annotation = Annotation("prediction", "text", label=parsed.value)
        return Score(parts, grade.correct, answer=parsed.value.strip(), marks=(*marks, annotation))

    def truth(self, value: Any) -> SearchTruth:
        """The truth from JSON, as `questions.read_truth`; where it is seen is not known."""
        return SearchTruth(questions.read_truth(value))

    def gold(self, sample: Sample, frames: Sequence[Frame]) -> str:
        """The right answer, which needs no look where it is known; with `lesson: call`, the look."""
        return self._look(sample, frames) if self.lesson == "call" else self._answer(sample)

    def _answer(self, sample: Sample) -> str:
        truth: TextTruth = sample.answer.text
        letter = LETTERS[truth.options.index(truth.answer)] if truth.answer in truth.options else truth.answer
        return answer_markup(letter, self.thinking)

    def metrics(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """How tools are used (`tool_metrics`), accuracy with and without a call and by category, parse failures."""
        truths = Counter(episode.sample.answer.text.answer for episode in episodes)
        by_call: dict[bool, list[float]] = {True: [], False: []}
        for episode in episodes:
            by_call[any(turn.step.info.get("tool_calls") for turn in episode.turns)].append(episode.score.correct)
        return {
            **tool_metrics(episodes),
            **{f"accuracy_{name}": float(np.mean(by_call[called])) for called, name in
               ((True, "with_tools"), (False, "without_tools")) if by_call[called]},
            **{f"category/{name}": value for name, value in accuracy_by(episodes, "category").items()},
            "most_frequent_answer": max(truths.values(), default=0) / max(len(episodes), 1),
            "parse_fail": parse_failures(episodes),
        }  # fmt: skip


def draw_search(
    rng: np.random.Generator, split: Split, *, size: tuple[int, int], objects: tuple[int, int],
    side: tuple[float, float], detail: float, digits: str, photo_share: float = 0.0, mark: str = "digit",
) -> tuple[Image.Image, str, SearchTruth]:  # fmt: skip
    """A scene, the look of the shape that is asked for (`red circle`), and its digit."""
    looks = [(shape, color) for shape in SHAPES for color in screens.COLORS]
    count = int(rng.integers(objects[0], objects[1] + 1))
    chosen = [looks[int(i)] for i in rng.permutation(len(looks))[:count]]
    image, things = scenes.draw(
        rng, split, size=size, looks=[((shape,), (color,)) for shape, color in chosen], patterns=("plain",), side=side,
        photo_share=photo_share,
    )  # fmt: skip
    carried = [_mark(rng, image, thing, detail, digits if mark == "digit" else STRIPES) for thing in things]
    target = int(rng.integers(len(things)))
    thing = things[target]
    x1, y1, x2, y2 = map(float, thing.box)
    truth = SearchTruth(TextTruth("number" if mark == "digit" else "text", carried[target]), ((x1, y1, x2, y2),))
    return image, f"{thing.color} {thing.shape}", truth


def _mark(rng: np.random.Generator, image: Image.Image, thing: SceneObject, detail: float, marks: Sequence[str]) -> str:
    """Puts one of the marks on a shape -> which."""
    chosen = marks[int(rng.integers(len(marks)))]
    x1, y1, x2, y2 = thing.box
    color = screens.COLORS[thing.color]
    if chosen.isdigit():
        ink = (0, 0, 0) if sum(color) > LIGHT else (255, 255, 255)
        write_quiz(ImageDraw.Draw(image), ((x1 + x2) / 2, (y1 + y2) / 2), chosen, detail * thing.side / DIGIT, ink)
        return chosen
    part = np.array(image.crop(thing.box))
    y, x = np.mgrid[: y2 - y1, : x2 - x1]
    along = {"across": y, "down": x, "rising": (x + y) / np.sqrt(2), "falling": (x - y) / np.sqrt(2)}[chosen]
    distance = detail * thing.side
    dark = (along + rng.uniform(0, distance)) % distance < distance / 2
    inside = (part == color).all(-1)
    tone = np.where(dark[..., None], np.asarray(color) * SHADE, color) + rng.normal(0, GRAIN, part.shape)
    part[inside] = tone.clip(0, 255)[inside]
    image.paste(Image.fromarray(part), (x1, y1))
    return chosen


def _widen(start: float, end: float, length: float, limit: float) -> tuple[float, float]:
    """The span of this length around the middle of another, moved and cut so that it lies within 0 and `limit`."""
    first = min(max(0.0, (start + end - length) / 2), max(0.0, limit - length))
    return first, min(limit, first + length)


def _boxes(truth: SearchTruth) -> tuple[Annotation, ...]:
    return tuple(Annotation("truth", "box", box) for box in truth.boxes)
