"""Auto-regressive soft Q-learning: identities of soft values, targets worked by hand, what is learned and kept."""

from __future__ import annotations

import itertools
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_batches import HIGH, LOW, about, batch
from torch import nn

from vlrl.cli import main
from vlrl.config import PolicySection
from vlrl.offpolicy.agents import arsq
from vlrl.offpolicy.base import Transitions
from vlrl.offpolicy.iql import Arsq, ArsqSettings, chosen, imitation
from vlrl.policies.arsq import Advantages, ArsqPolicy, Grid
from vlrl.policies.loading import load
from vlrl.policies.robot_common import ActorShape
from vlrl.types import Episode, Observation, Sample, UserError

HERE = Path(__file__).parent


def network(numbers: int, levels: int, bins: int, alpha: float) -> Advantages:
    """Weights by chance everywhere, float64."""
    torch.manual_seed(0)
    shape = ActorShape(3, ("x",), (-1.0,), (1.0,), chunk=numbers, hidden=8)
    model = Advantages(shape, Grid(numbers, levels, bins), alpha).double()
    for parameter in (model.heads, model.offsets, model.place):
        nn.init.normal_(parameter, std=0.3)
    return model


def test_codes_are_coarse_to_fine():
    """Worked by hand, 5 bins in 2 levels, so 25 values 0.08 apart: 0 is the 12th, so bin 2 and in it bin 2."""
    grid = Grid(3, levels=2, bins=5)
    codes = grid.codes(torch.tensor([[0.0, -1.0, 1.0]]))
    assert codes.tolist() == [[2, 0, 4, 2, 0, 4]]  # all numbers coarsely, then all finely
    assert grid.unit(codes)[0].tolist() == pytest.approx([0.0, -0.96, 0.96])
    assert grid.codes(torch.tensor([[0.23, 0.5, -0.21]])).tolist() == [[3, 3, 1, 0, 3, 4]]


@given(st.lists(st.floats(-1, 1, width=32), min_size=4, max_size=4), st.integers(1, 3), st.integers(2, 6))
def test_codes_lead_back(numbers, levels, bins):
    """A control that is learned as another would never be hit. Half a bin is all that may be lost."""
    grid, unit = Grid(4, levels, bins), torch.tensor([numbers])
    codes = grid.codes(unit)
    assert codes.shape == (1, 4 * levels) and codes.min() >= 0 and codes.max() < bins
    assert (grid.unit(codes) - unit).abs().max() <= bins**-levels + 1e-6
    assert torch.equal(grid.codes(grid.unit(codes)), codes)


def test_each_choice_is_a_law():
    """alpha logsumexp(A / alpha) = 0 for every state, choice and prefix: without it V would not be the soft value."""
    model = network(2, 2, 3, alpha=0.05)
    state, codes = torch.randn(6, 3, dtype=torch.float64), torch.randint(3, (6, 4))
    values = model(state, codes)
    torch.testing.assert_close(0.05 * (values / 0.05).logsumexp(-1), torch.zeros(6, 4, dtype=torch.float64))
    assert values.std() > 0.01 and values.max() <= 0


def test_the_value_is_soft_over_all_chunks():
    """V = alpha log sum over chunks of exp(Q(s, a) / alpha), by naming every chunk: 3^4 of 2 numbers in 2 levels."""
    model, alpha, value = network(2, 2, 3, alpha=0.05), 0.05, 0.7
    every = torch.tensor(list(itertools.product(range(3), repeat=4)))
    state = torch.randn(3, dtype=torch.float64).expand(len(every), 3)
    q = value + chosen(model(state, every), every).sum(1)
    assert (alpha * (q / alpha).logsumexp(0)).item() == pytest.approx(value, abs=1e-9)
    assert len(set(model.grid.unit(every)[:, 0].tolist())) == 9


def test_one_pass_is_step_by_step():
    """What is learned in one pass must be what is played choice by choice; later choices must not be seen."""
    model = network(3, 2, 4, alpha=0.1)
    state, codes = torch.randn(5, 3, dtype=torch.float64), torch.randint(4, (5, 6))
    whole, known = model(state, codes), model.begin(state)
    for choice in range(6):
        torch.testing.assert_close(model.next(known, choice), whole[:, choice])
        known = model.after(known, choice, codes[:, choice])
        others = codes.clone()
        others[:, choice:] = (others[:, choice:] + 1) % 4
        changed = model(state, others)
        torch.testing.assert_close(changed[:, : choice + 1], whole[:, : choice + 1])
        if choice < 5:
            assert (changed[:, choice + 1 :] - whole[:, choice + 1 :]).abs().max() > 1e-3


