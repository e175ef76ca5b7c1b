"""Rewards for open answers: judged, embedded, thought about, sentence by sentence; and in whole recipes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vlrl.algorithms.reward_shaping import trust
from vlrl.batch import columns
from vlrl.contrib.judges.base import Verdict
from vlrl.contrib.process_rewards.judged import FineGrained, JudgedAnswer, Thoughts, answered, sentences, thought
from vlrl.contrib.process_rewards.visual import EmbeddedAnswer
from vlrl.recipe_checks import load_config
from vlrl.types import Decision, Episode, Observation, Sample, Score, Step, Turn, UserError

RECIPES = Path(__file__).parents[4] / "configs" / "recipes"
TASK = SimpleNamespace(truths=lambda sample: sample.answer)
GOLD = SimpleNamespace(truths=lambda sample: (), gold=lambda sample, frames: f"<answer>{sample.answer[0]}</answer>")


def episode(text, *, group=0, reward=0.25, rights=("two red rings",), reason=None, correct=0.0) -> Episode:
    shown = Observation((f"question {group}",))
    turn = Turn(shown, Decision(text, torch.zeros(4), torch.zeros(4), False), Step(shown, terminated=True))
    return Episode(
        Sample(f"s/{group}", shown, rights), group, [turn], Score({"format": 1.0}, correct, reason=reason), reward
    )


def said(text: str, **options) -> Episode:
    return episode(f"<answer>{text}</answer>", **options)


def rewards(episodes):
    return [each.reward for each in episodes]


class Listening:
    """A judge that says what `SAYS` makes of a question, and remembers what it was asked."""

    asked: list = []  # noqa: RUF012
    says = staticmethod(lambda question: 1.0)

    def __init__(self, seed: int):
        pass

    def ask(self, questions):
        Listening.asked += questions
        found = [Listening.says(question) for question in questions]
        return [Verdict(fault="away") if each is None else Verdict((each,)) for each in found]


@pytest.fixture
def judge(monkeypatch):
    """-> (its name, the class)."""
    module = ModuleType("listening_judge")
    module.Listening = Listening
    monkeypatch.setitem(sys.modules, "listening_judge", module)
    monkeypatch.setattr(Listening, "asked", [])
    monkeypatch.setattr(Listening, "says", staticmethod(lambda question: 1.0))
    return "listening_judge:Listening"


# -- the parts of a text


@given(st.text(alphabet="<>/answerthik x.\n", max_size=60))
def test_no_text_raises(text):
    """One odd completion would end the run."""
    found = episode(text)
    assert answered(found) is None or answered(found) in text
    assert thought(found) in text
    assert all(each in text for each in sentences(text, 3)) and len(sentences(text, 3)) <= 3


def test_parts_are_read_as_they_stand():
    """The judge of the answer would be shown the thoughts, or the other way round."""
    whole = episode("<CT><think>a. b</think><answer> c </answer>")
    assert (answered(whole), thought(whole)) == ("c", "a. b")
    assert answered(episode("<answer>a</answer><answer>b</answer>")) is None
    assert answered(said("c", reason="outside_tags")) is None  # what the task refused is no answer
    assert sentences("A ring. It is 2.5 wide! Red?\nBlue; green", 9) == [
        "A ring",
        "It is 2.5 wide",
        "Red",
        "Blue",
        "green",
    ]


# -- MediX-R1


def test_an_answer_is_judged_alone_and_beside_the_truth(judge):
    """Thoughts would talk the judge round, and equal answers cost questions."""
    many = [said("two red circles"), said("Two red rings"), episode("<think>10!</think><answer>rings</answer>"),
            said("x", reason="no_think"), episode("nothing")]  # fmt: skip
    Listening.says = staticmethod(lambda question: {"two red circles": 0.4, "rings": 0.6}[question.answers[0]])
    process = JudgedAnswer(None, TASK, 0, judge=judge, amount=0.5, keep=2.0)
    paid = process(many, 0)
    assert [e.score.parts["judged"] for e in paid] == [0, 1, 1, 0, 0]
    assert rewards(paid) == pytest.approx([0.5, 1.0, 1.0, 0.5, 0.5]) and rewards(many) == [0.25] * 5
    assert [q.answers for q in Listening.asked] == [("two red circles",), ("rings",)]
    assert {q.reference for q in Listening.asked} == {"two red rings"} and "question 0" in Listening.asked[0].content
    graded = JudgedAnswer(None, GOLD, 0, judge=judge, least=None, keep=0.0)(many[:1], 0)
    assert rewards(graded) == [0.4]  # a task without `truths` has its gold answer's


def test_an_answer_near_the_truth_is_like_it():
    """The threshold would not be the one told, or another of several truths be missed."""
    many = [said("two red rings."), said("two red ring"), said("a bar"), episode("no tags"),
            said("a blue bars", rights=("x y z", "a blue bar"))]  # fmt: skip
    process = EmbeddedAnswer(None, TASK, 0, embedder="hashed", threshold=0.8, amount=0.5, keep=0.0)
    assert rewards(process(many, 0)) == [0.5, 0.5, 0.0, 0.0, 0.5]
    raw = EmbeddedAnswer(None, TASK, 0, embedder="hashed", threshold=None, keep=0.0)(many, 0)
    assert 0.8 < raw[1].reward < 1 and 0 <= raw[2].reward < 0.5
    assert process.metrics["embedded/failed"] == 0 and process.metrics["embedded/like"] == pytest.approx(0.6)


class Away:
    """An embedder that knows no long texts."""

    def embed(self, found):
        import numpy as np

        return [None if len(text) > 20 else np.float32([1, 0]) for text in found]


@pytest.mark.parametrize(("on_failure", "fill"), [("neutral", 0.5), ("zero", 0.0)])
def test_answers_without_a_vector_are_neutral_or_nothing(monkeypatch, on_failure, fill):
    """A server that is away would be a reward; `neutral` is the mean of the group's others, 1 and 0."""
    module = ModuleType("away_embedder")
    module.Away = Away
    monkeypatch.setitem(sys.modules, "away_embedder", module)
    many = [said("x" * 30), said("a"), episode("no tags")]
    process = EmbeddedAnswer(None, TASK, 0, embedder="away_embedder:Away", keep=0.0, on_failure=on_failure)
    assert rewards(process(many, 0)) == [fill, 1.0, 0.0] and process.metrics["embedded/failed"] == 0.5
    stop = EmbeddedAnswer(None, TASK, 0, embedder="away_embedder:Away", on_failure="stop")
    with pytest.raises(UserError, match="1 of 2 answers have no vector"):
        stop(many, 0)


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("<STRIPES><answer>two red rings</answer>", 0.1 + 0.9 * (0.575 + 0.375 + 0.05)),
        ("<DOTS><answer>two red rings</answer>", 0.1 + 0.9 * (0.575 + 0.375)),
        ("<STRIPES><answer>two red ring</answer>", 0.1 + 0.9 * (0.575 + 0.375 + 0.05)),
        ("<STRIPES><answer>a blue bar</answer>", 0.1 + 0.9 * 0.05), ("two red rings", 0.0),
        ("<STRIPES><answer>YES</answer>", 0.1 + 0.9 * 0.05),
    ],
)  # fmt: skip
def test_the_recipe_is_medix_r1s_composite(text, reward):
    """The weights would be others than the published ones, whose sum is 1."""
    from tasks.open_answer import OpenTruth
    from vlrl import registry

    config = load_config(RECIPES / "medix_r1.yaml")
    task = registry.make_task(config)
    found = episode(text, rights=OpenTruth(("two red rings",), "STRIPES", facts=True))
    found.score = task.score(found)
    found.reward = task.reward(found.score)
    (paid,) = [found]
    for i, component in enumerate(config.process_rewards):
        (paid,) = registry.make("process_rewards", component, f"process_rewards.{i}", None, task, 0)([paid], 0)
    assert paid.reward == pytest.approx(reward)


