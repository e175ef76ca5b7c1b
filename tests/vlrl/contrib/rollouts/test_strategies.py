"""Where a step's episodes come from: recorded ones first, as if the present policy had written them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import torch

from vlrl import episode_store, recipe_checks, registry
from vlrl.checkpoint import flatten, unflatten
from vlrl.config import Component, Config, PolicySection
from vlrl.contrib.rollouts.replay import OfflineFirst, ReplayRollouts
from vlrl.episode_store import recorded_read, recorded_write
from vlrl.policies.loading import load
from vlrl.rollout import collect, plain
from vlrl.types import UserError


@pytest.fixture(scope="module")
def task():
    section = {"name": "gui_grounding", "pool": 6}
    return registry.make_task(Config.model_validate({"task": section, "out": "x"}))


@pytest.fixture(scope="module")
def policy():
    return load(PolicySection(max_tokens=6, temperature=0.8))


@pytest.fixture(scope="module")
def folder(task, policy, tmp_path_factory) -> Path:
    """Five episodes of three samples, two of them played twice."""
    pool = task.samples("train")
    path = tmp_path_factory.mktemp("episodes") / "kept"
    recorded_write(path, collect(policy, task, [pool[i] for i in (0, 1, 0, 2, 1)], group_size=1))
    return path


@pytest.fixture
def made(task, policy, folder) -> OfflineFirst:
    return OfflineFirst(policy, task, 7, episodes=str(folder), steps=3)


def test_recorded_episodes_look_as_if_the_policy_had_just_written_them(made, task, policy, folder):
    """The loss would see ratios to a policy that never was, or the log entropies of nothing."""
    samples = task.samples("train")[:5]
    episodes = made(policy, task, samples, 1, 0, keep=True)
    rows = {(e.sample.id, e.turns[0].decision.action) for e in recorded_read(folder)}
    assert len(episodes) == 5 and {(e.sample.id, e.completion) for e in episodes} == rows
    decisions = [turn.decision for episode in episodes for turn in episode.turns]
    now = policy.evaluate(decisions)
    for decision, logprobs, entropy, mask in zip(decisions, now.logprobs, now.entropy, now.mask, strict=True):
        torch.testing.assert_close(decision.logprobs, logprobs[mask].detach(), rtol=0, atol=1e-5)
        torch.testing.assert_close(decision.entropy, entropy[mask].detach(), rtol=0, atol=1e-5)
        assert not decision.logprobs.requires_grad
    assert all(e.reward == task.reward(e.score) for e in episodes)


def test_episodes_of_one_sample_make_a_group(made, task, policy):
    """A group method would compare answers to different questions."""
    episodes = made(policy, task, task.samples("train")[:5], 1, 0)
    groups = {(e.sample.id, e.group) for e in episodes}
    assert len(groups) == 3 and {group for _, group in groups} == {0, 1, 2}


def test_steps_go_through_the_folder_in_shuffled_epochs(made, task, policy, folder):
    """Some episodes would be learned often and others never; a resumed run would draw others."""
    samples = task.samples("train")[:3]
    drawn = [made._draw_positions(6, step) for step in range(5)]
    assert Counter(i for step in drawn for i in step) == {i: 6 for i in range(5)}
    assert sorted(drawn[0][:5]) == list(range(5)) and drawn[0] != drawn[1]
    again = OfflineFirst(policy, task, 7, episodes=str(folder), steps=3)
    assert again._draw_positions(6, 3) == drawn[3]
    assert OfflineFirst(policy, task, 8, episodes=str(folder), steps=3)._draw_positions(6, 0) != drawn[0]
    completions = [e.completion for e in made(policy, task, samples, 2, 1)]
    assert completions == [recorded_read(folder)[i].completion for i in drawn[1]]


def test_after_its_steps_the_policy_plays(made, task, policy):
    """Training would never go online."""
    samples = task.samples("train")[3:5]
    assert len(made(policy, task, samples, 2, 2)) == 4 and made.metrics == {"offline": 1.0}
    policy.generator.manual_seed(3)
    online = made(policy, task, samples, 2, 3)
    assert made.metrics == {"offline": 0.0}
    policy.generator.manual_seed(3)
    assert [e.completion for e in online] == [e.completion for e in plain(policy, task, samples, 2, 0)]
    assert [e.sample.id for e in online] == [s.id for s in samples for _ in range(2)]


def test_other_coordinates_are_refused(task, policy, folder, tmp_path):
    """Clicks recorded in a grid would be learned as thousandths of the screen."""
    text = (folder / episode_store.FILE).read_text()
    (tmp_path / "images").symlink_to(folder / "images")
    (tmp_path / episode_store.FILE).write_text(text.replace("grid10", "rel1000"))
    with pytest.raises(UserError, match=r"row 1: written in rel1000 .* the policy writes in grid10"):
        OfflineFirst(policy, task, 0, episodes=str(tmp_path), steps=1)


def test_episodes_of_another_task_are_refused(policy, folder):
    """The run would stop at its first step with a key that its user never wrote."""
    other = registry.make_task(Config.model_validate({"task": "jigsaw", "out": "x"}))
    with pytest.raises(UserError, match="row 1: the task rewards 'accuracy'"):
        OfflineFirst(policy, other, 0, episodes=str(folder), steps=1)


def test_a_strategy_is_made_from_a_yaml(task, policy, folder):
    """`rollout_strategy:` would take no options."""
    chosen = Component(name="offline_first", episodes=str(folder), steps=2)
    assert registry.make("rollout_strategy", chosen, "rollout_strategy", policy, task, 0).steps == 2
    with pytest.raises(UserError, match=r"rollout_strategy\.episodes: is required"):
        recipe_checks.check(
            Config.model_validate({"task": "jigsaw", "out": "x", "rollout_strategy": "offline_first"}), "x.yaml"
        )
    with pytest.raises(UserError, match="did you mean 'plain'"):
        recipe_checks.check(
            Config.model_validate({"task": "jigsaw", "out": "x", "rollout_strategy": "plains"}), "x.yaml"
        )


def told(episodes) -> list[tuple]:
    """What tells episodes apart: sample, answer, group, and the pixels shown."""
    return [(e.sample.id, e.completion, e.group, e.turns[0].observation.images[0].tobytes()) for e in episodes]


def test_earlier_episodes_come_back_among_new_ones(task, policy):
    """Each episode would be learned from once, however dear it was to play, or old ones would pass for new ones."""
    strategy, pool = ReplayRollouts(policy, task, 3, earlier=2, capacity=100), task.samples("train")
    first = strategy(policy, task, pool[:2], 2, 0, keep=True)
    assert len(first) == 4 and strategy.metrics["replay/earlier"] == 0
    second = strategy(policy, task, pool[2:4], 2, 1, keep=True)
    new, past = second[:4], second[4:]
    assert [e.sample.id for e in new] == [s.id for s in pool[2:4] for _ in range(2)]
    assert [e.group for e in new] == [0, 0, 1, 1] and [e.group for e in past] == [2, 3, 4, 5]
    assert Counter(row[:2] + row[3:] for row in told(past)) == Counter(row[:2] + row[3:] for row in told(first))
    assert strategy.metrics["replay/new_accuracy"] == sum(e.score.correct for e in new) / 4
    assert len(strategy(policy, task, pool[:2], 1, 2)) == 2 + 4
    decisions = [turn.decision for episode in second for turn in episode.turns]
    now = policy.evaluate(decisions)
    for decision, logprobs, mask in zip(decisions, now.logprobs, now.mask, strict=True):
        torch.testing.assert_close(decision.logprobs, logprobs[mask].detach(), rtol=0, atol=1e-5)


def test_the_oldest_episodes_make_room(task, policy):
    """Memory and checkpoints would grow without end, by images that nothing shows any more."""
    strategy, pool = ReplayRollouts(policy, task, 0, earlier=1, capacity=3), task.samples("train")
    for step in range(3):
        strategy(policy, task, pool[2 * step : 2 * step + 2], 1, step)
    assert [e.sample.id for e in strategy.memory.episodes()] == [s.id for s in pool[3:6]]
    assert len(strategy.state_dict()["images"]) == 3


def test_a_memory_comes_back_from_a_checkpoint(task, policy):
    """A resumed run would learn from other episodes than an unbroken one."""
    whole, pool = ReplayRollouts(policy, task, 3, earlier=1, capacity=5), task.samples("train")
    for step in range(2):
        whole(policy, task, pool[3 * step : 3 * step + 3], 1, step)
    tensors: dict[str, torch.Tensor] = {}
    saved = json.loads(json.dumps(flatten(whole.state_dict(), tensors)))  # as a checkpoint keeps it
    resumed = ReplayRollouts(policy, task, 3, earlier=1, capacity=5)
    resumed.load_state_dict(unflatten(saved, tensors))
    after = []
    for strategy in (whole, resumed):
        policy.generator.manual_seed(5)
        after.append([told(strategy(policy, task, pool[:3], 1, step)) for step in (2, 3)])
    assert after[0] == after[1] and len(after[0][0]) == 6
