"""Second thoughts: where they begin, which are kept, and how they are learned."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import rewards.parse
from vlrl.batch import columns
from vlrl.contrib.rollouts.rethinking import (
    CHECK,
    DOES_IT,
    MISTAKE,
    WAIT,
    Rethink,
    before_answer,
    count_rethinks,
    fitting,
    response_tokens,
    thoughts,
    trigger,
)
from vlrl.rollout import plain
from vlrl.types import Policy

SIZE = 3


def stepped(policy, task, seed: int = 5, **options):
    policy.generator.manual_seed(seed)
    strategy = Rethink(policy, task, 0, **({"shortest": 1} | options))
    return strategy, strategy(policy, task, task.samples("train")[:4], SIZE, 0, keep=True)


def before(policy, task, seed: int = 5):
    policy.generator.manual_seed(seed)
    return plain(policy, task, task.samples("train")[:4], SIZE, 0)


def test_an_answer_is_cut_off():
    """The policy would only be asked again what it has just said."""
    assert before_answer("I see red.\n\nSo it is <answer>red</answer>") == "I see red."
    assert before_answer("a\n\nb\n\nWait, c\n\nd") == "a\n\nb"
    assert before_answer("The Answer: 3") == "The"
    assert before_answer("x = 2 so \\boxed{2}") == "x = 2 so"
    assert before_answer("no end") == "no end" and before_answer("<answer>[3,4]</answer>") == ""


def test_rethinks_belong_into_the_thoughts():
    """Behind `</think>` they would make every response wrong, as only the answer may follow."""
    assert thoughts("<think>I see red. </think> <answer>red</answer>") == "<think>I see red."
    assert thoughts("red") == "red" and thoughts("red ") == "red "


@given(st.text(max_size=30), st.integers(0, 30))
def test_tokens_of_a_shorter_text(writer, text, end):
    """A response would go on from within what was cut off, or lose what was not."""
    tokens = writer.codec.tokens(text)[:-1]
    kept = fitting(writer, tokens, text[:end])
    assert len(writer.codec.decode(tokens[:kept])) <= min(end, len(text))
    assert kept == len(tokens) or len(writer.codec.decode(tokens[: kept + 1])) > end


def test_triggers_come_as_often_as_published():
    """Half of them neutral, of these 4 in 10 the bare one; the others by whether the response was right."""
    draws = [(n, w) for n in (0.2, 0.7) for w in (0.1, 0.3, 0.5, 0.7, 0.9)]
    assert [trigger(True, *d) for d in draws] == [WAIT, WAIT, DOES_IT, DOES_IT, DOES_IT] + [CHECK] * 5
    assert trigger(False, 0.7, 0.1) == MISTAKE
    assert count_rethinks("Wait, no. Wait a bit. Alternatively, wait") == 3


def test_what_ends_up_right_takes_its_responses_place(writer, judged):
    """Second thoughts that went wrong would be learned, or one prompt be drowned in them."""
    task = judged(lambda e: "Wait" in e.completion)
    strategy, episodes = stepped(writer, task, share=1.0, most=2)
    first = before(writer, task)
    assert [(e.group, e.sample.id) for e in episodes] == [(e.group, e.sample.id) for e in first]
    for place, (now, then) in enumerate(zip(episodes, first, strict=True)):
        assert now.is_demonstration == ("Wait" in now.completion) == bool(now.score.correct)
        assert now.is_demonstration or now.completion == then.completion, place
    of_group = [sum(e.is_demonstration for e in episodes[i : i + SIZE]) for i in range(0, len(episodes), SIZE)]
    assert max(of_group) <= 2 and sum(of_group) > 2
    measured = strategy.metrics
    assert measured["rethink/kept"] == measured["rethink/mended"] == sum(of_group) / len(episodes)
    assert strategy.played == len(episodes) * (1 + measured["rethink/asked"])
    assert measured["rethink/asked"] == sum(not e.turns[0].decision.truncated for e in first) / len(first)


def test_the_response_goes_on_from_its_own_words(writer, judged):
    """The policy would be led to doubt what it never said."""
    task = judged(lambda e: "Wait" in e.completion)
    for cut in (0.0, 1.0):
        _, episodes = stepped(writer, task, share=1.0, cut=cut)
        for now, then in zip(episodes, before(writer, task), strict=True):
            if now.is_demonstration:
                kept = before_answer(then.completion) if cut else then.completion
                assert now.completion.startswith(f"{kept}\n\nWait")


@pytest.mark.parametrize("trigger", ["learned", "forced"])
def test_second_thoughts_are_learned_as_the_policys_own(trigger, writer, judged):
    """The loss would see ratios to a law that never was; forced triggers would earn credit, or learned ones none."""
    task = judged(lambda e: "Wait" in e.completion)
    _, episodes = stepped(writer, task, share=1.0, cut=0.0, trigger=trigger)
    rollouts = columns(episodes)
    now = writer.evaluate([e.turns[0].decision for e in episodes])
    torch.testing.assert_close(
        now.logprobs.detach()[rollouts.mask], rollouts.logprobs[rollouts.mask], atol=1e-4, rtol=0
    )
    assert rollouts.is_demonstration.tolist() == [e.is_demonstration for e in episodes]
    for then, episode, mask in zip(before(writer, task), episodes, rollouts.mask, strict=True):
        if not episode.is_demonstration:
            continue
        own = len(writer.codec.decode(response_tokens(writer, then)))
        silent = (~mask[: len(episode.turns[0].decision.logprobs)]).nonzero().flatten().tolist()
        if trigger == "learned":
            assert silent == []
        else:
            tokens = [writer.ids(episode.turns[0].decision)[i] for i in silent]
            assert episode.completion[own:].startswith(writer.codec.decode(tokens)) and len(tokens) > 0
            assert writer.codec.decode(tokens) in (WAIT, DOES_IT, CHECK, MISTAKE)


def test_a_response_with_thoughts_can_end_right(writer, judged):
    """The strategy would keep nothing of any task that asks for tags."""
    thought = "<think>red</think>\n<answer>[1,2]</answer>"

    class Same(Policy):
        """A policy that always writes the same, and goes on with an answer."""

        writes_text = True

        def __init__(self):
            self.codec, self.ids, self.evaluate = writer.codec, writer.ids, writer.evaluate

        def act(self, episodes, observations, begun=None, room=None, keep=False):
            made = []
            for i, shown in enumerate(observations):
                first = writer.codec.decode(begun[i]) if begun else ""
                text = f"{first} no.</think>\n<answer>[1,2]</answer>" if begun else thought
                made.append(writer.decide(shown, text))
            return made

    def formed(episode):
        return rewards.parse.answer_text(episode.completion, thinking=True).reason is None

    task, policy = judged(formed), Same()
    strategy = Rethink(policy, task, 0, share=1.0, shortest=1, cut=0.0)
    episodes = strategy(policy, task, task.samples("train")[:2], SIZE, 0)
    assert strategy.metrics["rethink/accuracy"] == 1 and sum(e.is_demonstration for e in episodes) == 4
    assert all(e.completion.startswith("<think>red\n\nWait") for e in episodes if e.is_demonstration)


def test_bounds_hold(writer, judged):
    """Empty second thoughts, endless ones, or those of one doubt after the other would be learned."""
    task = judged(lambda e: "Wait" in e.completion)
    assert not any(e.is_demonstration for e in stepped(writer, task, share=1.0, shortest=50)[1])
    assert not any(e.is_demonstration for e in stepped(writer, task, share=0.0)[1])
    strategy, episodes = stepped(writer, task, share=1.0, longest=2, most=9)
    assert strategy.metrics["rethink/asked"] > 0
    for now, then in zip(episodes, before(writer, task), strict=True):
        if now.is_demonstration:  # what was kept, the trigger, and two more
            begun = [len(writer.codec.tokens(t)) - 1 for t in (WAIT, DOES_IT, CHECK, MISTAKE)]
            assert len(writer.ids(now.turns[0].decision)) <= len(response_tokens(writer, then)) + max(begun) + 2


def test_wrong_members_of_good_groups_are_left_alone(writer, judged):
    """A group that needs no help would be filled up with second thoughts."""
    calls = {"n": 0}

    def mostly(episode):  # of each group of SIZE all are right but the last; `score` asks twice for each
        calls["n"] += 1
        return "Wait" in episode.completion or (calls["n"] - 1) // 2 % 5 != 4

    task = judged(mostly)
    writer.generator.manual_seed(5)
    strategy = Rethink(writer, task, 0, share=1.0, shortest=1)
    episodes = strategy(writer, task, task.samples("train")[:2], 5, 0)
    assert [e.score.correct for e in episodes[4::5]] == [0.0, 0.0] and not any(
        e.is_demonstration for e in episodes[4::5]
    )
    assert any(e.is_demonstration for e in episodes)


def test_draws_hang_on_the_step_alone(writer, judged):
    """A resumed run would think other responses over."""
    task = judged(lambda e: "Wait" in e.completion)
    one, other = (stepped(writer, task)[1] for _ in range(2))
    assert [e.completion for e in one] == [e.completion for e in other]
    assert any(
        np.array([e.is_demonstration for e in one])
        != np.array([e.is_demonstration for e in stepped(writer, task, share=1.0)[1]])
    )
