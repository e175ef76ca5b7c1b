"""Detection: box every object of the labels asked for. Drawn pictures, or files such as COCO's (tasks/readers).

The answer is a list of `{"bbox_2d": [x1, y1, x2, y2], "label": "..."}` in the coordinates of the policy's frame; where
one label is asked for, boxes alone will do. An empty list, or None, says that nothing is there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

from rewards import matching, parse, vlm_r1
from rewards.boxes import Object
from tasks import places, readers
from tasks.base import FORM, OWN_DATA, THINK, Task, answer_markup, asked, check, check_weights, generator, rows_or_drawn
from tasks.detection_rewards import find, stages
from tasks.detection_truth import Truth
from tasks.drawn import pictures
from tasks.metrics import breakdown, coco_metrics, ovdeval
from vlrl.types import Data, Episode, Frame, Mark, Observation, Sample, Score, Split

LISTED = '{"bbox_2d": [x1, y1, x2, y2], "label": "object name"}'
TEMPLATES = {
    "short": "Find every {labels}.",
    "guided": "Find every {labels}. Give a JSON list of " + LISTED.replace("{", "{{").replace("}", "}}")
    + " inside <answer> </answer>, an empty one if there is none.",
    "vision_r1": "Locate every {labels} in the image and output the coordinates in JSON format.",
}  # fmt: skip
WEIGHTS = {"objects": 1.0, "distinct": 0.0, **FORM}
CORRECT = 0.5  # the IoU from which on a box counts as found in the reported F1


class Detection(Task):
    """Samples: (picture, labels) -> the objects of those labels, boxes (x1, y1, x2, y2) in pixels of the picture.

    A split for which `data` names no file is drawn by `source`: `pool` pictures to train on, `held_out` others to
    test on, `size` (width, height) pixels, with `objects` (least, most) each, whose side is a share `side` of the
    picture's shorter one; one label is asked for, and in `negatives` of the questions there is none of it. `names`
    says what labels are called in questions and answers, if not by themselves. `per_picture` consecutive samples
    ask about one picture, each for another label if it has as many.

    Parts, in [0, 1]: `objects`, what `reward` names (tasks.detection_rewards); `format` (a list of objects, in tags);
    `distinct` (the share of boxes that repeat no other, VLM-R1's repetition term plus 1; weight 0 unless given one).
    `schedule` makes rewards with `thresholds` stricter as training goes on: step -> thresholds from it on.
    Correct: F1 at IoU 0.5 with one-to-one matching. Raises UserError for options out of range and bad rows.
    """

    def __init__(
        self,
        *,
        data: Data = OWN_DATA,
        source: Literal["scenes", "plain", "colors", "digits", "robot"] = "scenes",
        pool: int = 100_000,
        held_out: int = 512,
        size: tuple[int, int] = (64, 64),
        objects: tuple[int, int] = (1, 3),
        side: tuple[float, float] = (0.28, 0.45),
        negatives: float = 0.15,
        names: Mapping[str, str] | None = None,
        per_picture: int = 1,
        reward: str = "f1",
        thresholds: tuple[float, ...] = matching.THRESHOLDS,
        schedule: Mapping[int, tuple[float, ...]] | None = None,
        thinking: bool = False,
        template: Literal["short", "guided", "vision_r1"] = "short",
        weights: Mapping[str, float] = WEIGHTS,
        seed: int = 0,
    ):
        pictures.check_drawing(source, pool, held_out, size, objects, side)
        check(0 <= negatives < 1, "negatives", negatives, "at least 0 and under 1")
        check(per_picture > 0, "per_picture", per_picture, "at least 1")
        find(reward)
        check(template in TEMPLATES, "template", template, f"one of {', '.join(TEMPLATES)}")
        check(seed >= 0, "seed", seed, "at least 0")
        self.weights = check_weights(weights, tuple(WEIGHTS))
        self._stages = stages(thresholds, schedule)
        self.thresholds = self._stages[max(self._stages)]  # outside training the last ones
        self._reward, self.per_picture, self.seed = reward, per_picture, seed
        self.thinking, self.template = thinking, template
        self._source, self._asked = pictures.SOURCES[source], (tuple(objects), negatives)
        self._size, self._side, self._names = tuple(size), tuple(side), dict(names or {})
        for label in self._names:
            check(label in self._source.labels, "names", label, f"one of {', '.join(self._source.labels)}")
        self._drawn = {"train": pool, "test": held_out}
        self._rows, self.bad_rows = readers.scenes(data)

    def samples(self, split: Split) -> Sequence[Sample]:
        return rows_or_drawn(split, self._rows, self._from_file, self._drawn, self._from_seed)

    def _from_seed(self, split: Split, index: int) -> Sample:
        picture, question = divmod(index, self.per_picture)
        rng = generator(self.seed, split, picture)
        label, drawn = pictures.asked(rng, self._source.labels, *self._asked)
        image, objects = self._source.draw(rng, split, drawn, self._size, self._side)
        label = [label, *(other for other in dict.fromkeys(drawn) if other != label)][question % (len(set(drawn)) or 1)]
        name = self._names.get(label, label)
        wanted = tuple(Object(name, found.box) for found in objects if found.label == label)
        prompt = Observation((image, self._text((name,))))
        return Sample(f"detection/{split}/{index:06d}", prompt, Truth(wanted, (name,)), tags={"label": label})

    def _from_file(self, split: Split, index: int) -> Sample:
        row = self._rows[split][index]
        prompt = Observation((*map(readers.open_image, row.images), self._question(row)))
        truth = Truth(row.objects, row.labels, row.crowd, row.areas, row.unsure)
        return Sample(row.id, prompt, truth, weight=row.weight, tags=row.tags)

    def _question(self, row: readers.Scene) -> str:
        return asked(row.question, self.thinking) if row.question else self._text(row.labels)

    def _text(self, labels: Sequence[str]) -> str:
        text = TEMPLATES[self.template].format(labels=", ".join(labels))
        return f"{text} {THINK}" if self.thinking else text

    def truth(self, value: Any) -> Truth:
        """From `{"objects": [{"label": ..., "box": [...]}], "labels": [...]}`; without labels, those of the objects."""
        objects = tuple(Object(each["label"], tuple(map(float, each["box"]))) for each in value["objects"])
        return Truth(objects, tuple(value.get("labels") or dict.fromkeys(each.label for each in objects)))

    def at_step(self, step: int) -> None:
        """From this training step on, its thresholds count."""
        self.thresholds = self._stages[max(start for start in self._stages if start <= step)]

    def score(self, episode: Episode) -> Score:
        """Boxes as exact as the frame's coordinates allow are paid like exact ones."""
        truth, frame = episode.sample.answer, episode.frames[0]
        read = partial(parse.objects, label=_only(truth))
        parsed = parse.answer(episode.completion, self.thinking, read)
        formatted = float(parsed.reason is None)
        marks = tuple(Mark("truth", "box", each.box, each.label) for each in truth.objects)
        if parsed.reason:
            parts = {"objects": 0.0, "format": formatted, "distinct": 0.0}
            return Score(parts, 0.0, reason=parsed.reason, marks=marks)
        found = tuple(Object(item.label, places.located(frame, item.box)) for item in parsed.value)
        counted, right = truth.counted(found), truth.single
        boxes = places.as_exact(frame, [o.box for o in counted], [each.box for each in right])
        exact = [Object(o.label, box) for o, box in zip(counted, boxes, strict=True)]
        distinct = 1.0 + vlm_r1.repetition(parsed.value)
        return Score(
            {"objects": find(self._reward)(exact, right, self.thresholds), "format": formatted, "distinct": distinct},
            correct=matching.f1(counted, right, (CORRECT,)),
            answer=found,
            marks=(*marks, *(Mark("prediction", "box", item.box, item.label) for item in found)),
        )

    def gold(self, sample: Sample, frames: Sequence[Frame]) -> str:
        """The completion with the highest reward: boxes alone where one label is asked for in the short form."""
        boxes = [(each.label, places.corners(frames[0], each.box)) for each in sample.answer.single]
        if self.template == "short" and _only(sample.answer):
            return answer_markup(json.dumps([box for _, box in boxes]), self.thinking)
        return answer_markup(json.dumps([{"bbox_2d": box, "label": label} for label, box in boxes]), self.thinking)

    def metrics(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """COCO's twelve numbers; where several labels are asked for, OVDEval's NMS-AP; at IoU 0.5 over all pictures
        precision, recall, F1, that of the best constant box, boxes and false boxes a picture; unreadable completions.
        """
        cases = [_case(episode) for episode in episodes]
        several = any(len(episode.sample.answer.labels) > 1 for episode in episodes)
        truths = [[each.box for each in episode.sample.answer.single] for episode in episodes]
        sizes = [episode.frames[0].original for episode in episodes]
        return {
            **coco_metrics.summary(cases),
            **({"NMS_AP": ovdeval.nms_ap(cases)["AP"]} if several else {}),
            **_counts(episodes),
            "best_constant": breakdown.best_constant_list(truths, sizes, CORRECT),
            "parse_fail": breakdown.parse_failures(episodes),
        }


def _only(truth: Truth) -> str | None:
    """The label, where only one is asked for."""
    return truth.labels[0] if len(truth.labels) == 1 else None


def _case(episode: Episode) -> coco_metrics.Case:
    truth = episode.sample.answer
    return coco_metrics.Case(
        episode.score.answer or (), truth.objects, crowd=truth.crowd, areas=truth.areas, asked=truth.labels,
        unsure=truth.unsure,
    )  # fmt: skip


def _counts(episodes: Sequence[Episode]) -> dict[str, float]:
    truths = [episode.sample.answer for episode in episodes]
    counted = [truth.counted(e.score.answer or ()) for truth, e in zip(truths, episodes, strict=True)]
    pairs = [(predicted, truth.single) for predicted, truth in zip(counted, truths, strict=True)]
    boxes, right = (sum(len(pair[i]) for pair in pairs) for i in (0, 1))
    found = sum(len(matching.credits(predicted, single, (CORRECT,))) for predicted, single in pairs)
    return {
        "precision": found / boxes if boxes else 0.0,
        "recall": found / right if right else 0.0,
        "f1": 2 * found / (boxes + right) if boxes + right else 0.0,
        "boxes": boxes / len(pairs),
        "false_boxes": (boxes - found) / len(pairs),
    }
