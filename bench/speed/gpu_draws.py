"""That no token without probability is drawn, however a device rounds its sums: for `gpu_check.py`."""

from __future__ import annotations

import torch
from torch import Tensor

from vlrl.policies.generation import draw


def draws_of_nothing(device: torch.device) -> float:
    """Draws of tokens whose probability is zero: how many of a great number, and of those that aim at them."""
    generator = torch.Generator(device).manual_seed(0)
    repeats, count = (256, 4096) if device.type == "cuda" else (4, 64)
    probs = torch.rand((count, 4096), generator=generator, device=device)
    probs[:, 2::3] = 0  # at all places of a block of 2, 4, 8, ... that a device sums up
    found = torch.zeros((), device=device)
    for _ in range(repeats):
        token = draw(probs, torch.rand(count, generator=generator, device=device))
        found += (probs.gather(1, token[:, None]) == 0).sum()
    return float(found) + sum(_aimed(probs[:rows]) for rows in (1, 2, count))


def _aimed(probs: Tensor, most: int = 50) -> int:
    """The same of draws at places where a device's cumulated sums grow over tokens of probability zero."""
    sums, found = probs.cumsum(-1), 0
    grown = ((sums[:, 1:] > sums[:, :-1]) & (probs[:, 1:] == 0)).nonzero()[:most]
    for row, place in grown.tolist():
        exact = sums[row, place] / sums[row, -1]
        for uniform in (exact, torch.nextafter(exact, exact * 0), torch.nextafter(exact, exact * 2)):
            token = draw(probs, uniform.expand(len(probs)))[row]
            found += int(probs[row, token] == 0)
    return found
