"""Detection: box every object of the labels asked for. Drawn pictures, or files such as COCO's (tasks/readers).

The answer is a list of `{"bbox_2d": [x1, y1, x2, y2], "label": "..."}` in the coordinates of the policy's frame; where
one label is asked for, boxes alone will do. An empty list, or None, says that nothing is there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, Literal

from rewards import boxes as rewards_boxes
from rewards import detection, parse
from rewards.boxes import THRESHOLDS, Box, f1, ious, matched_credits, normal
from rewards.detection import vlm_r1_od_ap, vlm_r1_od_ap50, vlm_r1_od_length, vlm_r1_repetition, vlm_r1_weighted_sum
from rewards.parse import Object
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
from tasks.data import records, scenes
from tasks.data.images import open_image
from tasks.gui_formats import as_exact, corners, located
from tasks.metrics import Case, best_constant_list, nms_ap, parse_failures, summary
from tasks.rendering import scenes as rendering_scenes
from vlrl.plugins import load_plugin
from vlrl.types import Annotation, Data, Episode, Frame, Observation, Sample, Score, Split

# What detection may pay for a list of objects: ours, the papers', or a user's own, under one signature.
#
# Each takes the predicted and the true objects and `thresholds`, and returns a number in [0, 1].

Objects = Sequence[Object]
Thresholds = tuple[float, ...]
Reward = Callable[[Objects, Objects, Thresholds], float]


def _vision_r1(predicted: Objects, truths: Objects, thresholds: Thresholds) -> float:
    """Mean of recall and precision as they are without a schedule."""
    static = detection.STATIC
    recall = detection.vision_r1_recall(predicted, truths, static.hit, static.recall_band)
    return (recall + detection.vision_r1_precision(predicted, truths, static.precision_band)) / 2


def _progressive(predicted: Objects, truths: Objects, thresholds: Thresholds) -> float:
    """The same under Vision-R1's progressive rules: a hit from the lowest threshold on, pairs paid between the lowest
    and the highest. As published: 0.5 and 0.75 at first, 0.75 and 0.9 from step 1500 on.
    """
    low, high = thresholds[0], thresholds[-1]
    recall = detection.vision_r1_recall(predicted, truths, low, detection.SCHEDULE[0].recall_band)
    return (recall + detection.vision_r1_precision(predicted, truths, (low, high))) / 2


REWARDS: Mapping[str, Reward] = {
    "f1": rewards_boxes.f1,
    "od_ap": lambda predicted, truths, thresholds: vlm_r1_od_ap(predicted, truths),
    "od_ap50": lambda predicted, truths, thresholds: vlm_r1_od_ap50(predicted, truths),
    "od_length": lambda predicted, truths, thresholds: vlm_r1_od_length(predicted, truths),
    "weighted_sum": lambda predicted, truths, thresholds: vlm_r1_weighted_sum(predicted, truths),
    "vision_r1": _vision_r1,
    "vision_r1_progressive": _progressive,
}


def stages(thresholds: Thresholds, schedule: Mapping[int, Thresholds] | None) -> dict[int, Thresholds]:
    """Training step -> thresholds from it on; always with step 0. UserError where they do not rise within (0, 1]."""
    schedules = {0: tuple(thresholds)} | {step: tuple(values) for step, values in (schedule or {}).items()}
    for step, values in schedules.items():
        key = f"schedule.{step}" if schedule and step in schedule else "thresholds"
        rising = all(a < b for a, b in pairwise(values))
        check(bool(values) and rising and min(values) > 0 and max(values) <= 1, key, values, "rising IoUs in (0, 1]")
        check(step >= 0, "schedule", step, "steps from 0")
    return schedules


@lru_cache
def find_reward(name: str) -> Reward:
    """One of REWARDS, or `my_module:function` from anywhere on the Python path. UserError: there is none."""
    module, colon, attribute = name.partition(":")
    known = name in REWARDS or (colon and module and attribute)
    check(bool(known), "reward", name, f"one of {', '.join(REWARDS)}, or my_module:function")
    if not colon:
        return REWARDS[name]
    return load_plugin("detection reward", name, "task.reward")


# What is there to be found in a picture, and which predictions say nothing for or against a policy.

INSIDE = 0.5  # a box counts as inside a crowd from this share of its area on
FOUND = 0.5  # and as an attempt at a single truth from this IoU on


@dataclass(frozen=True)
class DetectionTruth:
    """The objects of the labels asked for, boxes in pixels of the image.

    `crowd` (one per object, or empty): it is a region of many, as COCO marks them. `areas`: the annotation's, for
    COCO's ranges. `unsure`: labels of which not every object is marked, as LVIS has them.
    """

    objects: tuple[Object, ...]
    labels: tuple[str, ...]
    crowd: tuple[bool, ...] = ()
    areas: tuple[float, ...] = ()
    unsure: tuple[str, ...] = ()

    @property
    def single(self) -> tuple[Object, ...]:
        """The objects that must be found."""
        return tuple(o for i, o in enumerate(self.objects) if not (self.crowd and self.crowd[i]))

    def counted(self, predicted: Sequence[Object]) -> tuple[Object, ...]:
        """The predictions without those that hit no single truth, but lie in a crowd or have an unsure label."""
        crowds = [o for i, o in enumerate(self.objects) if self.crowd and self.crowd[i]]
        if not crowds and not self.unsure:
            return tuple(predicted)
        unsure = set(map(normal, self.unsure))
        return tuple(p for p in predicted if self._hits(p) or not (normal(p.label) in unsure or _within(p, crowds)))

    def _hits(self, predicted: Object) -> bool:
        boxes = [o.box for o in self.single if normal(o.label) == normal(predicted.label)]
        return bool(boxes) and ious([predicted.box], boxes).max() >= FOUND


def _within(predicted: Object, crowds: Sequence[Object]) -> bool:
    return any(normal(c.label) == normal(predicted.label) and _share(predicted.box, c.box) >= INSIDE for c in crowds)


def _share(box: Box, region: Box) -> float:
    """How much of the box's area lies in the region."""
    sides = [min(box[i + 2], region[i + 2]) - max(box[i], region[i]) for i in (0, 1)]
    area = (box[2] - box[0]) * (box[3] - box[1])
    return sides[0] * sides[1] / area if min(sides) > 0 and area > 0 else 0.0


