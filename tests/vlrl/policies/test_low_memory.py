"""Weights in bfloat16 and in 4 bits: what is saved in memory must not be lost in what is learned."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from vlrl import checkpoint
from vlrl.cli import main
from vlrl.config import Config, Lora, PolicySection
from vlrl.policies import loading, tiny
from vlrl.policies.loading import load
from vlrl.runner import Runner
from vlrl.trainer import RLTrainer
from vlrl.types import Observation, UserError
from vlrl.update import MasterWeights, StochasticAdamW, optimizers_build, round_stochastic

OPTIONS = {"lr": 1e-2, "betas": (0.8, 0.95), "weight_decay": 0.1}


def net(dtype: torch.dtype = torch.bfloat16) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).bfloat16().to(dtype)


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, keys: range) -> None:
    for key in keys:
        gradients = torch.Generator().manual_seed(key)
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=gradients).to(parameter.dtype)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


# -- rounding at random ----------------------------------------------------------------------------------------------


def test_rounding_at_random_is_right_on_average():
    """The mean over all noise is the number itself, exactly: a bias would add up over thousands of updates."""
    numbers = torch.tensor([1.0, 1.0001, -0.3, 3e-5, -7.77e8, 0.0, 1e-40])
    noise = torch.arange(65536, dtype=torch.int32)
    for x in numbers:
        rounded = round_stochastic(x.expand(65536), noise)
        assert rounded.dtype == torch.bfloat16 and len(rounded.unique()) <= 2
        assert float(rounded.double().mean()) == pytest.approx(float(x.double()), rel=1e-12, abs=0)


def test_numbers_that_are_not_finite_or_need_no_rounding_stay():
    """A NaN that became a number would hide a run that has failed."""
    odd = torch.tensor([float("inf"), float("-inf"), float("nan"), 1.5, -0.25])
    for noise in (0, 65535):
        rounded = round_stochastic(odd, torch.full((5,), noise, dtype=torch.int32)).float()
        torch.testing.assert_close(rounded, odd, rtol=0, atol=0, equal_nan=True)


def test_of_float32_weights_its_updates_are_adamws():
    """Only the rounding may differ."""
    one, other = net(torch.float32), net(torch.float32)
    learn(one, StochasticAdamW(list(one.parameters()), **OPTIONS), range(5))
    learn(other, torch.optim.AdamW(other.parameters(), **OPTIONS), range(5))
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_updates_too_small_for_bfloat16_add_up():
    """Rounded to the nearest, a weight of 1 never moves by 1e-4; RL's learning rates are smaller still."""
    weight = nn.Parameter(torch.ones(4096, dtype=torch.bfloat16))
    optimizer = StochasticAdamW([weight], lr=1e-4, betas=(0.9, 0.999), weight_decay=0.0)
    for _ in range(100):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    assert float(weight.detach().float().mean()) == pytest.approx(1 - 100 * 1e-4, abs=5e-4)


# -- float32 copies --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_weights_with_copies_are_the_rounding_of_a_float32_run(kind):
    """Every step's weights, whatever the optimizer: else bfloat16 weights learn something else."""
    narrow, wide = net(), net(torch.float32)
    copies = optimizers_build(narrow, kind, master_weights=True, **OPTIONS)
    straight = optimizers_build(wide, kind, **OPTIONS)
    for step in range(5):
        gradients = torch.Generator().manual_seed(step)
        for a, b in zip(narrow.parameters(), wide.parameters(), strict=True):
            a.grad = torch.randn(a.shape, generator=gradients).bfloat16()
            b.grad = a.grad.float()
        for optimizer in (copies, straight):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        assert all(torch.equal(a, b.bfloat16()) for a, b in zip(narrow.parameters(), wide.parameters(), strict=True))
        assert all(p.grad is None for p in narrow.parameters())


@pytest.mark.parametrize("master", [False, True])
def test_a_run_goes_on_from_a_file_exactly(master, tmp_path):
    """Moments, copies and the numbers that rounding draws are part of a run."""
    straight, stopped = net(), net()
    build = lambda model: optimizers_build(model, "adamw", master_weights=master, **OPTIONS)  # noqa: E731
    one, first = build(straight), build(stopped)
    learn(straight, one, range(3)), learn(stopped, first, range(3))
    checkpoint.save(tmp_path / "step_3", {"optimizer": first.state_dict()}, lambda _: None)
    second = build(stopped)
    second.load_state_dict(checkpoint.load_state(tmp_path / "step_3")["optimizer"])
    for group in (*one.param_groups, *second.param_groups):
        group["lr"] = 5e-3
    learn(straight, one, range(3, 6)), learn(stopped, second, range(3, 6))
    assert isinstance(second, MasterWeights if master else StochasticAdamW)
    assert all(torch.equal(a, b) for a, b in zip(straight.parameters(), stopped.parameters(), strict=True))


