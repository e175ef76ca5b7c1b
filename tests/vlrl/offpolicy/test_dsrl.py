"""Steering by noise: targets worked by hand, which noise made a chunk, values of noise, what is learned and kept."""

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
from vlrl.offpolicy.agents import dsrl_na, dsrl_sac
from vlrl.offpolicy.base import AgentSpec, Transitions
from vlrl.offpolicy.dsrl import Book, DsrlSettings, NoiseAliased, natural
from vlrl.policies.flow import FlowPolicy, SteeredPolicy, make_flow_policy
from vlrl.policies.loading import load
from vlrl.policies.robot_common import ActorShape
from vlrl.types import Episode, Observation, Sample, UserError

SHAPE = ActorShape(3, ("x", "grip"), tuple(LOW.tolist()), tuple(HIGH.tolist()), chunk=2, hidden=16)
AGENTS = pytest.mark.parametrize("agent", [dsrl_sac, dsrl_na])


def flow(shape: ActorShape = SHAPE, plain: bool = False) -> FlowPolicy:
    """A flow by chance, or one whose chunk is the noise itself, cut to the limits."""
    torch.manual_seed(0)
    policy = make_flow_policy(shape, torch.zeros(shape.state), torch.ones(shape.state), 0)
    if plain:
        nn.init.zeros_(policy.model.body[-1].weight), nn.init.zeros_(policy.model.body[-1].bias)
    return policy


@pytest.fixture
def start(tmp_path) -> str:
    flow().save(tmp_path / "flow")
    return str(tmp_path / "flow")


def played(agent, count: int = 8, seed: int = 0) -> Transitions:
    """A batch of what the agent itself does."""
    made = batch(count, seed)
    return Transitions(**made.columns() | {"action": agent.act(made.state, True)})


