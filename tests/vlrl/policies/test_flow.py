"""Flow policies: their loss and integration against plain ones, what noise decides, what is kept, how they are made."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from vlrl.cli import main
from vlrl.config import PolicySection
from vlrl.policies import lerobot
from vlrl.policies.flow import (
    FlowPolicy,
    SteeredPolicy,
    Velocity,
    denoising_law,
    errors,
    integrate,
    make_flow_policy,
    noise_shape,
)  # fmt: skip
from vlrl.policies.lerobot import LerobotPolicy
from vlrl.policies.loading import load
from vlrl.policies.robot_common import Actor, ActorPolicy, ActorShape
from vlrl.types import Episode, Observation, Sample, UserError

ROOT = Path(__file__).parents[3]
SHAPE = ActorShape(3, ("x", "grip"), (-0.4, 0.0), (0.4, 0.1), chunk=2, hidden=16, hz=20.0, names=("a", "b", "c"))
NOBODY = Episode(Sample("", Observation(())), 0)


def flow(shape: ActorShape = SHAPE, seed: int = 0) -> FlowPolicy:
    torch.manual_seed(seed)
    return make_flow_policy(shape, torch.zeros(shape.state), torch.ones(shape.state), seed)


def shown(count: int, seed: int = 0) -> list[Observation]:
    states = np.random.default_rng(seed).standard_normal((count, 3)).astype(np.float32)
    return [Observation((), state) for state in states]


def acted(policy, observations, **how) -> np.ndarray:
    return np.stack([d.action for d in policy.act([NOBODY] * len(observations), observations, **how)])


def test_the_loss_is_that_of_flow_matching_written_out():
    """A sign or an end mixed up learns to run from chunks to noise. Number by number, in float64."""
    torch.manual_seed(0)
    state, chunk, noise = (torch.randn(5, 4, dtype=torch.float64) for _ in range(3))
    time = torch.rand(5, dtype=torch.float64)
    found = errors(lambda s, x, t: s * x + t[:, None], state, chunk, noise, time)
    for b in range(5):
        for d in range(4):
            t, w, a = time[b].item(), noise[b, d].item(), chunk[b, d].item()
            place = (1 - t) * w + t * a  # time 0: noise, time 1: the chunk; d place / dt = a - w
            assert found[b, d].item() == pytest.approx((state[b, d].item() * place + t - (a - w)) ** 2, rel=1e-9)


@pytest.mark.parametrize("steps", [1, 3, 8])
def test_euler_is_exact_where_it_must_be(steps):
    """Time not running from 0 to 1 would leave noise in every chunk.

    dx/dt = c ends at x + c in any number of steps; dx/dt = -x at (1 - 1/n)^n x; dx/dt = t at x + (n - 1) / (2 n).
    """
    noise, speed = torch.tensor([[0.3, -1.2]]), torch.tensor([[0.5, 2.0]])
    torch.testing.assert_close(integrate(lambda s, x, t: speed, noise, noise, steps), noise + speed)
    torch.testing.assert_close(integrate(lambda s, x, t: -x, noise, noise, steps), (1 - 1 / steps) ** steps * noise)
    drift = integrate(lambda s, x, t: t[:, None].expand_as(x), noise, noise, steps)
    torch.testing.assert_close(drift, noise + (steps - 1) / (2 * steps))


def test_noise_decides():
    """Noise steering rests on it: equal noise is an equal chunk, whatever was drawn before; other noise another."""
    policy, seen = flow(), shown(6)
    noise = np.random.default_rng(1).standard_normal((6, 2, 2)).astype(np.float32)
    first = acted(policy, seen, noise=noise)
    acted(policy, seen)
    assert np.array_equal(first, acted(policy, seen, noise=noise)) and first.dtype == np.float32
    assert np.abs(first - acted(policy, seen, noise=-noise)).max() > 0.01
    assert not np.array_equal(acted(policy, seen), acted(policy, seen))  # drawn anew
    low, high = np.array(SHAPE.low, np.float32), np.array(SHAPE.high, np.float32)
    far = acted(policy, seen, noise=100 * noise)
    assert (far >= low).all() and (far <= high).all() and (far == high).any()
    with pytest.raises(ValueError, match=r"noise of shape \[6, 4\]"):
        policy.chunks(np.zeros((6, 3), np.float32), noise.reshape(6, 4))


def test_greedy_hangs_on_the_state_alone():
    """Evaluations must repeat, whatever the batch; and a robot that stands still must not be stuck with one noise."""
    policy, seen = flow(), shown(6)
    whole = acted(policy, seen, greedy=True)
    assert np.allclose(whole, np.concatenate([acted(policy, [each], greedy=True) for each in seen]), atol=1e-6)
    assert np.array_equal(whole, acted(policy, seen, greedy=True))
    policy.model.body[-1].weight.data.zero_(), policy.model.body[-1].bias.data.zero_()
    assert len({chunk.tobytes() for chunk in acted(policy, seen, greedy=True)}) == 6  # chunks are the noise itself


def test_imitation_keeps_both_ways():
    """Where demonstrations go left or right, a policy of one mean goes straight ahead; a flow goes left or right."""
    from vlrl.imitation.datasets import Example, draw_batches, imitate

    shape = ActorShape(1, ("x",), (-1.0,), (1.0,), chunk=2, hidden=32)
    policy, rng = flow(shape), np.random.default_rng(0)
    here = Observation((), np.zeros(1, np.float32))
    lessons = [Example(policy.decide(here, np.full((2, 1), side)), 2) for side in rng.choice([-0.8, 0.8], 200)]
    told = imitate(policy, draw_batches(lessons, None, steps=400, size=128, rng=rng), steps=400, lr=5e-3)
    chunks = acted(policy, [here] * 400)
    assert told["loss"] > 0  # a mean of squares
    assert (np.abs(np.abs(chunks) - 0.8) < 0.25).mean() > 0.8 and 0.35 < (chunks[:, 0, 0] > 0).mean() < 0.65
    assert (np.sign(chunks[:, 0]) == np.sign(chunks[:, 1])).mean() > 0.95  # both ticks of a chunk to one side


def test_what_is_imitated_is_minus_the_loss():
    """`vlrl clone` maximises it; with a gradient to every weight."""
    policy = flow()
    lessons = [policy.decide(each, np.full((2, 2), 0.05)) for each in shown(4)]
    state = policy.state_dict()
    found = policy.evaluate(lessons)
    generator = torch.Generator()
    generator.set_state(state["generator"])
    noise, time = torch.randn(4, 4, generator=generator), torch.rand(4, generator=generator)
    states, unit = (torch.stack([getattr(d.inputs, name) for d in lessons]) for name in ("state", "unit"))
    assert unit[0].tolist() == pytest.approx([0.125, 0.0, 0.125, 0.0])  # 0.05 of [-0.4, 0.4] and of [0, 0.1]
    torch.testing.assert_close(found.logprobs, -errors(policy.model, states, unit, noise, time))
    assert found.mask.shape == (4, 4) and found.mask.all()
    found.logprobs.sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in policy.model.parameters())
    policy.load_state_dict(state)
    torch.testing.assert_close(policy.evaluate(lessons).logprobs, found.logprobs)
    with pytest.raises(UserError, match=r"demo 3: an action of shape \[3, 2\]"):
        policy.decide(shown(1)[0], np.zeros((3, 2)), "demo 3")


def test_what_is_saved_does_the_same(tmp_path):
    """Steps and scales belong to the policy as its weights do."""
    policy, seen = flow(), shown(5)
    policy.steps = 3
    policy.model.mean += 0.5
    policy.save(tmp_path / "whole")
    again = load(PolicySection(model=str(tmp_path / "whole")))
    assert isinstance(again, FlowPolicy) and again.shape == SHAPE and again.steps == 3
    assert np.array_equal(acted(policy, seen, greedy=True), acted(again, seen, greedy=True))
    policy.save(tmp_path / "half", torch.float16)
    half = load(PolicySection(model=str(tmp_path / "half")))
    assert np.abs(acted(policy, seen, greedy=True) - acted(half, seen, greedy=True)).max() < 0.01
    with pytest.raises(UserError, match="state of 3 numbers, but the robot shows 2"):
        again.act([NOBODY], [Observation((), np.zeros(2, np.float32))])


def test_a_steered_policy_is_kept_with_its_base(tmp_path):
    """Its network alone is noise; the flow's folder may have moved."""
    torch.manual_seed(1)
    steering = ActorPolicy(Actor(noise_shape(SHAPE, 1.5, 8, 2)), seed=4)
    torch.nn.init.normal_(steering.model.head.weight)
    policy, seen = SteeredPolicy(steering, flow()), shown(5)
    states = np.stack([each.state for each in seen])
    noise = steering.chunks(states, greedy=True)
    assert np.abs(noise).max() <= 1.5 and noise.std() > 0.1
    assert np.array_equal(acted(policy, seen, greedy=True), acted(policy.base, seen, noise=noise))
    policy.save(tmp_path)
    again = load(PolicySection(model=str(tmp_path)))
    assert isinstance(again, SteeredPolicy) and again.shape == SHAPE
    assert np.array_equal(acted(policy, seen, greedy=True), acted(again, seen, greedy=True))
    told = json.loads((tmp_path / "config.json").read_text())
    for change in ({"bound": -1}, {"hidden": "x"}, {"layers": 0}):
        (tmp_path / "config.json").write_text(json.dumps(told | change))
        with pytest.raises(UserError, match=r"describes no vlrl_steered"):
            load(PolicySection(model=str(tmp_path)))


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"model_type": "vlrl_flow"}', '{"model_type": "vlrl_flow", "steps": 1, "low": 3}']
)
def test_a_broken_description_is_one_line(tmp_path, text):
    """A config.json mended by hand."""
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match=r"policy\.model"):
        load(PolicySection(model=str(tmp_path)))


