"""Implicit Q-learning: its losses by hand, its gradients against networks written out, a run that beats cloning."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from small_batches import HIGH, LOW, about, cut
from torch.distributions import Normal

from vlrl.cli import main
from vlrl.offpolicy.agents import Bc, Iql
from vlrl.offpolicy.iql import Imitator, ImplicitQ, carried, expectile, likelihood, weights
from vlrl.policies.robot_common import load_actor

OPTIONS = {"expectile": 0.7, "beta": 3.0, "most": 100.0, "hidden": 8, "layers": 1, "lr": 1e-3, "tau": 0.5, "decay": 0}
CONFIG = """
task: {name: "line_task:LineTask", scenes: 60, chunk: 3}
out: run
agent: {name: iql, hidden: 32, lr: 3.0e-3, beta: 20.0, expectile: 0.8}
offline: [{name: scripted, episodes: 60, expert: 0.3, poor: 0.3, lapses: 0.9, hold: 4}]
updates: 600
ticks: 0
batch_size: 64
gamma: 0.9
eval: {num_samples: 20}
log: {rows_every: 100, checkpoint_every: 300}
"""


def test_the_expectile_loss_by_hand():
    """The weights swapped, a state is worth its worst action, and the run looks as if it learned.

    tau 0.9: u = 2: 0.9 * 4 = 3.6; u = -2: 0.1 * 4 = 0.4; u = 0: 0; u = 0.5: 0.9 * 0.25 = 0.225.
    """
    apart = torch.tensor([2.0, -2.0, 0.0, 0.5], dtype=torch.float64)
    torch.testing.assert_close(expectile(apart, 0.9), torch.tensor([3.6, 0.4, 0.0, 0.225], dtype=torch.float64))
    torch.testing.assert_close(expectile(apart, 0.5), 0.5 * apart**2)


@pytest.mark.parametrize("tau", [0.5, 0.7, 0.9])
def test_the_loss_ends_at_the_expectile(tau):
    """Of values 0 and 1, as often, it is tau: tau (1 - m) = (1 - tau) m has the solution m = tau."""
    values, middle = torch.tensor([0.0, 1.0], dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    middle.requires_grad_()
    for _ in range(2000):
        (gradient,) = torch.autograd.grad(expectile(values - middle, tau).mean(), middle)
        middle.data -= 0.5 * gradient
    assert middle.item() == pytest.approx(tau, abs=1e-9)


def test_weights_by_hand():
    """exp(3 * 0.5) = 4.481689; exp(3 * -1) = 0.049787; exp(3 * 2) = 403.4, clipped to 100."""
    found = weights(torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64), 3.0, 100.0)
    torch.testing.assert_close(found, torch.tensor([4.4816890703, 0.0497870684, 100.0], dtype=torch.float64))


def test_the_likelihood_is_that_of_the_law_and_of_what_was_carried_out():
    """A script at its limit has no density under a squashed law: the loss would be infinite. Padding is no example."""
    torch.manual_seed(0)
    mean, log_std = (torch.randn(5, 4, dtype=torch.float64) for _ in range(2))
    unit = torch.rand(5, 4, dtype=torch.float64) * 2 - 1
    unit[0], unit[1] = 1.0, -1.0
    mask = torch.tensor([[True, True, False, False]] * 2 + [[True] * 4] * 3)
    law = Normal(mean.tanh(), log_std.exp()).log_prob(unit)
    torch.testing.assert_close(likelihood(mean, log_std, unit, mask), (law * mask).sum(-1))
    made = cut(2, used=np.array([0.5, 1.0]))
    assert carried(made).tolist() == [[True, True, False, False], [True] * 4]


class Constant(torch.nn.Module):
    """Values everything by one number, [1, B]."""

    def __init__(self, value: float):
        super().__init__()
        self.value = value

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.full((1, len(inputs)), self.value)


def test_targets_hold_the_states_value_and_a_time_out_goes_on():
    """Stored as an end, running out of time would look like losing.

    gamma 0.5 a tick, K = 2, V = 4 everywhere: on 0 + 0.25 * 4 = 1; won 1; time-out after one tick 0 + 0.5 * 4 = 2;
    lost 0.
    """
    core = ImplicitQ(about(), 0, **OPTIONS)
    core.value = Constant(4.0)
    ends = cut(4, reward=np.array([0.0, 1.0, 0.0, 0.0]), terminal=np.array([False, True, False, True]),
                 used=np.array([1.0, 0.5, 0.5, 1.0]))  # fmt: skip
    assert core.targets(ends).tolist() == [1.0, 1.0, 2.0, 0.0]


def test_one_update_is_the_paper_written_out():
    """The order of the steps, the smaller of the slow critics, the stopped gradients: gradients of each network."""
    made, core, plain = cut(16), *(ImplicitQ(about(), 3, **OPTIONS) for _ in range(2))
    state, following = torch.from_numpy(made.state), torch.from_numpy(made.next_state)
    unit = plain.scale.unit(made.action)
    both = torch.cat([state, unit], 1)
    q = plain.critics.target(both).min(0).values.detach()
    u = q - plain.value(state)[0]
    (torch.where(u > 0, 0.7, 0.3) * u**2).mean().backward()
    torch.optim.Adam(plain.value.parameters(), lr=1e-3).step()
    v, v_next = plain.value(state)[0].detach(), plain.value(following)[0].detach()
    mean, log_std = plain.actor.policy.model(state)
    logp = (Normal(mean.tanh(), log_std.exp()).log_prob(unit) * carried(made)).sum(-1)
    (-(torch.exp(3 * (q - v)).clamp(max=100) * logp)).mean().backward()
    steps = torch.from_numpy(made.used) * 2
    aim = torch.from_numpy(made.reward) + torch.where(torch.from_numpy(made.terminal), 0.0, 0.5**steps) * v_next
    first, second = plain.critics.critics(both)
    (torch.nn.functional.mse_loss(first, aim) + torch.nn.functional.mse_loss(second, aim)).backward()
    core.update(made)
    pairs = [(plain.value, core.value), (plain.actor.policy.model, core.actor.policy.model),
             (plain.critics.critics, core.critics.critics)]  # fmt: skip
    for written, ours in pairs:
        for one, other in zip(written.parameters(), ours.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)


def test_the_rate_falls_along_a_cosine():
    """lr * (1 + cos(pi * n / 4)) / 2 at update n: 1, 0.853553, 0.5, 0.146447, 0, 0; the authors' schedule."""
    actor, found = Imitator(about(), 0, hidden=8, layers=1, lr=1.0, decay=4), []
    for _ in range(6):
        actor.step(cut())
        found.append(actor.optimizer.param_groups[0]["lr"])
    assert found == pytest.approx([1, 0.853553, 0.5, 0.146447, 0, 0], abs=1e-6)


