"""Residual corrections and noise steering over policies that see images: lerobot's, and our own with cameras."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch
from PIL import Image

from vlrl.cli import main
from vlrl.config import PolicySection
from vlrl.offpolicy.agents import dsrl_na, dsrl_sac, residual
from vlrl.offpolicy.base import AgentSpec, AgentView, Transitions
from vlrl.policies.discrete import ControlPolicy, DiscreteShape, Network
from vlrl.policies.encoded import NOISE, EncodedPolicy, FrozenPolicy
from vlrl.policies.loading import EMBEDDED, load
from vlrl.policies.robot_common import ActorShape
from vlrl.serving.policies import servable
from vlrl.types import Episode, Observation, Sample, UserError

HAS = {name: importlib.util.find_spec(name) is not None for name in ("lerobot", "diffusers", "num2words")}
NEEDS = {"smolvla": ("lerobot", "num2words"), "diffusion": ("lerobot", "diffusers"), "act": ("lerobot",), "control": ()}
LOW, HIGH = (-0.4, 0.0), (0.4, 0.1)
SHAPE = DiscreteShape(2, ("x", "grip"), LOW, HIGH, chunk=4, cameras=((32, 32),), hidden=16, layers=2)
ROBOT = ActorShape(2, ("x", "grip"), LOW, HIGH, chunk=4, cameras=((32, 32),), hz=10.0)
NOBODY = Episode(Sample("", Observation(())), 0)
NOISY = ("smolvla", "diffusion")


def kinds(*names: str):
    marks = {
        name: pytest.mark.skipif(not all(HAS[each] for each in NEEDS[name]), reason="not installed") for name in names
    }
    return pytest.mark.parametrize("kind", [pytest.param(name, marks=marks[name]) for name in names])


def make(kind: str, folder) -> str:
    """A tiny policy by chance, saved."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    states, actions = rng.normal(0, 1, (50, 2)).astype("f4"), rng.uniform(LOW, HIGH, (50, 2)).astype("f4")
    if kind == "control":
        policy = ControlPolicy(Network(SHAPE))
    elif kind == "smolvla":
        from vlrl.policies.lerobot_flow import make_smolvla

        policy = make_smolvla(SHAPE, states, actions, folder / "vlm", EMBEDDED, 0, max_action_dim=6)
    else:
        from vlrl.policies.lerobot_flow import make_small

        sizes = {"act": {"n_heads": 2}, "diffusion": {"n_groups": 4}}[kind]
        policy = make_small(kind, SHAPE, states, actions, 0, **sizes)
    policy.save(folder / kind)
    return str(folder / kind)


def frozen(kind: str, folder) -> FrozenPolicy:
    return FrozenPolicy(load(PolicySection(model=make(kind, folder))), ROBOT)


def shown(count: int, seed: int = 0) -> list[Observation]:
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 255, (count, 32, 32, 3), dtype=np.uint8)
    states = rng.standard_normal((count, 2)).astype(np.float32)
    return [Observation((Image.fromarray(p), "touch it"), state) for p, state in zip(pixels, states, strict=True)]


def spec(base: FrozenPolicy) -> AgentSpec:
    size = 2 + base.size
    return AgentSpec(
        size, 4, ROBOT.controls, np.array(LOW, np.float32), np.array(HIGH, np.float32), np.zeros(size, np.float32),
        np.ones(size, np.float32), start="somewhere", base=base,
    )  # fmt: skip


def batch(base: FrozenPolicy, agent, count: int = 6) -> Transitions:
    """What the agent plays in random moments."""
    view = AgentView(encoder=base)
    (state, _), (following, _) = view(shown(count)), view(shown(count, 1))
    action = agent.act(state, True, shown(count)) if agent.looks else agent.act(state, True)
    rng = np.random.default_rng(0)
    return Transitions(
        state, action, rng.random(count), rng.random(count) < 0.3, following, np.ones(count), np.zeros(count)
    )


@kinds("smolvla", "diffusion", "act", "control")
def test_numbers_are_features_and_the_plan(kind, tmp_path):
    """The plan is what the policy would do, in the limits' units, the same alone and among others."""
    base, seen = frozen(kind, tmp_path), shown(3)
    numbers = base(seen)
    assert numbers.shape == (3, base.size) and np.isfinite(numbers).all()
    np.testing.assert_allclose(np.concatenate([base([each]) for each in seen]), numbers, atol=1e-4)
    plan = base.plan(seen)
    unit = (plan - np.array(LOW, np.float32)) / (np.array(HIGH, np.float32) - np.array(LOW, np.float32)) * 2 - 1
    np.testing.assert_allclose(numbers[:, -8:], unit.clip(-1, 1).reshape(3, 8), atol=1e-5)
    assert not np.allclose(numbers[0, :-8], numbers[1, :-8])
    if kind in ("act", "control"):
        greedy = np.stack([d.action for d in base.policy.act([NOBODY] * 3, seen, greedy=True)])
        np.testing.assert_allclose(plan, greedy, atol=1e-6)


