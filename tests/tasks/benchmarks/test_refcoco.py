"""RefCOCO as lmms-eval scores it, beside ours."""

from __future__ import annotations

import json
import re
from statistics import fmean

import pytest

from tasks.referring import Referring
from vlrl.types import Data

FOUR = re.compile(r"\[\s*(-?\d+(?:\.\d+)?),\s*(-?\d+(?:\.\d+)?),\s*(-?\d+(?:\.\d+)?),\s*(-?\d+(?:\.\d+)?)\s*\]")
# boxes in shares of the image: right, half as high, with exactly half the area, beside it, inverted, unreadable
ANSWERS = (
    *("[0.0625, 0.0833, 0.3125, 0.3333]", "[0.0625, 0.0833, 0.3125, 0.2]", "[0.0625, 0.08333, 0.3125, 0.20834]"),
    *("[0.5, 0.5, 0.9, 0.9]", "[0.1, 0.1, 0.2, 0.3]", "[0.3125, 0.3333, 0.0625, 0.0833]", "no such thing", ""),
)


def official(text, bbox, size):
    """IoU of the first four numbers in brackets with the box, both in shares; without numbers, of [0, 0, 0, 0]."""
    found = FOUR.search(text)
    a = [float(number) for number in found.groups()] if found else [0.0] * 4
    x, y, w, h = bbox
    b = [x / size[0], y / size[1], (x + w) / size[0], (y + h) / size[1]]
    shared = max(0, min(a[2], b[2]) - max(a[0], b[0])) * max(0, min(a[3], b[3]) - max(a[1], b[1]))
    return shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared)


@pytest.mark.parametrize("name", ["refcoco_hf.json", "refcoco_hf.parquet"])
def test_accuracy_and_mean_iou_equal_lmms_evals(object_files, played, name):
    """Each phrase of a row is asked; [x, y, width, height] of the file meets corners in shares of the answer."""
    (row,) = json.loads((object_files / "refcoco_hf.json").read_text())
    task = Referring(data=Data(test=str(object_files / name)))
    samples = list(task.samples("test"))
    assert len(samples) == len(row["answer"])
    asked = [(sample, text) for sample in samples for text in ANSWERS]
    episodes = played(task, [sample for sample, _ in asked], [f"<answer>{text}</answer>" for _, text in asked])
    overlaps = [official(text, row["bbox"], (160, 120)) for _, text in asked]
    metrics = task.metrics(episodes)
    assert metrics["acc50"] == pytest.approx(fmean(overlap >= 0.5 for overlap in overlaps))
    assert metrics["miou"] == pytest.approx(fmean(overlaps), abs=1e-3)  # shares are written with four digits
    assert 0 < metrics["acc50"] < 1
