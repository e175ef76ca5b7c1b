"""lerobot's ACT and diffusion in training: the laws of their steps, probabilities, gradients, folders, imitation."""

from __future__ import annotations

import importlib.util
import math

import numpy as np
import pytest
import torch
from PIL import Image

from vlrl.config import Denoising, PolicySection
from vlrl.policies.discrete import DiscreteShape
from vlrl.policies.loading import load
from vlrl.types import Episode, Observation, Sample, UserError

pytest.importorskip("lerobot")
from vlrl.policies.lerobot import read_lerobot
from vlrl.policies.lerobot_flow import LerobotFlowPolicy, diffusion_law, make_small

needs_diffusers = pytest.mark.skipif(importlib.util.find_spec("diffusers") is None, reason="diffusers is not installed")
KINDS = pytest.mark.parametrize("kind", ["act", pytest.param("diffusion", marks=needs_diffusers)])
SMALL = {"act": {"n_heads": 2}, "diffusion": {"n_groups": 4, "num_train_timesteps": 20}}
SEEN = DiscreteShape(4, ("x", "y", "grip"), (-1.0,) * 3, (1.0,) * 3, chunk=8, cameras=((32, 32),), hidden=16, layers=2)
NOBODY = Episode(Sample("", Observation(())), 0)
BLIND = DiscreteShape(4, ("x", "y", "grip"), (-1.0,) * 3, (1.0,) * 3, chunk=8, hidden=16, layers=2)


def shown(count: int, seed: int = 0) -> list[Observation]:
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 255, (count, 32, 32, 3), dtype=np.uint8)
    states = rng.standard_normal((count, 4)).astype(np.float32)
    return [Observation((Image.fromarray(p), "touch it"), state) for p, state in zip(pixels, states, strict=True)]


def acted(policy, observations, **how):
    return policy.act([NOBODY] * len(observations), observations, **how)


def policy_of(kind: str, shape=BLIND, level: str = "chunk", scale: float = 0.3, **settings) -> LerobotFlowPolicy:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    states, actions = rng.normal(1, 2, (50, 4)).astype("f4"), rng.normal(0.5, 0.3, (50, 3)).astype("f4")
    settings = SMALL[kind] | {"n_action_steps": 5} | settings
    made = make_small(kind, shape, states, actions, 0, **settings)
    return LerobotFlowPolicy(made.model, made._before, made._after, scale=scale, level=level)


def blind(count: int) -> list:
    return [type(each)(("go",), each.state) for each in shown(count)]


@KINDS
@pytest.mark.parametrize(("level", "units"), [("token", 15), ("action", 5), ("chunk", 1)])
def test_sampled_decisions_have_the_probabilities_of_their_steps(kind, level, units):
    """Ratios would not be 1 before the first update; from pictures and from the state alone."""
    for shape, seen in ((BLIND, blind(3)), (SEEN, shown(3))):
        policy = policy_of(kind, shape, level)
        decisions = acted(policy, seen)
        assert decisions[0].action.shape == (5, 3) and len(decisions[0].logprobs) == policy.steps * units
        with torch.no_grad():
            now = policy.evaluate(decisions)
        torch.testing.assert_close(now.logprobs, torch.stack([d.logprobs for d in decisions]), rtol=0, atol=1e-3)
        assert not np.allclose(decisions[0].action, acted(policy, seen)[0].action)


def test_act_is_a_normal_distribution_around_its_chunk():
    """In normalized controls: against torch's Normal, and the greedy chunk, which is lerobot's own."""
    policy, seen = policy_of("act", level="token", scale=0.25), blind(2)
    with torch.no_grad():
        mean = policy.model.predict_action_chunk(policy._before(policy.inputs.batch([[each] for each in seen])))
    np.testing.assert_allclose(acted(policy, seen, greedy=True)[1].action, policy._after(mean[:, :5])[1], atol=1e-6)
    for decision, law in zip(acted(policy, seen), mean[:, :5], strict=True):
        expected = torch.distributions.Normal(law, 0.25).log_prob(decision.inputs.path[0])
        torch.testing.assert_close(decision.logprobs, expected.flatten(), rtol=0, atol=1e-4)


