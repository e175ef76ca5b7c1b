"""VLM-R1's JSON lines: any question about one image or several, where each row names the reward that pays for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from PIL import Image

from rewards import parse
from rewards.boxes import f1
from rewards.detection import vlm_r1_od_ap, vlm_r1_od_ap50, vlm_r1_od_length, vlm_r1_weighted_sum
from rewards.parse import Object
from rewards.text import all_match, default, multiple_choice, yes_no
from tasks.base import OWN_DATA, Task, answer_markup, check, check_weights, generator, rows_or_drawn
from tasks.data import read_vlm_r1, records
from tasks.data.images import open_image
from tasks.gui_formats import as_exact, corners, located
from tasks.metrics import Case, accuracy_by, parse_failures, summary
from tasks.rendering import screens
from vlrl.types import Annotation, Data, Episode, Frame, Observation, Sample, Score, Split

IN_TAGS = " First output the thinking process in <think> </think> tags and then output the final answer in"
TEMPLATES = {  # github.com/om-ai-lab/VLM-R1, vlm_modules/qwen_module.py: default, rec, odLength
    "default": "{question}" + IN_TAGS + " <answer> </answer> tags.",
    "rec": "{question}" + IN_TAGS + " <answer> </answer> tags. Output the final answer in JSON format.",
    "od_length": "First thinks about the reasoning process in the mind and then provides the user with the answer. "
    "The reasoning process and answer are enclosed within <think> </think> and <answer> </answer> tags, respectively, "
    "i.e., <think> reasoning process here </think><answer> answer here </answer>\n{question}",
}
LISTS: Mapping[str, Callable[[Sequence[Object], Sequence[Object]], float]] = {
    "od_ap": vlm_r1_od_ap,
    "od_ap50": vlm_r1_od_ap50,
    "odLength": vlm_r1_od_length,
    "weighted_sum": vlm_r1_weighted_sum,
    "map": vlm_r1_od_ap,
}  # answers are lists of objects
TEXTS: Mapping[str, Callable[[str, str], float]] = {
    "default": default,
    "mcq": multiple_choice,
    "yes_no": yes_no,
    "all_match": all_match,
}
METHODS = (*LISTS, *TEXTS)
WEIGHTS = {"accuracy": 1.0, "format": 1.0}
CORRECT = 0.5  # IoU from which a box is found


class VlmR1(Task):
    """Samples: (images, question) -> a row's truth, a `LabelledScene`; boxes are in pixels of the image.

    `data`: VLM-R1's JSON lines. A row's `accu_reward_method` is one of METHODS, or `method` where it has none; `llm`
    and `math` are none, as they need another program. `template` is one of the source's prompts, to the byte; all ask
    for thoughts. A split for which `data` names no file is drawn: `pool` and `held_out` questions about screens of
    `size` pixels, in turn a list of objects, a choice, yes or no, and two screens to compare.
    Parts: `accuracy` (the row's reward) and `format` (tags, and an answer that can be read). Correct: F1 of the objects
    at IoU 0.5, or a text that earns 1. Raises UserError for options out of range and for bad rows.
    """

    thinking = True

    def __init__(
        self,
        *,
        data: Data = OWN_DATA,
        method: Literal["od_ap", "od_ap50", "odLength", "weighted_sum", "map", "default", "mcq", "yes_no", "all_match"]
        = "default",
        template: Literal["default", "rec", "od_length"] = "default",
        pool: int = 10_000,
        held_out: int = 512,
        size: tuple[int, int] = (64, 64),
        weights: Mapping[str, float] = WEIGHTS,
        seed: int = 0,
    ):  # fmt: skip
        check(method in METHODS, "method", method, f"one of {', '.join(METHODS)}")
        check(template in TEMPLATES, "template", template, f"one of {', '.join(TEMPLATES)}")
        check(pool > 0, "pool", pool, "at least 1")
        check(held_out > 0, "held_out", held_out, "at least 1")
        check(min(size) >= 48, "size", size, "at least 48 x 48 pixels")
        check(seed >= 0, "seed", seed, "at least 0")
        self.weights = check_weights(weights, tuple(WEIGHTS))
        self.template, self.seed, self._size = template, seed, tuple(size)
        self._drawn = {"train": pool, "test": held_out}
        self._rows, self.bad_rows = read_vlm_r1(data, method, lists=LISTS, texts=TEXTS)

    def samples(self, split: Split) -> Sequence[Sample]:
        return rows_or_drawn(split, self._rows, self._from_file, self._drawn, self._from_seed)

    def _from_file(self, split: Split, index: int) -> Sample:
        row = self._rows[split][index]
        return self._sample(row, list(map(open_image, row.images)))

    def _from_seed(self, split: Split, index: int) -> Sample:
        rng = generator(self.seed, split, index)
        row, images = screens.draw_question(rng, index, self._size)
        return self._sample(replace(row, id=f"vlm_r1/{split}/{index:06d}"), images)

    def _sample(self, row: records.LabelledScene, images: Sequence[Image.Image]) -> Sample:
        text = TEMPLATES[self.template].replace("{question}", row.question)
        return Sample(row.id, Observation((*images, text)), row, weight=row.weight, tags={"method": row.method})

    def score(self, episode: Episode) -> Score:
        """Parts `accuracy` and `format`. Boxes as exact as the frame's coordinates allow are paid like exact ones."""
        row = episode.sample.answer
        listed = row.method in LISTS
        read = parse.objects if listed else parse.nonempty
        parsed = parse.answer(episode.completion, True, read)
        parts = {"accuracy": 0.0, "format": float(parsed.reason is None)}
        marks = _marks("truth", row.objects if listed else row.answer)
        if parsed.reason:
            return Score(parts, 0.0, reason=parsed.reason, marks=marks)
        if not listed:
            value = TEXTS[row.method](parsed.value, row.answer)
            predictions, correct = parsed.value, float(value >= 1)
        else:
            predictions = tuple(Object(o.label, located(episode.frames[0], o.box)) for o in parsed.value)
            boxes = as_exact(episode.frames[0], [o.box for o in predictions], _boxes(row))
            exact = [Object(o.label, box) for o, box in zip(predictions, boxes, strict=True)]
            value, correct = LISTS[row.method](exact, row.objects), f1(exact, row.objects, (CORRECT,))
        return Score(
            {**parts, "accuracy": value},
            correct,
            answer=predictions,
            marks=(*marks, *_marks("prediction", predictions)),
        )

    def gold(self, sample: Sample, frames: Sequence[Frame]) -> str:
        """The row's own answer; boxes in the frame's coordinates."""
        row = sample.answer
        if row.method not in LISTS:
            return answer_markup(row.answer, True)
        listed = [{"bbox_2d": corners(frames[0], o.box), "label": o.label} for o in row.objects]
        return answer_markup(f"```json\n{json.dumps(listed)}\n```", True)

    def metrics(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """`method/NAME`: accuracy by reward; COCO's twelve numbers over rows that ask for boxes; `parse_fail`."""
        lists = [episode for episode in episodes if episode.sample.tags["method"] in LISTS]
        cases = [Case(e.score.answer or (), e.sample.answer.objects) for e in lists]
        return {
            **{f"method/{name}": value for name, value in accuracy_by(episodes, "method").items()},
            **(summary(cases) if cases else {}),
            "parse_fail": parse_failures(episodes),
        }


def _boxes(row: records.LabelledScene) -> list[Sequence[float]]:
    return [thing.box for thing in row.objects]


def _marks(role: Any, answer: Any) -> tuple[Annotation, ...]:
    if isinstance(answer, str):
        return (Annotation(role, "text", label=answer),)
    return tuple(Annotation(role, "box", thing.box, thing.label) for thing in answer)
