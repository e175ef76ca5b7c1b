"""Episodes that begin in the middle of an earlier success."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vlrl import registry
from vlrl.algorithms.rollout_filtering import Repeating, key_of, repeated, success_of
from vlrl.batch import columns
from vlrl.checkpoint import flatten, unflatten
from vlrl.config import Config
from vlrl.contrib.rollouts.replay import Snapshots
from vlrl.policies.loading import load
from vlrl.recipe_checks import load_config
from vlrl.rollout import collect, with_environment
from vlrl.types import Environment, Observation, Policy, UserError


@pytest.fixture(scope="module")
def robot():
    config = load_config("configs/manipulation.yaml", ["task.scenes=12"])
    task = registry.make_task(config)
    yield load(config.policy, seed=0), task
    task.close()


@pytest.fixture(scope="module")
def talk(writer):
    return writer, registry.make_task(
        Config.model_validate({"task": {"name": "checked", "task": {"name": "counting", "pool": 12}}, "out": "x"})
    )


class Right(Policy):
    """Writes the right answer, whoever is asked."""

    def __init__(self, policy, task):
        self.policy, self.task = policy, task

    def act(self, episodes, shown, **options):
        golds = [self.task.gold(e.sample, self.policy.prompt(s).frames) for e, s in zip(episodes, shown, strict=True)]
        return [self.policy.decide(s, gold) for s, gold in zip(shown, golds, strict=True)]


def won(policy, task, samples: Sequence, name: str) -> list:
    """Earlier episodes: of the robot some succeed, in words all do."""
    return collect(policy if name == "robot" else Right(policy, task), task, samples, 2)


@pytest.fixture(params=["robot", "talk"])
def played(request):
    """A strategy that remembers, and what it needs to go on."""
    policy, task = request.getfixturevalue(request.param)
    if hasattr(policy, "generator"):
        policy.generator.manual_seed(1)
    strategy = Snapshots(policy, task, 3, share=0.7)
    strategy._remember(won(policy, task, task.samples("train")[:6], request.param))
    assert strategy.known
    return strategy, policy, task


def stepped(strategy, policy, task, step: int = 0):
    policy.generator.manual_seed(5)
    return strategy(policy, task, task.samples("train")[6:10], 3, step, keep=True)


def test_groups_begin_where_a_success_went_through(played):
    """Else the policy learns the end of nothing: or is paid for what it did not do."""
    strategy, policy, task = played
    known, begins = dict(strategy.known), strategy._draw_starts(4, 0)
    episodes = stepped(strategy, policy, task)
    assert 0 < sum(begin is not None for begin in begins) < 4 and [e.group for e in episodes] == [
        i // 3 for i in range(12)
    ]
    rollouts, row = columns(episodes), 0
    for episode in episodes:
        begin, drawn = begins[episode.group], task.samples("train")[6 + episode.group]
        count = len(begin.seen) if begin else 0
        assert episode.sample.id == (begin.sample if begin else drawn).id and repeated(episode) == count
        assert begin is None or 0 < count < len(known[episode.sample.id].seen)
        for number, turn in enumerate(episode.turns):
            assert bool(rollouts.mask[row].any()) == (number >= count)
            row += 1
            if number < count:
                assert np.array_equal(turn.decision.action, known[episode.sample.id].actions[number])
        if begin and len(episode.turns) > count:  # exact to the bit, and so for the whole group
            assert key_of(episode.turns[count].observation) == known[episode.sample.id].seen[count]
    assert episodes[0].score == task.score(episodes[0])  # of the whole episode
    now = policy.evaluate([turn.decision for episode in episodes for turn in episode.turns])
    torch.testing.assert_close(
        now.logprobs.detach()[rollouts.mask], rollouts.logprobs[rollouts.mask], atol=1e-4, rtol=0
    )


def test_the_log_tells_begun_from_whole(played):
    """Else accuracy rises with the share of easy starts and nobody knows."""
    strategy, policy, task = played
    known = len(strategy.known)
    episodes = stepped(strategy, policy, task)
    begun, told = [e for e in episodes if repeated(e)], strategy.metrics
    whole = [e for e in episodes if not repeated(e)]
    assert told["snapshots/share"] == len(begun) / 12 and told["snapshots/lost"] == 0
    assert told["snapshots/turns"] == sum(map(repeated, begun)) / len(begun) and told["snapshots/known"] == known
    for name, part in (("begun", begun), ("whole", whole)):
        assert told[f"snapshots/{name}_accuracy"] == sum(e.score.correct for e in part) / len(part)


def test_a_strategy_comes_back_from_a_checkpoint(played):
    """Else a resumed run begins its episodes elsewhere than an unbroken one."""
    whole, policy, task = played
    stepped(whole, policy, task)
    tensors: dict[str, torch.Tensor] = {}
    saved = json.loads(json.dumps(flatten(whole.state_dict(), tensors)))  # as a checkpoint keeps it
    resumed = Snapshots(policy, task, 3, share=0.7)
    resumed.load_state_dict(unflatten(saved, tensors))
    assert list(resumed.known) == list(whole.known)
    for step in (1, 2):
        one, other = (
            [
                (e.sample.id, repeated(e), [key_of(t.observation) for t in e.turns])
                for e in stepped(s, policy, task, step)
            ]
            for s in (whole, resumed)
        )
        assert one == other and whole.metrics == resumed.metrics


def test_a_checkpoint_of_other_data_is_refused(played):
    """Else a run goes on from states that its task does not have."""
    strategy, policy, task = played
    resumed = Snapshots(policy, task, 3)
    resumed.pool = task.samples("train")[10:12]
    with pytest.raises(UserError, match=r"rollout_strategy: snapshots: sample .*, which was won, is gone"):
        resumed.load_state_dict(strategy.state_dict())


def tinted(task):
    """A task whose pages look different every time."""
    visits = itertools.count(1)
    return with_environment(task, lambda sample: Tinted(task.environment(sample), next(visits)))


class Tinted(Environment):
    def __init__(self, environment, number):
        self.environment, self.number = environment, number
        self.close = environment.close

    def reset(self):
        return self.environment.reset()

    def step(self, action, frames=()):
        from dataclasses import replace

        step = self.environment.step(action, frames)
        shown = step.observation
        return replace(step, observation=replace(shown, content=(*shown.content, f"Visit {self.number}.")))


def test_what_does_not_come_back_is_left_to_the_policy(robot):
    """Else actions are repeated on pages that they were not meant for, or a run of days stops for one of them."""
    policy, task = robot
    turning = tinted(task)
    success = next(
        success_of(e)
        for e in collect(policy, turning, task.samples("train"), 1)
        if e.score.correct and len(e.turns) > 3
    )
    (episode,) = collect(Repeating(policy, [success.first(3)]), turning, [success.sample], 1)
    assert repeated(episode) == 1 and np.array_equal(episode.turns[0].decision.action, success.actions[0])
    assert all(turn.decision.forced_mask is None for turn in episode.turns[1:])
    strategy = Snapshots(policy, turning, 0, share=1.0)
    strategy.known = {success.sample.id: success}
    step = next(step for step in range(20) if len(strategy._draw_starts(1, step)[0].seen) == 3)
    strategy(policy, turning, task.samples("train")[:1], 2, step)
    assert strategy.metrics["snapshots/lost"] == pytest.approx(2 / 3)


@given(st.integers(0, 50), st.integers(0, 3))
def test_beginnings_hang_on_the_step_and_the_memory_alone(step, seed):
    """Else a resumed run, or another process, plays other episodes. No success is repeated to its end."""
    made = [Snapshots(Deciding(), None, seed, share=0.5) for _ in range(2)]
    for strategy in made:
        strategy.known = {name: Stub(length) for name, length in (("a", 2), ("b", 3), ("c", 9))}
    one, other = ([(b.length, b.count) if b else None for b in s._draw_starts(40, step)] for s in made)
    assert one == other and None in one
    assert all(1 <= count < length for length, count in filter(None, one))


class Deciding(Policy):
    def decide(self, *given, **named): ...


class Stub:
    """A success of so many turns, and how many of them were taken."""

    def __init__(self, length, count=None):
        self.length, self.count, self.seen = length, count, [""] * length

    def first(self, count):
        return Stub(self.length, count)


def test_the_oldest_make_room_and_each_prompt_has_one(talk):
    """Else memory grows without end, and prompts that are won often crowd out the others."""
    policy, task = talk
    strategy, pool = Snapshots(policy, task, 0, capacity=2), task.samples("train")
    for i in (0, 1, 0, 2):
        strategy._remember(won(policy, task, [pool[i]], "talk"))
    assert list(strategy.known) == [pool[0].id, pool[2].id]
    lost = collect(Right(policy, task), task, [pool[3]], 1)[0]
    lost.score = task.score(lost).__class__({}, 0.5)
    strategy._remember([lost])
    assert pool[3].id not in strategy.known


def test_after_its_steps_episodes_are_whole(played):
    """Else a policy is trained to the end on starts that nobody will give it."""
    strategy, policy, task = played
    strategy.steps = 2
    assert any(map(repeated, stepped(strategy, policy, task, 1)))
    assert not any(map(repeated, stepped(strategy, policy, task, 2))) and strategy.metrics == {}


def test_a_policy_that_cannot_take_actions_for_its_own_is_refused(talk):
    """Else the run stops at the first success."""
    with pytest.raises(UserError, match="rollout_strategy: snapshots repeats actions"):
        Snapshots(Policy(), talk[1], 0)


@pytest.mark.slow
def test_states_are_told_apart():
    """Else a robot seems to be back where only its picture is."""
    one, other, same = (Observation(("Go.",), np.array([x], np.float32)) for x in (0.5, 0.25, 0.5))
    assert key_of(one) == key_of(same) != key_of(other) != key_of(Observation(("Go.",)))
