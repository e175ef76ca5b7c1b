"""A judge in this process, by the embedded model: it has learned nothing, so what counts is that it fails well."""

from __future__ import annotations

import re

import pytest
from PIL import Image

from vlrl.contrib.judges.base import JudgeQuestion, judges_make
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