@kinds("smolvla", "diffusion", "act", "control")
def test_a_residual_begins_as_its_base_and_learns(kind, tmp_path):
    """Before it has learned corrections are 0; what is learned is saved with the base and acts from observations."""
    base, seen = frozen(kind, tmp_path), shown(3)
    agent, view = residual(spec(base), 0, hidden=8, scale=0.3, cta_ratio=1), AgentView(encoder=base)
    state, _ = view(seen)
    limits = np.array(LOW, np.float32), np.array(HIGH, np.float32)
    np.testing.assert_allclose(agent.act(state, False), base.plan(seen).clip(*limits), atol=1e-5)
    for _ in range(3):
        stats = agent.update(batch(base, agent), None)
    assert np.isfinite(list(stats.values())).all()
    EncodedPolicy.save(tmp_path / "saved", base, agent.save, ROBOT)
    again = load(PolicySection(model=str(tmp_path / "saved")))
    made = np.stack([decision.action for decision in again.act([NOBODY] * 3, seen, greedy=True)])
    np.testing.assert_allclose(made, agent.act(state, False), atol=1e-5)
    assert not np.allclose(made, base.plan(seen).clip(*limits), atol=1e-5)
    about = servable(str(tmp_path / "saved")).spec
    assert about.chunk == 4 and len(about.state) == 2 and [each.width for each in about.pictures] == [32]


@kinds(*NOISY)
@pytest.mark.parametrize("held", [False, True])
def test_noise_is_chosen_and_makes_the_chunk(kind, held, tmp_path):
    """What is played is the policy's chunk under the agent's noise, which is what it learns from; padding included."""
    base, seen = frozen(kind, tmp_path), shown(3)
    agent = dsrl_sac(spec(base), 0, hidden=8, held=held)
    state, _ = AgentView(encoder=base)(seen)
    assert agent.core.size == (1 if held else 4, 6 if kind == "smolvla" else 2)
    played = agent.act(state, True, seen)
    known, noise = agent.core.book.find(state, played)
    assert known.all() and (not held or noise.shape[1] == 1)
    np.testing.assert_allclose(base.plan(seen, noise), played, atol=1e-6)
    assert not np.allclose(agent.warm(state, seen), played)
    stats = agent.update(batch(base, agent), None)
    assert stats["known"] == 1.0 and np.isfinite(list(stats.values())).all()
    EncodedPolicy.save(tmp_path / "saved", base, agent.save, ROBOT)
    again = load(PolicySection(model=str(tmp_path / "saved")))
    assert set(again.inner.shape.controls) == {NOISE}
    made = np.stack([decision.action for decision in again.act([NOBODY] * 3, seen, greedy=True)])
    np.testing.assert_allclose(made, agent.act(state, False, seen), atol=1e-5)


@kinds("act")
def test_what_cannot_be_steered_is_one_line(kind, tmp_path):
    """ACT's chunk has no noise; a flow of the state has no held one; DSRL-NA asks its flow about stored moments."""
    base = frozen(kind, tmp_path)
    with pytest.raises(UserError, match="start: somewhere plans without noise: take the agent residual"):
        dsrl_sac(spec(base), 0)
    with pytest.raises(UserError, match=r"agent \(dsrl_na\)"):
        dsrl_na(spec(base), 0)
    with pytest.raises(UserError, match=r"plans chunks of \[4, 2\]"):
        FrozenPolicy(base.policy, ActorShape(2, ("x", "grip"), LOW, HIGH, chunk=5, cameras=((32, 32),)))


def test_a_run_over_a_policy_that_sees(tmp_path, capsys):
    """From the command line: a small policy with a camera, corrected, saved, and evaluated by `vlrl simulate`."""
    pytest.importorskip("mujoco")
    seen = ["task.robot={name: tabletop, job: reach, camera: [16, 16]}", "task.horizon=8", "task.workers=1"]
    shape = DiscreteShape(12, ("x", "y", "z"), (-0.4,) * 3, (0.4,) * 3, chunk=4, cameras=((16, 16),), hidden=8)
    ControlPolicy(Network(shape)).save(tmp_path / "base")
    sizes = ["ticks=24", "warmup_steps=8", "agent.hidden=8", "batch_size=4", "task.held_out=2", "eval={num_samples: 2}"]
    run = ["configs/studies/offpolicy_push_residual.yaml", *seen, "task.chunk=4", *sizes, f"start={tmp_path / 'base'}"]
    run += ["offline=[{name: demonstrations, episodes: 1}]", f"out={tmp_path / 'run'}", "capacity=100"]
    assert main(["offpolicy", *run]) == 0
    options = ["task.held_out=2", "task.chunk=4", *seen]
    assert (
        main(["simulate", "configs/manipulation.yaml", *options, "--policy", str(tmp_path / "run"), "--episodes", "2"])
        == 0
    )
    assert "encoder: " in (main(["offpolicy", *run, "encoder={}"]) == 2) * capsys.readouterr().err