class Looking(nn.Module):
    """Two critics; the value is the mean of the chunk that they are shown, and of the second 1 more."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        value = inputs[:, 3:].mean(1)
        return torch.stack([value, value + 1])


def test_targets_value_the_chunk_that_the_next_noise_makes(start):
    """Valued as if it were a chunk, noise would be learned from what was never played; a time-out is no end.

    gamma 0.5 a tick, K = 2. With q the smaller value of the chunk that the flow makes of the actor's noise:
    on: 0 + 0.25 q; won: 1; time-out after one tick: 0.5 q; lost: 0.
    """
    core = NoiseAliased(about(start), 0, DsrlSettings(hidden=8, bound=1.5))
    core.target = Looking()
    rows = batch(4).columns() | {
        "reward": np.array([0.0, 1.0, 0.0, 0.0]), "terminal": np.array([False, True, False, True]),
        "used": np.array([1.0, 0.5, 0.5, 1.0]),
    }  # fmt: skip
    made = Transitions(**rows)
    found = core.targets(made)
    following = torch.from_numpy(made.next_state)
    noise, _ = core.policy.steering.model.draw(following, torch.Generator().manual_seed(0))
    q = core.policy.base.unit(following, 1.5 * noise).mean(1)
    torch.testing.assert_close(found, torch.stack([0.25 * q[0], torch.tensor(1.0), 0.5 * q[2], torch.tensor(0.0)]))
    assert q.abs().min() > 1e-3


def test_the_entropy_counts_only_where_asked(start):
    """temperature 0.25: V = Q - 0.25 log pi of the noise."""
    cores = [
        NoiseAliased(about(start), 0, DsrlSettings(hidden=8, temperature=0.25, entropy_backup=b)) for b in (False, True)
    ]
    for core in cores:
        core.target = Looking()
    made = batch(4)
    _, logp = cores[0].policy.steering.model.draw(torch.from_numpy(made.next_state), torch.Generator().manual_seed(0))
    wanted = cores[0].targets(made) - torch.from_numpy(made.discount(0.5)) * 0.25 * logp.detach()
    torch.testing.assert_close(cores[1].targets(made), wanted)


def test_values_of_noise_become_those_of_its_chunks(start):
    """The actor climbs them: what they say of noise must be what the critics say of the chunk it makes."""
    core = NoiseAliased(about(start), 0, DsrlSettings(hidden=32, lr=3e-3))
    made, fixed = batch(64), core.critics
    state, raw = core.scale.state(made.state), torch.from_numpy(made.state)
    before = [p.detach().clone() for p in fixed.parameters()]
    losses = [core._fit(state, raw) for _ in range(200)]
    assert losses[-1] < 0.15 * losses[0]
    assert all(torch.equal(a, b) for a, b in zip(before, fixed.parameters(), strict=True))
    noise = torch.randn(64, 4, generator=torch.Generator().manual_seed(9))
    wanted = core.critics(torch.cat([state, core.policy.base.unit(raw, noise)], 1))
    found = core.noise_critics(torch.cat([state, noise / 1.5], 1))
    assert torch.corrcoef(torch.stack([wanted[0], found[0]]))[0, 1] > 0.9  # member by member
    assert torch.corrcoef(torch.stack([wanted[1], found[1]]))[0, 1] > 0.9


def test_the_actors_gradient_is_through_the_noise_critics_alone(start):
    """Autograd of the loss written out; nothing else may move in that step."""
    core = NoiseAliased(about(start), 0, DsrlSettings(hidden=8, lr=1.0))
    core.optimizers[2] = torch.optim.SGD(core.policy.steering.model.parameters(), lr=1.0)
    made, actor = batch(16), core.policy.steering.model
    state, raw = core.scale.state(made.state), torch.from_numpy(made.state)
    noise, logp = actor.draw(raw, torch.Generator().manual_seed(0))
    values = core.noise_critics(torch.cat([state, noise], 1))
    loss = (0.01 * logp - torch.minimum(values[0], values[1])).mean()
    wanted = [p - g for p, g in zip(actor.parameters(), torch.autograd.grad(loss, actor.parameters()), strict=True)]
    others = [p.detach().clone() for p in (*core.critics.parameters(), *core.noise_critics.parameters())]
    core._improve(state, raw)
    torch.testing.assert_close(list(actor.parameters()), wanted)
    assert all(map(torch.equal, others, (*core.critics.parameters(), *core.noise_critics.parameters())))


@AGENTS
def test_the_base_stays_as_it_is(start, agent):
    """A base that drifts is no longer the policy that was checked on the robot."""
    made = agent(about(start), 0, hidden=8)
    core = made.core
    before = {name: value.clone() for name, value in core.policy.base.model.state_dict().items()}
    for seed in range(3):
        made.update(played(made, seed=seed), None)
    after = core.policy.base.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not any(p.requires_grad for p in core.policy.base.model.parameters())


def test_what_is_given_has_no_noise_and_needs_none_of_dsrl_na(start):
    """Demonstrations come without noise labels: values of chunks learn from them, values of noise cannot."""
    aliased, direct = (agent(about(start), 0, hidden=8) for agent in (dsrl_na, dsrl_sac))
    assert all(map(math.isfinite, aliased.update(None, batch()).values()))
    with pytest.raises(UserError, match=r"agent \(dsrl_sac\).*offline=\[\].*dsrl_na"):
        direct.update(None, batch())
    told = direct.update(played(direct, 6), batch(2, seed=5))  # a person's steps among its own
    assert told["known"] == 0.75 and math.isfinite(told["critic_loss"])
    before = direct.act(batch().state, False)
    assert direct.update(batch(), None) == {"known": 0.0}  # played by chance, before there was an agent
    assert np.array_equal(direct.act(batch().state, False), before)


def test_noise_is_found_by_what_it_made():
    """The wrong noise for a chunk teaches that noise does not matter. Of equals the latest counts."""
    rng = np.random.default_rng(0)
    state, chunk, noise = (rng.standard_normal(size).astype(np.float32) for size in ((5, 3), (5, 2, 2), (5, 2, 2)))
    book = Book(4)
    book.note(state, chunk, noise)
    known, found = book.find(state[::-1], chunk[::-1])
    assert known.tolist() == [True] * 4 + [False] and np.array_equal(found, noise[:0:-1])
    assert not book.find(state, chunk[::-1].copy())[0][[0, 1, 3, 4]].any()  # both must agree
    book.note(state[1:2], chunk[1:2], noise[:1])  # in place of its own older one
    assert np.array_equal(book.find(state[1:2], chunk[1:2])[1], noise[:1]) and len(book) == 4
    again = Book(4)
    again.load_state_dict(book.state_dict())
    for each in (book, again):
        each.note(state[:1], chunk[:1], noise[:1])
        known, found = each.find(state, chunk)
        assert known.tolist() == [True, True, False, True, True]
        assert np.array_equal(found, noise[[0, 0, 3, 4]])
    empty = Book(4)
    empty.load_state_dict(Book(4).state_dict())
    assert len(empty) == 0 and not empty.find(state, chunk)[0].any()


def test_warm_noise_is_the_flows_own_within_the_bound():
    """Cut instead of drawn anew, a seventh of it would lie on the bound.

    N(0, 1) within 1.5: variance 1 - 2 * 1.5 * 0.129518 / 0.866386 = 0.55152.
    """
    noise = natural((20000,), 1.5, torch.Generator().manual_seed(0))
    assert noise.abs().max() <= 1.5 and (noise.abs() == 1.5).sum() == 0
    assert noise.mean().item() == pytest.approx(0, abs=0.02) and noise.var().item() == pytest.approx(0.55152, abs=0.02)


@AGENTS
def test_a_saved_agent_goes_on_exactly(start, agent):
    """Generators, the noise of what was played, targets: ten updates are ten, whether or not the machine went down."""
    whole, part = (agent(about(start), 3, hidden=8) for _ in range(2))
    states = batch(5).state
    for i in range(6):
        for each in (whole, part):
            assert each.warm(states).shape == (5, 2, 2)
            each.update(played(each, seed=i), None)
        if i == 2:
            state = part.state_dict()
            part = agent(about(start), 99, hidden=8)
            part.load_state_dict(state)
    assert np.array_equal(whole.warm(states), part.warm(states))
    assert np.array_equal(whole.act(states, True), part.act(states, True))
    assert np.array_equal(whole.act(states, False), part.act(states, False))
    rows = played(whole)
    assert np.array_equal(rows.action, played(part).action) and whole.update(rows, None) == part.update(rows, None)


@AGENTS
def test_what_is_saved_is_a_policy_that_does_the_same(start, tmp_path, agent):
    """It must act alone: without the run, and without the folder it began with."""
    made = agent(about(start), 0, hidden=8)
    for i in range(5):
        made.update(played(made, seed=i), None)
    (tmp_path / "saved").mkdir()
    made.save(tmp_path / "saved")
    (Path(start) / "config.json").unlink()
    policy, states = load(PolicySection(model=str(tmp_path / "saved"))), batch(4).state
    assert isinstance(policy, SteeredPolicy)
    shown = [Observation((), state) for state in states]
    acted = policy.act([Episode(Sample("", Observation(())), 0)] * 4, shown, greedy=True)
    assert np.array_equal(np.stack([d.action for d in acted]), made.act(states, False))


def test_another_robots_flow_is_refused(start, tmp_path):
    """Limits of another robot would be exceeded."""
    with pytest.raises(UserError, match=r"start: .*made for \(3, .* this robot"):
        dsrl_na(about(start, chunk=3), 0)
    with pytest.raises(UserError, match=r"start: .*describes no vlrl_flow"):
        dsrl_sac(about(str(tmp_path)), 0)


@pytest.mark.slow
@AGENTS
def test_it_learns_to_steer(tmp_path, agent):
    """The chunk is the noise, as it is: what pays, the state's own number, must be found in the noise."""
    shape = ActorShape(1, ("x",), (-1.0,), (1.0,), chunk=1)
    flow(shape, plain=True).save(tmp_path)
    one = np.ones(1, np.float32)
    told = AgentSpec(1, 1, ("x",), -one, one, 0 * one, one, start=str(tmp_path))
    made = agent(told, 0, hidden=32, lr=5e-3, **({"noise_steps": 1} if agent is dsrl_na else {}))
    rng, rows = np.random.default_rng(0), 32
    for _ in range(250):
        state = rng.uniform(-1, 1, (rows, 1)).astype(np.float32)
        action = made.act(state, True)
        reward = -((action[:, 0, 0] - state[:, 0]) ** 2)
        made.update(Transitions(state, action, reward, np.ones(rows), state, np.ones(rows), np.zeros(rows)), None)
    states = np.linspace(-0.8, 0.8, 9, dtype=np.float32)[:, None]
    assert np.abs(made.act(states, False)[:, 0, 0] - states[:, 0]).max() < 0.3


