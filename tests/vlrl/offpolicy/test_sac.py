"""Soft actor-critic: targets worked by hand, gradients against networks written out, state that comes back."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from small_batches import HIGH, LOW, about, batch
from torch import nn
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from vlrl.config import PolicySection
from vlrl.offpolicy.agents import Rlpd
from vlrl.offpolicy.base import Transitions
from vlrl.offpolicy.networks import Critics, Scale, climb, follow
from vlrl.offpolicy.sac import RlpdSettings, Sac
from vlrl.policies.loading import load
from vlrl.policies.robot_common import squashed
from vlrl.types import Episode, Observation, Sample, UserError


class Constant(nn.Module):
    """Critics that value everything by given numbers [E]."""

    def __init__(self, values: list[float]):
        super().__init__()
        self.values = torch.tensor(values)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.values[:, None].expand(-1, len(inputs))


def ends() -> Transitions:
    """Reward 0 and on, reward 1 and over, a time-out (goes on, half its action used), lost."""
    made = batch(4).columns()
    return Transitions(**made | {
        "reward": np.array([0.0, 1.0, 0.0, 0.0]), "terminal": np.array([False, True, False, True]),
        "used": np.array([1.0, 0.5, 0.5, 1.0]),
    })  # fmt: skip


def test_targets_worked_by_hand():
    """A time-out stored as an end teaches that running out of time is like losing: the fault of SERL's buffers.

    gamma 0.5 a tick, K = 2, the smaller of the critics' values 3 and 5 is 3:
    on: 0 + 0.5^2 * 3 = 0.75; won: 1; time-out after one tick: 0 + 0.5 * 3 = 1.5; lost: 0.
    """
    sac = Sac(about(), 0, RlpdSettings(hidden=8))
    sac.target = Constant([5.0, 3.0])
    assert sac.targets(ends()).tolist() == [0.75, 1.0, 1.5, 0.0]


def test_the_entropy_counts_only_where_asked():
    """RLPD leaves it out on sparse rewards: it would drown them. temperature 0.25, so that V = 3 - 0.25 * log pi."""
    plain, soft = (Sac(about(), 0, RlpdSettings(hidden=8, temperature=0.25, entropy_backup=b)) for b in (False, True))
    for sac in (plain, soft):
        sac.target = Constant([5.0, 3.0])
    made, generator = ends(), torch.Generator().manual_seed(0)
    _, logp = soft.policy.model.draw(torch.from_numpy(made.next_state), generator)
    wanted = plain.targets(made) - torch.tensor([0.25, 0.0, 0.5, 0.0]) * 0.25 * logp.detach()
    torch.testing.assert_close(soft.targets(made), wanted)


def test_the_smallest_of_a_drawn_subset_counts():
    """With ten critics the minimum of all would be hopelessly low (REDQ draws two for each target)."""
    sac = Sac(about(), 0, RlpdSettings(hidden=8, critics=4, subset=2))
    sac.target = Constant([1.0, 2.0, 3.0, 4.0])
    aims = [sac.targets(ends())[0].item() / 0.25 for _ in range(400)]
    # of 6 pairs: 3 have the minimum 1, 2 have 2, one has 3; 400 draws, standard deviations 10, 9.4, 7.5
    assert set(aims) == {1.0, 2.0, 3.0}
    assert [round(aims.count(v) / 400, 1) for v in (1.0, 2.0, 3.0)] == pytest.approx([0.5, 0.3, 0.2], abs=0.11)


def written_out(critics: Critics, member: int) -> nn.Sequential:
    """One member as plain layers."""
    layers: list[nn.Module] = []
    for weight, bias, gain, shift in zip(critics.weights, critics.biases, critics.gains, critics.shifts, strict=True):
        linear, norm = nn.Linear(*weight.shape[1:]), nn.LayerNorm(weight.shape[2])
        for target, source in ((linear.weight, weight[member].T), (linear.bias, bias[member, 0]),
                               (norm.weight, gain[member, 0]), (norm.bias, shift[member, 0])):  # fmt: skip
            target.data.copy_(source)
        layers += [linear, norm, nn.ReLU()]
    head = nn.Linear(critics.head.shape[1], 1)
    head.weight.data.copy_(critics.head[member].T)
    head.bias.data.copy_(critics.offset[member, 0])
    return nn.Sequential(*layers, head)


def test_an_ensemble_is_its_members():
    """Batched products that mix the members would make their minimum worthless. Values and gradients, float64."""
    torch.manual_seed(0)
    critics, inputs = Critics(5, hidden=6, layers=2, members=3).double(), torch.randn(7, 5, dtype=torch.float64)
    aim = torch.randn(7, dtype=torch.float64)
    for part in (critics.gains, critics.shifts, critics.biases):
        for parameter in part:
            nn.init.normal_(parameter)
    (critics(inputs) - aim).square().mean(1).sum().backward()
    for member in range(3):
        single = written_out(critics, member).double()
        values = single(inputs)[:, 0]
        torch.testing.assert_close(critics(inputs)[member], values)
        (values - aim).square().mean().backward()
        torch.testing.assert_close(critics.weights[0].grad[member], single[0].weight.grad.T)
        torch.testing.assert_close(critics.gains[1].grad[member, 0], single[4].weight.grad)
        torch.testing.assert_close(critics.head.grad[member], single[6].weight.grad.T)


def test_the_actors_gradient_is_that_of_the_law_written_out():
    """A wrong tanh correction shows as an actor that sticks to its limits."""
    torch.manual_seed(0)
    mean, log_std, noise = (torch.randn(6, 4, dtype=torch.float64) for _ in range(3))
    mean.requires_grad_(), log_std.requires_grad_()
    action, logp = squashed(mean, log_std, noise)
    (logp.sum() + (action**3).sum()).backward()
    ours = mean.grad.clone(), log_std.grad.clone()
    mean.grad = log_std.grad = None
    law = TransformedDistribution(Independent(Normal(mean, log_std.exp()), 0), [TanhTransform(cache_size=1)])
    plain = (mean + log_std.exp() * noise).tanh()
    raw = Normal(mean, log_std.exp()).log_prob(mean + log_std.exp() * noise) - (1 - plain**2).log()
    torch.testing.assert_close(logp, law.log_prob(action).sum(-1))
    (raw.sum() + (plain**3).sum()).backward()
    torch.testing.assert_close(ours, (mean.grad, log_std.grad))
    far, density = squashed(torch.full((1, 1), 40.0), torch.zeros(1, 1), torch.zeros(1, 1))
    # log N(0) - log(1 - tanh(40)^2) = -0.918939 - 2 (log 2 - 40) = 77.694767
    assert far.item() == 1.0 and density.item() == pytest.approx(-0.918939 + 80 - 2 * math.log(2), abs=1e-4)


def test_the_temperature_rises_where_there_is_too_little_chance():
    """Exploration would die out, or never end. 4 numbers a chunk, so the target is -2."""
    sac = Sac(about(), 0, RlpdSettings(hidden=8, cta_ratio=1, temperature=0.5))
    before = sac.log_alpha.item()
    sac.update(batch())
    assert sac.log_alpha.item() < before  # a new actor is near the even law: entropy of 4 numbers 2.77
    sac.target_entropy, before = 50.0, sac.log_alpha.item()
    for _ in range(3):  # Adam's momentum of the first step
        sac.update(batch())
    assert sac.log_alpha.item() > before


def test_an_update_moves_critics_each_time_and_the_actor_by_its_ratio():
    """An actor ahead of its critics climbs their mistakes; SERL updates it every second time."""
    sac = Sac(about(), 0, RlpdSettings(hidden=8, cta_ratio=3))

    def moved():
        return [
            sum(p.double().abs().sum().item() for p in part.parameters())
            for part in (sac.critics, sac.policy.model, sac.target)
        ]

    seen = [moved()]
    for _ in range(6):
        sac.update(batch())
        seen.append(moved())
    changes = [[a != b for a, b in zip(*pair, strict=True)] for pair in pairwise(seen)]
    assert [each[0] for each in changes] == [True] * 6 and [each[2] for each in changes] == [True] * 6
    assert [each[1] for each in changes] == [False, False, True] * 2


class Slope(nn.Module):
    """Two critics that value the first number of the action (inputs 3 on), at slopes of their own."""

    def __init__(self, one: float, other: float):
        super().__init__()
        self.slopes = torch.tensor([[one], [other]])

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.slopes * inputs[:, 3]


@pytest.mark.parametrize(("climbs", "up"), [("mean", True), ("min", False)])
def test_the_actor_climbs_the_value_it_is_told(climbs, up):
    """Slopes 3 and -1: the mean rises with the action, the smaller of the two falls where the action is above 0."""
    sac = Sac(about(), 0, RlpdSettings(hidden=8, lr=0.01, temperature=1e-6, climbs=climbs))
    sac.policy.model.head.bias.data[0] = 1.0
    sac.critics, made = Slope(3.0, -1.0), batch(64)
    state, none = sac.scale.state(made.state), torch.zeros(0, 4)
    before = sac.policy.model(torch.from_numpy(made.state))[0][:, 0].mean()
    for _ in range(20):
        sac._improve(made, [state], slice(64, None), none, torch.zeros(0))
    after = sac.policy.model(torch.from_numpy(made.state))[0][:, 0].mean()
    assert (after > before + 0.05) == up and (after < before - 0.05) == (not up)


def test_what_is_worth_more_is_imitated_and_nothing_else():
    """A bad demonstration would hold the actor back; without the weight there is none of it (RLPD as published)."""

    def moved(weight: float, their_worth: float) -> float:
        sac = Sac(about(), 0, RlpdSettings(hidden=8, lr=0.01, temperature=1e-6, imitation=weight))
        sac.critics, made = Slope(0.0, 0.0), batch(64)
        state, shown = sac.scale.state(made.state), slice(48, 64)
        for _ in range(60):
            sac._improve(made, [state], shown, torch.full((16, 4), 0.5), torch.full((16,), their_worth))
        return sac.policy.model(torch.from_numpy(made.state))[0].tanh().mean().item()

    assert moved(1.0, 1.0) > 0.25 and abs(moved(1.0, -1.0)) < 0.1 and abs(moved(0.0, 1.0)) < 0.1


def test_targets_follow_slowly():
    """tau 0.25: 1 -> 0.75 * 1 + 0.25 * 5 = 2."""
    target, source = Critics(2, hidden=2, members=2), Critics(2, hidden=2, members=2)
    for part, value in ((target, 1.0), (source, 5.0)):
        for parameter in part.parameters():
            nn.init.constant_(parameter, value)
    follow(target, source, 0.25)
    assert {value for p in target.parameters() for value in p.flatten().tolist()} == {2.0}


def test_a_step_gives_gradients_to_nothing_else():
    """The actor's loss goes through the critics, which it must not move."""
    a, b = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.tensor(3.0))
    climb(torch.optim.SGD([a], lr=0.1), a * b, [a])
    assert a.item() == pytest.approx(1.7) and b.grad is None and b.item() == 3.0