# -- policies --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("master", [False, True])
@pytest.mark.parametrize("family", ["embedded", "llava"])
def test_a_run_of_bfloat16_weights_trains_and_resumes_exactly(family, master, tmp_path, monkeypatch):
    """From the configuration to a checkpoint and on: half the bytes for weights, and the same run after a stop."""
    model = family
    if family != "embedded":
        model = str(tmp_path / "model")
        for part in tiny.build_family(family):
            part.save_pretrained(model)
    settings = {
        "task": {"name": "gui_grounding", "pool": 4, "held_out": 4},
        "policy": {"model": model, "max_tokens": 5, "weights_dtype": "bfloat16"},
        "train": {"steps": 4, "prompts_per_step": 2, "group_size": 4, "lr": 1e-3, "master_weights": master},
        "losses": [{"name": "ppo_clip"}, {"name": "entropy", "coef": 0.01}],
        "log": {"trackers": [], "checkpoint_every": 2, "keep_checkpoints": 2},
    }  # fmt: skip
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    monkeypatch.chdir(one)
    config = Config.model_validate(settings | {"out": "run"})
    trainer = RLTrainer(config)
    Runner(config, trainer).run()
    assert {p.dtype for p in trainer.policy.model.parameters()} == {torch.bfloat16}
    shutil.copytree(one, two)
    shutil.rmtree(sorted((two / "run" / "checkpoints").glob("step_*"))[-1])
    monkeypatch.chdir(two)
    assert main(["train", "--resume", "run"]) == 0
    rows = [(folder / "run" / "metrics.jsonl").read_text() for folder in (one, two)]
    losses = [[json.loads(row).get("loss") for row in text.splitlines()] for text in rows]
    assert losses[0] == losses[1] and any(losses[0])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"weights_dtype": "bfloat16", "lora": Lora(rank=2)}, "under policy.lora"),
        ({"weights_dtype": "bfloat16", "dtype": "float32"}, "need policy.dtype"),
        ({"load_in_4bit": True}, "set policy.lora"),
        ({"load_in_4bit": True, "lora": Lora(rank=2)}, "on a CPU"),
        ({"liger_kernel": True}, "on a CPU"),
    ],
)
def test_what_does_not_go_together_is_one_line(options, reason):
    """Else it ends in a traceback of a kernel, or silently saves nothing."""
    with pytest.raises(UserError, match=rf"^policy\.\w+: [^\n]*{reason}[^\n]*$"):
        load(PolicySection(model="embedded", **options), device="cpu")


def test_other_optimizers_say_what_takes_bfloat16_weights():
    with pytest.raises(UserError, match=r"train\.master_weights=true"):
        optimizers_build(net(), "muon", **OPTIONS)


@pytest.mark.skipif(not importlib.util.find_spec("bitsandbytes"), reason="the extra lowbit")
@pytest.mark.filterwarnings("ignore:.*gemv_4bit:UserWarning")  # of the layer below all adapters, on a CPU
def test_a_base_of_4_bits_trains_its_adapter(tmp_path, monkeypatch):
    """bitsandbytes has slow kernels for a CPU, which show that the path from option to gradient is whole."""
    monkeypatch.setattr(loading, "_check_memory_options", lambda *_: None)
    section = PolicySection(
        model="embedded", load_in_4bit=True, lora=Lora(rank=2, alpha=4), max_tokens=4, dtype="bfloat16"
    )  # fmt: skip
    policy = load(section, device="cpu", shared_prefix=True)
    kinds = {type(m).__name__ for m in policy.model.modules()}
    assert "Linear4bit" in kinds
    observation = Observation(("What is at [1, 2]?",))
    decisions = [policy.decide(observation, "Click")]
    policy.evaluate(decisions).logprobs.sum().backward()
    trained = {n: p for n, p in policy.model.named_parameters() if p.requires_grad}
    assert all("lora" in n for n in trained) and any(bool(p.grad.any()) for p in trained.values() if p.grad is not None)
    policy.save(Path(tmp_path))
    assert (tmp_path / "adapter_model.safetensors").is_file()
