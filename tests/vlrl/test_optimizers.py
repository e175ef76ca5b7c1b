"""Muon and AdamW side by side behave as one optimizer."""

from __future__ import annotations

import torch
from torch import nn

from vlrl import optimizers


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
    optimizer = optimizers.build(net, "muon", lr=1e-2)
    before = [p.clone() for p in net.parameters()]
    update(net, optimizer, 1)
    assert all(not torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    before = [p.clone() for p in net.parameters()]
    update(net, optimizer, 2)
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


def test_a_restored_state_goes_on_exactly():
    """Otherwise a resumed run is another run."""
    net, other = model(), model()
    straight, first = optimizers.build(net, "muon", lr=1e-2), optimizers.build(other, "muon", lr=1e-2)
    update(net, straight, 1), update(other, first, 1)
    resumed = optimizers.build(other, "muon", lr=1e-2)
    resumed.load_state_dict(first.state_dict())
    for group in (*straight.param_groups, *resumed.param_groups):
        group["lr"] = 5e-3
    update(net, straight, 2), update(other, resumed, 2)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))
