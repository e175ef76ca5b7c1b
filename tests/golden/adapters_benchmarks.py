"""How the detection benchmarks' evaluators are called with our metrics. Truths and boxes come as COCO's JSON.

Only a case's first entry carries its data; the others name the case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from rewards.parse import Object
from tasks.metrics import STATS, Case, annotations, kept, nms_ap, summarized, summary

Inputs = Mapping[str, Any]
COCO, OVDEVAL = "pycocotools", "om-ai-lab/OVDEval"
_CASES: dict[tuple[str, int], list[Case]] = {}


def _object(each: Inputs) -> Object:
    x, y, width, height = each["bbox"]
    return Object(f"c{each['category_id']}", (x, y, x + width, y + height))


def _cases(source: str, inputs: Inputs) -> list[Case]:
    """A case for each image, remembered by the number of the entry."""
    if "gt" in inputs:
        _CASES[source, inputs["case"]] = [_case(image["id"], inputs) for image in inputs["gt"]["images"]]
    return _CASES[source, inputs["case"]]


def _case(image: int, inputs: Inputs) -> Case:
    truths = [each for each in inputs["gt"]["annotations"] if each["image_id"] == image]
    found = [each for each in inputs["dt"] if each["image_id"] == image]
    return Case(
        [_object(each) for each in found],
        [_object(each) for each in truths],
        scores=[each["score"] for each in found],
        crowd=[bool(each["iscrowd"]) for each in truths],
        areas=[each["area"] for each in truths],
    )


def _number(source: str, metric: Callable[..., Mapping[str, float]], name: str, inputs: Inputs) -> float:
    return metric(_cases(source, inputs))[name]


def _unsuppressed(inputs: Inputs) -> float:
    """AP with truths numbered from 0, as OVDEval's files have them."""
    return summarized(*annotations(_cases(OVDEVAL, inputs), first=0))["AP"]


ADAPTERS = {(COCO, f"COCOeval.bbox.{name}"): partial(_number, COCO, summary, name) for name in STATS}
ADAPTERS |= {
    (OVDEVAL, "NMS_AP.kept"): lambda i: float(sum(len(kept(case)) for case in _cases(OVDEVAL, i))),
    (OVDEVAL, "NMS_AP.AP"): partial(_number, OVDEVAL, partial(nms_ap, reference=True), "AP"),
    (OVDEVAL, "plain_AP(before NMS)"): _unsuppressed,
    (OVDEVAL, "NMS_AP.AP50"): partial(_number, OVDEVAL, partial(nms_ap, reference=True), "AP50"),
}
RANGES: dict = {}
UNMAPPED: dict = {}