def test_what_is_played_has_the_laws_probabilities():
    """exp(sum A / alpha), of 4 chunks, 4000 draws: standard deviations below 0.008."""
    model = network(2, 1, 2, alpha=1.0).float()
    every = torch.tensor(list(itertools.product(range(2), repeat=2)))
    law = (chosen(model(torch.ones(4, 3), every), every).sum(1) / 1.0).exp()
    policy = ArsqPolicy(model, seed=0)
    drawn = policy.codes(torch.ones(4000, 3), greedy=False)
    share = torch.stack([(drawn == each).all(1).float().mean() for each in every])
    assert law.sum().item() == pytest.approx(1, abs=1e-5) and law.max() < 0.9
    torch.testing.assert_close(share, law, atol=0.03, rtol=0)
    first = law[:2].sum() > 0.5  # greedy: the likelier first bin, then the likelier second after it
    best = [0, int(law[1] > law[0])] if first else [1, int(law[3] > law[2])]
    assert policy.codes(torch.ones(1, 3), greedy=True).tolist() == [best]


class Constant(nn.Module):
    """Values that are given numbers [E] everywhere."""

    def __init__(self, values: list[float]):
        super().__init__()
        self.values = torch.tensor(values)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.values[:, None].expand(-1, len(inputs))


def test_targets_worked_by_hand():
    """gamma 0.5 a tick, K = 2, the smaller of the soft values 3 and 5 is 3.

    on: 0 + 0.5^2 * 3 = 0.75; won: 1; time-out after one tick: 0 + 0.5 * 3 = 1.5; lost: 0.
    """
    made = Transitions(**batch(4).columns() | {
        "reward": np.array([0.0, 1.0, 0.0, 0.0]), "terminal": np.array([False, True, False, True]),
        "used": np.array([1.0, 0.5, 0.5, 1.0]),
    })  # fmt: skip
    agent = Arsq(about(), 0, ArsqSettings(hidden=8))
    agent.target = Constant([5.0, 3.0])
    assert agent.targets(made).tolist() == [0.75, 1.0, 1.5, 0.0]


def test_the_loss_and_its_gradient_written_out():
    """Half the squared error of V + sum A; its gradient is the error times alpha (what was chosen minus the law)."""
    agent = Arsq(about(), 0, ArsqSettings(hidden=8, temperature=0.5, imitation=0.0))
    made, model = batch(6), agent.policy.model
    nn.init.normal_(model.offsets)
    agent.optimizer = torch.optim.SGD(agent.learned, lr=1.0)
    codes, before = model.grid.codes(agent.scale.unit(made.action)), model.offsets.detach().clone()
    with torch.no_grad():
        advantages = model(torch.from_numpy(made.state), codes)
        worth = agent.values(agent.scale.state(made.state)) + chosen(advantages, codes).sum(1)
        error = worth - agent.targets(made)
    told = agent.update(made, None)
    assert told["critic_loss"] == pytest.approx(error.square().mean().item(), rel=1e-5)
    law = (advantages / 0.5).exp()
    picked = nn.functional.one_hot(codes, 5)
    wanted = 0.5 * (error.sum(0)[:, None, None] * (picked - law)).sum(0) / error.numel()
    torch.testing.assert_close(before - model.offsets.detach(), wanted, atol=1e-5, rtol=1e-4)
    # a law of 4 numbers in 2 levels of 5 bins has at most 8 log 5 nats
    assert 0 < told["entropy"] < 8 * math.log(5)


def test_imitation_keeps_others_a_margin_below():
    """By hand, margin 0.1. Choice 1: shown 0, others at -0.05 and -0.5: 0.05 too near. Choice 2: shown -1, others 1 and
    0.8 above: 1.1 + 0.9. Mean over both choices (0.05 + 2.0) / 2 = 1.025."""
    advantages = torch.tensor([[[0.0, -0.05, -0.5], [0.0, -1.0, -0.2]]])
    assert imitation(advantages, torch.tensor([[0, 1]]), 0.1).item() == pytest.approx(1.025)
    assert imitation(advantages[:, :1], torch.tensor([[0]]), 0.01).item() == 0.0
    assert imitation(advantages[:0], torch.zeros((0, 2), dtype=torch.int64), 0.1).item() == 0.0


def test_what_was_given_is_imitated_and_what_was_played_is_not():
    """Imitating one's own mistakes keeps them."""
    agents = [arsq(about(), 0, hidden=32, lr=3e-3, imitation=weight) for weight in (0.0, 5.0)]
    states = batch().state
    for agent in agents:
        for seed in range(3):
            agent.update(batch(seed=seed), None)
    assert np.array_equal(*(agent.act(states, False) for agent in agents))
    agent = agents[1]
    for _ in range(150):
        told = agent.update(batch(seed=1), batch(seed=2))
    near = np.abs(agent.act(batch(seed=2).state, False) - batch(seed=2).action) <= (HIGH - LOW) / 25
    assert told["imitation"] < 1e-3 and near.mean() > 0.8


def test_a_saved_agent_goes_on_exactly():
    """Ten updates are ten updates, whether or not the machine went down after five."""
    whole, part = (arsq(about(), 3, hidden=8) for _ in range(2))
    for i in range(10):
        whole.update(batch(seed=i), None)
        part.update(batch(seed=i), None)
        if i == 4:
            state = part.state_dict()
            part = arsq(about(), 99, hidden=8)
            part.load_state_dict(state)
    states = batch(5).state
    assert np.array_equal(whole.act(states, True), part.act(states, True))
    assert np.array_equal(whole.act(states, False), part.act(states, False))
    assert whole.update(batch(), batch(seed=1)) == part.update(batch(), batch(seed=1))