def test_steps_are_checked(tmp_path):
    """0 steps would give the noise itself to a robot."""
    flow().save(tmp_path)
    told = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(told | {"steps": 0}))
    with pytest.raises(UserError, match="steps must be"):
        load(PolicySection(model=str(tmp_path)))


def test_a_flow_from_the_command_line(tmp_path, capsys):
    """Made of a script, evaluated, served, gone on from, trained by RL and resumed."""
    from vlrl.serving.policies import servable

    reach = ["task.robot={name: tabletop, job: reach}", "task.horizon=16", "task.held_out=4", "task.workers=1"]
    config, out = str(ROOT / "configs" / "models" / "embedded_flow.yaml"), str(tmp_path / "flow")
    small = ["episodes=3", "steps=20", "policy.hidden=16", f"out={out}"]
    assert main(["clone", config, *reach, *small]) == 0
    assert "held-out success" in capsys.readouterr().out
    manipulation = str(ROOT / "configs" / "manipulation.yaml")
    again = [manipulation, *reach, "task.chunk=4", "eval.num_samples=4", "--model", out, "--json"]
    values = []
    for _ in range(2):
        assert main(["eval", *again]) == 0
        values.append(json.loads(capsys.readouterr().out)["value"])
    assert values[0] == values[1]
    policy = servable(out)
    assert [each.name for each in policy.spec.action] == ["x", "y", "z"] and policy.spec.chunk == 4
    assert main(["clone", config, *reach, *small, f"start={out}", "steps=1"]) == 0
    assert main(["clone", config, *reach, *small, f"start={tmp_path}"]) == 2
    assert "start: " in capsys.readouterr().err
    steps = ["train.steps=2", "train.prompts_per_step=2", "train.group_size=2", "eval.num_samples=4",
             "train.num_minibatches=1"]  # fmt: skip
    flow_grpo = ["policy.denoising={noise: learned}", "policy.logprob_level=chunk", "log.checkpoint_every=1"]
    train = [manipulation, *reach, "task.chunk=4", f"policy.model={out}", *steps, *flow_grpo]
    run = tmp_path / "run"
    assert main(["train", *train, f"out={run}"]) == 0
    assert main(["train", "--resume", str(run), "train.steps=3"]) == 0
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [row for row in rows if "loss" in row]
    assert [row["step"] for row in losses] == [1, 2, 3] and all(row["logprob_gap"] < 1e-4 for row in losses)
    assert "noise.weight" in load_file(max(run.glob("checkpoints/*")) / "model.safetensors")
    assert main(["eval", *again[:-2], str(run), "--json"]) == 0  # where the head is not asked for


