"""MOORL: the meta-update by hand, turns of one kind of data, and runs that go on exactly."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_batches import HIGH, LOW, about, batch

from vlrl.cli import main
from vlrl.config import PolicySection
from vlrl.offpolicy.agents import Moorl
from vlrl.offpolicy.iql import ReptileSac
from vlrl.offpolicy.sac import RlpdSettings, Sac
from vlrl.policies.loading import load
from vlrl.types import Episode, Observation, Sample, UserError

pytestmark = pytest.mark.slow

ROOT, HERE = Path(__file__).parents[3], Path(__file__).parent
SMALL = RlpdSettings(hidden=8, cta_ratio=1, lr=0.01)


def flat(*parts: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().double().flatten() for part in parts for p in part.parameters()])


def test_a_meta_update_equals_the_formula():
    """phi <- phi + rate (inner phi - phi), after two updates and not before; else the two kinds are merely mixed."""
    whole, plain = ReptileSac(about(), 3, SMALL, inner=2, rate=0.25), Sac(about(), 3, SMALL)
    torch.rand((), generator=plain.generator)  # the draw of the kind
    start = flat(whole.policy.model, whole.critics)
    assert torch.equal(start, flat(plain.policy.model, plain.critics))
    for i in range(2):
        assert torch.equal(flat(whole.policy.model, whole.critics), start)
        whole.update(batch(seed=i), None)
        plain.update(batch(seed=i))
    wanted = start + 0.25 * (flat(plain.policy.model, plain.critics) - start)
    found = flat(whole.policy.model, whole.critics)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)
    assert torch.equal(found, flat(whole.sac.policy.model, whole.sac.critics)) and (found - start).abs().max() > 1e-3


def test_at_rate_one_it_is_a_soft_actor_critic():
    """Whatever the turns: else something of the inner learner is lost between them."""
    whole, plain = ReptileSac(about(), 3, SMALL, inner=1, rate=1.0), Sac(about(), 3, SMALL)
    for i in range(4):
        torch.rand((), generator=plain.generator)
        assert whole.update(batch(seed=i), None).items() >= plain.update(batch(seed=i)).items()
    torch.testing.assert_close(flat(whole.policy.model), flat(plain.policy.model), rtol=0, atol=1e-6)


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 5), st.integers(0, 99))
def test_a_turn_is_of_one_kind_and_each_comes_as_often(inner, seed):
    """Mixed within a turn, one kind could hide what the other does; one alone would be offline, or online, learning."""
    agent = ReptileSac(about(), seed, RlpdSettings(hidden=2, layers=1), inner, 0.5)
    kinds = [agent.update(batch(2, 1), batch(2, 2))["given_share"] for _ in range(40 * inner)]
    turns = [kinds[i : i + inner] for i in range(0, len(kinds), inner)]
    assert all(len(set(turn)) == 1 for turn in turns) and 8 <= sum(turn[0] for turn in turns) <= 32


def test_what_is_not_there_is_not_waited_for():
    """Before the first tick nothing was played: half of the updates would be lost, or fail."""
    agent = Moorl(about(), 0, hidden=8)
    assert {agent.update(None, batch(seed=i))["given_share"] for i in range(40)} == {1.0}
    assert {agent.update(batch(seed=i), None)["given_share"] for i in range(40)} == {0.0}


def test_the_meta_learned_actor_plays_and_is_saved(tmp_path):
    """One that is in the middle of its turn has seen one kind of data last, which is what the method avoids."""
    agent = Moorl(about(names=("a", "b", "c"), hz=20.0), 0, hidden=8, inner=5, lr=0.01)
    states = batch(seed=4).state
    before = agent.act(states, False)
    for i in range(4):
        agent.update(batch(seed=i), None)
    assert np.array_equal(agent.act(states, False), before)
    agent.update(batch(seed=4), None)
    acted = agent.act(states, False)
    assert (acted != before).any() and (acted >= LOW).all() and (acted <= HIGH).all()
    agent.save(tmp_path)
    shown = [Observation((), state) for state in states]
    played = load(PolicySection(model=str(tmp_path))).act([Episode(Sample("", Observation(())), 0)] * 8, shown, True)
    assert np.array_equal(np.stack([decision.action for decision in played]), acted)


@pytest.mark.parametrize("at", [4, 5, 6])
def test_a_saved_agent_goes_on_exactly(at):
    """Also in the middle of a turn of 5: else a killed run is another one."""
    whole, part = (Moorl(about(), 3, hidden=8, inner=5) for _ in range(2))
    for i in range(10):
        for agent in (whole, part):
            agent.update(batch(seed=i), batch(seed=i + 50))
        if i == at:
            part.act(batch().state, True), whole.act(batch().state, True)
            state, part = copy.deepcopy(part.state_dict()), Moorl(about(), 99, hidden=8, inner=5)
            part.load_state_dict(state)
    states = batch(seed=5).state
    assert np.array_equal(whole.act(states, True), part.act(states, True))
    assert np.array_equal(whole.act(states, False), part.act(states, False))
    assert whole.update(batch(), batch(seed=1)) == part.update(batch(), batch(seed=1))


def test_more_critics_are_wanted_than_drawn():
    """Else a target is of critics that are not there."""
    with pytest.raises(UserError, match=r"agent\.subset: 3 of 2"):
        Moorl(about(), 0, subset=3)


CONFIG = """
task: {name: "line_task:LineTask", scenes: 20}
out: run
agent: {name: moorl, hidden: 16, lr: 3.0e-3, inner: 4, rate: 0.5}
offline: [{name: demonstrations, episodes: 4}]
updates: 20
ticks: 300
warmup_steps: 40
batch_size: 32
gamma: 0.9
eval: {every_steps: 100, num_samples: 6}
log: {rows_every: 10, rollouts_every: 100, checkpoint_every: 60}
"""


def test_it_learns_as_a_user_runs_it(place):
    """A method that is never better than at its start is none. A point goes to its goal on a line."""
    assert main(["offpolicy", "line.yaml", "ticks=900", "utd=3.0"]) == 0
    told = json.loads((place / "run" / "summary.json").read_text())
    assert told["before"]["value"] < 0.7 < told["after"]["value"] and told["rehearsed"] == 20
    rows = [json.loads(line) for line in (place / "run" / "metrics.jsonl").read_text().splitlines()]
    assert 0 < np.mean([row["given_share"] for row in rows if "given_share" in row and row["ticks"]]) < 1
    assert main(["offpolicy", "line.yaml", "out=none", "offline=[]", "updates=0"]) == 2  # nothing given


def test_a_killed_run_goes_on_exactly(place):
    """Whose turn it is, and where the turn began, must come back."""
    assert main(["offpolicy", "line.yaml", "out=whole"]) == 0
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{HERE}", "LINE_STOPS": "SIGKILL:40", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "vlrl.cli", "offpolicy", "line.yaml", "out=part"]
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert main(["offpolicy", "--resume", "part"]) == 0
    whole, part = ((place / name / "metrics.jsonl").read_text() for name in ("whole", "part"))
    assert whole == part
