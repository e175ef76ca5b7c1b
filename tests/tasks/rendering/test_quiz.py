"""Drawn charts, tables, figures, clocks, documents and scenes: their answers, their splits, their determinism."""

import ast
import re
from collections import Counter

import numpy as np
import pytest

from rewards.text import TextTruth, grade
from tasks.rendering import figures
from tasks.rendering.screens import COLORS
from tasks.visual_reasoning import DRAWN, LEAST, LETTERS

EACH = pytest.mark.parametrize(
    ("topic", "level"), [(topic, level) for topic in DRAWN for level in LEAST], ids=lambda value: str(value)
)


def drawn(topic, level, split="train", number=0, size=None):
    side = size or LEAST[level]
    return quizzed(topic, level, split, number, side)[:2]


def quizzed(topic, level, split="train", number=0, side=None):
    side = side or LEAST[level]
    return DRAWN[topic](np.random.default_rng([number, level]), split, (side, side), level)


def truth(asked):
    return TextTruth(asked.kind, asked.answer, asked.options, absolute=asked.absolute)


@EACH
def test_the_answers_are_right_and_the_wrong_options_are_wrong(topic, level):
    """A question whose own answer is refused, or whose other options pay, teaches a mistake."""
    for number in range(30):
        image, asked = drawn(topic, level, number=number)
        assert (image.size, image.mode) == ((LEAST[level],) * 2, "RGB")
        assert asked and all(question.topic.startswith(f"{topic}/") for question in asked)
        for question in asked:
            assert grade(question.answer, truth(question)).correct == 1.0
            others = [option for option in question.options if option != question.answer]
            assert not any(grade(option, truth(question)).correct for option in others)
            assert len(set(question.options)) == len(question.options) <= len(LETTERS)


@EACH
def test_a_seed_draws_the_same_picture(topic, level):
    """A run that is resumed asks the same questions."""
    (one, asked), (two, again) = drawn(topic, level), drawn(topic, level)
    assert np.array_equal(one, two) and asked == again
    assert not np.array_equal(one, drawn(topic, level, number=1)[0])


@pytest.mark.slow
@EACH
def test_what_is_told_in_words_decides_every_answer(topic, level):
    """A stage without pictures would ask what cannot be known, and reward guesses."""
    answers = {}
    for number in range(300):
        quiz = quizzed(topic, level, number=number)
        for question in quiz.asked:
            known = answers.setdefault((quiz.caption, question.text), question.answer)
            assert question.answer == known
    assert len({told for told, _ in answers}) > 8


@EACH
def test_no_content_is_drawn_in_both_splits(topic, level, monkeypatch):
    """Otherwise the accuracy on test pictures is memory: what they show would have been shown."""
    seen = {"train": set(), "test": set()}

    def kept(split, content):
        made = original(split, content)
        seen[split].add(repr(made))
        return made

    original = figures.dealt
    monkeypatch.setitem(DRAWN[topic].__globals__, "dealt", kept)
    for number in range(100):
        for split in seen:
            drawn(topic, level, split, number)
    assert len(seen["train"]) > 8 and len(seen["test"]) > 1
    assert not seen["train"] & seen["test"]
    for split, contents in seen.items():
        assert {figures.held_out(ast.literal_eval(content)) for content in contents} == {split == "test"}


@EACH
def test_no_answer_is_a_safe_guess(topic, level):
    """Where most answers are the same, RL learns that answer and nothing about pictures."""
    asked = [question for number in range(120) for question in drawn(topic, level, number=number)[1]]
    for skill in {question.topic for question in asked}:
        answers = Counter(question.answer for question in asked if question.topic == skill)
        assert max(answers.values()) <= 0.7 * answers.total(), (skill, answers)


def test_a_fifth_of_all_contents_is_held_out():
    """Enough to test on, and enough left to learn from."""
    share = sum(figures.held_out((a, b)) for a in range(100) for b in range(100)) / 10_000
    assert 0.17 < share < 0.23


def pixels(image, name):
    """How many pixels have a colour of the palette."""
    return int((np.asarray(image) == COLORS[name]).all(-1).sum())


def test_the_largest_bar_fills_the_most_pixels_and_its_height_is_its_value():
    """The truth is read off the picture, not off the code that drew it."""
    for number in range(40):
        image, asked = drawn("bars", 1, number=number, size=200)
        answers = {question.topic: question for question in asked}
        shown = {name: pixels(image, name) for name in answers["bars/largest"].options}
        assert max(shown, key=shown.get) == answers["bars/largest"].answer
        assert min(shown, key=shown.get) == answers["bars/smallest"].answer
        name = re.fullmatch(r"Value of (\w+)\?", answers["bars/value"].text)[1]
        rows = np.flatnonzero((np.asarray(image) == COLORS[name]).all(-1).any(1))
        height = 10 * (np.ptp(rows) + 1) / (0.93 * 200)
        assert round(height) == int(answers["bars/value"].answer)


def test_the_shares_of_a_pie_are_those_of_its_pixels():
    """Off by a line's width at most."""
    for number in range(40):
        image, asked = drawn("pies", 2, number=number, size=240)
        shown = {name: pixels(image, name) for name in asked[0].options}
        assert max(shown, key=shown.get) == asked[0].answer
        name = re.fullmatch(r"Per cent of (\w+)\?", asked[2].text)[1]
        share = 100 * shown[name] / sum(shown.values())
        assert abs(share - int(asked[2].answer.removesuffix("%"))) < 2.5


def test_the_hour_hand_points_to_the_hour():
    """Between hub and tip, the only ink beside the minute hand's at twelve."""
    for number in range(40):
        image, (asked,) = drawn("clocks", 1, number=number, size=200)
        seen = np.asarray(image).astype(int)
        dial = next((seen == color).all(-1) for color in COLORS.values() if (seen == color).all(-1).sum() > 100)
        x, y = (np.mean(np.flatnonzero(dial.any(axis))[[0, -1]]) for axis in (0, 1))
        down, right = np.mgrid[:200, :200] - np.array([y, x])[:, None, None]
        ring = (np.hypot(right, down) > 24) & (np.hypot(right, down) < 36)
        turn = np.degrees(np.arctan2(right, -down)) % 360
        ink = abs(seen - seen[0, 0]).sum(-1) > 300
        shares = {hour: ink[ring & (abs(turn - 30 * hour) < 6)].mean() for hour in range(1, 12)}
        best = max(shares, key=shares.get)
        assert int(asked.answer) == (best if shares[best] > 0.6 else 12)


def test_times_go_around_the_clock():
    """12:55 and ten minutes is 1:05."""
    assert [figures.format_time(12, 65), figures.format_time(11, 65), figures.format_time(3, 5)] == [
        "1:05",
        "12:05",
        "3:05",
    ]
