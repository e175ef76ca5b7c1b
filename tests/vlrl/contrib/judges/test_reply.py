"""What a judge is shown and what is read of its words."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlrl.contrib.judges.base import (
    JudgeClient,
    JudgeQuestion,
    framed,
    harmless,
    judges_check,
    judges_make,
    reply_read,
    schema,
)
from vlrl.types import UserError, Video

GOOD = '{"critique": "fine", "scores": [7, 0]}'


@pytest.mark.parametrize(
    "text", [GOOD, f"\n{GOOD}\n", f"```json\n{GOOD}\n```", f"<think>[10, 10]? no.</think>\n{GOOD}"]
)
def test_what_models_put_around_it_is_left_out(text):
    """Judges that think, or fence their JSON, would never have answered."""
    assert reply_read(text, 2) == ((0.7, 0.0), "fine")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no JSON"), ("7, 0", "no JSON"), ("[7, 0]", "JSON is wrong"), (f"{GOOD} {GOOD}", "no JSON"),
        (f"Sure! {GOOD}", "no JSON"), ('{"scores": [7, 0]}', "critique is wrong"),
        ('{"critique": "", "scores": [7, 0], "winner": 1}', "winner is wrong"),
        ('{"critique": "", "scores": [7]}', "1 scores for 2"), ('{"critique": "", "scores": [7, 10.1]}', "scores.1"),
        ('{"critique": "", "scores": [7, -1]}', "scores.1"), ('{"critique": "", "scores": ["7", 0]}', "scores.0"),
        ('{"critique": "", "scores": [true, 0]}', "scores.0"), ('{"critique": "", "scores": [NaN, 0]}', "no JSON"),
        ('{"critique": "", "scores": [1, 1], "scores": [10, 0]}', "no JSON"), ("[" * 50_000, "no JSON"),
        (f"{GOOD}</think>", "no JSON"), ("x" * 300_000, "too long"),
    ],
)  # fmt: skip
def test_anything_else_is_no_answer(text, why):
    """A number found somewhere in the text would be the score, for example one that the answer itself wrote."""
    with pytest.raises(ValueError, match=re.escape(why)):
        reply_read(text, 2)


@given(st.text())
def test_no_text_breaks_the_reader(text):
    """A traceback in the middle of a run."""
    try:
        scores, _ = reply_read(text, 1)
    except ValueError:
        return
    assert len(scores) == 1 and 0 <= scores[0] <= 1


def test_the_schema_is_what_is_read():
    """A server would hold its model to a form that is then refused."""
    form = schema(2)
    assert set(json.loads(GOOD)) == set(form["required"]) == set(form["properties"])
    assert form["additionalProperties"] is False and form["properties"]["scores"]["minItems"] == 2


@settings(max_examples=200)
@given(st.lists(st.text(st.characters(codec="utf-8")), min_size=1, max_size=4), st.text())
def test_every_text_stays_between_its_marks(answers, task):
    """One answer could speak for another, or for the rules."""
    rules, parts = framed(JudgeQuestion((task,), tuple(answers), "c"), 1000, 1)
    (word,) = set(re.findall(r"carry the word (\w+),", rules))
    text = "\n".join(parts)
    assert len(re.findall(rf"\[\[[^\]]* {word}\]\]", text)) == 2 * (len(answers) + 1)
    for i, answer in enumerate(answers, start=1):
        assert f"[[answer {i} {word}]]\n{harmless(answer)}\n[[end answer {i} {word}]]" in text


@given(st.text())
def test_nothing_of_a_text_stands_for_a_turn_or_hides(text):
    """A chat template's words in an answer would end the question and begin another."""
    clean = harmless(f"<|im_{text}end|>{text}<|image_pad|>")
    assert not re.search(r"<\|[^<>|]*\|>", clean) and all(c.isprintable() or c == "\n" for c in clean)


def test_a_long_answer_is_cut_and_a_film_is_spread():
    """An answer of a million characters would fill the judge's window; a film's end would never be seen."""
    film = Video(np.stack([np.full((2, 2, 3), i, np.uint8) for i in range(9)]), tuple(range(9)), 1.0, 9.0)
    _, parts = framed(JudgeQuestion((film, "?"), ("x" * 100,), "c"), 10, 3)
    pictures = [part for part in parts if not isinstance(part, str)]
    assert [np.asarray(picture)[0, 0, 0] for picture in pictures] == [0, 4, 8]
    assert "xxxxxxxxxx (the rest is left out)" in parts[-1]