def test_scales_lead_back():
    """Controls learned in one unit and sent in another would break something."""
    scale, chunks = Scale(about()), batch(20).action
    unit = scale.unit(chunks)
    assert unit.shape == (20, 4) and unit.abs().max() <= 1
    np.testing.assert_allclose(scale.physical(unit), chunks, atol=1e-7)
    assert (scale.physical(torch.full((1, 4), 7.0)) == HIGH).all()  # never beyond a limit
    assert (scale.unit(np.full((1, 2, 2), -9.0, np.float32)) == -1).all()
    assert scale.state(np.full((1, 3), 1e9, np.float32)).tolist() == [[10.0] * 3]


def test_a_saved_agent_goes_on_exactly():
    """Ten updates are ten updates, whether or not the machine went down after five."""
    whole, part = (Rlpd(about(), 3, hidden=8, critics=3) for _ in range(2))
    for i in range(10):
        whole.update(batch(seed=i), None)
        part.update(batch(seed=i), None)
        if i == 4:
            state = part.state_dict()
            part = Rlpd(about(), 99, hidden=8, critics=3)
            part.load_state_dict(state)
    states = batch(5).state
    assert np.array_equal(whole.act(states, True), part.act(states, True))
    assert np.array_equal(whole.act(states, False), part.act(states, False))
    assert whole.update(batch(), batch(seed=1)) == part.update(batch(), batch(seed=1))