LISTED = '{"bbox_2d": [x1, y1, x2, y2], "label": "object name"}'
TEMPLATES = {
    "short": "Find every {labels}.",
    "guided": "Find every {labels}. Give a JSON list of " + LISTED.replace("{", "{{").replace("}", "}}")
    + " inside <answer> </answer>, an empty one if there is none.",
    "vision_r1": "Locate every {labels} in the image and output the coordinates in JSON format.",
}  # fmt: skip
WEIGHTS = count_from(0.05, {"objects": 1.0, "distinct": 0.0, **FORM})
CORRECT = 0.5  # the IoU from which on a box counts as found in the reported F1


class Detection(Task):
    """Samples: (picture, labels) -> the objects of those labels, boxes (x1, y1, x2, y2) in pixels of the picture.

    A split for which `data` names no file is drawn by `source`: `pool` pictures to train on, `held_out` others to
    test on, `size` (width, height) pixels, with `objects` (least, most) each, whose side is a share `side` of the
    picture's shorter one; one label is asked for, and in `negatives` of the questions there is none of it. `names`
    says what labels are called in questions and answers, if not by themselves. `per_picture` consecutive samples
    ask about one picture, each for another label if it has as many.

    Parts, in [0, 1]: `objects`, what `reward` names (tasks.detection); `format` (a list of objects, in tags);
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
        thresholds: tuple[float, ...] = THRESHOLDS,
        schedule: Mapping[int, tuple[float, ...]] | None = None,
        thinking: bool = False,
        template: Literal["short", "guided", "vision_r1"] = "short",
        weights: Mapping[str, float] = WEIGHTS,
        seed: int = 0,
    ):
        rendering_scenes.check_drawing(source, pool, held_out, size, objects, side)
        check(0 <= negatives < 1, "negatives", negatives, "at least 0 and under 1")
        check(per_picture > 0, "per_picture", per_picture, "at least 1")
        find_reward(reward)
        check(template in TEMPLATES, "template", template, f"one of {', '.join(TEMPLATES)}")
        check(seed >= 0, "seed", seed, "at least 0")
        self.weights = check_weights(weights, tuple(WEIGHTS))
        self._stages = stages(thresholds, schedule)
        self.thresholds = self._stages[max(self._stages)]  # outside training the last ones
        self._reward, self.per_picture, self.seed = reward, per_picture, seed
        self.thinking, self.template = thinking, template
        self._source, self._asked = rendering_scenes.SOURCES[source], (tuple(objects), negatives)
        self._size, self._side, self._names = tuple(size), tuple(side), dict(names or {})
        for label in self._names:
            check(label in self._source.labels, "names", label, f"one of {', '.join(self._source.labels)}")
        self._drawn = {"train": pool, "test": held_out}
        self._rows, self.bad_rows = scenes(data)

    def samples(self, split: Split) -> Sequence[Sample]:
        return rows_or_drawn(split, self._rows, self._from_file, self._drawn, self._from_seed)

    def _from_seed(self, split: Split, index: int) -> Sample:
        picture, question = divmod(index, self.per_picture)
        rng = generator(self.seed, split, picture)
        label, drawn = rendering_scenes.choose_labels(rng, self._source.labels, *self._asked)
        image, objects = self._source.draw(rng, split, drawn, self._size, self._side)
        label = [label, *(other for other in dict.fromkeys(drawn) if other != label)][question % (len(set(drawn)) or 1)]
        name = self._names.get(label, label)
        targets = tuple(Object(name, thing.box) for thing in objects if thing.label == label)
        prompt = Observation((image, self._text((name,))))
        return Sample(f"detection/{split}/{index:06d}", prompt, DetectionTruth(targets, (name,)), tags={"label": label})

    def _from_file(self, split: Split, index: int) -> Sample:
        row = self._rows[split][index]
        prompt = Observation((*map(open_image, row.images), self._question(row)))
        truth = DetectionTruth(row.objects, row.labels, row.crowd, row.areas, row.unsure)
        return Sample(row.id, prompt, truth, weight=row.weight, tags=row.tags)

    def _question(self, row: records.LabelledScene) -> str:
        return format_question(row.question, self.thinking) if row.question else self._text(row.labels)

    def _text(self, labels: Sequence[str]) -> str:
        text = TEMPLATES[self.template].format(labels=", ".join(labels))
        return f"{text} {THINK}" if self.thinking else text

    def truth(self, value: Any) -> DetectionTruth:
        """From `{"objects": [{"label": ..., "box": [...]}], "labels": [...]}`; without labels, those of the objects."""
        objects = tuple(Object(each["label"], tuple(map(float, each["box"]))) for each in value["objects"])
        return DetectionTruth(objects, tuple(value.get("labels") or dict.fromkeys(each.label for each in objects)))

    def at_step(self, step: int) -> None:
        """From this training step on, its thresholds count."""
        self.thresholds = self._stages[max(start for start in self._stages if start <= step)]

    def score(self, episode: Episode) -> Score:
        """Boxes as exact as the frame's coordinates allow are paid like exact ones."""
        truth, frame = episode.sample.answer, episode.frames[0]
        read = partial(parse.objects, label=_only(truth))
        parsed = parse.answer(episode.completion, self.thinking, read)
        formatted = float(parsed.reason is None)
        marks = tuple(Annotation("truth", "box", each.box, each.label) for each in truth.objects)
        if parsed.reason:
            parts = {"objects": 0.0, "format": formatted, "distinct": 0.0}
            return Score(parts, 0.0, reason=parsed.reason, marks=marks)
        predictions = tuple(Object(item.label, located(frame, item.box)) for item in parsed.value)
        counted, right = truth.counted(predictions), truth.single
        boxes = as_exact(frame, [o.box for o in counted], [each.box for each in right])
        exact = [Object(o.label, box) for o, box in zip(counted, boxes, strict=True)]
        distinct = 1.0 + vlm_r1_repetition(parsed.value)
        return Score(
            {
                "objects": find_reward(self._reward)(exact, right, self.thresholds),
                "format": formatted,
                "distinct": distinct,
            },
            correct=f1(counted, right, (CORRECT,)),
            answer=predictions,
            marks=(*marks, *(Annotation("prediction", "box", item.box, item.label) for item in predictions)),
        )

    def gold(self, sample: Sample, frames: Sequence[Frame]) -> str:
        """The completion with the highest reward: boxes alone where one label is asked for in the short form."""
        boxes = [(each.label, corners(frames[0], each.box)) for each in sample.answer.single]
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
            **summary(cases),
            **({"NMS_AP": nms_ap(cases)["AP"]} if several else {}),
            **_counts(episodes),
            "best_constant": best_constant_list(truths, sizes, CORRECT),
            "parse_fail": parse_failures(episodes),
        }


def _only(truth: DetectionTruth) -> str | None:
    """The label, where only one is asked for."""
    return truth.labels[0] if len(truth.labels) == 1 else None


def _case(episode: Episode) -> Case:
    truth = episode.sample.answer
    return Case(
        episode.score.answer or (), truth.objects, crowd=truth.crowd, areas=truth.areas, asked=truth.labels,
        unsure=truth.unsure,
    )  # fmt: skip


def _counts(episodes: Sequence[Episode]) -> dict[str, float]:
    truths = [episode.sample.answer for episode in episodes]
    counted = [truth.counted(e.score.answer or ()) for truth, e in zip(truths, episodes, strict=True)]
    pairs = [(predicted, truth.single) for predicted, truth in zip(counted, truths, strict=True)]
    boxes, right = (sum(len(pair[i]) for pair in pairs) for i in (0, 1))
    matches = sum(len(matched_credits(predicted, single, (CORRECT,))) for predicted, single in pairs)
    return {
        "precision": matches / boxes if boxes else 0.0,
        "recall": matches / right if right else 0.0,
        "f1": 2 * matches / (boxes + right) if boxes + right else 0.0,
        "boxes": boxes / len(pairs),
        "false_boxes": (boxes - matches) / len(pairs),
    }
