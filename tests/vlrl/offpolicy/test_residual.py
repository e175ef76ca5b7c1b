"""Corrections of a frozen policy: how far they reach, targets and gradients by hand, their share, what is kept."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from small_batches import HIGH, LOW, about, batch
from torch import nn

from vlrl.cli import main
from vlrl.config import PolicySection
from vlrl.offpolicy.agents import residual
from vlrl.offpolicy.base import AgentSpec, Transitions
from vlrl.offpolicy.sac import ResidualSac, RlpdSettings
from vlrl.policies.discrete import ControlPolicy, DiscreteShape, Network
from vlrl.policies.flow import make_flow_policy
from vlrl.policies.loading import load
from vlrl.policies.residual import CorrectedPolicy
from vlrl.policies.robot_common import ActorShape
from vlrl.serving.policies import servable
from vlrl.types import Episode, Observation, Sample, UserError

LIMITS = (tuple(LOW.tolist()), tuple(HIGH.tolist()))


def clone(folder: Path, shape: DiscreteShape | None = None, bins: list[int] | None = None) -> str:
    """A policy by chance, or one whose chunk is always these bins of 21, for each tick and control."""
    torch.manual_seed(0)
    model = Network(shape or DiscreteShape(3, ("x", "grip"), *LIMITS, chunk=4, hidden=16))
    if bins is not None:
        nn.init.zeros_(model.head.weight)
        model.head.bias.data.copy_(nn.functional.one_hot(torch.tensor(bins), 21).flatten())
    ControlPolicy(model).save(folder)
    return str(folder)


@pytest.fixture
def start(tmp_path) -> str:
    return clone(tmp_path / "clone")


@pytest.fixture
def middle(tmp_path) -> str:
    """Its controls are all in the middle but the first, which is at its limit."""
    return clone(tmp_path / "middle", bins=[20, 10, 10, 10, 10, 10, 10, 10])


def core(start: str, *, scale: float = 0.3, hold: int = 1, ramp: int = 0, **options) -> ResidualSac:
    return ResidualSac(about(start), 0, RlpdSettings(hidden=8, **options), scale, hold, ramp)


class Looking(nn.Module):
    """Two critics; the value is the mean of the chunk that they are shown, and of the second 1 more."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        value = inputs[:, 3:].mean(1)
        return torch.stack([value, value + 1])


def test_a_correction_reaches_so_far_and_no_further(middle):
    """On a robot the bound is why a residual may explore at all: 0.3 of half a width, and never beyond a limit.

    The base's first two ticks are (1, 0), (0, 0); corrections of 1 and -1 make (1, 0.3), (0.3, 0.3) and (0.7, -0.3),
    (-0.3, -0.3). In units: x from -0.4 to 0.4, grip from 0 to 0.1.
    """
    policy, states = core(middle).policy, batch(1).state
    np.testing.assert_allclose(policy.planned(states), [[1, 0, 0, 0]], atol=1e-6)
    for far, wanted in ((9.0, [[0.4, 0.065], [0.12, 0.065]]), (-9.0, [[0.28, 0.035], [-0.12, 0.035]])):
        policy.model.head.bias.data[:4] = far
        np.testing.assert_allclose(policy.chunks(states, True)[0], wanted, atol=1e-6)
    drawn = policy.chunks(np.repeat(states, 500, 0), False)
    assert (drawn <= HIGH).all() and (drawn >= np.array([0.28, 0.035]) * [0, 1] + [-0.12 - 1e-6, -1e-6]).all()


def test_a_held_correction_is_the_same_for_its_ticks(start):
    """Of two ticks each: four numbers to choose instead of eight, on chunks of four."""
    agent = ResidualSac(about(start, chunk=4), 0, RlpdSettings(hidden=8, target_entropy=-0.5), 0.1, 2, 0)
    states = batch(5).state
    apart = agent.policy.draw(states, torch.Generator().manual_seed(1))[0] - agent.policy.planned(states)
    free = (agent.policy.planned(states).abs() < 0.89).unflatten(1, (2, 2, 2)).all(2)  # not cut by a limit
    apart = apart.detach().unflatten(1, (2, 2, 2))
    torch.testing.assert_close(apart[:, :, 0][free], apart[:, :, 1][free])
    assert free.any() and apart.abs().max() > 0.01 and agent.sac.target_entropy == -2  # of what is chosen
    with pytest.raises(UserError, match=r"agent\.hold: chunks of task\.chunk = 2 ticks are no multiple of 4"):
        core(start, hold=4)


