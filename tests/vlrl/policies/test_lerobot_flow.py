"""lerobot's flow policies in training: their probabilities, gradients, folders and runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vlrl.cli import main
from vlrl.config import Denoising, PolicySection
from vlrl.policies.discrete import DiscreteShape
from vlrl.policies.lerobot import adapt_lerobot
from vlrl.policies.loading import EMBEDDED, load
from vlrl.types import Episode, Observation, Sample, UserError

pytest.importorskip("lerobot")
pytest.importorskip("num2words")
from vlrl.policies import lerobot_flow
from vlrl.policies.lerobot_flow import LerobotFlowPolicy, integrate_by, make_smolvla
from vlrl.tools.dry_run import LiveTensors, StepSizes, build_robot, robot_step
from vlrl.tools.memory_planner import find_robot

ROOT = Path(__file__).parents[3]
SHAPE = DiscreteShape(4, ("x", "y", "grip"), (-1.0,) * 3, (1.0,) * 3, chunk=5, cameras=((32, 32),), hidden=16, layers=2)
NOBODY = Episode(Sample("", Observation(())), 0)


def shown(count: int, seed: int = 0) -> list[Observation]:
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 255, (count, 32, 32, 3), dtype=np.uint8)
    states = rng.standard_normal((count, 4)).astype(np.float32)
    return [Observation((Image.fromarray(p), "touch it"), state) for p, state in zip(pixels, states, strict=True)]


@pytest.fixture
def smolvla(tmp_path):
    """`smolvla(level, ...)`: a tiny one, its numbers not normalized by 0 and 1; settings are its configuration's."""

    def make(level: str = "token", scale: float = 0.4, **settings) -> LerobotFlowPolicy:
        torch.manual_seed(0)
        rng = np.random.default_rng(0)
        states, actions = rng.normal(1, 2, (50, 4)), rng.normal(0.5, 0.3, (50, 3))
        made = make_smolvla(SHAPE, states, actions, tmp_path / "vlm", EMBEDDED, 0, **settings)
        return LerobotFlowPolicy(made.model, made._before, made._after, scale=scale, level=level)

    return make


def acted(policy, observations, **how):
    return policy.act([NOBODY] * len(observations), observations, **how)


def chunks_to_imitate(policy, count: int) -> list:
    rng = np.random.default_rng(1)
    return [policy.decide(each, rng.normal(0.5, 0.3, (5, 3))) for each in shown(count)]


def test_what_is_imitated_is_lerobots_loss(smolvla):
    """By its own forward pass, which keeps no cache: the velocities of the denoising steps are the same.

    transformers 5.6 and later refuse how lerobot 0.6.1 cuts its cache; the adaptation must not change a number.
    """
    policy = smolvla()
    decisions = chunks_to_imitate(policy, 3)
    state = policy.state_dict()["generator"]
    found = policy.evaluate(decisions)
    generator = torch.Generator()
    generator.set_state(state)
    noise = torch.randn((3, 5, 3), generator=generator)
    time = torch.rand(3, generator=generator) ** (1 / 1.5) * 0.999 + 0.001
    batch = policy._before(
        policy.inputs.batch([[each] for each in shown(3)])
        | {"action": torch.stack([d.inputs.noise for d in decisions])}
    )
    theirs, _ = policy.model.forward(dict(batch), noise=noise, time=time, reduction="none")
    torch.testing.assert_close(-found.logprobs.mean(1), theirs, rtol=1e-5, atol=1e-6)
    (-found.logprobs.mean()).backward()
    grads = {name: p.grad.clone() for name, p in policy.model.named_parameters() if p.grad is not None}
    policy.model.zero_grad()
    theirs.mean().backward()
    for name, parameter in policy.model.named_parameters():
        if name in grads:
            torch.testing.assert_close(grads[name], parameter.grad, rtol=1e-4, atol=1e-6)


