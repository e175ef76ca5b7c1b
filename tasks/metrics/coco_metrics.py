"""COCO's average precision and recall, computed by pycocotools (github.com/cocodataset/cocoapi) on lists of objects."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from rewards.boxes import Object
from rewards.matching import normal

STATS = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl")


@dataclass(frozen=True)
class Case:
    """One image: what was predicted, in the order of emission, and what is there.

    `scores` of the predictions, `crowd` and `areas` (square pixels, as annotated) of the truths; () is 1.0 for each,
    no crowd, and the boxes' areas. Labels are compared without case and outer spaces.
    """

    predicted: Sequence[Object]
    truths: Sequence[Object]
    scores: Sequence[float] = ()
    crowd: Sequence[bool] = ()
    areas: Sequence[float] = ()
    asked: Collection[str] | None = None  # labels judged on this image, None: all (LVIS judges a few of many)
    unsure: Collection[str] = ()  # labels of which not all objects are marked: others of them are no mistake (LVIS)


def summary(cases: Sequence[Case]) -> dict[str, float]:
    """pycocotools's twelve numbers, in [0, 1]; -1 where there is no truth to find (of that size).

    AP is the mean over labels that have truths and IoU 0.5 to 0.95, s, m, l by area (32 x 32, 96 x 96), AR1, 10, 100
    with so many boxes for each image and label. Predictions of a label that no image has are not counted, as in COCO.
    """
    return summarized(*annotations(cases), cases)


def by_label(cases: Sequence[Case]) -> dict[str, float]:
    """AP of each label that has a truth, sorted."""
    truth, predictions = annotations(cases)
    precision = _evaluated(truth, predictions, cases).eval["precision"][:, :, :, 0, -1]  # [IoU, recall, label]
    means = {category["name"]: precision[:, :, i] for i, category in enumerate(truth["categories"])}
    return {name: float(values[values > -1].mean()) for name, values in sorted(means.items()) if (values > -1).any()}


def annotations(cases: Sequence[Case], first: int = 1) -> tuple[dict, list[dict]]:
    """The cases as COCO's JSON: (truth, predictions). Truths are numbered from `first`.

    Numbers must start at 1 for pycocotools: it takes a match with number 0 for none.
    """
    names = sorted({normal(found.label) for case in cases for found in case.truths})
    ids = {name: i for i, name in enumerate(names, start=1)}
    marked = [each for image, case in enumerate(cases) for each in _truths(image, case, ids)]
    truth = {
        "images": [{"id": image} for image in range(len(cases))],
        "categories": [{"id": number, "name": name} for name, number in ids.items()],
        "annotations": [{**each, "id": number} for number, each in enumerate(marked, start=first)],
    }
    return truth, [each for image, case in enumerate(cases) for each in _predictions(image, case, ids)]


def _truths(image: int, case: Case, ids: dict[str, int]) -> Iterator[dict]:
    crowd = case.crowd or (False,) * len(case.truths)
    areas = case.areas or [_width(o) * _height(o) for o in case.truths]
    for found, many, area in zip(case.truths, crowd, areas, strict=True):
        yield {**_box(image, found, ids), "iscrowd": int(many), "area": area}


def _predictions(image: int, case: Case, ids: dict[str, int]) -> Iterator[dict]:
    asked = None if case.asked is None else {normal(label) for label in case.asked}
    for found, score in zip(case.predicted, case.scores or (1.0,) * len(case.predicted), strict=True):
        if normal(found.label) in ids and (asked is None or normal(found.label) in asked):
            yield {**_box(image, found, ids), "score": score}


def _box(image: int, found: Object, ids: dict[str, int]) -> dict:
    corner = [float(found.box[0]), float(found.box[1])]
    return {
        "image_id": image,
        "category_id": ids[normal(found.label)],
        "bbox": [*corner, _width(found), _height(found)],
    }


def _width(found: Object) -> float:
    return float(found.box[2] - found.box[0])


def _height(found: Object) -> float:
    return float(found.box[3] - found.box[1])


def summarized(truth: dict, predictions: list[dict], cases: Sequence[Case] = ()) -> dict[str, float]:
    """The twelve numbers of COCO's JSON."""
    evaluated = _evaluated(truth, predictions, cases)
    with contextlib.redirect_stdout(io.StringIO()):
        evaluated.summarize()
    return dict(zip(STATS, map(float, evaluated.stats), strict=True))


def _evaluated(truth: dict, predictions: list[dict], cases: Sequence[Case]) -> COCOeval:
    """pycocotools's evaluation, silent and complete but for the summary."""
    with contextlib.redirect_stdout(io.StringIO()):
        known = COCO()
        known.dataset = truth
        known.createIndex()
        found = known.loadRes(predictions) if predictions else _nothing(truth)
        evaluated = COCOeval(known, found, "bbox")
        evaluated.evaluate()
        _forgive(evaluated, truth, cases)
        evaluated.accumulate()
    return evaluated


def _nothing(truth: dict) -> COCO:
    """No predictions, which pycocotools does not load."""
    empty = COCO()
    empty.dataset = {**truth, "annotations": []}
    empty.createIndex()
    return empty


def _forgive(evaluated: COCOeval, truth: dict, cases: Sequence[Case]) -> None:
    """Unmatched boxes of a label that an image is unsure of count neither way."""
    unsure = {image: {normal(label) for label in case.unsure} for image, case in enumerate(cases) if case.unsure}
    names = {category["id"]: category["name"] for category in truth["categories"]}
    for image in filter(None, evaluated.evalImgs if unsure else ()):
        if names[image["category_id"]] in unsure.get(image["image_id"], ()):
            image["dtIgnore"] = np.logical_or(image["dtIgnore"], image["dtMatches"] == 0)