def test_targets_value_the_corrected_chunk(start):
    """Values of corrections alone would say nothing of what was given. A time-out is no end.

    gamma 0.5 a tick, K = 2. With q the smaller value of the base's next chunk with the actor's correction:
    on: 0 + 0.25 q; won: 1; time-out after one tick: 0.5 q; lost: 0.
    """
    agent = core(start, climbs="min")
    agent.sac.target = Looking()
    made = Transitions(**batch(4).columns() | {
        "reward": np.array([0.0, 1.0, 0.0, 0.0]), "terminal": np.array([False, True, False, True]),
        "used": np.array([1.0, 0.5, 0.5, 1.0]),
    })  # fmt: skip
    planned, model = agent.policy.planned(made.next_state), agent.policy.model
    seen = torch.cat([torch.from_numpy(made.next_state), planned], 1)
    q = (planned + 0.3 * model.draw(seen, torch.Generator().manual_seed(0))[0]).clamp(-1, 1).mean(1)
    wanted = torch.stack([0.25 * q[0], torch.tensor(1.0), 0.5 * q[2], torch.tensor(0.0)])
    torch.testing.assert_close(agent.sac.targets(made), wanted)
    assert q.abs().min() > 1e-3


def test_the_actors_gradient_goes_through_the_chunk(start):
    """Autograd of the loss written out, through scale and limits; neither critics nor base may move in that step."""
    agent = core(start, lr=1.0, climbs="min")
    sac, actor, made = agent.sac, agent.policy.model, batch(16)
    sac.optimizers[1] = torch.optim.SGD(actor.parameters(), lr=1.0)
    state, planned = sac.scale.state(made.state), agent.policy.planned(made.state)
    correction, logp = actor.draw(
        torch.cat([torch.from_numpy(made.state), planned], 1), torch.Generator().manual_seed(0)
    )
    values = sac.critics(torch.cat([state, (planned + 0.3 * correction).clamp(-1, 1)], 1))
    loss = (0.01 * logp - torch.minimum(values[0], values[1])).mean()
    wanted = [p - g for p, g in zip(actor.parameters(), torch.autograd.grad(loss, actor.parameters()), strict=True)]
    others = [*sac.critics.parameters(), *agent.policy.base.model.parameters()]
    before = [p.detach().clone() for p in others]
    sac._improve(made, [state], slice(16, None), torch.zeros(0, 4), torch.zeros(0))
    torch.testing.assert_close(list(actor.parameters()), wanted)
    assert all(map(torch.equal, before, others))


def test_it_begins_as_the_base(start):
    """The clone's success must not be lost at the first tick; that is what a bounded correction is for."""
    agent, states = core(start, ramp=1000), batch(50).state
    chosen = agent.policy.base.act([Episode(Sample("", Observation(())), 0)] * 50,
                                   [Observation((), state) for state in states], greedy=True)  # fmt: skip
    own = np.stack([decision.action[:2] for decision in chosen])
    np.testing.assert_allclose(agent.warm(states), own, atol=1e-6)
    assert np.array_equal(agent.act(states[:1], True), agent.warm(states[:1]))  # share 0
    assert np.array_equal(agent.act(states, False), agent.warm(states))


def test_the_share_of_corrected_decisions_grows(start):
    """Policy Decorator's schedule: chance 0 at the first tick, 1 from `ramp` on. 1000 decisions of two ticks each call;
    at half, the standard deviation of the share is 0.016."""
    agent, states = core(start, ramp=4000), batch(1000).state
    bare = [(agent.act(states, True) == agent.warm(states)).all((1, 2)).mean() for _ in range(4)]
    assert agent.ticks == 8000 and bare[0] == 1 and bare[2:] == [0, 0]
    assert bare[1] == pytest.approx(0.5, abs=0.06)
    agent.act(states, False)
    assert agent.ticks == 8000  # an evaluation is not played to learn