def test_without_noise_in_the_steps_it_is_lerobots_chunk(smolvla):
    """Another integrator would train another policy than the one that is deployed."""
    policy, seen = smolvla(), shown(3)
    batch = policy._before(policy.inputs.batch([[each] for each in seen]))
    noise = torch.randn(3, 5, 3)
    still = lambda field, start, steps: lerobot_flow.denoise(  # noqa: E731
        field, start, steps, lambda step, mean, std: mean, policy.scorer.size, 0.0
    )
    with torch.no_grad():
        ours = integrate_by(policy.model, batch, noise, still)
    torch.testing.assert_close(ours, policy.model.predict_action_chunk(dict(batch), noise=noise), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("level", "units"), [("token", 45), ("action", 15), ("chunk", 5)])
def test_sampled_decisions_have_the_probabilities_of_their_steps(smolvla, level, units):
    """Ratios would not be 1 before the first update. Also against torch's Normal, with padding and ticks to spare."""
    policy = smolvla(level, max_action_dim=6, n_action_steps=3)
    decisions = acted(policy, shown(3))
    assert decisions[0].action.shape == (3, 3)
    with torch.no_grad():
        now = policy.evaluate(decisions)
    assert now.logprobs.shape == (3, units) and now.mask.all()
    torch.testing.assert_close(now.logprobs, torch.stack([d.logprobs for d in decisions]), rtol=0, atol=1e-4)
    torch.testing.assert_close(now.entropy, torch.stack([d.entropy for d in decisions]), rtol=0, atol=1e-4)

    (decision, *_), total = decisions, 0.0

    def loop(field, start, steps):
        nonlocal total
        place = start
        for step in range(steps):
            time = step / steps
            velocity = -field(place, torch.tensor([1 - time]))
            drift = velocity - 0.4**2 / 2 * (place - time * velocity)
            law = torch.distributions.Normal(place + drift / steps, 0.4 * ((1 - time) / steps) ** 0.5)
            after = place + velocity / steps
            after[:, :3, :3] = decision.inputs.path[step]
            total += float(law.log_prob(after)[:, :3, :3].sum())
            place = after
        return place

    with torch.no_grad():
        batch = policy._before(policy.inputs.batch([decision.inputs.observations]))
        chunk = integrate_by(policy.model, batch, decision.inputs.noise[None], loop)
    assert float(now.logprobs[0].sum()) == pytest.approx(total, abs=1e-2)
    assert np.allclose(policy._after(chunk[:, :3])[0].numpy(), decision.action, atol=1e-5)


def test_gradients_are_those_of_the_density(smolvla):
    """Against differences of the density itself, where padding depends on the weights as well."""
    policy = smolvla("chunk", max_action_dim=6, n_action_steps=3)
    decisions = acted(policy, shown(2))
    weights = policy.model.model
    for parameter in (weights.action_out_proj.bias, weights.action_in_proj.weight, weights.state_proj.weight):
        policy.model.zero_grad()
        policy.evaluate(decisions).logprobs.sum().backward()
        direction = parameter.grad / parameter.grad.norm()
        ends = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter += sign * 3e-2 * direction
                ends.append(float(policy.evaluate(decisions).logprobs.double().sum()))  # one gradient is 0.06 of 55
                parameter -= sign * 3e-2 * direction
        assert (ends[0] - ends[1]) / 6e-2 == pytest.approx(float(parameter.grad.norm()), rel=2e-2)


def test_policy_gradients_raise_what_is_rewarded(smolvla):
    """A sign would train the policy away from success."""
    policy, seen = smolvla("chunk"), shown(1) * 24
    optimizer = torch.optim.Adam([p for p in policy.model.parameters() if p.requires_grad], 2e-3)
    before = np.mean([d.action[:, 0].mean() for d in acted(policy, seen)])
    for _ in range(20):
        decisions = acted(policy, seen)
        reward = torch.tensor([d.action[:, 0].mean() for d in decisions])
        advantage = (reward - reward.mean()) / reward.std()
        optimizer.zero_grad()
        (-(policy.evaluate(decisions).logprobs.sum(1) * advantage).mean()).backward()
        optimizer.step()
    assert np.mean([d.action[:, 0].mean() for d in acted(policy, seen)]) > before + 0.3


