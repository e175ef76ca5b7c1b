"""Which actions are imitated: whose, from which frames, and in which batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vlrl.imitation.datasets import (
    PERSON,
    POLICY,
    DatasetEpisode,
    DatasetInfo,
    Example,
    ExampleBatch,
    by_person,
    by_policy,
    chances,
    check_fit,
    draw_batches,
    examples,
    imitate,
)
from vlrl.policies.discrete import ControlPolicy, DiscreteShape, Network
from vlrl.types import UserError

SHAPE = DiscreteShape(
    2, ("vx", "vy"), (-1.0, -1.0), (1.0, 1.0), chunk=4, bins=21, hidden=32, layers=1, names=("x", "y"), hz=10
)
DATA = DatasetInfo("set", 10.0, ("x", "y"), ("vx", "vy"), (), (), False, 1)


def policy(seed: int = 0) -> ControlPolicy:
    torch.manual_seed(seed)
    return ControlPolicy(Network(SHAPE), seed=seed)


def recorded(driver: list[int], won: bool = True, seed: int = 0) -> DatasetEpisode:
    """Its actions count up by 0.1, so that each tells its frame."""
    length = len(driver)
    state = np.random.default_rng(seed).uniform(-1, 1, (length, 2)).astype(np.float32)
    action = np.repeat(np.arange(length, dtype=np.float32)[:, None] / 10 - 1, 2, 1)
    success = np.arange(length) == (length - 1 if won else -1)
    return DatasetEpisode(0, "Go.", state, action, success, success.astype(np.float32), np.array(driver), ())


@given(st.lists(st.sampled_from([0, POLICY, PERSON, 3]), min_size=1, max_size=20))
def test_a_chunk_is_what_one_driver_did_in_a_row(driver):
    """A policy would learn to go wrong just after doing right: the person's action, then its own mistake."""
    made = policy()
    for example in examples(made, made.shape.chunk, recorded(driver), range(len(driver))):
        span = driver[example.t : example.t + example.ticks]
        assert 1 <= example.ticks <= SHAPE.chunk and set(span) == {driver[example.t]}
        after = example.t + example.ticks
        assert example.ticks == SHAPE.chunk or after == len(driver) or driver[after] != driver[example.t]
        wanted = np.clip(np.arange(example.t, after) / 10 - 1, -1, 1)
        assert np.allclose(example.decision.action[: example.ticks, 0], wanted, atol=1e-6)


def test_what_was_not_recorded_is_not_learned():
    """The padding after an episode's end would teach the policy to repeat its last action."""
    made = policy()
    episode = recorded([POLICY] * 2)
    (example,) = examples(made, made.shape.chunk, episode, [1])
    other = Example(made.decide(episode.observation_at(1), np.vstack([episode.action[1:], -np.ones((3, 2))])), 1)
    weights = []
    for each in (example, other):
        again = policy()
        imitate(again, [ExampleBatch((each,))] * 3, steps=3, lr=1e-2)
        weights.append(torch.cat([p.flatten() for p in again.model.parameters()]))
    assert not torch.equal(example.decision.inputs.codes, other.decision.inputs.codes)
    assert torch.equal(*weights)


def test_the_second_before_a_person_took_over_is_not_imitated():
    """It is the mistake that made them take over."""
    episode = recorded([POLICY] * 15 + [PERSON] * 5 + [POLICY] * 4)
    assert by_policy(episode, 10.0).tolist() == [0, 1, 2, 3, 4, 20, 21, 22, 23]
    assert by_person(episode).tolist() == [15, 16, 17, 18, 19]


def test_failures_and_holding_still_are_not_imitated():
    """A policy would copy its own failures."""
    assert by_policy(recorded([POLICY] * 9, won=False), 10.0).tolist() == []
    assert by_policy(recorded([POLICY, 3, 0, POLICY]), 10.0).tolist() == [0, 3]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"action": ("vy", "vx")}, "its action is vy, vx; the policy gives vx, vy"),
        ({"action": ("", "", "")}, "its action is 3 numbers"),
        ({"state": ("x",)}, "its state has 1 numbers"),
        ({"state": ("y", "x")}, "its state is y, x"),
        ({"fps": 30.0}, "30 frames a second; the policy gives 10"),
        ({"cameras": (("front", 64, 48),)}, "its pictures are 64x48; the policy takes none"),
    ],
)
def test_data_of_another_robot_is_refused_in_one_line(change, said):
    """Numbers in another order, or at another rate, are learned without complaint and drive the arm astray."""
    check_fit(DATA, SHAPE)
    with pytest.raises(UserError) as error:
        check_fit(DatasetInfo(**{**vars(DATA), **change}), SHAPE)
    assert said in str(error.value) and "\n" not in str(error.value)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.floats(0, 1)), min_size=1, max_size=4).filter(
        lambda groups: any(size and share > 1e-3 for size, share in groups)
    )
)
def test_groups_are_drawn_by_their_shares_whatever_their_sizes(groups):
    """Ten corrections among ten thousand demonstrations would never be seen."""
    sizes = {str(place): size for place, (size, _) in enumerate(groups)}
    shares = {str(place): share for place, (_, share) in enumerate(groups)}
    chance, at = chances(sizes, shares), 0
    total = sum(shares[name] for name in sizes if sizes[name])
    assert chance.sum() == pytest.approx(1)
    for name, size in sizes.items():
        assert chance[at : at + size].sum() == pytest.approx(shares[name] / total if size else 0)
        at += size


def test_nothing_to_learn_from_has_no_chance():
    """A learner of successes alone must wait for the first one, not divide by zero."""
    assert not chances({"a": 3, "b": 0}, {"a": 0.0, "b": 1.0}).any()


def test_imitation_learns_what_was_shown():
    """The one thing that it is for."""
    made, rng, episode = policy(), np.random.default_rng(0), recorded([POLICY] * 200)
    episode.action[:] = episode.state / 2
    found = [
        Example(each.decision, 1) for each in examples(made, made.shape.chunk, episode, range(200))
    ]  # of each chunk the first
    told = imitate(made, draw_batches(found, None, steps=300, size=64, rng=rng), steps=300, lr=1e-2)
    acted = np.stack(
        [each.action[0] for each in made.act([None] * 50, [episode.observation_at(t) for t in range(50)], True)]
    )
    assert told["loss"] < 1.5
    assert np.abs(acted - episode.state[:50] / 2).mean() < 0.1