@pytest.mark.parametrize("kind", [Iql, Bc])
def test_state_comes_back(kind):
    """A killed run would go on as another one."""
    one, other = kind(about(), 0, hidden=8, decay=20), kind(about(), 9, hidden=8, decay=20)
    for seed in range(3):
        one.update(None, cut(seed=seed))
    one.act(cut().state, explore=True)
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    for agent in (one, other):
        agent.update(cut(seed=5), cut(seed=6))
    states = cut().state
    for explore in (False, True):
        np.testing.assert_array_equal(one.act(states, explore), other.act(states, explore))


def test_what_is_saved_is_what_acts(tmp_path):
    """Served, the policy would do something else than it was evaluated with."""
    agent, states = Iql(about(), 0, hidden=8), cut().state
    agent.update(None, cut())
    agent.save(tmp_path)
    policy = load_actor(tmp_path, seed=0)
    np.testing.assert_allclose(policy.chunks(states, greedy=True), agent.act(states, explore=False), atol=1e-6)
    drawn = np.stack([agent.act(states, explore=True) for _ in range(200)])
    assert (drawn >= LOW).all() and (drawn <= HIGH).all() and drawn.std(0).min() > 0


def run(*changes: str) -> dict:
    assert main(["offpolicy", "line.yaml", *changes]) == 0
    out = next((c.removeprefix("out=") for c in changes if c.startswith("out=")), "run")
    return json.loads(Path(out, "summary.json").read_text())


@pytest.mark.slow
def test_offline_it_does_better_than_cloning_what_is_mostly_bad(place, capsys):
    """The reason to be of offline learning; without playing one episode to learn."""
    learned, cloned = run(), run("agent=bc", "agent.hidden=32", "agent.lr=3.0e-3", "out=cloned")
    assert learned["rollouts"] == learned["ticks"] == 0
    assert learned["after"]["value"] >= cloned["after"]["value"] + 0.2
    assert learned["after"]["value"] > learned["behaviour_success"] == cloned["behaviour_success"]
    assert learned["over_behaviour"] == pytest.approx(learned["after"]["value"] - learned["behaviour_success"])
    assert "given: 60 episodes" in capsys.readouterr().err
    assert "Behaviour success" in (place / "run" / "report.html").read_text()


@pytest.mark.slow
def test_it_goes_on_by_playing(place):
    """Offline to online: the warm-up is the actor's own, or chance would drown what was learned."""
    told = run("ticks=120", "warmup_steps=60", "updates=100", "eval.num_samples=4")
    assert told["ticks"] >= 120 and told["updates"] > 100 and math.isfinite(told["after"]["value"])
    agent = Iql(about(), 0, hidden=8, lr=3e-3)
    states = np.zeros((300, 3), np.float32)
    for _ in range(400):
        agent.update(None, cut(32, action=np.full((32, 2, 2), 0.08), used=np.ones(32)))
    assert np.abs(agent.warm(states)[..., 0] - 0.08).mean() < 0.1  # chance: 0.21
