"""Answers and episodes that a guide begins."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

from vlrl import registry
from vlrl.batch import columns
from vlrl.contrib.rollouts.hints import Guide, GuideTurns
from vlrl.policies.loading import load
from vlrl.recipe_checks import load_config
from vlrl.types import UserError


def stepped(strategy, policy, task, step: int = 0, count: int = 4):
    policy.generator.manual_seed(5)
    return strategy(policy, task, task.samples("train")[:count], 3, step, keep=True)


def forced(episode) -> int:
    found = episode.turns[0].decision.forced_mask
    return 0 if found is None else int(found.sum())


def test_completions_go_on_from_the_right_answer(writer, clicks):
    """The guide would speak of something else, be paid for, or say all that there is to say."""
    strategy = Guide(writer, clicks, 0, share=0.8)
    episodes = stepped(strategy, writer, clicks)
    mask, lengths = columns(episodes).mask, []
    for episode, row in zip(episodes, mask, strict=True):
        gold = writer.codec.tokens(clicks.gold(episode.sample, episode.frames))[:-1]
        count = forced(episode)
        assert 0 <= count < len(gold) and list(writer.ids(episode.turns[0].decision))[:count] == gold[:count]
        assert not row[:count].any() and row[count]
        lengths.append(count)
    assert 0 in lengths and len(set(lengths)) > 3
    assert strategy.metrics["guide/share"] == sum(n > 0 for n in lengths) / 12
    assert strategy.metrics["guide/tokens"] == sum(lengths) / sum(n > 0 for n in lengths)
    assert [e.group for e in episodes] == [i // 3 for i in range(12)]


def test_beginnings_hang_on_the_step_alone(writer, clicks):
    """A resumed run would go on from other beginnings."""
    one, other, later = (
        [e.completion for e in stepped(Guide(writer, clicks, 0), writer, clicks, step)] for step in (3, 3, 4)
    )
    assert one == other != later
    assert not any(map(forced, stepped(Guide(writer, clicks, 0, share=0.0), writer, clicks)))


def test_a_model_may_be_the_guide(writer, clicks):
    """The paper's guide is a model; what it writes must come again after a resume."""
    whole, resumed = (Guide(writer, clicks, 0, share=1.0, guide="embedded") for _ in range(2))
    stepped(whole, writer, clicks)
    resumed.load_state_dict(whole.state_dict())
    one, other = (stepped(each, writer, clicks, 1) for each in (whole, resumed))
    assert [e.completion for e in one] == [e.completion for e in other] and any(map(forced, one))
    assert json.dumps(Guide(writer, clicks, 0).state_dict()) == "{}"


def test_a_guide_of_another_family_is_refused(writer, clicks):
    """Its coordinates would mean other places."""
    other = SimpleNamespace(writes_text=True, codec=SimpleNamespace(space="rel1000"), max_tokens=12)
    with pytest.raises(UserError, match=r"rollout_strategy\.guide: embedded writes in grid10, the policy in rel1000"):
        Guide(other, clicks, 0, guide="embedded")


@pytest.fixture(scope="module")
def robot():
    config = load_config("configs/manipulation.yaml")
    task = registry.make_task(config)
    return load(config.policy, seed=0), task


def test_a_script_plays_the_first_turns(robot):
    """The policy would be paid for the script's work, or the log tell of actions that nobody did."""
    policy, task = robot
    strategy = GuideTurns(policy, task, 0, turns=3, share=1.0)
    episodes = stepped(strategy, policy, task, count=2)
    assert [(e.group, e.sample.id) for e in episodes] == [
        (i, s.id) for i, s in enumerate(task.samples("train")[:2]) for _ in range(3)
    ]
    rollouts, row, counts = columns(episodes), 0, []
    for episode in episodes:
        led = [t.decision.forced_mask is not None for t in episode.turns]
        counts.append(sum(led))
        assert led == sorted(led, reverse=True) and 1 <= sum(led) <= 3
        for turn, own in zip(episode.turns, led, strict=True):
            assert bool(rollouts.mask[row].any()) == (not own)
            row += 1
            if own:
                again = policy.decide(turn.observation, turn.decision.action)
                assert (again.action == turn.decision.action).all() and bool(turn.decision.forced_mask.all())
    assert strategy.metrics["guide/turns"] == sum(counts) / 6 and strategy.metrics["guide/share"] == 1
    now = policy.evaluate([t.decision for e in episodes for t in e.turns])
    torch.testing.assert_close(
        now.logprobs.detach()[rollouts.mask], rollouts.logprobs[rollouts.mask], atol=1e-4, rtol=0
    )


def test_a_script_is_needed(writer, clicks):
    """The strategy would do nothing in silence."""
    with pytest.raises(UserError, match=r"guide_turns: this task's environments have no script"):
        stepped(GuideTurns(writer, clicks, 0, turns=1, share=1.0), writer, clicks)