def test_what_is_saved_is_a_policy_that_does_the_same(tmp_path):
    """A run's result would act otherwise once it is evaluated, served or started from."""
    agent = Rlpd(about(names=("a", "b", "c"), hz=20.0), 0, hidden=8)
    for i in range(20):
        agent.update(batch(seed=i), None)
    agent.save(tmp_path)
    states = batch(4).state
    policy = load(PolicySection(model=str(tmp_path)))
    shown = [Observation((), state) for state in states]
    episodes = [Episode(Sample("", Observation(())), 0)] * 4
    acted = np.stack([decision.action for decision in policy.act(episodes, shown, greedy=True)])
    assert np.array_equal(acted, agent.act(states, False)) and (acted != acted[0]).any()
    assert (acted >= LOW).all() and (acted <= HIGH).all()
    begun = Rlpd(about(start=str(tmp_path)), 5, hidden=8)
    assert np.array_equal(begun.act(states, False), acted)
    with pytest.raises(UserError, match=r"made for \(3, .* this robot"):
        Rlpd(about(chunk=3, start=str(tmp_path)), 0)
    with pytest.raises(UserError, match="state of 3 numbers, but the robot shows 2"):
        policy.act(episodes[:1], [Observation((), states[0, :2])])
    with pytest.raises(UserError, match="vlrl offpolicy"):
        policy.check(episodes[0].sample)


