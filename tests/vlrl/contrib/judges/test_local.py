"""A judge in this process, by the embedded model: it has learned nothing, so what counts is that it fails well."""

from __future__ import annotations

import re

import pytest
from PIL import Image

from vlrl.contrib.judges.base import CLAIMS, JudgeQuestion, judges_make
from vlrl.contrib.process_rewards.judged import ASKS
from vlrl.types import Decision, UserError

SMALL = {"name": "local", "model": "embedded", "max_tokens": 6, "max_pixels": 4096}
QUESTIONS = [JudgeQuestion((Image.new("RGB", (32, 32)), f"Is it {i}?"), ("yes", "no"), "be right") for i in range(3)]


def test_a_model_that_writes_no_scores_fails_and_nothing_breaks():
    """A small model's babble would be a score, or end the run."""
    verdicts = judges_make({**SMALL, "batch": 2}, 0, "p").ask(QUESTIONS)
    assert len(verdicts) == 3 and all(v.fault and not v.scores for v in verdicts)


def test_replies_are_read_each_for_its_question():
    """The scores of a model that knows how to answer would not arrive, or another question's would."""
    judge = judges_make({"name": "local", "model": "embedded", "batch": 2}, 0, "p")
    shown = []

    def act(episodes, observations, greedy):
        shown.extend(observations)
        texts = [f'{{"critique": "", "scores": [{re.search("Is it (.)", each.text)[1]}, 10]}}' for each in observations]
        return [Decision(text, None, None, truncated=False) for text in texts]

    judge._policy.act = act  # the embedded model cannot write such a reply
    assert [verdict.scores for verdict in judge.ask(QUESTIONS)] == [(0.0, 1.0), (0.1, 1.0), (0.2, 1.0)]
    assert all(len(each.images) == 1 and "be right" in each.text for each in shown)


def test_sampled_votes_are_the_same_again():
    """A run that is resumed would be judged otherwise than the one that was not killed."""
    written = []
    for earlier in (QUESTIONS[:1], []):
        judge = judges_make({**SMALL, "temperature": 1.0}, 0, "p")
        judge.ask(earlier)
        act, said = judge._policy.act, []

        def listening(*asked, act=act, said=said, **options):
            decisions = act(*asked, **options)
            said.extend(str(decision.action) for decision in decisions)
            return decisions

        judge._policy.act = listening
        judge.ask(QUESTIONS)
        written.append(said)
    assert written[0] == written[1] and len(set(written[0])) > 1


def test_a_model_that_is_none_is_told():
    """A traceback of another library's."""
    with pytest.raises(UserError, match="there is no folder"):
        judges_make({"name": "local", "model": "no/such/folder"}, 0, "p")
    with pytest.raises(UserError, match=r"judge\.model: embedded_push is no vision-language model"):
        judges_make({"name": "local", "model": "embedded_push"}, 0, "p")


PAIRS = {"name": "pairs", "model": "embedded", "asks": "Describe the picture."}


def tagged(text):
    return f"<answer>{text}</answer>"


def compares(judge, decide):
    """`decide(first, second) -> reply` in the place of what a trained model writes; what was shown is kept."""
    shown = []

    def act(episodes, observations, greedy):
        shown.extend(observations)
        texts = [re.fullmatch(r"Describe the picture\. \(1\) (.+) \(2\) (.+) Which is better\?", o.text) for o in shown]
        replies = [decide(*match.groups()) for match in texts[-len(observations) :]]
        return [Decision(reply, None, None, truncated=False) for reply in replies]

    judge._model._policy.act = act
    return shown


def test_answers_play_each_other_in_both_orders():
    """A liking for the first place would pay whoever stands there; a broken form would win unseen."""
    judge = judges_make({**PAIRS, "batch": 3}, 0, "p")
    shown = compares(judge, lambda one, two: tagged(1 if len(one) > len(two) else 2))
    image = Image.new("RGB", (32, 32))
    texts = (tagged("a ring"), tagged("a red ring"), "a large red ring", tagged("ring"))
    content = (image, "any words of the task")
    (verdict,) = judge.ask([JudgeQuestion(content, texts, "be right")])
    assert verdict.scores == pytest.approx((2 / 3, 1.0, 0.0, 1 / 3)) and not verdict.fault
    assert len(shown) == 6 and all(len(each.images) == 1 for each in shown)  # three that can be read, in both orders
    compares(judge, lambda one, two: tagged(1))
    assert judge.ask([JudgeQuestion(content, texts[:2], "be right")])[0].scores == (0.5, 0.5)
    compares(judge, lambda one, two: "1 or 2")
    assert judge.ask([JudgeQuestion(content, texts[:2], "be right")])[0].scores == (0.5, 0.5)


