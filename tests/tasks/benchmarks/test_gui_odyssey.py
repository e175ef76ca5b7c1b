"""GUI-Odyssey's action matching, and its episodes."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from statistics import fmean

import pytest

from tasks.gui_actions import GuiActions
from vlrl.types import Data, Frame


def odyssey_text_matches(truth, given):
    if truth in given or given in truth:
        return True
    above = list(range(len(given) + 1))
    for i, a in enumerate(truth, 1):
        row = [i]
        for j, b in enumerate(given, 1):
            row.append(min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (a != b)))
        above = row
    return 1 - above[-1] / max(len(truth), len(given)) >= 0.5


def odyssey_step(told, right, box):
    """action_matching on the parts before and after the first colon; what follows a second colon is lost."""
    (kind, *given), (true_kind, *truth) = (list(map(str.strip, text.split(":"))) for text in (told, right))
    if kind != true_kind:
        return 0
    if kind in ("CLICK", "LONG_PRESS"):
        (x, y), (a, b) = (map(float, re.findall(r"[\d.]+", part[0])) for part in (given, truth))
        inside = box is not None and box[0] <= x <= box[2] and box[1] <= y <= box[3]
        return int(inside or math.hypot((x - a) / 1000, (y - b) / 1000) <= 0.14)
    if kind == "SCROLL":
        return int(given[0].lower() == truth[0].lower())
    return int(odyssey_text_matches(truth[0], given[0] if given else "")) if kind == "TYPE" else 1


def odyssey_text(prediction):
    name = prediction.kind.upper()
    if prediction.place:
        return f"{name}: ({1000 * prediction.place[0]}, {1000 * prediction.place[1]})"
    return f"{name}: {prediction.text}" if name in ("TYPE", "SCROLL") else name


def test_gui_odyssey_matching(actions, gui_files):
    """Every step is GUI-Odyssey's, but for texts that contain the truth, are contained in it, or hold a colon."""
    gold = {row["id"]: row for row in json.loads((gui_files / "gui_odyssey.json").read_text())}
    task, taken = actions("gui_odyssey.json", "gui_r1_odyssey", [("type", None, "note: call me")])
    assert len(taken) >= 25
    texts = {}
    for sample, _, prediction, episode in taken:
        row = gold[sample.id]
        official = odyssey_step(odyssey_text(prediction), row["answer"], row["sam2_bbox"])
        ours = task.metrics([episode])["gui_odyssey/ams"]
        if sample.answer.kind == prediction.kind == "type":
            texts[prediction.text] = (official, ours)
        else:
            assert ours == official, (prediction, sample.answer)
    assert texts["note:"] == (1, 0.0)  # a part of the truth
    assert texts["note: call home"] == texts["note: call me"] == (1, 1.0)
    assert texts["other"] == (0, 0.0)
    assert odyssey_step("TYPE: ", "TYPE: anything", None) == 1  # no text at all


def odyssey_report(results):
    """AMS and SR of (episode, category, steps, right): pooled, and as means over categories. Whole episodes only."""

    def success(rows):
        episodes = defaultdict(list)
        for episode, _, steps, right in rows:
            episodes[episode, steps].append(right)
        whole = [all(rights) for (_, steps), rights in episodes.items() if len(rights) == steps]
        return fmean(whole) if whole else 0.0

    by = defaultdict(list)
    for row in results:
        by[row[1]].append(row)
    return {
        "ams": fmean(row[3] for row in results),
        "episode": success(results),
        "ams_macro": fmean(fmean(row[3] for row in rows) for rows in by.values()),
        "episode_macro": fmean(success(rows) for rows in by.values()),
    }


@pytest.mark.parametrize("wrong", [(), (1,), (0, 4), (3,), (0, 1, 2, 3, 4, 5)])
def test_gui_odyssey_episodes(gui_files, played, wrong):
    """An episode succeeds when all its steps do; one of which a step is missing is left out, and said to be."""
    task = GuiActions(system="gui_r1_odyssey", data=Data(test=str(gui_files / "gui_odyssey.json")))
    samples = task.samples("test")
    frames = [Frame("rel1", (108, 240), (108, 240))] * len(samples)
    completions = [
        "<think></think><answer>[{'action': 'wait'}]</answer>" if i in wrong else task.gold(sample, [frame])
        for i, (sample, frame) in enumerate(zip(samples, frames, strict=True))
    ]
    metrics = task.metrics(played(task, samples, completions))
    results = [
        (s.tags["episode"], s.tags["category"], int(s.tags["steps"]), i not in wrong) for i, s in enumerate(samples)
    ]
    official = odyssey_report(results)
    # a category without a whole episode has a success of 0 there, and is left out here
    whole = odyssey_report([row for row in results if row[1] != "General_Tool"])
    official["episode_macro"] = whole["episode_macro"]
    assert {name: metrics[f"gui_odyssey/{name}"] for name in official} == pytest.approx(official)
    assert metrics["gui_odyssey/incomplete"] == 1.0