@pytest.mark.parametrize("text", ["[]", "{", '{"model_type": "vlrl_actor"}', '{"model_type": "vlrl_actor", "low": 3}'])
def test_a_broken_description_is_one_line(tmp_path, text):
    """A config.json mended by hand."""
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match=r"policy\.model"):
        load(PolicySection(model=str(tmp_path)))


def test_starting_from_something_else_is_refused(tmp_path):
    """A language model's folder would fail deep in a network."""
    with pytest.raises(UserError, match=r"start: .*describes no actor"):
        Rlpd(about(start=str(tmp_path)), 0)
    with pytest.raises(UserError, match=r"agent\.subset: 3 of 2"):
        Rlpd(about(), 0, subset=3)


def test_it_learns_what_is_best():
    """State and goal in one number: the best chunk holds it. Plain regression of values, then the actor climbs them."""
    told = about(state=1, mean=np.zeros(1, np.float32), spread=np.ones(1, np.float32), chunk=1)
    agent, rng = Rlpd(told, 0, hidden=32, lr=3e-3, cta_ratio=1), np.random.default_rng(0)
    for _ in range(300):
        state, action = rng.uniform(-1, 1, (64, 1)), rng.uniform(LOW, HIGH, (64, 1, 2))
        reward = -((action[:, 0, 0] / 0.4 - state[:, 0]) ** 2)
        agent.update(Transitions(state, action, reward, np.ones(64, bool), state, np.ones(64), np.zeros(64)), None)
    states = np.linspace(-0.8, 0.8, 9, dtype=np.float32)[:, None]
    assert np.abs(agent.act(states, False)[:, 0, 0] / 0.4 - states[:, 0]).max() < 0.25
