"""Values from states alone: the target by hand, an order that is learned, and networks that begin with it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from vlrl.cli import main
from vlrl.config import Component
from vlrl.offpolicy import networks
from vlrl.offpolicy import value_pretraining as icvf
from vlrl.offpolicy.base import AgentSpec, concat, windows
from vlrl.offpolicy.config import PretrainConfig
from vlrl.offpolicy.networks import Critics, Scale
from vlrl.offpolicy.value_pretraining import ICVF, Drawn, Moments, ValuePretrainingLearner, compute_order, sequences
from vlrl.policies.robot_common import Actor, ActorShape
from vlrl.types import UserError

HERE = Path(__file__).parent
CONFIG = """
task: {name: "line_task:LineTask", scenes: 20}
out: made
offline: [{name: demonstrations, episodes: 12, noise: 0.3}]
updates: 120
hidden: 16
batch_size: 64
lr: 3.0e-3
"""


class Table(nn.Module):
    """Values by what was asked: V(s, s+, z) = 0.1 s + 0.01 s+ + 0.001 z of moments that are numbers."""

    def forward(self, state, outcome, intent):
        return (0.1 * state + 0.01 * outcome + 0.001 * intent)[:, 0]


def test_the_loss_by_hand():
    """Goal and intent exchanged, or a step that is no end where the goal is reached, would teach other values."""
    moments = Moments([np.arange(5.0)[:, None]])
    drawn = Drawn(np.array([1, 2]), np.array([2, 3]), np.array([4, 2]), np.array([3, 2]))
    # row 1: s=1, s'=2, s+=4, z=3. target 0.5 * (0.2 + 0.04 + 0.003) = 0.1215; V = 0.1 + 0.04 + 0.003 = 0.143;
    #   A = 0.5 * (0.2 + 0.03 + 0.003) - (0.1 + 0.03 + 0.003) = 0.1165 - 0.133 < 0: weight 0.1
    # row 2: s=2=s+=z. target 1; V = 0.2 + 0.02 + 0.002 = 0.222; A = 1 - 0.222 > 0: weight 0.9
    by_hand = (0.1 * (0.1215 - 0.143) ** 2 + 0.9 * (1 - 0.222) ** 2) / 2
    assert icvf.loss_of(Table(), Table(), moments, drawn, gamma=0.5, expectile=0.9).item() == pytest.approx(
        by_hand, rel=1e-5
    )


def test_the_target_is_the_released_one_in_another_scale():
    """V = 1 + (1 - gamma) * V_released, whose target is -1 + gamma * V', and 0 where the goal is reached."""
    gamma, released = 0.9, torch.tensor([-3.0, -7.0])
    theirs = torch.where(torch.tensor([False, True]), 0.0, -1 + gamma * released)
    ours = icvf.target(torch.tensor([False, True]), 1 + (1 - gamma) * released, gamma)
    torch.testing.assert_close(ours, 1 + (1 - gamma) * theirs)


def test_what_is_drawn():
    """A goal that lies before a moment, or in another sequence, would be told to be ahead of it."""
    moments = Moments([np.zeros((4, 1)), np.zeros((1, 1)), np.zeros((3, 1))])
    assert moments.last.tolist() == [3, 3, 3, 3, 4, 7, 7, 7]
    drawn = moments.draw(20_000, np.random.default_rng(0))
    assert set(drawn.now) == {0, 1, 2, 5, 6} and (drawn.following == drawn.now + 1).all()
    same = (drawn.outcome == drawn.intent).mean()
    # here: 0.2, and by chance 0.3 / 8 more
    assert abs((drawn.intent == drawn.now).mean() - 0.2375) < 0.015 and 0.5 < same < 0.75
    ahead = (drawn.intent > drawn.now) & (drawn.intent <= moments.last[drawn.now])
    assert ahead.mean() > 0.5 and set(drawn.intent) == set(range(8))
    with pytest.raises(ValueError, match="two moments"):
        Moments([np.zeros((1, 1))])


