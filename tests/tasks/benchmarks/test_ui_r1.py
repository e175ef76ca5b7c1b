"""UI-R1's evaluators of ScreenSpot and AndroidControl."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import defaultdict

import pytest

from tasks.gui_actions import GuiActions
from vlrl.types import Data, Frame

UI_WORDS = {"type": "input_text", "press_back": "navigate_back"}


def ui_r1_hit(response, box, scale):
    """eval_ss.py: the first integers of the first answer, scaled and cut off, [0, 0] if there are none, in the box."""
    answer = re.search(r"<answer>(.*?)</answer>", response, re.DOTALL)
    if answer is None:
        re.compile("(")  # its fallback pattern has an unbalanced parenthesis too
    found = re.search(r"\[(\d+),\s*(\d+)\]", answer[1])
    x, y = (int(found[1]), int(found[2])) if found else (0, 0)
    x, y = int(x * scale[0]), int(y * scale[1])
    return box[0] <= x <= box[2] and box[1] <= y <= box[3]


def ui_r1_success(response, box, scale):
    """Counts a line of its log as a success when it has `true` in it, the response included."""
    return int("true" in json.dumps({"pred": response, "correct": ui_r1_hit(response, box, scale)}))


def test_ui_r1s_screenspot_evaluator(gui_files, played):
    """Equal on well-formed clicks in resized pixels; the word true, other actions and missing points are its faults."""
    task = GuiActions(system="ui_r1_nothink", data=Data(test=str(gui_files / "screenspot_mobile.json")))
    differ = defaultdict(set)
    for sample in task.samples("test"):
        size = sample.prompt.images[0].size
        shown = (round(size[0] * 1.4), round(size[1] * 1.4))
        frame, scale = Frame("resized_px", size, shown), (size[0] / shown[0], size[1] / shown[1])
        box = sample.answer.box
        centre = ((box[0] + box[2]) / 2 / scale[0], (box[1] + box[3]) / 2 / scale[1])
        x, y = map(int, centre)
        answers = [
            ("", f"[{{'action': 'click', 'coordinate': [{x + dx}, {y + dy}]}}]")
            for dx, dy in ((0, 0), (3, 2), (25, 0), (0, 40), (9, 9))
        ]
        answers += [
            ("true", f"[{{'action': 'click', 'coordinate': [{x}, {y + 60}], 'true': 1}}]"),
            ("kind", f"[{{'action': 'scroll', 'coordinate': [{x}, {y}]}}]"),
            ("none", "[{'action': 'click'}]"),
        ]
        completions = [f"<answer>{answer}</answer>" for _, answer in answers]
        episodes = played(task, [sample] * len(answers), completions, [frame] * len(answers))
        for (odd, _), completion, episode in zip(answers, completions, episodes, strict=True):
            official = ui_r1_success(completion, box, scale)
            if odd:
                differ[odd].add((official, episode.score.correct))
            else:
                assert episode.score.parts["coordinate"] == official, completion
    assert differ["true"] == {(1, 0.0)}  # any miss that says `true`
    assert differ["kind"] == {(1, 0.0)}  # the kind of action is not looked at
    assert (1, 0.0) in differ["none"]  # no point is [0, 0], in the box of the file menu
    with pytest.raises(re.error):
        ui_r1_success("no answer", (0, 0, 1, 1), (1, 1))


def test_ui_r1s_android_evaluator(gui_files, played):
    """Its radius is 14 % of a width of 1080 pixels on both axes, at one fixed scale; ours is 14 % of each side."""

    def official(response, truth):
        answer = re.search(r"<answer>(.*?)</answer>", response, re.DOTALL)[1]
        if re.search(r"'action':\s*'(\w+)'", answer)[1] != UI_WORDS.get(truth.kind, truth.kind):
            return 0
        if truth.kind != "click":
            return 1
        x, y = map(int, re.search(r"\[(\d+),\s*(\d+)\]", answer).groups())
        x, y = int(x * 1080 / 644), int(y * 2400 / 1484)
        return int(math.hypot(x - truth.point[0], y - truth.point[1]) <= 0.14 * 1080)

    task = GuiActions(system="ui_r1", data=Data(test=str(gui_files / "ui_r1_android.json")))
    differ = []
    for sample in task.samples("test"):
        truth, frame = sample.answer, Frame("resized_px", (1080, 2400), (644, 1484))
        shifts = itertools.product((0, 60, -80, 130), (0, 80, -140, 190)) if truth.point else [(0, 0)]
        kinds = ("click", "scroll", "navigate_back")
        for (dx, dy), kind in itertools.product(shifts, kinds):
            base = truth.point or (300, 300)
            x, y = max(0, int(base[0] * 644 / 1080) + dx), max(0, min(1484, int(base[1] * 1484 / 2400) + dy))
            response = f"<think>t</think><answer>[{{'action': '{kind}', 'coordinate': [{x}, {y}]}}]</answer>"
            (episode,) = played(task, [sample], [response], [frame])
            if episode.score.correct != official(response, truth):
                differ.append(abs(y * 2400 / 1484 - truth.point[1]))
    assert differ
    assert all(0.05 * 2400 < distance <= 0.14 * 2400 for distance in differ)  # only along the longer side