def sampling(noise: str, level: str = "token", shape: ActorShape = SHAPE, scale: float = 0.4) -> FlowPolicy:
    """A policy that is sampled for training, its head for noise no longer even."""
    torch.manual_seed(3)
    model = Velocity(shape, learns_noise=noise == "learned")
    if model.noise is not None:
        torch.nn.init.normal_(model.noise.weight)
    return FlowPolicy(model, scale=scale, level=level, steps=4)


@pytest.mark.parametrize("noise", ["sde", "learned"])
@pytest.mark.parametrize(("level", "units"), [("token", 16), ("action", 8), ("chunk", 4)])
def test_sampled_decisions_have_the_probabilities_of_their_steps(noise, level, units):
    """Ratios would not be 1 before the first update. Against a plain loop over steps and numbers, by torch's Normal."""
    policy, seen = sampling(noise, level), shown(3)
    decisions = policy.act([NOBODY] * 3, seen)
    with torch.no_grad():
        now = policy.evaluate(decisions)
    assert now.logprobs.shape == (3, units) and now.mask.all()
    torch.testing.assert_close(now.logprobs, torch.stack([d.logprobs for d in decisions]), rtol=0, atol=1e-5)
    torch.testing.assert_close(now.entropy, torch.stack([d.entropy for d in decisions]), rtol=0, atol=1e-5)
    for b, decision in enumerate(decisions):
        state, path, total = torch.tensor(seen[b].state)[None], decision.inputs.path, 0.0
        for step in range(4):
            time, place = torch.tensor([step / 4]), path[step][None]
            velocity = policy.model(state, place, time).detach()
            if noise == "sde":
                drift = velocity - 0.4**2 / 2 * (place - time * velocity)
                law = torch.distributions.Normal(place + drift / 4, 0.4 * ((1 - step / 4) / 4) ** 0.5)
            else:
                share = policy.model.noise(policy.model.features(state, place, time)).sigmoid().detach()
                law = torch.distributions.Normal(place + velocity / 4, 0.4 * (0.25 + 0.75 * share))
            total += float(law.log_prob(path[step + 1][None]).sum())
        assert float(now.logprobs[b].sum()) == pytest.approx(total, abs=1e-3)
        unit = path[-1].clamp(-1, 1).view(2, 2).numpy()
        low, high = np.array(SHAPE.low), np.array(SHAPE.high)
        assert np.allclose(decision.action, low + (unit + 1) / 2 * (high - low), atol=1e-6)


