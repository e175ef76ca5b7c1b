"""The file of answers: a judge may cost money, so nothing is asked twice, whatever happened before."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest

from vlrl.config import Component
from vlrl.contrib.preferences.command import Answers
from vlrl.contrib.preferences.labelling import PreferenceJudge, pair_of
from vlrl.types import Observation, UserError

JUDGE = Component(name="mine", heat=1)


class Counting(PreferenceJudge):
    """Answers by the pair, and counts; `fails` after so many batches."""

    def __init__(self, fails: int = 99):
        self.asked, self.fails = [], fails

    def prefer(self, pairs, goal):
        if not self.fails:
            raise KeyboardInterrupt
        self.fails -= 1
        self.asked += [pair.key for pair in pairs]
        self.said = [f'said "{pair.key}"\n\ud800' for pair in pairs]
        return [(0, 1, None)[int(pair.key, 16) % 3] for pair in pairs]


def pairs(count):
    shown = [Observation((), np.array([float(i)], np.float32)) for i in range(count + 1)]
    return [pair_of(a, b) for a, b in pairwise(shown)]


def ask(path, judge, asked, component=JUDGE, goal="there"):
    made = Answers(path, component, goal)
    made.ask(judge, asked, 4, lambda done, n: None)
    return [(made.of(pair), made.explain(pair)) for pair in asked]


def test_a_killed_run_goes_on_and_asks_nothing_twice(tmp_path):
    """A day's bill, again."""
    path, asked = tmp_path / "answers.jsonl", pairs(18)
    whole = ask(tmp_path / "whole.jsonl", Counting(), asked)
    first = Counting(fails=2)
    with pytest.raises(KeyboardInterrupt):
        ask(path, first, asked)
    path.write_bytes(path.read_bytes()[:-20])  # the last line half written
    second = Counting()
    assert ask(path, second, asked) == whole
    assert len(first.asked) == 8 and second.asked == [pair.key for pair in asked][7:]
    third = Counting()
    assert ask(path, third, [*asked, *asked]) == whole * 2 and not third.asked
    assert {answer for answer, _ in whole} == {0, 1, None}


@pytest.mark.parametrize(
    "line", ["", "{", "[]", "null", '{"pair": 3, "answer": 1}', '{"pair": "x", "answer": 2}', '{"pair": "x"}', "\x00"]
)
def test_damage_costs_one_line(tmp_path, line):
    """A file that somebody has edited would be a traceback, or answers nobody gave."""
    path, asked = tmp_path / "answers.jsonl", pairs(5)
    ask(path, Counting(), asked[:3])
    with path.open("a") as file:
        file.write(line + "\n")
    judge = Counting()
    ask(path, judge, asked)
    assert len(judge.asked) == 2 and len(list(map(json.loads, path.read_text().splitlines()))) == 5


def test_another_judge_or_goal_is_asked_anew(tmp_path):
    """One model's answers would be reported as another's."""
    path, asked = tmp_path / "answers.jsonl", pairs(3)
    for component, goal in ((JUDGE, "there"), (Component(name="mine", heat=2), "there"), (JUDGE, "here")):
        judge = Counting()
        ask(path, judge, asked, component, goal)
        assert len(judge.asked) == 3


@pytest.mark.parametrize("given", [[1], [1, 0, 1], [1, 2], ["1", 0], [-1, 0], [0.5, 1], []])
def test_what_is_no_answer_stops_with_one_line(tmp_path, given):
    """A user's own judge that returns its raw -1 would teach that the last one is preferred."""

    class Wrong(PreferenceJudge):
        def prefer(self, pairs, goal):
            return given

    with pytest.raises(UserError, match=r"each takes one answer, 0, 1 or None"):
        ask(tmp_path / "answers.jsonl", Wrong(), pairs(2))
    assert not (tmp_path / "answers.jsonl").exists()