def walks(count: int, seed: int) -> list[np.ndarray]:
    """Ways along a circle, in both directions, seen in noisy numbers of which only two tell the place."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        angle = rng.uniform(0, 6.28) + rng.choice([-1, 1]) * 0.15 * np.arange(20)
        made.append(np.stack([np.cos(angle), np.sin(angle), rng.normal(size=20)], 1).astype(np.float32))
    return made


def test_values_order_moments_by_what_is_left():
    """What a trunk is given must be worth something: more steps to a goal, a smaller value, on new sequences."""
    moments, held = Moments(walks(60, 0)), Moments(walks(20, 1))

    def learned(steps: int, seed: int) -> tuple[ICVF, list[float]]:
        learner = ValuePretrainingLearner(PretrainConfig(
            task=Component(name="line"), out="none", offline=[Component(name="demonstrations")], seed=seed, hidden=32,
            gamma=0.9, lr=3e-3, batch_size=128, tau=0.02, updates=steps, log={"rows_every": 50},
        ))  # fmt: skip
        learner.start(moments)
        return learner.network, [learner.step(i).metrics["loss"] for i in range(0, steps, 50)]

    network, losses = learned(400, 0)
    fresh = ICVF(3, hidden=32)
    assert compute_order(network, held, 0) > 0.6 > compute_order(fresh, held, 0) + 0.2 and losses[-1] < losses[0]
    again, other, first = (learned(5, seed)[0].state_dict() for seed in (0, 1, 0))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["phi.0.weight"], other["phi.0.weight"])


def test_sequences_follow_what_leads_to_what():
    """Chunks of 2 ticks, from each tick: 2 sequences of an episode of 5 ticks, and none across episodes."""
    episodes = [10.0 * number + np.arange(6.0)[:, None] for number in range(2)]
    given = concat([windows(each, np.zeros((5, 1)), 2, won=True, ended=True) for each in episodes])
    found = [each[:, 0].tolist() for each in sequences(given)]
    assert found == [[0, 2, 4, 5], [1, 3, 5], [10, 12, 14, 15], [11, 13, 15]]
    circle = windows(np.array([0.0, 1, 2, 0])[:, None], np.zeros((3, 1)), 1, won=False, ended=False)
    assert [each[:, 0].tolist() for each in sequences(circle)] == [[0, 1, 2, 0]]


def about(state: int = 3, seed: int = 0) -> AgentSpec:
    rng = np.random.default_rng(seed)
    mean, spread = rng.normal(size=state).astype(np.float32), rng.uniform(0.5, 2, state).astype(np.float32)
    return AgentSpec(state, 2, ("x",), np.float32([-1]), np.float32([1]), mean, spread, names=tuple("abcdef"[:state]))


@pytest.fixture
def saved(tmp_path) -> tuple[Path, nn.Sequential, AgentSpec]:
    """A trunk in a folder, and the scale that it saw states in."""
    torch.manual_seed(0)
    own, network = about(seed=1), networks.trunk(3, 16, 2)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    networks.save(tmp_path, networks.TrunkShape(3, ("a", "b", "c"), 16, 2), network, own.mean, own.spread)
    return tmp_path, network, own


def test_a_trunk_sees_the_same_in_another_scale(saved):
    """An agent standardises by its own data: unfolded, the trunk would see all states moved and stretched."""
    folder, network, own = saved
    told, states = about(seed=2), np.random.default_rng(3).normal(size=(50, 3)).astype(np.float32)
    wanted = network(Scale(own).state(states))
    torch.testing.assert_close(
        networks.trunk_load(folder, told)(Scale(told).state(states)), wanted, rtol=1e-4, atol=1e-4
    )


def test_networks_begin_with_the_trunk(saved):
    """Copied in another order, the layers would be noise with a good name. Heads and actions stay as they were."""
    folder, network, own = saved
    told, states = about(seed=2), np.random.default_rng(3).normal(size=(50, 3)).astype(np.float32)
    actor = Actor(ActorShape(3, ("x",), (-1.0,), (1.0,), chunk=2, hidden=16, layers=2))
    values, critics = Critics(3, hidden=16, members=1), Critics(5, hidden=16, members=2)
    of_actions = critics.weights[0][:, 3:].clone()
    networks.begin(folder, told, actor, values, critics)
    seen, wanted = Scale(told).state(states), network(Scale(own).state(states))
    torch.testing.assert_close(actor.trunk(seen), wanted, rtol=1e-4, atol=1e-4)
    by_hand = wanted @ values.head[0, :, 0] + values.offset[0, 0, 0]
    torch.testing.assert_close(values(seen)[0], by_hand, rtol=1e-3, atol=1e-3)
    for member in range(2):  # with actions of 0 they see the state alone
        by_hand = wanted @ critics.head[member, :, 0] + critics.offset[member, 0, 0]
        found = critics(torch.cat([seen, torch.zeros(50, 2)], 1))[member]
        torch.testing.assert_close(found, by_hand, rtol=1e-3, atol=1e-3)
    assert torch.equal(critics.weights[0][:, 3:], of_actions)


@pytest.mark.parametrize("case", ["size", "state", "names", "missing", "family"])
def test_what_does_not_fit_is_one_line(saved, case, tmp_path):
    """A run would begin with half of a trunk, or with one for another robot."""
    folder, told = saved[0], about(seed=2)
    critics = Critics(3, hidden=32 if case == "size" else 16)
    if case == "state":
        told = about(4)
    if case == "names":
        told = AgentSpec(**vars(told) | {"names": ("a", "c", "b")})
    if case == "family":
        (folder / "config.json").write_text('{"model_type": "vlrl_actor"}')
    wrong = tmp_path / "none" if case == "missing" else folder
    match = {"size": "set hidden and layers alike", "state": "other states", "names": "other states"}
    with pytest.raises(UserError, match=match.get(case, "no trunk of `vlrl pretrain`")):
        networks.begin(wrong, told, critics)


def test_the_command(tmp_path, monkeypatch, capsys):
    """From a configuration to a folder that an agent can begin with; a mistake is one line."""
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "line.yaml").write_text(CONFIG)
    try:
        assert main(["pretrain", "line.yaml"]) == 0 and main(["pretrain", "line.yaml", "out=again"]) == 0
        told = json.loads((tmp_path / "made" / "report.json").read_text())
        assert "Kendall's tau" in capsys.readouterr().out and -1 <= told["kendall"] <= 1 and told["sequences"] > 12
        weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("made", "again")]
        assert weights[0] == weights[1]
        line = AgentSpec(**vars(about(2)) | {"names": ("place", "goal")})
        networks.begin(tmp_path / "made", line, Critics(2, hidden=16))
        for change, said in (("update=3", "did you mean 'updates'"), ("offline=[{name: demo}]", "offline.0.name")):
            assert main(["pretrain", "line.yaml", change]) == 2
            assert said in capsys.readouterr().err
    finally:
        sys.modules.pop("line_task", None)
