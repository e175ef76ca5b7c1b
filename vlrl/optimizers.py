"""Optimizers of a policy: AdamW, or Muon for the matrices with AdamW for the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import nn

Kind = Literal["adamw", "muon"]


class Together(torch.optim.Optimizer):
    """Several optimizers over disjoint parameters as one: one `step`, one state, one list of groups."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]):
        self.parts = list(parts)
        # The groups are the parts' own dictionaries, so that a changed learning rate reaches its optimizer.
        super().__init__([group for part in self.parts for group in part.param_groups], {})

    def step(self, closure: Callable | None = None) -> None:
        for part in self.parts:
            part.step()

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for part, saved in zip(self.parts, state["parts"], strict=True):
            part.load_state_dict(saved)
        self.param_groups = [group for part in self.parts for group in part.param_groups]


def build(
    model: nn.Module, kind: Kind, *, lr: float, betas: tuple[float, float] = (0.9, 0.999), weight_decay: float = 0.0
) -> torch.optim.Optimizer:
    """An optimizer over the parameters that require gradients.

    Args:
        kind: `adamw`, or `muon` (github.com/KellerJordan/Muon, torch.optim.Muon): orthogonalised momentum for hidden
            matrices at updates of AdamW's size, AdamW for embeddings, norms and biases. It needs about a third of
            AdamW's steps where a model is trained whole.
    """
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if kind == "adamw":
        return torch.optim.AdamW([p for _, p in named], lr=lr, betas=betas, weight_decay=weight_decay)
    matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
    rest = [p for name, p in named if p.ndim != 2 or "embed" in name]
    muon = torch.optim.Muon(matrices, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
    return Together([muon, torch.optim.AdamW(rest, lr=lr, betas=betas, weight_decay=0.0)])
