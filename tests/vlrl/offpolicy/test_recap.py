"""Advantage conditioning: returns, advantages, indicators and guidance worked by hand; what is learned and kept."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from small_batches import HIGH, LOW, about, batch, cut
from torch import nn

from vlrl.cli import main
from vlrl.config import PolicySection
from vlrl.offpolicy.agents import recap
from vlrl.offpolicy.base import AgentSpec, Transitions, concat, windows
from vlrl.offpolicy.config import RewardSection
from vlrl.offpolicy.iql import indicate
from vlrl.offpolicy.learner import weighed
from vlrl.policies.flow import FlowPolicy, GuidedPolicy, guided, indicated, indicating, make_flow_policy
from vlrl.policies.loading import load
from vlrl.policies.robot_common import ActorShape
from vlrl.types import Observation, Sample, UserError

SHAPE = ActorShape(3, ("x", "grip"), tuple(LOW.tolist()), tuple(HIGH.tolist()), chunk=2, hidden=16)


def flow(shape: ActorShape = SHAPE) -> FlowPolicy:
    torch.manual_seed(0)
    return make_flow_policy(shape, torch.full((shape.state,), 0.1), torch.full((shape.state,), 2.0), 0)


@pytest.fixture
def start(tmp_path) -> str:
    flow().save(tmp_path / "flow")
    return str(tmp_path / "flow")


def test_returns_are_the_rewards_to_the_end():
    """Chunk after chunk, of 2, 2 and 1 ticks: -0.2, -0.2, 1 - 0.1, and gamma 0.5 a tick. A lost episode beside it."""
    state = np.arange(9, dtype=np.float32).reshape(3, 3)
    won = Transitions(
        state, np.zeros((3, 2, 1)), [0, 0, 1], [0, 0, 1], np.concatenate([state[1:], state[:1]]), [1, 1, 0.5], [0, 0, 0]
    )
    lost = Transitions(**won.columns() | {"state": state + 50, "next_state": won.next_state + 50, "reward": [0, 0, 0]})
    found = weighed(concat([won, lost]), RewardSection(step=-0.1), 0.5).returns
    np.testing.assert_allclose(found[:3], [-0.2 - 0.05 + 0.0625 * 0.9, -0.2 + 0.25 * 0.9, 0.9], rtol=1e-6)
    np.testing.assert_allclose(found[3:], [-0.2 - 0.05 - 0.00625, -0.225, -0.1], rtol=1e-6)


@pytest.mark.parametrize("won", [True, False])
def test_returns_of_overlapping_chunks_are_those_of_ticks(won):
    """A recording gives a chunk from each tick; counted chunk after chunk, ticks would be paid twice."""
    rng = np.random.default_rng(0)
    given = windows(rng.random((8, 2)), rng.random((7, 1)), 3, won=won, ended=won)
    found = weighed(given, RewardSection(step=-0.125), 1.0).returns
    np.testing.assert_allclose(found, won - 0.125 * np.arange(7, 0, -1), atol=1e-6)


def test_advantages_worked_by_hand(start):
    """r + gamma^ticks V(s') - V(s), V being the state's first number; gamma 0.5, K = 2; nothing follows an end."""
    core = recap(about(start), 0, hidden=8).core
    core.value, core.head = nn.Identity(), type("Head", (), {"values": staticmethod(lambda output: output[:, 0])})
    rows = Transitions(**batch(3).columns() | {
        "state": [[0.5, 0, 0], [0.25, 0, 0], [1, 0, 0]], "next_state": [[1, 0, 0]] * 3, "reward": [-0.1, 1.0, 0.0],
        "terminal": [False, True, False], "used": [1.0, 1.0, 0.5],
    })  # fmt: skip
    torch.testing.assert_close(core.advantages(rows), torch.tensor([-0.1 + 0.25 - 0.5, 0.75, 0.5 - 1]))


def test_the_highest_share_and_a_persons_are_positive():
    advantage = torch.tensor([0.3, -1.0, 0.1, 0.2, 0.0, -0.5, 0.9, 0.4, -0.2, -0.3])
    nobody = torch.zeros(10, dtype=torch.bool)
    assert (indicate(advantage, nobody, 0.3) > 0).nonzero().flatten().tolist() == [0, 6, 7]
    person = nobody.clone()
    person[1] = True
    assert (indicate(advantage, person, 0.3) > 0).nonzero().flatten().tolist() == [0, 1, 6, 7]
    assert set(indicate(advantage, person, 0.3).tolist()) == {-1.0, 1.0}
    assert (indicate(torch.zeros(10), nobody, 0.3) < 0).all()  # where nothing is better than the rest


def test_the_flow_imitates_what_was_carried_out_and_some_are_not_told(start):
    """The mean of |v(s, I, x_t, t) - (chunk - noise)|^2, written out, I left out in 0.4 of 4000."""
    core, rows = recap(about(start), 0, hidden=8, dropout=0.4).core, cut(4000)
    nn.init.normal_(core.flow.body[0].weight)
    chance = torch.Generator().manual_seed(0)
    told = torch.rand(4000, generator=chance) >= 0.4
    noise, time = torch.randn(4000, 4, generator=chance), torch.rand(4000, generator=chance)
    indicator = torch.from_numpy(np.random.default_rng(0).choice([-1.0, 1.0], 4000).astype(np.float32))
    unit = torch.from_numpy(((rows.action - LOW) / (HIGH - LOW) * 2 - 1).reshape(4000, 4))
    state = torch.cat([torch.from_numpy(rows.state), (indicator * told)[:, None]], 1)
    off = (core.flow(state, (1 - time[:, None]) * noise + time[:, None] * unit, time) - unit + noise) ** 2
    carried = torch.from_numpy(rows.used[:, None] > [0, 0, 0.5, 0.5])
    torch.testing.assert_close(core.imitation(rows, indicator), off[carried].mean(), rtol=1e-4, atol=0)
    assert 0.37 < 1 - told.float().mean() < 0.43


@pytest.mark.parametrize("guidance", [0.0, 1.0, 2.5])
def test_guidance_goes_from_untold_to_better_and_beyond(guidance):
    model = indicating(flow(), 0).model
    nn.init.normal_(model.body[0].weight)
    state, place, time = torch.randn(5, 3), torch.randn(5, 4), torch.rand(5)
    none, positive = (model(torch.cat([state, torch.full((5, 1), i)], 1), place, time) for i in (0.0, 1.0))
    found = guided(model, guidance)(state, place, time)
    torch.testing.assert_close(found, (1 - guidance) * none + guidance * positive, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(none, positive, atol=1e-2)


def test_it_begins_as_the_flow_that_it_starts_from(start):
    """An indicator that mattered at once would throw away what was cloned."""
    base, states = flow(), batch(5).state
    wider = indicating(base, 0)
    for indicator in (-1.0, 0.0, 1.0):
        state = indicated(torch.from_numpy(states), indicator)
        torch.testing.assert_close(
            wider.model(state, torch.ones(5, 4), torch.full((5,), 0.3)),
            base.model(torch.from_numpy(states), torch.ones(5, 4), torch.full((5,), 0.3)),
        )
    observations = [Observation((), state) for state in states]
    acted = base.act([], observations, greedy=True)
    found = recap(about(start), 0, hidden=8, guidance=2.0).act(states, False)
    np.testing.assert_allclose(found, np.stack([d.action for d in acted]), atol=1e-6)


def test_a_saved_agent_goes_on_exactly(start):
    whole, part = (recap(about(start), 3, hidden=8) for _ in range(2))
    states = batch(5).state
    for i in range(6):
        for each in (whole, part):
            each.warm(states)
            each.update(cut(seed=i), batch(4, seed=i))
        if i == 2:
            state = part.state_dict()
            part = recap(about(start), 99, hidden=8)
            part.load_state_dict(state)
    assert np.array_equal(whole.act(states, True), part.act(states, True))
    assert np.array_equal(whole.act(states, False), part.act(states, False))
    assert whole.update(batch(), None) == part.update(batch(), None)


def test_what_is_saved_acts_alike_and_can_be_started_from(start, tmp_path):
    made = recap(about(start), 0, hidden=8, guidance=2.0, lr=0.01)
    for i in range(5):
        made.update(batch(seed=i), None)
    made.save(tmp_path / "saved")
    policy, states = load(PolicySection(model=str(tmp_path / "saved"))), batch(4).state
    assert isinstance(policy, GuidedPolicy) and policy.guidance == 2.0
    acted = policy.act([], [Observation((), state) for state in states], greedy=True)
    assert np.array_equal(np.stack([d.action for d in acted]), made.act(states, False))
    again = recap(about(str(tmp_path / "saved")), 0, hidden=8, guidance=2.0)
    assert np.array_equal(again.act(states, False), made.act(states, False))
    with pytest.raises(UserError, match="agent recap: set start=FOLDER"):
        policy.check(Sample("", Observation(())))


def test_what_does_not_fit_is_refused(start, tmp_path):
    with pytest.raises(UserError, match=r"start: .*made for \(3, .* this robot"):
        recap(about(start, chunk=3), 0)
    with pytest.raises(UserError, match=r"start: .*describes no vlrl_flow"):
        recap(about(str(tmp_path)), 0)
    with pytest.raises(UserError, match="not lerobot's"):
        recap(about(start, base=object()), 0)
    with pytest.raises(UserError, match=r"agent\.low"):
        recap(about(start), 0, low=1.0)
    recap(about(start), 0, hidden=8).save(tmp_path / "saved")
    config = tmp_path / "saved" / "config.json"
    config.write_text(config.read_text().replace('"guidance": 1.0', '"guidance": "much"'))
    with pytest.raises(UserError, match="guidance must be a number"):
        load(PolicySection(model=str(tmp_path / "saved")))


def test_it_learns_which_of_the_chunks_were_better(tmp_path):
    """One decision: chunks all over [-1, 1], of which those near the state's own number pay. All are imitated."""
    flow(ActorShape(1, ("x",), (-1.0,), (1.0,), chunk=1, hidden=64)).save(tmp_path)
    one = np.ones(1, np.float32)
    made = recap(AgentSpec(1, 1, ("x",), -one, one, 0 * one, one, start=str(tmp_path)), 0, hidden=32, lr=3e-3)
    rng, rows = np.random.default_rng(0), 128
    for _ in range(500):
        state = rng.uniform(-1, 1, (rows, 1)).astype(np.float32)
        action = rng.uniform(-1, 1, (rows, 1, 1)).astype(np.float32)
        paid = -np.abs(action[:, 0, 0] - state[:, 0]) / 2
        made.update(Transitions(state, action, paid, np.ones(rows), state, np.ones(rows), np.zeros(rows),
                                returns=paid), None)  # fmt: skip
    states = np.linspace(-0.7, 0.7, 200, dtype=np.float32)[:, None]
    told = np.abs(made.act(states, True)[:, 0, 0] - states[:, 0]).mean()
    made.core.policy.inner.field = guided(made.core.flow, 0.0)
    untold = np.abs(made.act(states, True)[:, 0, 0] - states[:, 0]).mean()
    assert told < 0.3 < 0.45 < untold  # as they were given: (1 + s^2) / 2, 0.58 on average


CONFIG = """
task: {name: "line_task:LineTask", scenes: 20}
out: run
start: flow
agent: {name: recap, hidden: 16, guidance: 1.5}
offline: [{name: demonstrations, episodes: 4}]
reward: {step: -0.08}
gamma: 1.0
ticks: 180
warmup_steps: 40
batch_size: 16
eval: {num_samples: 6}
log: {checkpoint_every: 60}
"""


def test_a_run_from_the_command_line(place):
    """A run, stopped and gone on with, and its policy served."""
    from vlrl.serving.policies import servable

    flow(ActorShape(2, ("speed",), (-1.0,), (1.0,), chunk=3, hidden=8, hz=10.0)).save(place / "flow")
    assert main(["offpolicy", "line.yaml", "out=whole"]) == 0
    assert main(["offpolicy", "line.yaml", "out=part", "ticks=120"]) == 0
    config = Path("part/config.yaml")
    config.write_text(config.read_text().replace("ticks: 120", "ticks: 180"))
    assert main(["offpolicy", "--resume", "part"]) == 0
    learned = [
        [row for row in map(json.loads, Path(out, "metrics.jsonl").read_text().splitlines()) if "updates" in row]
        for out in ("whole", "part")
    ]
    assert learned[0] == learned[1] and learned[0][-1]["updates"] > 0
    policy = servable("whole")
    assert policy.spec.action[0].name == "speed" and policy.spec.chunk == 3 and policy.spec.hz == 10