def test_a_saved_folder_opens_in_lerobot(smolvla, tmp_path):
    """What was trained here is deployed by lerobot's own commands."""
    policy, seen = smolvla(), shown(2)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter += 0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    policy.save(tmp_path / "saved")
    from lerobot.configs.policies import PreTrainedConfig
    from lerobot.policies.factory import get_policy_class, make_pre_post_processors

    config = PreTrainedConfig.from_pretrained(tmp_path / "saved")
    theirs = get_policy_class(config.type).from_pretrained(tmp_path / "saved", config=config, strict=True)
    before, after = make_pre_post_processors(config, str(tmp_path / "saved"))
    torch.manual_seed(0)  # as the policy seeds a greedy decision at an episode's first turn
    chunk = theirs.predict_action_chunk(before(policy.inputs.batch([[each] for each in seen])))
    wanted = after(chunk).numpy()
    for ours in (policy, load(PolicySection(model=str(tmp_path / "saved")))):
        found = np.stack([decision.action for decision in acted(ours, seen, greedy=True)])
        assert np.allclose(found, wanted, atol=1e-5)
    again = smolvla()
    again.load_weights(tmp_path / "saved")
    for old, new in zip(policy.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(old, new)
    (tmp_path / "saved" / "model.safetensors").write_bytes(b"x")
    with pytest.raises(UserError, match=r"policy\.model: .*saved"):
        again.load_weights(tmp_path / "saved")


def test_the_language_model_comes_with_a_moved_folder(smolvla, tmp_path):
    """Its name in the configuration is a path of the machine that made it."""
    smolvla().save(tmp_path / "saved")
    (tmp_path / "vlm").rename(tmp_path / "gone")
    (tmp_path / "saved").rename(tmp_path / "moved")
    (decision,) = acted(load(PolicySection(model=str(tmp_path / "moved"))), shown(1), greedy=True)
    assert np.isfinite(decision.action).all()


def test_features_tell_prompts_apart(smolvla):
    """A critic reads them."""
    policy = smolvla()
    features = policy.features(acted(policy, shown(3)))
    assert features.shape == (3, 16) and float((features[0] - features[1]).abs().max()) > 1e-3
    torch.testing.assert_close(features, policy.features(acted(policy, shown(3))))


def test_what_does_not_fit_is_one_line(smolvla, tmp_path):
    """A head for noise that lerobot would not load; a chunk of another length."""
    policy = smolvla()
    policy.save(tmp_path / "saved")
    with pytest.raises(UserError, match=r"policy\.denoising\.noise: .* take sde"):
        load(PolicySection(model=str(tmp_path / "saved"), denoising=Denoising(noise="learned")))
    with pytest.raises(UserError, match=r"demo 1: an action of shape \[2, 3\]; the policy gives \[5, 3\]"):
        policy.decide(shown(1)[0], np.zeros((2, 3)), "demo 1")
    with pytest.raises(UserError, match="made for a state of 4 numbers and 1 pictures"):
        acted(policy, [Observation(("touch it",), np.zeros(4, np.float32))])


@pytest.mark.slow
def test_from_the_command_line(tmp_path, capsys):
    """Cloned from pictures, evaluated, gone on from, trained by RL, resumed."""
    config, out = str(ROOT / "configs" / "models" / "embedded_smolvla.yaml"), str(tmp_path / "start")
    small = ["policy.hidden=16", "episodes=3", "steps=3", "eval.num_samples=2", "task.workers=1"]
    assert main(["clone", config, *small, f"out={out}"]) == 0
    assert "held-out success" in capsys.readouterr().out
    assert main(["clone", config, *small, f"out={tmp_path / 'more'}", f"start={out}"]) == 0
    study = str(ROOT / "configs" / "studies" / "manipulation_smolvla.yaml")
    few = ["train.prompts_per_step=2", "train.group_size=2", "eval.num_samples=2", "train.num_minibatches=1"]
    run = tmp_path / "run"
    once = ["train.steps=2", "log.checkpoint_every=1", "task.workers=1", f"policy.model={out}", f"out={run}"]
    assert main(["train", study, *few, *once]) == 0
    assert main(["train", "--resume", str(run), "train.steps=3"]) == 0
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [row for row in rows if "loss" in row]
    assert [row["step"] for row in losses] == [1, 2, 3] and all(row["logprob_gap"] < 1e-3 for row in losses)
    assert main(["eval", study, "eval.num_samples=2", "task.workers=1", "--model", str(run)]) == 0
    ppo = str(ROOT / "configs" / "recipes" / "ppo.yaml")  # its critic reads the policy's features
    once = ["train.steps=1", "task.workers=1", f"policy.model={out}", f"out={tmp_path / 'ppo'}"]
    assert main(["train", study, ppo, *few, *once]) == 0


def test_pi0_trains_its_expert(tmp_path, monkeypatch):
    """lerobot's pi0 samples without a graph: its language model would get half a gradient, and stays as it is."""
    from lerobot.configs import FeatureType, PolicyFeature
    from lerobot.policies.factory import make_policy_config
    from lerobot.policies.pi0 import modeling_pi0

    small = modeling_pi0.GemmaConfig(width=16, depth=2, mlp_dim=32, num_heads=8, num_kv_heads=1, head_dim=8)
    monkeypatch.setattr(modeling_pi0, "get_gemma_config", lambda variant: small)
    whole = modeling_pi0.PaliGemmaForConditionalGenerationWithPiGemma

    def shrunk(config):
        eye = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        for name, size in {**eye, "projection_dim": 16, "patch_size": 14}.items():
            setattr(config.vision_config, name, size)
        config.text_config.vocab_size = 64
        return whole(config)

    monkeypatch.setattr(modeling_pi0, "PaliGemmaForConditionalGenerationWithPiGemma", shrunk)
    config = make_policy_config(
        "pi0", device="cpu", push_to_hub=False, dtype="float32", chunk_size=4, n_action_steps=2, num_inference_steps=3,
        input_features={"observation.state": PolicyFeature(FeatureType.STATE, (4,)),
                        "observation.images.camera1": PolicyFeature(FeatureType.VISUAL, (3, 32, 32))},
        output_features={"action": PolicyFeature(FeatureType.ACTION, (3,))}, image_resolution=(28, 28),
    )  # fmt: skip
    adapt_lerobot()
    model = modeling_pi0.PI0Policy(config)
    words = {"observation.language.tokens": torch.ones(2, 3, dtype=torch.long)}
    words["observation.language.attention_mask"] = torch.ones(2, 3, dtype=torch.bool)
    before, after = (lambda batch: batch | words), (lambda chunk: chunk)  # its tokenizer is on the hub
    policy = LerobotFlowPolicy(model, before, after, level="chunk")
    decisions = acted(policy, shown(2))
    found = policy.evaluate(decisions)
    torch.testing.assert_close(found.logprobs, torch.stack([d.logprobs for d in decisions]), rtol=0, atol=1e-4)
    lesson = [policy.decide(each, np.full((4, 3), 0.3)) for each in shown(2)]
    generator = torch.Generator()
    generator.set_state(policy.state_dict()["generator"])
    off = -policy.evaluate(lesson).logprobs.mean(1)
    noise = torch.randn((2, 4, 32), generator=generator)
    time = torch.rand(2, generator=generator) ** (1 / 1.5) * 0.999 + 0.001
    batch = policy.inputs.batch([[each] for each in shown(2)]) | words | {"action": torch.full((2, 4, 3), 0.3)}
    losses = model.model.forward(
        *model._preprocess_images(batch), *words.values(), model.prepare_state(batch), model.prepare_action(batch),
        noise, time,
    )  # fmt: skip
    torch.testing.assert_close(off, losses[..., :3].mean((1, 2)), rtol=1e-4, atol=1e-5)
    found.logprobs.sum().backward()
    got = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    assert got and all("gemma_expert" in name or "action" in name or "state" in name for name in got)


def test_a_start_that_is_missing_is_named_by_its_key(capsys):
    config = str(ROOT / "configs" / "models" / "embedded_smolvla.yaml")
    assert main(["clone", config, "start=/no/such/folder", "out=unused"]) != 0
    assert capsys.readouterr().err.startswith("vlrl: start: there is no folder '/no/such/folder'")


def test_a_step_is_planned_as_it_is(smolvla, tmp_path):
    """With numbers and without them the same tensors are alive at the peak; instructions are as long as may be."""
    policy, words = smolvla("chunk"), "touch it " * 30
    policy.save(tmp_path / "saved")
    decisions = acted(policy, [Observation((each.images[0], words), each.state) for each in shown(6)])
    weights = list(policy.model.parameters())
    live = LiveTensors([*weights, *policy.model.buffers()])
    held = live.now
    live.restart()
    with live:
        policy.evaluate(decisions).logprobs.sum().backward()
    gradients = sum(p.grad.nbytes for p in weights if p.grad is not None)
    dry = build_robot("smolvla", str(tmp_path / "saved"), 3)
    cost = robot_step(dry, StepSizes(1, 6, 1, 0, reference=True), accumulates=False)
    assert cost.parameters == sum(p.numel() for p in weights) and cost.trained == gradients / 4
    assert (cost.phase, cost.memory["weights"], cost.memory["gradients"]) == ("update", held, gradients)
    assert (cost.memory["optimizer"], cost.memory["reference"]) == (2 * gradients, held)
    assert cost.memory["activations"] == pytest.approx(live.most - held - gradients, rel=0.1)
    twice = robot_step(dry, StepSizes(1, 12, 1, 0), accumulates=False)
    assert twice.memory["activations"] == pytest.approx(2 * cost.memory["activations"], rel=0.1)


def test_the_plan_of_a_robot_policy(smolvla, tmp_path, capsys):
    """40 ticks of 5 make 8 chunks an episode; what would help is what such a run can do."""
    smolvla().save(tmp_path / "saved")
    study = str(ROOT / "configs" / "studies" / "manipulation_smolvla.yaml")
    command = [
        "plan",
        study,
        f"policy.model={tmp_path / 'saved'}",
        "task.workers=1",
        "--memory",
        "0.05",
        "--gpu",
        "cpu",
    ]
    assert main(command) == 0
    page = capsys.readouterr().out
    assert "16 scenes x 8 episodes; 8 chunks an episode of 40 ticks, 512 in one forward pass" in page
    assert "it does not fit" in page and "train.micro_batch_size=2" in page and "lora" not in page
    assert "SECONDS" not in page and "FLOPs" not in page
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] > 0
    (tmp_path / "act").mkdir()
    (tmp_path / "act" / "config.json").write_text('{"type": "act"}')
    for changes, problem in (
        (["--tokens", "5"], "--tokens: leave them out"), ([f"policy.model={tmp_path / 'act'}"], "act is not planned"),
        (["task=counting"], "counting has no horizon"),
    ):  # fmt: skip
        assert main([*command, *changes]) == 2
        assert problem in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "parameters", "trained"),
    [("lerobot/pi05_base", 4143404816, 430098464), ("smolvla_base", 450e6, 98e6)],
)
def test_published_policies_are_planned_without_a_download(name, parameters, trained):
    """pi0.5's numbers are those of its class on a CPU; SmolVLA is published as one of 450 million parameters."""
    robot = find_robot(name)
    dry = build_robot(robot.kind, robot.folder, 3)
    cost = robot_step(dry, StepSizes(1, 1, 1, 0), accumulates=False)
    assert cost.parameters == pytest.approx(parameters, rel=0.01) and cost.trained == pytest.approx(trained, rel=0.05)