def test_a_pair_that_is_asked_in_both_orders_plays_once():
    """`arena` asks so, which would cost every comparison twice; other votes are other replies."""
    judge = judges_make(PAIRS, 0, "p")
    shown = compares(judge, lambda one, two: tagged(1 if len(one) > len(two) else 2))
    content, texts = (Image.new("RGB", (32, 32)),), (tagged("a ring"), tagged("a red ring"))
    orders = [JudgeQuestion(content, pair, "be right") for pair in (texts, texts[::-1])]
    assert [each.scores for each in judge.ask(orders)] == [(0.0, 1.0), (1.0, 0.0)] and len(shown) == 2
    votes = [JudgeQuestion(content, texts, "be right", vote=vote) for vote in (0, 1)]
    assert [each.scores for each in judge.ask(votes)] == [(0.0, 1.0)] * 2 and len(shown) == 6


def test_one_answer_is_compared_with_the_reference():
    """`polar` asks about one answer at a time."""
    judge = judges_make(PAIRS, 0, "p")
    compares(judge, lambda one, two: tagged(1 if len(one) > len(two) else 2))
    image, gold = Image.new("RGB", (32, 32)), tagged("a red ring")
    asked = [JudgeQuestion((image,), (tagged(text),), "", gold) for text in ("a ring", "a large red ring")]
    verdicts = judge.ask([*asked, JudgeQuestion((image,), (tagged("a ring"),), "")])
    assert [verdict.scores for verdict in verdicts] == [(0.0,), (1.0,), ()]
    assert "nothing to compare with" in verdicts[2].fault


def test_answers_that_are_too_long_to_compare_end_no_run():
    """A judge must not raise: one endless answer would end the training."""
    judge = judges_make(PAIRS, 0, "p")
    texts = (tagged("a ring " * 20_000), tagged("a red ring"))
    (verdict,) = judge.ask([JudgeQuestion((Image.new("RGB", (32, 32)),), texts, "")])
    assert verdict.scores == (0.5, 0.5)


def test_a_model_without_verdicts_prefers_nothing():
    """The embedded model as it is has never compared: its babble must not be a score."""
    texts = (tagged("a ring"), tagged("a red ring"))
    (verdict,) = judges_make(PAIRS, 0, "p").ask([JudgeQuestion((Image.new("RGB", (32, 32)),), texts, "")])
    assert verdict.scores == (0.5, 0.5)


def test_claims_of_one_kind_are_judged_by_their_words():
    """Three criteria would have one score, or the reply of one sentence go to another."""
    judge = judges_make({"name": "claims", "model": "embedded", "asks": "Describe the picture.", "batch": 2}, 0, "p")
    shown = []

    def act(episodes, observations, greedy):
        shown.extend(observations)
        wrong = ["red ring" in each.text and "wrong attribute" in each.text for each in observations]
        replies = [
            "no verdict" if "bar" in o.text else tagged(1 + bad) for o, bad in zip(observations, wrong, strict=True)
        ]
        return [Decision(reply, None, None, truncated=False) for reply in replies]

    judge._model._policy.act = act
    image = Image.new("RGB", (32, 32))
    asked = [JudgeQuestion((image, "words of the task"), (text,), ASKS.format(kind=CLAIMS[kind]))
             for text in ("a red ring", "a blue ring", "a bar") for kind in CLAIMS]  # fmt: skip
    verdicts = judge.ask([*asked, JudgeQuestion((image,), ("a ring",), "be right")])
    assert [each.scores for each in verdicts] == [(1.0,), (0.0,), (1.0,), *[(1.0,)] * 3, *[()] * 4]
    assert "no verdict" in verdicts[6].fault and "use fine_grained" in verdicts[9].fault
    assert [len(each.images) for each in shown] == [1] * 9
    assert shown[1].text == "Describe the picture. a red ring (1) right attribute (2) wrong attribute Which is it?"