CONFIG = """
task: {name: "line_task:LineTask", scenes: 20}
out: run
start: flow
agent: {name: dsrl_na, hidden: 16, lr: 3.0e-3, noise_steps: 1}
offline: [{name: demonstrations, episodes: 4}]
ticks: 180
warmup_steps: 40
batch_size: 16
gamma: 0.9
eval: {num_samples: 6}
log: {checkpoint_every: 60}
"""


@pytest.fixture
def place(place) -> Path:
    """A folder with a configuration and a flow, where the user's own task lies on the Python path."""
    flow(ActorShape(2, ("speed",), (-1.0,), (1.0,), chunk=3, hidden=8, hz=10.0)).save(place / "flow")
    return place


@pytest.mark.parametrize("changes", [[], ["agent={name: dsrl_sac, hidden: 16}", "offline=[]"]], ids=["na", "sac"])
def test_a_run_from_the_command_line(place, capsys, changes):
    """A run, stopped and gone on with, and its policy served."""
    from vlrl.serving.policies import servable

    assert main(["offpolicy", "line.yaml", *changes, "out=whole"]) == 0
    assert main(["offpolicy", "line.yaml", *changes, "out=part", "ticks=120"]) == 0
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


def test_what_it_builds_on_must_be_told(place, capsys):
    """One line before anything is played."""
    for changes, problem in (
        (["start=null"], "agent (dsrl_na) builds on a policy: set start"), (["start=nowhere"], "start: nowhere"),
        (["agent.bound=0"], "agent.bound"), (["agent=dsrl_sac", "updates=3"], "noise that it chose itself"),
    ):  # fmt: skip
        assert main(["offpolicy", "line.yaml", *changes]) == 2
        said = capsys.readouterr().err.strip().splitlines()
        assert said[-1].startswith("vlrl: ") and problem in said[-1]