def test_what_is_out_of_reach_is_imitated_as_far_as_corrections_reach(middle):
    """A demonstration that cannot be repeated still shows the way: 0.9 is wanted, 0.3 is the bound."""
    agent = core(middle, lr=0.02, temperature=1e-6, imitation=1.0)
    made = batch(32)
    state, demonstrated = agent.sac.scale.state(made.state), torch.full((16, 4), 0.9)
    agent.sac.critics = Looking()
    for _ in range(150):
        agent.sac._improve(made, [state], slice(16, None), demonstrated, torch.full((16,), 9.0))
    unit = agent.sac.scale.unit(agent.act(made.state, False))
    assert (unit[:, 1:] > 0.25).all() and (unit[:, 1:] <= 0.3 + 1e-5).all()


def test_the_base_stays_as_it_is(start):
    """A base that drifts is no longer the policy that was checked on the robot. Learning takes both kinds of data."""
    agent = residual(about(start), 0, hidden=8, imitation=0.3, ramp=0).core
    before = {name: value.clone() for name, value in agent.policy.base.model.state_dict().items()}
    moved = agent.act(batch().state, False)
    for seed in range(4):
        assert all(map(math.isfinite, agent.update(batch(seed=seed), batch(seed=9)).values()))
    agent.update(None, batch())
    after = agent.policy.base.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not np.array_equal(moved, agent.act(batch().state, False))


def test_a_saved_agent_goes_on_exactly(start):
    """Generators, the ramp's ticks, targets: ten updates are ten, whether or not the machine went down."""
    whole, part = (residual(about(start), 3, hidden=8, ramp=60) for _ in range(2))
    states = batch(5).state
    for i in range(6):
        for each in (whole, part):
            each.act(states, True)
            each.update(batch(seed=i), batch(seed=9))
        if i == 2:
            state = part.state_dict()
            part = residual(about(start), 99, hidden=8, ramp=60)
            part.load_state_dict(state)
    assert np.array_equal(whole.act(states, True), part.act(states, True))
    assert np.array_equal(whole.act(states, False), part.act(states, False))
    assert whole.update(batch(), None) == part.update(batch(), None)


@pytest.mark.parametrize("kind", ["clone", "flow"])
def test_what_is_saved_is_a_policy_that_does_the_same(tmp_path, kind):
    """It must act alone: without the run, and without the folder it began with. Any base that acts from the state."""
    if kind == "clone":
        clone(tmp_path / "start")
    else:
        torch.manual_seed(0)
        make_flow_policy(
            ActorShape(3, ("x", "grip"), *LIMITS, chunk=4, hidden=8), torch.zeros(3), torch.ones(3), 0
        ).save(tmp_path / "start")
    agent = residual(about(str(tmp_path / "start")), 0, hidden=8)
    for i in range(5):
        agent.update(batch(seed=i), None)
    (tmp_path / "saved").mkdir()
    agent.save(tmp_path / "saved")
    (tmp_path / "start" / "config.json").unlink()
    policy, states = load(PolicySection(model=str(tmp_path / "saved"))), batch(4).state
    assert isinstance(policy, CorrectedPolicy) and policy.shape.chunk == 2
    episodes, shown = [Episode(Sample("", Observation(())), 0)] * 4, [Observation((), state) for state in states]
    acted = np.stack([each.action for each in policy.act(episodes, shown, greedy=True)])
    assert np.array_equal(acted, agent.act(states, False)) and (acted != acted[0]).any()
    with pytest.raises(UserError, match="vlrl residual"):
        policy.check(episodes[0].sample)
    told = json.loads((tmp_path / "saved" / "config.json").read_text())
    for change in ({"hold": 3}, {"scale": 0}, {"chunk": 9}, {"hidden": "x"}):
        (tmp_path / "saved" / "config.json").write_text(json.dumps(told | change))
        with pytest.raises(UserError, match=r"policy\.model: .*describes no vlrl_corrected"):
            load(PolicySection(model=str(tmp_path / "saved")))