# -- SophiaVL-R1


def test_thoughts_are_judged_alone_and_trusted_as_they_agree(judge):
    """The judge would be shown the answer, or be believed where it contradicts the answers."""
    Listening.says = staticmethod(lambda question: 0.9 if "good" in question.answers[0] else 0.3)
    texts = ["<think>bad</think><answer>r</answer>", "<think>good</think><answer>w</answer>", "<answer>w</answer>"]
    many = [episode(t, reward=float(i == 0), correct=float(i == 0)) for i, t in enumerate(texts)]
    paid = Thoughts(None, TASK, 0, judge=judge)(many, 0)
    assert [e.score.parts["thinking"] for e in paid] == [0.3, 0.9, 0.0] and rewards(paid) == rewards(many)
    assert [q.answers for q in Listening.asked] == [("bad",), ("good",)] and Listening.asked[0].reference is None
    # right thoughts 0.3, wrong ones (0.9 + 0) / 2: gamma = exp(0.3 - 0.45)
    shaped = trust(columns(paid, step=0), thinking="thinking", amount=0.3, period=500.0)
    gamma = 2.718281828459045 ** (0.3 - 0.45)
    assert shaped.tolist() == pytest.approx([1 + 0.3 * gamma * 0.3, 0.3 * gamma * 0.9, 0.0], abs=1e-6)


