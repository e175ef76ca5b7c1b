"""Referring expressions: box the one object that a phrase means. Drawn scenes, or files such as RefCOCO's.

The answer is one box, `[x1, y1, x2, y2]` or `{"bbox_2d": [...]}` alone or in a list, in the coordinates of the frame.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal

import numpy as np
from PIL import Image

from rewards import boxes, parse
from rewards.detection import vlm_r1_one_box
from tasks.base import (
    FORM,
    OWN_DATA,
    THINK,
    Task,
    answer_markup,
    check,
    check_weights,
    count_from,
    format_question,
    generator,
    rows_or_drawn,
)
from tasks.data import records, referring
from tasks.data.images import open_image
from tasks.gui_formats import as_exact, corners, located
from tasks.metrics import accuracy_by, best_constant_box, parse_failures
from tasks.metrics import referring as metrics_referring
from tasks.rendering import scenes, screens
from tasks.rendering.scenes import by_place, check_drawing, fitting
from vlrl.types import Annotation, Data, Episode, Frame, Observation, Sample, Score, Split

TEMPLATES = {
    "short": "Find the {phrase}.",
    "guided": "Find the {phrase}. Give its box as <answer>[x1, y1, x2, y2]</answer>.",
    "vlm_r1": "Please provide the bounding box coordinate of the region this sentence describes: {phrase}.",
}
VLM_R1_THINK = (
    "First output the thinking process in <think> </think> tags and then output the final answer in <answer> </answer> "
    "tags. Output the final answer in JSON format."
)
COLORS = tuple(screens.COLORS)
WEIGHTS = count_from(0.2, {"iou": 1.0, **FORM})
CORRECT = 0.5  # RefCOCO's Acc@0.5: from this IoU on


class Referring(Task):
    """Samples: (scene, phrase) -> the box (x1, y1, x2, y2) in pixels of the scene.

    A split for which `data` names no file is drawn: `pool` scenes to train on, `held_out` others to test on, `size`
    (width, height) pixels, with `objects` (least, most) shapes of `patterns`, whose side is a share `side` of the
    scene's shorter one, on photographs in `photo_share` of the scenes. `places_share` of the phrases, where one
    fits, say by place or size which of several shapes is meant; at 1 all of them, at 0 none. `per_scene`
    consecutive samples ask about one scene.
    Parts as VLM-R1 has them (weights 1 and 1): `iou` in [0, 1] and `format` 0 or 1. Correct: IoU of at least 0.5.
    Raises UserError for options out of range and for bad rows.
    """

    def __init__(
        self,
        *,
        data: Data = OWN_DATA,
        pool: int = 100_000,
        held_out: int = 512,
        size: tuple[int, int] = (64, 64),
        objects: tuple[int, int] = (2, 4),
        side: tuple[float, float] = (0.25, 0.42),
        patterns: tuple[str, ...] = scenes.PATTERNS,
        photo_share: float = 0.8,
        places_share: float = 0.5,
        per_scene: int = 1,
        thinking: bool = False,
        template: Literal["short", "guided", "vlm_r1"] = "short",
        weights: Mapping[str, float] = WEIGHTS,
        seed: int = 0,
    ):
        check_drawing("scenes", pool, held_out, size, objects, side)
        known = set(patterns) <= set(scenes.PATTERNS) and patterns
        check(bool(known), "patterns", patterns, f"some of {', '.join(scenes.PATTERNS)}")
        check(0 <= photo_share <= 1, "photo_share", photo_share, "between 0 and 1")
        check(0 <= places_share <= 1, "places_share", places_share, "between 0 and 1")
        check(per_scene > 0, "per_scene", per_scene, "at least 1")
        check(template in TEMPLATES, "template", template, f"one of {', '.join(TEMPLATES)}")
        check(seed >= 0, "seed", seed, "at least 0")
        self.weights = check_weights(weights, tuple(WEIGHTS))
        self.per_scene, self.places_share, self.seed = per_scene, places_share, seed
        self.thinking, self.template, self._objects = thinking, template, tuple(objects)
        self._draw = partial(
            scenes.draw, size=tuple(size), patterns=tuple(patterns), side=tuple(side),
            photo_share=photo_share,
        )  # fmt: skip
        self._drawn = {"train": pool, "test": held_out}
        self._rows, self.bad_rows = referring(data)

    def samples(self, split: Split) -> Sequence[Sample]:
        return rows_or_drawn(split, self._rows, self._from_file, self._drawn, self._from_seed)

    def _from_seed(self, split: Split, index: int) -> Sample:
        scene, question = divmod(index, self.per_scene)
        rng = generator(self.seed, split, scene)
        image, askable = self._scene(rng, split)
        first = int(rng.integers(len(askable)))
        thing, ways = askable[(first + question) % len(askable)]
        phrase = self._chosen(rng, ways)
        kind = "place" if by_place(phrase) else "look"
        prompt = Observation((image, self._text(phrase)))
        return Sample(f"referring/{split}/{index:06d}", prompt, tuple(map(float, thing.box)), tags={"kind": kind})

    def _scene(
        self, rng: np.random.Generator, split: Split
    ) -> tuple[Image.Image, list[tuple[scenes.SceneObject, list[str]]]]:
        """A scene, and its things with the phrases that may be asked: at least one, or another scene is drawn."""
        while True:
            count = int(rng.integers(self._objects[0], self._objects[1] + 1))
            few = rng.choice(screens.SHAPES, size=max(1, count // 2), replace=False)  # so that most shapes come twice
            image, things = self._draw(
                rng, split, looks=[((str(few[rng.integers(len(few))]),), COLORS) for _ in range(count)]
            )
            askable = [(thing, self._allowed(fitting(things, thing))) for thing in things]
            if any(ways for _, ways in askable):
                return image, [(thing, ways) for thing, ways in askable if ways]

    def _allowed(self, found: Sequence[str]) -> list[str]:
        """Without those by look or by place, where the share leaves them out."""
        left_out = {0.0: True, 1.0: False}.get(self.places_share)
        return [phrase for phrase in found if by_place(phrase) is not left_out]

    def _chosen(self, rng: np.random.Generator, found: Sequence[str]) -> str:
        place = rng.random() < self.places_share
        options = [phrase for phrase in found if by_place(phrase) == place] or found
        return options[int(rng.integers(len(options)))]

    def _from_file(self, split: Split, index: int) -> Sample:
        row = self._rows[split][index]
        prompt = Observation((*map(open_image, row.images), self._question(row)))
        return Sample(row.id, prompt, row.objects[0].box, weight=row.weight, tags=row.tags)

    def _question(self, row: records.LabelledScene) -> str:
        return format_question(row.question, self.thinking) if row.question else self._text(row.labels[0])

    def _text(self, phrase: str) -> str:
        text = TEMPLATES[self.template].format(phrase=phrase)
        if not self.thinking:
            return text
        return f"{text} {VLM_R1_THINK if self.template == 'vlm_r1' else THINK}"

    def score(self, episode: Episode) -> Score:
        """Parts `iou` and `format`. A box as exact as the frame's coordinates allow is paid like the exact one."""
        truth, frame = episode.sample.answer, episode.frames[0]
        parsed = parse.answer(episode.completion, self.thinking, vlm_r1_one_box)
        formatted = float(parsed.reason is None)
        marks = (Annotation("truth", "box", truth),)
        if parsed.reason:
            return Score({"iou": 0.0, "format": formatted}, 0.0, reason=parsed.reason, marks=marks)
        box = located(frame, parsed.value)
        (paid,) = as_exact(frame, [box], [truth])
        return Score(
            {"iou": boxes.iou(paid, truth), "format": formatted},
            correct=float(boxes.iou(box, truth) >= CORRECT),
            answer=box,
            marks=(*marks, Annotation("prediction", "box", box)),
        )

    def gold(self, sample: Sample, frames: Sequence[Frame]) -> str:
        """The completion with the highest reward."""
        box = corners(frames[0], sample.answer)
        answer = box if self.template != "vlm_r1" else {"bbox_2d": box}
        return answer_markup(json.dumps(answer), self.thinking)

    def metrics(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Acc@0.5 and mean IoU, accuracy by kind of phrase, what the best constant box would score, parse failures."""
        truths = [episode.sample.answer for episode in episodes]
        values = {f"by/{name}": value for name, value in accuracy_by(episodes, "kind").items()}
        return {
            **metrics_referring([episode.score.answer for episode in episodes], truths),
            **values,
            "best_constant": best_constant_box(truths, [e.frames[0].original for e in episodes], CORRECT),
            "parse_fail": parse_failures(episodes),
        }
