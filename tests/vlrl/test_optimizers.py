"""Every optimizer reaches every parameter, follows the learning rate and goes on from a checkpoint as it was."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from vlrl import checkpoint
from vlrl.types import UserError
from vlrl.update import Float32Muon, Together, optimizers_build

EIGHT = ("adamw_8bit", "paged_adamw_8bit")
needs_bitsandbytes = pytest.mark.skipif(not importlib.util.find_spec("bitsandbytes"), reason="the extra lowbit")
on_cpu = pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU:UserWarning")


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3))


def update(net: nn.Module, optimizer: torch.optim.Optimizer, key: int) -> None:
    optimizer.zero_grad()
    net(torch.randn(5, 6, generator=torch.Generator().manual_seed(key))).square().mean().backward()
    optimizer.step()


def test_every_parameter_learns_and_follows_the_learning_rate():
    """A parameter in neither optimizer would silently stay; a rate that does not arrive breaks every schedule."""
    net = model()
    optimizer = optimizers_build(net, "muon", lr=1e-2)
    before = [p.clone() for p in net.parameters()]
    update(net, optimizer, 1)
    assert all(not torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    before = [p.clone() for p in net.parameters()]
    update(net, optimizer, 2)
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


@pytest.mark.parametrize("kind", ["muon", "adamw"])
@pytest.mark.parametrize("trained", ["matrices", "vectors"])
def test_an_optimizer_takes_what_there_is_to_train(kind, trained):
    """LoRA trains matrices alone: every run with LoRA and Muon ended in a traceback, for AdamW had nothing to do."""
    net = model()
    for parameter in net.parameters():
        parameter.requires_grad_((parameter.ndim == 2) == (trained == "matrices"))
    before = [p.clone() for p in net.parameters()]
    update(net, optimizers_build(net, kind, lr=1e-2), 1)
    moved = [not torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True)]
    assert moved == [p.requires_grad for p in net.parameters()]


def test_a_restored_state_goes_on_exactly():
    """Otherwise a resumed run is another run."""
    net, other = model(), model()
    straight, first = optimizers_build(net, "muon", lr=1e-2), optimizers_build(other, "muon", lr=1e-2)
    update(net, straight, 1), update(other, first, 1)
    resumed = optimizers_build(other, "muon", lr=1e-2)
    resumed.load_state_dict(first.state_dict())
    for group in (*straight.param_groups, *resumed.param_groups):
        group["lr"] = 5e-3
    update(net, straight, 2), update(other, resumed, 2)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("shape", [(8, 24), (24, 8), (16, 16)])
def test_muon_in_float32_is_torchs_muon(shape):
    """On CPUs Muon multiplies in float32, as bfloat16 is emulated there: torch's own is the same up to its rounding."""
    torch.manual_seed(0)
    ours, theirs = (nn.Parameter(torch.ones(shape)) for _ in range(2))
    settings = {"lr": 1e-2, "weight_decay": 0.1, "adjust_lr_fn": "match_rms_adamw"}
    pair = (ours, Float32Muon([ours], **settings)), (theirs, torch.optim.Muon([theirs], **settings))
    for _ in range(3):
        gradient = torch.randn(shape)
        for parameter, optimizer in pair:
            parameter.grad = gradient.clone()
            optimizer.step()
    moved, wanted = ours.detach() - 1, theirs.detach() - 1
    assert (moved - wanted).norm() < 0.02 * wanted.norm()


# -- states of 8 bits ------------------------------------------------------------------------------------------------