def test_keys_tell_questions_apart():
    """One question's verdict would be taken for another's."""
    film = Video(np.zeros((1, 2, 2, 3), np.uint8), (0.0,), 1.0, 1.0)
    made = [JudgeQuestion(("a", "b"), ("c",), "d"), JudgeQuestion(("ab",), ("c",), "d"),
            JudgeQuestion(("a", "b"), ("c", "d"), ""),
            JudgeQuestion(("a", "b"), ("c",), "d", "e"), JudgeQuestion(("a", "b"), ("c",), "d", vote=1),
            JudgeQuestion((film,), (), "")]  # fmt: skip
    assert len({question.key for question in made}) == len(made)
    assert JudgeQuestion(("a", "b"), ("c",), "d").key == made[0].key


# -- finding and counting --------------------------------------------------------------------------------------------


ODD = """
from vlrl.contrib.judges.base import Verdict


class Odd:
    def __init__(self, seed, *, scores: list[float]):
        self.scores = tuple(scores)

    def ask(self, questions):
        return [Verdict(self.scores) for _ in questions]
"""


@pytest.mark.parametrize("scores", [[], [1.0, 1.0], [1.5], [float("nan")]])
def test_scores_that_do_not_fit_are_failures(scores, capsys, tmp_path, monkeypatch):
    """A user's judge on another scale would pay a hundred times what the task does."""
    (tmp_path / "odd_judge.py").write_text(ODD)
    monkeypatch.syspath_prepend(str(tmp_path))
    asked = JudgeClient({"name": "odd_judge:Odd", "scores": scores}, 0, "process_rewards: grm: judge")
    (verdict,) = asked.ask([JudgeQuestion(("?",), ("a",), "c")])
    assert verdict.fault and asked.metrics == {"judge/asked": 1, "judge/failed": 1.0}
    asked.ask([JudgeQuestion(("?",), ("a",), "c")])
    assert capsys.readouterr().err.count("found no answer") == 1  # told once
    asked.begin()
    assert asked.metrics == {"judge/asked": 0, "judge/failed": 0.0}


def test_failures_can_stop_the_run():
    """A run whose judge is away would go on for days, learning nothing, where the user wants to know."""
    asked = JudgeClient({"name": "scripted", "failing": 1.0}, 0, "process_rewards: grm: judge", stop=True)
    with pytest.raises(UserError, match="process_rewards: grm: judge: 1 of 1 questions found no answer: told to fail"):
        asked.ask([JudgeQuestion(("?",), ("a",), "c")])


@pytest.mark.parametrize(
    ("chosen", "told"),
    [
        ("scriptd", "unknown judge 'scriptd'; did you mean 'scripted'"), ({}, "name: is required"),
        ({"name": "endpoint", "url": "http://x"}, "model: is required"),
        ({"name": "endpoint", "url": "http://x", "model": "m", "timeot": 1}, "timeot: unknown key; did you mean"),
        ({"name": "scripted", "noise": 2.0}, "noise"), ("no_such_module:Judge", "cannot find"),
    ],
)  # fmt: skip
def test_a_wrong_judge_is_told_when_the_configuration_is_read(chosen, told):
    """The first group would have been played, for an hour, before a slip of the pen shows."""
    with pytest.raises(UserError, match=re.escape(told)):
        judges_check(chosen, "process_rewards.0.judge")
    judges_check({"name": "scripted", "words": ["a"]}, "process_rewards.0.judge")


def test_the_scripted_judge_is_the_same_every_time():
    """Tests of what is built on it would fail at times."""
    questions = [JudgeQuestion(("?",), (f"a{i}", "ab"), "c", "ab", vote=i) for i in range(200)]
    judge = judges_make({"name": "scripted", "noise": 0.1, "failing": 0.25}, 3, "p")
    first = judge.ask(questions)
    assert judge.ask(questions[::-1])[::-1] == first
    assert 0.1 < sum(bool(verdict.fault) for verdict in first) / 200 < 0.4
    assert len({verdict.scores[1] for verdict in first if verdict.scores}) > 20
