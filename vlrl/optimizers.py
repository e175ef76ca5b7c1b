"""Optimizers of a policy: AdamW, with its state in 8 bits or not, or Muon for the matrices with AdamW for the rest."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import nn

from vlrl.types import UserError

Kind = Literal["adamw", "muon", "adamw_8bit", "paged_adamw_8bit"]


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


class Restorable(torch.optim.Optimizer):
    """An optimizer of bitsandbytes that goes on from a checkpoint as it was."""

    def __init__(self, inner: Any):
        self.inner = inner
        super().__init__(inner.param_groups, {})

    def step(self, closure: Callable | None = None) -> None:
        self.inner.step()

    def state_dict(self) -> dict[str, Any]:
        return _apart(self.inner.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state)
        self.param_groups = self.inner.param_groups
        if self.inner.is_paged:
            for parameter, values in self.inner.state.items():
                for name in ("state1", "state2"):  # loaded into memory that cannot be paged out
                    buffer = self.inner.get_state_buffer(parameter, dtype=values[name].dtype)
                    values[name] = buffer.copy_(values[name])


def build(
    model: nn.Module, kind: Kind, *, lr: float, betas: tuple[float, float] = (0.9, 0.999), weight_decay: float = 0.0
) -> torch.optim.Optimizer:
    """An optimizer over the parameters that require gradients.

    Args:
        kind: `adamw`; `muon` (github.com/KellerJordan/Muon, torch.optim.Muon): orthogonalised momentum for hidden
            matrices at updates of AdamW's size, AdamW for embeddings, norms and biases: it needs about a third of
            AdamW's steps where a model is trained whole; LoRA's factors are such matrices, each orthogonalised by
            itself; `adamw_8bit` (arXiv 2110.02861, bitsandbytes): AdamW with 2
            bytes of state per parameter instead of 8, embeddings and tensors below 4096 numbers in full, as there;
            `paged_adamw_8bit`: the same in memory that a GPU which runs full moves to the host.

    Raises:
        UserError: bitsandbytes is not installed.
    """
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if kind == "adamw":
        return _adamw([p for _, p in named], lr=lr, betas=betas, weight_decay=weight_decay)
    if kind != "muon":
        return _eight_bit(named, kind, lr=lr, betas=betas, weight_decay=weight_decay)
    matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
    rest = [p for name, p in named if p.ndim != 2 or "embed" in name]
    parts: list[torch.optim.Optimizer] = []
    if matrices:
        parts.append(torch.optim.Muon(matrices, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"))
    if rest:  # with LoRA all that is trained are matrices
        parts.append(_adamw(rest, lr=lr, betas=betas, weight_decay=0.0))
    return Together(parts)


def _adamw(parameters: Sequence[nn.Parameter], **options: Any) -> torch.optim.AdamW:
    """torch's own, in one pass over each tensor where the device has a kernel for that."""
    in_parts = any(hasattr(p, "placements") for p in parameters)  # of several processes: no one kernel knows them all
    fused = all(p.device.type in ("cpu", "cuda") for p in parameters) and not in_parts
    return torch.optim.AdamW(parameters, fused=fused, **options)


def _eight_bit(named: Sequence[tuple[str, nn.Parameter]], kind: Kind, **options: Any) -> Together:
    """AdamW of bitsandbytes, with states of 8 bits but for the embeddings."""
    # Its import warns of kernels for inference, which no optimizer needs.
    logging.getLogger("bitsandbytes.backends").setLevel(logging.ERROR)
    try:
        from bitsandbytes import optim
    except ImportError:
        raise UserError(f"train.optimizer: {kind} needs bitsandbytes: pip install 'vlrl[lowbit]'") from None
    low, full = (optim.AdamW8bit, optim.AdamW) if kind == "adamw_8bit" else (optim.PagedAdamW8bit, optim.PagedAdamW)
    parts = (low, [p for name, p in named if "embed" not in name]), (full, [p for name, p in named if "embed" in name])
    return Together([Restorable(made(params, **options)) for made, params in parts if params])


def _apart(state: Any) -> Any:
    """The state with the tables of 8-bit numbers copied: all parameters share them, which no safetensors file can."""
    if not isinstance(state, dict):
        return state
    return {key: value.clone() if key in ("qmap1", "qmap2") else _apart(value) for key, value in state.items()}