def test_what_is_saved_is_a_policy_that_does_the_same(tmp_path):
    """A run's result would act otherwise once it is evaluated, served or started from."""
    agent = arsq(about(names=("a", "b", "c"), hz=20.0), 0, hidden=8)
    for i in range(20):
        agent.update(batch(seed=i), batch(seed=9))
    agent.save(tmp_path)
    states, policy = batch(4).state, load(PolicySection(model=str(tmp_path)))
    shown = [Observation((), state) for state in states]
    episodes = [Episode(Sample("", Observation(())), 0)] * 4
    acted = np.stack([decision.action for decision in policy.act(episodes, shown, greedy=True)])
    assert np.array_equal(acted, agent.act(states, False)) and (acted != acted[0]).any()
    assert (acted >= LOW).all() and (acted <= HIGH).all()
    again = arsq(about(start=str(tmp_path), names=("a", "b", "c"), hz=20.0), 5, hidden=8)
    assert np.array_equal(again.act(states, False), acted)
    with pytest.raises(UserError, match=r"start: .*another robot"):
        arsq(about(start=str(tmp_path)), 0, hidden=8, bins=3)
    with pytest.raises(UserError, match="vlrl train"):
        policy.check(episodes[0].sample)
    told = json.loads((tmp_path / "config.json").read_text())
    for change in ({"bins": 1}, {"levels": "x"}, {"alpha": 0}, {"low": 3}):
        (tmp_path / "config.json").write_text(json.dumps(told | change))
        with pytest.raises(UserError, match=r"policy\.model: .*describes no vlrl_arsq"):
            load(PolicySection(model=str(tmp_path)))


def test_it_finds_the_best_way_among_many_bad_ones():
    """Two numbers that only pay together: each alone, the frequent bad ways make the best look bad (the paper's case).

    Both high pays 1 and is 1 in 10 of what is seen; both low pays 0.1; one high, one low costs 1.
    """
    told = about(state=1, mean=np.zeros(1, np.float32), spread=np.ones(1, np.float32), chunk=1)
    agent, rng = arsq(told, 0, hidden=32, lr=3e-3, levels=1, bins=2, temperature=0.02), np.random.default_rng(0)
    ways, pays = np.array([[1, 1], [0, 0], [1, 0], [0, 1]]), np.array([1.0, 0.1, -1.0, -1.0])
    for _ in range(300):
        way = rng.choice(4, 64, p=[0.1, 0.5, 0.2, 0.2])
        action, state = LOW + ways[way][:, None] * (HIGH - LOW), rng.uniform(-1, 1, (64, 1))
        agent.update(Transitions(state, action, pays[way], np.ones(64), state, np.ones(64), np.zeros(64)), None)
    middle = (LOW + HIGH) / 2
    assert (agent.act(np.linspace(-1, 1, 9, dtype=np.float32)[:, None], False) > middle).all()
    assert (agent.act(np.zeros((200, 1), np.float32), True) > middle).all(-1).mean() > 0.9


CONFIG = """
task: {name: "line_task:LineTask", scenes: 20}
out: run
agent: {name: arsq, hidden: 32, lr: 3.0e-3}
offline: [{name: demonstrations, episodes: 12, noise: 0.2}]
updates: 150
ticks: 120
warmup_steps: 0
batch_size: 32
gamma: 0.9
eval: {num_samples: 10}
log: {checkpoint_every: 60, rows_every: 50}
"""


@pytest.mark.slow
def test_a_run_from_the_command_line(tmp_path, monkeypatch, capsys):
    """It learns the line from its demonstrations, goes on exactly where it was stopped, and is served."""
    from vlrl.serving.policies import servable

    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.chdir(tmp_path)
    Path("line.yaml").write_text(CONFIG)
    assert main(["offpolicy", "line.yaml", "out=whole"]) == 0
    told = json.loads(Path("whole/summary.json").read_text())
    assert told["before"]["value"] < 0.7 < told["after"]["value"]
    assert main(["offpolicy", "line.yaml", "out=part", "ticks=60"]) == 0
    config = Path("part/config.yaml")
    config.write_text(config.read_text().replace("ticks: 60", "ticks: 120"))
    assert main(["offpolicy", "--resume", "part"]) == 0
    learned = [
        [row for row in map(json.loads, Path(out, "metrics.jsonl").read_text().splitlines()) if "updates" in row]
        for out in ("whole", "part")
    ]
    assert learned[0] == learned[1]
    policy = servable("whole")
    assert policy.spec.action[0].name == "speed" and policy.spec.chunk == 3
    for change, problem in (("agent.bins=1", "agent.bins"), ("agent.levels=0", "agent.levels")):
        assert main(["offpolicy", "line.yaml", change]) == 2
        assert problem in capsys.readouterr().err
    sys.modules.pop("line_task", None)