def test_densities_of_a_step_integrate_to_one():
    """A factor that is missing would weigh some states above others."""
    shape = ActorShape(1, ("x",), (-1.0,), (1.0,), chunk=1, hidden=8)
    for noise in ("sde", "learned"):
        policy = sampling(noise, shape=shape)
        (decision,) = policy.act([NOBODY], [Observation((), np.zeros(1, np.float32))])
        grid = torch.linspace(-6, 6, 4001)
        for step in range(4):
            paths = decision.inputs.path.repeat(len(grid), 1, 1)
            paths[:, step + 1, 0] = grid
            with torch.no_grad():
                logprobs, _ = policy.scorer(decision.inputs.state.repeat(len(grid), 1), paths)
            assert float(torch.trapezoid(logprobs[:, step, 0].exp(), grid)) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("scale", [0.2, 1.0])
def test_noise_in_the_steps_keeps_what_chunks_are_likely(scale):
    """Exploration that moves the policy would train another one than is deployed (arXiv 2505.05470).

    Of data N(0.3, 0.2^2) the flow's velocity is known: with x = t a + (1 - t) w, E[a - w | x] by Gaussian regression.
    """

    class Known(torch.nn.Module):
        noise, body = None, [lambda hidden: hidden]

        def features(self, state, place, time):
            t = time[:, None]
            variance = (t * 0.2) ** 2 + (1 - t) ** 2
            return 0.3 + (t * 0.2**2 - (1 - t)) / variance * (place - t * 0.3)

    steps, generator = 400, torch.Generator().manual_seed(0)
    place = torch.randn(20_000, 1, generator=generator)
    for step in range(steps):
        time = torch.full((len(place),), step / steps)
        mean, std = denoising_law(Known(), place, place, time, steps, scale)
        place = mean + std * torch.randn(place.shape, generator=generator)
    assert float(place.mean()) == pytest.approx(0.3, abs=0.01) and float(place.std()) == pytest.approx(0.2, abs=0.01)


