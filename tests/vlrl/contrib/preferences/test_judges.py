"""Judges: a script whose mistakes are counted, and a vision-language model whose words may be anything."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vlrl import engines
from vlrl.contrib.preferences.labelling import ScriptedJudge, VLMJudge, answer_in, harmless, pair_of
from vlrl.types import Observation, Policy, UserError

TASK = SimpleNamespace(pool=SimpleNamespace(info=SimpleNamespace(names=("x", "y", "goal x", "goal y"))))
NAMED = {"what": ["x", "y"], "where": ["goal x", "goal y"]}


def pairs(count: int, seed: int = 0, size: int = 0):
    rng = np.random.default_rng(seed)
    states = rng.normal(size=(count, 2, 4)).astype(np.float32)
    shown = [Image.new("RGB", (48, 48), tuple(rng.integers(0, 255, 3).tolist()))] if size else []
    return [pair_of(*(Observation(tuple(shown), state) for state in two)) for two in states]


def test_the_script_errs_as_often_as_it_says():
    """What a share of mistakes costs would be told of another share."""
    asked = pairs(4000)
    right = ScriptedJudge(TASK, 0, **NAMED).prefer(asked, "")
    two = [np.stack([pair.first.state, pair.second.state]) for pair in asked]
    assert right == [int(np.diff(np.hypot(s[:, 0] - s[:, 2], s[:, 1] - s[:, 3]))[0] < 0) for s in two]
    said = ScriptedJudge(TASK, 0, **NAMED, noise=0.1, unsure=0.2).prefer(asked, "")
    silent = [each is None for each in said]
    wrong = [a != b for a, b in zip(said, right, strict=True) if a is not None]
    assert abs(np.mean(silent) - 0.2) < 0.03 and abs(np.mean(wrong) - 0.1) < 0.025  # more than 4 standard deviations
    assert said != ScriptedJudge(TASK, 1, **NAMED, noise=0.1, unsure=0.2).prefer(asked, "")


def test_the_scripts_answer_hangs_on_the_pair_alone():
    """A run that goes on asks in other batches: its answers must be those of a run that was not stopped."""
    asked = pairs(40)
    judge = ScriptedJudge(TASK, 3, **NAMED, noise=0.3, unsure=0.3)
    assert judge.prefer(asked, "") == [judge.prefer([pair], "")[0] for pair in asked[::-1]][::-1]


def test_the_script_does_not_tell_equals_apart():
    """A cube that has not moved would be a preference by rounding."""
    same = pair_of(*(Observation((), np.array(s, np.float32)) for s in ((0, 0, 1, 0), (0, 0, 0, 1))))
    close = pair_of(*(Observation((), np.array(s, np.float32)) for s in ((0, 0, 1, 0), (0, 0, 1.01, 0))))
    assert ScriptedJudge(TASK, 0, **NAMED).prefer([same, close], "") == [None, 0]
    assert ScriptedJudge(TASK, 0, **NAMED, margin=0.02).prefer([close], "") == [None]


@pytest.mark.parametrize(("what", "said"), [(["z", "y"], "has no 'z'"), (["x"], "1 numbers in what, 2 in where")])
def test_numbers_that_are_not_there_are_one_line(what, said):
    """A mistyped name would end in a traceback after the data was read."""
    with pytest.raises(UserError, match=said):
        ScriptedJudge(TASK, 0, what=what, where=NAMED["where"])


@pytest.mark.parametrize(
    ("text", "answer"),
    [("0", 0), ("1", 1), ("-1", None), ("\u22121", None), ("Answer: 1", 1), ("<think>0?</think>\n\n**1**\n", 1),
     ("0.", 0), ('"1"', 1), ("(0)", 0), ("answer = 0", 0), ("", None), ("\n \n", None), ("2", None), ("01", None),
     ("0 or 1", None), ("Picture 1", None), ("1\nbut picture 0 is nearer", None), ("10", None), ("--1", None),
     ("\u0661", None), ("\u00b9", None), ("True", None), ("1" * 5000, None), ("0x1", None), ("1.0", None)],
)  # fmt: skip
def test_only_a_clear_answer_counts(text, answer):
    """A number that is found somewhere in a refusal would be learned as a preference."""
    assert answer_in(text) == answer


@given(st.text(max_size=200))
def test_no_words_of_a_model_break_a_run(text):
    """One odd completion after hours of asking would end the run."""
    assert answer_in(text) in (0, 1, None)
    clean = harmless(text)
    assert harmless(clean) == clean and "\x00" not in clean


def test_a_models_words_cannot_stand_for_a_picture():
    """The second question would ask for image features that do not exist."""
    assert harmless("a<|image_pad|>b<|im_<|x|>end|>\x07\ufffd c") == "a b  c"


class Stub(Policy):
    """A policy that says what it is told, and keeps what it was shown."""

    writes_text = True

    def __init__(self, *said: list[str]):
        self.said, self.shown = iter(said), []

    def act(self, episodes, observations, greedy=False):
        assert greedy and len({episode.group for episode in episodes}) == len(episodes)
        self.shown.append(observations)
        return [SimpleNamespace(action=text) for text in next(self.said)]


def test_two_questions_and_only_the_first_shows_pictures(monkeypatch):
    """Answers would land with other pairs, or the second question would be asked without what was seen."""
    stub = Stub(["A is <|image_pad|>nearer", "no {idea} %s"], ["0", "none"])
    monkeypatch.setattr(engines, "load_policy", lambda section, seed: stub)
    judge = VLMJudge(TASK, 0, model="any")
    assert judge.prefer(pairs(2, size=48), "the {cube} lies") == [0, None]
    looked, asked = stub.shown
    assert all(len(shown.images) == 2 and "the {cube} lies" in shown.text for shown in looked)
    assert not any(shown.images for shown in asked) and "no {idea} %s" in asked[1].text
    assert "A is  nearer" in asked[0].text and "the {cube} lies" in asked[0].text
    assert judge.said[1] == "no {idea} %s\n=> none"


def test_a_real_model_judges_real_pictures():
    """The bundled model knows nothing of robots: whatever it writes must do, and be kept."""
    judge = VLMJudge(TASK, 0, model="embedded", max_tokens=8)
    assert set(judge.prefer(pairs(3, size=48), "the cube lies on the disc")) <= {0, 1, None}
    assert len(judge.said) == 3
    with pytest.raises(UserError, match="give the robot a camera"):
        judge.prefer(pairs(1), "the cube lies on the disc")


def test_a_policy_that_does_not_speak_is_refused():
    """It would be asked, and answer with a chunk of controls."""
    with pytest.raises(UserError, match="embedded_push is no vision-language model"):
        VLMJudge(TASK, 0, model="embedded_push")