@needs_diffusers
@pytest.mark.parametrize("kind", ["DDPM", "DDIM"])
@pytest.mark.parametrize("predicts", ["epsilon", "sample"])
@pytest.mark.parametrize("clip", [True, False])
def test_laws_are_those_of_diffusers(kind, predicts, clip):
    """Its own step is the mean plus the deviation times its noise; without noise it is DDIM's."""
    import diffusers

    scheduler = getattr(diffusers, f"{kind}Scheduler")(
        num_train_timesteps=20, beta_schedule="squaredcos_cap_v2", prediction_type=predicts, clip_sample=clip
    )
    scheduler.set_timesteps(5)
    torch.manual_seed(0)
    place, output = torch.randn(2, 4, 3), torch.randn(2, 4, 3)
    for time in scheduler.timesteps.tolist():
        mean, still, std = diffusion_law(scheduler, output, place, time)
        if kind == "DDIM":
            noise = torch.randn(2, 4, 3)
            noisy = scheduler.step(output, time, place, eta=1.0, variance_noise=noise).prev_sample
            torch.testing.assert_close(scheduler.step(output, time, place).prev_sample, still, rtol=0, atol=1e-5)
        else:
            generator = torch.Generator().manual_seed(time)
            noisy = scheduler.step(output, time, place, generator=generator).prev_sample
            noise = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(time))
        torch.testing.assert_close(noisy, mean + std * noise * (time > 0), rtol=0, atol=1e-4)


@needs_diffusers
def test_the_density_of_a_chunk_integrates_to_one():
    """One number, two steps: densities of paths, integrated over the first, are the histogram of chunks."""
    shape = DiscreteShape(1, ("x",), (-1.0,), (1.0,), chunk=4, hidden=8, layers=2)
    states = np.random.default_rng(0).normal(size=(50, 1)).astype("f4")
    made = make_small("diffusion", shape, states, states, 0, num_inference_steps=2, n_action_steps=1, n_groups=4,
                      num_train_timesteps=20)  # fmt: skip
    policy = LerobotFlowPolicy(made.model, made._before, made._after, scale=0.3, level="chunk")
    seen = type(shown(1)[0])(("go",), np.zeros(1, np.float32))
    decision = policy.act([NOBODY], [seen])[0]
    grid = torch.linspace(-4, 4, 161)
    first, last = torch.meshgrid(grid, grid, indexing="ij")
    path = torch.stack([first.flatten(), last.flatten()], 1)[:, :, None, None]
    batch = policy._before(policy.inputs.batch([[seen]]))
    batch = {k: v.expand(len(path), *v.shape[1:]) if isinstance(v, torch.Tensor) else v for k, v in batch.items()}
    with torch.no_grad():
        noise = decision.inputs.noise.expand(len(path), -1, -1)
        logprobs, _ = policy.scorer(batch, noise, path)
    density = logprobs.sum((1, 2, 3)).exp().view(161, 161).sum(0) * 0.05  # over the first step
    assert float(density.sum() * 0.05) == pytest.approx(1.0, abs=1e-2)
    torch.manual_seed(0)
    fixed = decision.inputs.noise.expand(4000, -1, -1)
    places = []

    def choose(step, mean, std):
        places.append(mean + std * torch.randn(mean.shape))
        return places[-1]

    from vlrl.policies.lerobot_flow import make_chunk

    batch = {k: v[:1].expand(4000, *v.shape[1:]) if isinstance(v, torch.Tensor) else v for k, v in batch.items()}
    with torch.no_grad():
        make_chunk(policy.model, batch, fixed, choose, (1, 1), 0.3)
    drawn = places[1].flatten()
    mean = float((density * grid).sum() * 0.05)
    assert float(drawn.mean()) == pytest.approx(mean, abs=0.05)
    spread = math.sqrt(float((density * (grid - mean) ** 2).sum() * 0.05))
    assert float(drawn.std()) == pytest.approx(spread, rel=0.06)