@pytest.mark.parametrize("noise", ["sde", "learned"])
def test_policy_gradients_raise_what_is_rewarded(noise):
    """A sign would train the policy away from success; chunks to the right earn 1."""
    shape = ActorShape(1, ("x",), (-1.0,), (1.0,), chunk=1, hidden=16)
    policy = sampling(noise, "chunk", shape)
    seen = [Observation((), np.zeros(1, np.float32))] * 64
    optimizer = torch.optim.Adam(policy.model.parameters(), 3e-3)
    before = acted(policy, seen, noise=policy.noise(64)).mean()
    for _ in range(40):
        decisions = policy.act([NOBODY] * 64, seen)
        reward = torch.tensor([float(d.action[0, 0] > 0) for d in decisions])
        advantage = (reward - reward.mean()) / (reward.std() + 1e-4)
        optimizer.zero_grad()
        (-(policy.evaluate(decisions).logprobs.sum(1) * advantage).mean()).backward()
        optimizer.step()
    assert acted(policy, seen, noise=policy.noise(64)).mean() > before + 0.3


def test_a_network_of_any_size_gives_velocities():
    """Shapes are those of chunks; times count."""
    torch.manual_seed(0)
    model = Velocity(SHAPE)
    state, place = torch.randn(7, 3), torch.randn(7, 4)
    early, late = (model(state, place, torch.full((7,), t)) for t in (0.0, 1.0))
    assert early.shape == (7, 4) and (early - late).abs().max() > 1e-3


class Tripled(torch.nn.Module):
    """In the place of lerobot's diffusion policy, which needs diffusers: three times the noise, cut to its controls."""

    def __init__(self, **changes):
        super().__init__()
        state = SimpleNamespace(type=SimpleNamespace(name="STATE"), shape=(2,))
        self.config = SimpleNamespace(**{
            "type": "diffusion", "noise_scheduler_type": "DDIM", "horizon": 4, "n_obs_steps": 2, "n_action_steps": 2,
            "action_feature": SimpleNamespace(shape=(3,)), "input_features": {"observation.state": state},
        } | changes)  # fmt: skip
        self.scale = torch.nn.Parameter(torch.tensor(3.0))

    def reset(self):
        pass

    def predict_action_chunk(self, batch, noise):
        assert batch["observation.state"].shape == (2, 2, 2)
        return self.scale * noise


def test_lerobots_policies_take_noise():
    """Their noise is of the whole horizon; what is carried out of it, in physical units, is the policy's own matter."""
    policy = LerobotPolicy(Tripled(), lambda batch: batch, lambda chunk: chunk + 1)
    seen = [Observation(("go",), np.zeros(2, np.float32))] * 2
    noise = np.random.default_rng(0).standard_normal((2, *lerobot.noise_size(policy))).astype(np.float32)
    assert noise.shape == (2, 4, 3)
    chunks = lerobot.chunks(policy, [NOBODY] * 2, seen, noise)
    np.testing.assert_allclose(chunks, 3 * noise[:, :2] + 1, rtol=1e-5)
    with pytest.raises(ValueError, match=r"noise of shape \[2, 2, 3\]"):
        lerobot.chunks(policy, [NOBODY] * 2, seen, noise[:, :2])
    padded = LerobotPolicy(Tripled(type="smolvla", chunk_size=50, max_action_dim=32), None, None)
    assert lerobot.noise_size(padded) == (50, 32)
    for change, problem in (({"type": "act"}, "'act' has no noise"), ({"noise_scheduler_type": "DDPM"}, "to DDIM")):
        with pytest.raises(UserError, match=problem):
            lerobot.noise_size(LerobotPolicy(Tripled(**change), None, None))