class Reader(nn.Module):
    """Embeddings, two matrices of more than 1e5 numbers, which are paged, and a norm below the size that is reduced."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed_tokens = nn.Embedding(100, 256)
        self.layers = nn.Sequential(nn.Linear(256, 512), nn.LayerNorm(512), nn.GELU(), nn.Linear(512, 256))

    def learn(self, optimizer: torch.optim.Optimizer, keys: range) -> None:
        device = self.embed_tokens.weight.device
        for key in keys:
            tokens = torch.randint(100, (16,), generator=torch.Generator().manual_seed(key)).to(device)
            optimizer.zero_grad()
            self.layers(self.embed_tokens(tokens)).square().mean().backward()
            optimizer.step()


def state_of(optimizer: torch.optim.Optimizer) -> dict[int, list[Tensor]]:
    """The tensors that the optimizer keeps for each parameter, by its size."""
    parts = optimizer.parts if isinstance(optimizer, Together) else [optimizer]
    states = [getattr(part, "inner", part).state for part in parts]
    return {p.numel(): [v for v in kept.values() if torch.is_tensor(v)] for s in states for p, kept in s.items()}


def resumed(kind: str, folder: Path, device: str) -> tuple[nn.Module, nn.Module, torch.optim.Optimizer]:
    """A model after an unbroken run and after one that was stopped and went on from a checkpoint's files."""
    straight, stopped = Reader().to(device), Reader().to(device)
    one, first = (optimizers_build(net, kind, lr=1e-2, weight_decay=0.1) for net in (straight, stopped))
    straight.learn(one, range(3)), stopped.learn(first, range(3))
    checkpoint.save(folder / "step_3", {"optimizer": first.state_dict()}, lambda _: None)
    second = optimizers_build(stopped, kind, lr=1e-2, weight_decay=0.1)
    second.load_state_dict(checkpoint.load_state(folder / "step_3")["optimizer"])
    for settings in (*one.param_groups, *second.param_groups):
        settings["lr"] = 5e-3
    straight.learn(one, range(3, 6)), stopped.learn(second, range(3, 6))
    return straight, stopped, second


@needs_bitsandbytes
@on_cpu
@pytest.mark.parametrize("kind", EIGHT)
def test_a_state_of_8_bits_goes_on_from_a_file_exactly(kind, tmp_path):
    """A resumed run would be another run, or could not be saved: bitsandbytes shares tables between parameters."""
    straight, stopped, _ = resumed(kind, tmp_path, "cpu")
    assert all(torch.equal(a, b) for a, b in zip(straight.parameters(), stopped.parameters(), strict=True))


@needs_bitsandbytes
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="paged memory is a GPU's")
def test_a_paged_state_is_paged_again_after_a_resume(tmp_path):
    """The run that fitted because its state was paged would not fit after a resume."""
    straight, stopped, optimizer = resumed("paged_adamw_8bit", tmp_path, "cuda")
    assert all(torch.equal(a, b) for a, b in zip(straight.parameters(), stopped.parameters(), strict=True))
    large = state_of(optimizer)[256 * 512]
    assert [getattr(values, "is_paged", False) for values in large if values.dtype == torch.uint8] == [True] * 2


@needs_bitsandbytes
@on_cpu
@pytest.mark.parametrize("kind", EIGHT)
def test_8_bits_take_a_quarter_of_the_memory(kind):
    """The optimizer that was asked for to save memory would save none; what is small or an embedding stays exact."""
    kept = {}
    for chosen in ("adamw", kind):
        net = Reader()
        optimizer = optimizers_build(net, chosen, lr=1e-3)
        net.learn(optimizer, range(1))
        kept[chosen] = {n: sum(v.nbytes for v in values) / n for n, values in state_of(optimizer).items()}
    for size in (256 * 512, 100 * 256, 512):
        assert kept["adamw"][size] == pytest.approx(8, abs=0.01)
    assert kept[kind][256 * 512] < 2.05
    assert kept[kind][100 * 256] == kept[kind][512] == 8


@needs_bitsandbytes
@on_cpu
@pytest.mark.parametrize("kind", EIGHT)
def test_8_bits_go_where_adamw_goes(kind):
    """Options would not arrive, or the state be too coarse to learn with."""
    start, moved = Reader().state_dict(), {}
    for chosen in ("adamw", kind):
        net = Reader()
        net.learn(optimizers_build(net, chosen, lr=1e-3, betas=(0.8, 0.95), weight_decay=0.5), range(20))
        moved[chosen] = torch.cat([(net.state_dict()[name] - value).flatten() for name, value in start.items()])
    apart = (moved[kind] - moved["adamw"]).norm() / moved["adamw"].norm()
    assert 0 < apart < 0.05


def test_without_bitsandbytes_the_extra_is_named(monkeypatch):
    """A user would see a traceback of an import."""
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(UserError, match=r"train\.optimizer: adamw_8bit needs .*'vlrl\[lowbit\]'"):
        optimizers_build(model(), "adamw_8bit", lr=1e-3)