def test_other_bases_are_refused(start, tmp_path):
    """Limits of another robot would be exceeded; a chunk cannot be longer than the base's; words are no controls."""
    for changes in ({"chunk": 5}, {"high": HIGH * 2}, {"state": 4}):
        with pytest.raises(UserError, match=r"start: .*made for .* this robot"):
            residual(about(start, **changes), 0)
    with pytest.raises(UserError, match=r"start: embedded is no policy that goes from a robot's state"):
        residual(about("embedded"), 0)
    with pytest.raises(UserError, match=r"^start: "):
        residual(about(str(tmp_path / "nothing")), 0)


def test_it_learns_what_the_base_gets_wrong(tmp_path):
    """The base is always in the middle; what pays is the state's own number, within the corrections' reach."""
    where = clone(tmp_path, DiscreteShape(1, ("x",), (-1.0,), (1.0,), chunk=1, hidden=8), bins=[10])
    one = np.ones(1, np.float32)
    agent = residual(
        AgentSpec(1, 1, ("x",), -one, one, 0 * one, one, start=where), 0, hidden=32, lr=3e-3, scale=0.5, ramp=0
    )
    rng, rows = np.random.default_rng(0), 64
    for _ in range(300):
        state = rng.uniform(-0.5, 0.5, (rows, 1)).astype(np.float32)
        action = agent.act(state, True)
        reward = -10 * ((action[:, 0, 0] - state[:, 0]) ** 2)
        agent.update(Transitions(state, action, reward, np.ones(rows), state, np.ones(rows), np.zeros(rows)), None)
    states = np.linspace(-0.4, 0.4, 9, dtype=np.float32)[:, None]
    assert np.abs(agent.act(states, False)[:, 0, 0] - states[:, 0]).max() < 0.15


CONFIG = """
task: {name: "line_task:LineTask", scenes: 20}
out: run
start: clone
agent: {name: residual, hidden: 16, lr: 3.0e-3, scale: 1.5, ramp: 60, imitation: 0.3, hold: 3}
offline: [{name: demonstrations, episodes: 8}]
ticks: 400
warmup_steps: 40
batch_size: 32
gamma: 0.9
eval: {num_samples: 20}
log: {checkpoint_every: 60}
"""


@pytest.fixture
def place(place) -> Path:
    """A folder with a configuration and a clone that does not move, the user's own task on the Python path."""
    clone(place / "clone", DiscreteShape(2, ("speed",), (-1.0,), (1.0,), chunk=3, hidden=8), bins=[10, 10, 10])
    return place


@pytest.mark.slow
def test_a_run_from_the_command_line(place):
    """It learns to move, goes on exactly where it was stopped, and its policy tells what a server must know."""
    assert main(["offpolicy", "line.yaml", "out=whole"]) == 0
    told = json.loads(Path("whole/summary.json").read_text())
    assert told["before"]["value"] == 0 and told["after"]["value"] > 0.6
    assert main(["offpolicy", "line.yaml", "out=part", "ticks=200"]) == 0
    config = Path("part/config.yaml")
    config.write_text(config.read_text().replace("ticks: 200", "ticks: 400"))
    assert main(["offpolicy", "--resume", "part"]) == 0
    learned = [
        [row for row in map(json.loads, Path(out, "metrics.jsonl").read_text().splitlines()) if "updates" in row]
        for out in ("whole", "part")
    ]
    assert learned[0] == learned[1] and learned[0][-1]["updates"] > 0 and learned[0][-1]["share"] == 1
    spec = servable("whole").spec
    assert spec.action[0].name == "speed" and spec.chunk == 3
    assert spec.hz == 10 and [each.name for each in spec.state] == ["place", "goal"]  # the task's: the clone has none


def test_what_it_builds_on_must_be_told(place, capsys):
    """One line before anything is played."""
    for changes, problem in (
        (["start=null"], "agent (residual) builds on a policy: set start"), (["start=nowhere"], "start: "),
        (["agent.scale=0"], "agent.scale"), (["agent.hold=2"], "agent.hold"), (["agent.ramp=-1"], "agent.ramp"),
    ):  # fmt: skip
        assert main(["offpolicy", "line.yaml", *changes]) == 2
        said = capsys.readouterr().err.strip().splitlines()
        assert said[-1].startswith("vlrl: ") and problem in said[-1]
