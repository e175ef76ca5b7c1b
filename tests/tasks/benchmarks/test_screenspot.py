"""ScreenSpot as SeeClick scores it, and ScreenSpot-Pro."""

from __future__ import annotations

import itertools
import json
import re
from collections import defaultdict
from statistics import fmean

import numpy as np
import pytest

from tasks.gui_grounding import GuiGrounding
from vlrl.types import Data

SHIFTS = [(0.02, 0), (0, 0.3), (-0.4, 0.1), (0.15, 0.1)]


def seeclick(response, box):
    """1 if the point, or the middle of a predicted box, is in the box, borders included; else, or unreadable, 0."""
    numbers = [float(n) for n in re.findall(r"-?\d+\.?\d*", response)]
    if len(numbers) == 4:
        numbers = [(numbers[0] + numbers[2]) / 2, (numbers[1] + numbers[3]) / 2]
    if len(numbers) != 2:
        return 0
    return int(box[0] <= numbers[0] <= box[2] and box[1] <= numbers[1] <= box[3])


def responses(box):
    """Texts inside the answer tags: hits, borders, misses, a box, and what holds no point."""
    centre = ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)
    points = [
        centre,
        (box[0], box[1]),
        (box[2], box[3]),
        *((min(1, max(0, round(centre[0] + dx, 4))), min(1, max(0, round(centre[1] + dy, 4)))) for dx, dy in SHIFTS),
    ]
    return [*(f"[{x}, {y}]" for x, y in points), f"[{box[0]}, {box[1]}, {box[2]}, {box[3]}]", "nowhere", ""]


def relative(box, size):
    return tuple(value / size[i % 2] for i, value in enumerate(box))


@pytest.fixture(scope="module")
def grounding(gui_files, played):
    """(sample, text of the answer, relative box) of ten answers to each target of a file, and their scored episodes."""

    def run(name):
        task = GuiGrounding(data=Data(test=str(gui_files / name)))
        asked = []
        for sample in task.samples("test"):
            box = relative(sample.answer, sample.prompt.images[0].size)
            asked += [(sample, text, box) for text in responses(box)]
        completions = [f"<answer>{text}</answer>" for _, text, _ in asked]
        samples = [sample for sample, _, _ in asked]
        return task, asked, played(task, samples, completions)

    return run


def test_screenspot_equals_seeclick(grounding):
    """Six splits, their mean and the mean over samples are SeeClick's; a box in place of the point is not taken."""
    task, asked, episodes = grounding("screenspot_mobile.json")
    assert len(episodes) == 60
    official = [seeclick(text, box) for _, text, box in asked]
    ours = [episode.score.correct for episode in episodes]
    boxes = [text.count(",") == 3 for _, text, _ in asked]
    assert [o for o, box in zip(ours, boxes, strict=True) if not box] == [
        o for o, box in zip(official, boxes, strict=True) if not box
    ]
    assert {(o, u) for o, u, box in zip(official, ours, boxes, strict=True) if box} == {(1, 0.0)}
    points = [i for i, box in enumerate(boxes) if not box]
    splits = defaultdict(list)
    for i in points:
        tags = asked[i][0].tags
        splits[f"{tags['platform']}/{tags['type']}"].append(official[i])
    assert len(splits) == 6
    metrics = task.metrics([episodes[i] for i in points])
    assert {name: metrics[f"by/{name}"] for name in splits} == pytest.approx({n: fmean(v) for n, v in splits.items()})
    assert metrics["macro"] == pytest.approx(fmean(fmean(v) for v in splits.values()))
    assert metrics["micro"] == pytest.approx(fmean(official[i] for i in points))


def test_screenspot_pro_equals_its_evaluator(grounding):
    """Accuracy by group, by kind of target and over all; the point is compared in shares of the image."""
    task, asked, episodes = grounding("screenspot_pro.json")
    points = [i for i, (_, text, _) in enumerate(asked) if text.count(",") != 3]
    official = {}
    for i in points:
        _, text, box = asked[i]
        numbers = json.loads(text) if text.startswith("[") else None
        right = numbers is not None and box[0] <= numbers[0] <= box[2] and box[1] <= numbers[1] <= box[3]
        official[i] = {(True, True): "correct", (True, False): "wrong"}.get(
            (numbers is not None, right), "wrong_format"
        )
    metrics = task.metrics([episodes[i] for i in points])
    for key, names in (("group", ("Dev", "CAD", "Office")), ("ui_type", ("icon", "text"))):
        for name in names:
            chosen = [official[i] for i in points if asked[i][0].tags[key] == name]
            assert metrics[f"by/{name}"] == pytest.approx(fmean(result == "correct" for result in chosen))
    assert metrics["micro"] == pytest.approx(fmean(result == "correct" for result in official.values()))
    assert metrics["parse_fail"] == pytest.approx(fmean(result == "wrong_format" for result in official.values()))


def test_the_best_constant_click_is_the_best(grounding):
    """A model that has learned a habit instead of reading must be seen beside what the habit earns."""
    task, _, episodes = grounding("screenspot_mobile.json")
    metrics = task.metrics(episodes)
    boxes = {e.sample.id: relative(e.sample.answer, e.frames[0].original) for e in episodes}.values()
    x, y = metrics["best_constant_x"], metrics["best_constant_y"]
    hits = fmean(b[0] <= x <= b[2] and b[1] <= y <= b[3] for b in boxes)
    assert metrics["best_constant"] == pytest.approx(hits)
    fine = itertools.product(np.linspace(0, 1, 101), repeat=2)
    assert hits == max(fmean(b[0] <= u <= b[2] and b[1] <= v <= b[3] for b in boxes) for u, v in fine)