# -- FGAIF


def test_each_sentence_is_asked_about_each_kind(judge):
    """One lie among truths would cost nothing, or everything."""
    lies = {("A cat", "lies, moves"): 0.0, ("A dog", "is there at all"): 0.2}
    Listening.says = staticmethod(
        lambda q: next((v for (text, kind), v in lies.items() if text == q.answers[0] and kind in q.criteria), 1.0)
    )
    many = [said("A cat. A dog."), said("A dog"), episode("no tags")]
    process = FineGrained(None, TASK, 0, judge=judge, keep=0.0)
    paid = process(many, 0)
    assert [e.score.parts[k] for e in paid for k in ("existence", "attribute", "relation")] == [
        0.6, 1.0, 0.5, 0.2, 1.0, 1.0, 0.0, 0.0, 0.0
    ]  # fmt: skip
    assert rewards(paid) == pytest.approx([2.1 / 3, 2.2 / 3, 0.0])
    assert len(Listening.asked) == 3 * 3 and process.metrics["judge/failed"] == 0
    Listening.asked.clear()
    some = FineGrained(None, TASK, 0, judge=judge, attribute=0.0, relation=3.0, keep=0.0)(many[:1], 0)
    assert some[0].reward == pytest.approx((0.6 + 3 * 0.5) / 4) and len(Listening.asked) == 4


@pytest.mark.parametrize("name", ["judged_answer", "thoughts", "fine_grained"])
def test_a_judge_that_is_away_is_neutral_or_stops_the_run(judge, name):
    """A broken judge would be a reward; or a run that needs one would go on without."""
    Listening.says = staticmethod(lambda question: None)
    make = {"judged_answer": JudgedAnswer, "thoughts": Thoughts, "fine_grained": FineGrained}[name]
    two = [episode(f"<think>{t}</think><answer>{t}</answer>") for t in "ab"]
    process = make(None, TASK, 0, judge=judge, keep=0.0, amount=1.0)
    assert rewards(process(two, 0)) == pytest.approx([0.5, 0.5]) and process.metrics["judge/failed"] == 1
    assert rewards(make(None, TASK, 0, judge=judge, keep=0.0, amount=1.0, on_failure="zero")(two, 0)) == [0.0, 0.0]
    with pytest.raises(UserError, match=rf"process_rewards: {name}: judge: .* found no answer: away"):
        make(None, TASK, 0, judge=judge, on_failure="stop")(two, 0)


def test_what_a_step_earned_is_paid_to_the_last_one(judge):
    """An estimator that discounts would see nothing of it, or the outcome be paid twice."""
    (paid,) = JudgedAnswer(None, TASK, 0, judge=judge, amount=0.5, form="reward")([said("x")], 0)
    assert (paid.reward, paid.turns[-1].process_reward) == (0.25, 0.5)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (["process_rewards=[{name: judged_answer, judge: nobody}]"], "unknown judge 'nobody'"),
        (["process_rewards=[{name: thoughts, judge: scripted, form: reward}]"], "pays steps"),
        (["process_rewards=[{name: embedded_answer}]"], "embedder: is required"),
        (["process_rewards=[{name: fine_grained, judge: scripted, existence: -1}]"], "existence"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_told_when_the_configuration_is_read(changes, told):
    """The run would stop after its first rollouts."""
    with pytest.raises(UserError, match=told):
        load_config(RECIPES / "medix_r1.yaml", changes)


def test_a_hacked_judge_is_as_told():
    """The figure of docs/judges.md would show another judge than the page describes."""
    sys.path.insert(0, str(Path(__file__).parents[4] / "bench" / "hacks"))
    try:
        from hacked_judge import ARMS, Fond

        from vlrl.contrib.judges.base import JudgeQuestion
    finally:
        sys.path.pop(0)
    ask = [JudgeQuestion(("?",), (text,), "", "a red bar") for text in ("a red bar", "a red circle", "a blue ring")]
    assert [verdict.scores for verdict in Fond(0).ask(ask)] == [(1.0,), (0.0,), (1.0,)]
    for changes in ARMS.values():
        config = load_config(RECIPES.parent / "open_answer.yaml", list(changes))
        assert json.dumps(config.task.options["weights"]["format"]) == "0.1"