@KINDS
def test_gradients_are_those_of_the_density(kind):
    """Against differences of the density itself, where ticks to spare depend on the weights as well."""
    policy = policy_of(kind, **({"clip_sample": False} if kind == "diffusion" else {}))  # a clip has corners
    decisions = acted(policy, blind(2))
    inner = policy.model.model.action_head if kind == "act" else policy.model.diffusion.unet.final_conv[-1]
    policy.model.zero_grad()
    policy.evaluate(decisions).logprobs.sum().backward()
    parameter = inner.bias
    direction, ends = parameter.grad / parameter.grad.norm(), []
    for sign in (1, -1):
        with torch.no_grad():
            parameter += sign * 1e-3 * direction
            ends.append(float(policy.evaluate(decisions).logprobs.sum()))
            parameter -= sign * 1e-3 * direction
    assert (ends[0] - ends[1]) / 2e-3 == pytest.approx(float(parameter.grad.norm()), rel=3e-2)


@KINDS
def test_what_is_imitated_is_lerobots_loss(kind):
    """A clone would learn something else than `lerobot-train` teaches."""
    policy = policy_of(kind, n_action_steps=8)
    rng = np.random.default_rng(1)
    decisions = [policy.decide(each, rng.normal(0.5, 0.3, (8, 3)).astype("f4")) for each in blind(4)]
    state = policy.generator.get_state()
    torch.manual_seed(5)
    found = -policy.evaluate(decisions).logprobs.detach().mean()
    frames = policy.inputs.batch([d.inputs.observations for d in decisions])
    batch = policy._before(frames | {"action": torch.stack([d.inputs.noise for d in decisions])})
    batch |= {"action_is_pad": torch.zeros(4, 8, dtype=torch.bool)}
    policy.model.train()
    torch.manual_seed(5)
    if kind == "diffusion":  # the same noise and times, which lerobot draws from the global generator
        policy.generator.set_state(state)
        draws = [
            torch.randn((4, 8, 3), generator=policy.generator),
            torch.randint(20, (4,), generator=policy.generator),
        ]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "randn", lambda *a, **k: draws[0])
            patch.setattr(torch, "randint", lambda *a, **k: draws[1])
            expected, _ = policy.model.forward(batch)
    else:
        expected, _ = policy.model.forward(batch)
    assert float(found) == pytest.approx(expected.item(), rel=1e-4)


@KINDS
def test_a_saved_folder_opens_in_lerobot(kind, tmp_path):
    """The chunks of lerobot's own class, after a change of weights, bit for bit; and again through `policy.model`."""
    policy, seen = policy_of(kind), blind(2)
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.mul_(1.01)
    policy.save(tmp_path / "saved")
    model, before, after = read_lerobot(str(tmp_path / "saved"), "cpu")
    batch = before(policy.inputs.batch([[each] for each in seen]))
    torch.manual_seed(0)
    model.eval()
    expected = after(model.predict_action_chunk(batch)[:, :5]).numpy()
    np.testing.assert_array_equal(np.stack([d.action for d in acted(policy, seen, greedy=True)]), expected)
    section = PolicySection(model=str(tmp_path / "saved"), denoising=Denoising(scale=0.2), logprob_level="action")
    again = load(section)
    assert isinstance(again, LerobotFlowPolicy) and again.scorer.scale == 0.2 and again.level == "action"
    np.testing.assert_array_equal(np.stack([d.action for d in acted(again, seen, greedy=True)]), expected)


@KINDS
def test_features_tell_observations_apart(kind):
    """A critic would value all states alike."""
    for shape, seen in ((BLIND, blind(3)), (SEEN, shown(3))):
        policy = policy_of(kind, shape)
        found = policy.features(acted(policy, seen))
        assert found.shape[0] == 3 and torch.isfinite(found).all() and not torch.allclose(found[0], found[1])


@needs_diffusers
def test_diffusion_that_sees_a_past_is_evaluated_not_trained(tmp_path):
    """Where a chunk ends the observations between are not at hand; it would be shown what it never saw."""
    policy = policy_of("diffusion", n_obs_steps=2)
    policy.save(tmp_path / "past")
    with pytest.raises(UserError, match=r"sees 2 steps of the past.*n_obs_steps 1"):
        load(PolicySection(model=str(tmp_path / "past"))).check(None)


@needs_diffusers
def test_a_chunk_that_cannot_be_halved_is_one_line():
    """lerobot's network halves a chunk in each layer."""
    with pytest.raises(UserError, match=r"policy.kind: diffusion: .*horizon"):
        policy_of("diffusion", DiscreteShape(4, ("x", "y", "grip"), (-1.0,) * 3, (1.0,) * 3, chunk=5, hidden=16))
