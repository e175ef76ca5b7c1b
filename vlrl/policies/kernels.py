"""The element-wise parts of a transformer's layer, with backward passes that keep less and take fewer steps.

Same values as transformers' own; what autograd would keep between (normalised copies, the activation of a gate) is
computed again, and rotary positions are turned in place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, in the wider of their types."""
    mixed, learns = x.dtype != weight.dtype, torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    if mixed or (learns and not x.is_cuda):
        return _RMSNorm.apply(x, weight, eps)
    return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)  # one kernel on a GPU


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.float()
        scale = wide.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        normal = (wide * scale).to(x.dtype)
        return normal.mul_(weight) if normal.dtype == weight.dtype else normal * weight

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight, scale = ctx.saved_tensors
        normal, of_x, of_weight = x * scale, None, None
        if ctx.needs_input_grad[1]:
            of_weight = (grad * normal).flatten(0, -2).sum(0).to(weight.dtype)
        if ctx.needs_input_grad[0]:
            pulled = grad.float() * weight
            along = torch.linalg.vecdot(pulled, normal).div_(x.shape[-1])[..., None]
            of_x = pulled.sub_(normal.mul_(along)).mul_(scale).to(x.dtype)
        return of_x, of_weight, None


def silu_product(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up."""
    if torch.is_grad_enabled() and (gate.requires_grad or up.requires_grad):
        return _SiluProduct.apply(gate, up)
    return torch.nn.functional.silu(gate).mul_(up)


class _SiluProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return torch.nn.functional.silu(gate).mul_(up)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        of_up = torch.nn.functional.silu(gate).mul_(grad)
        return torch.ops.aten.silu_backward(grad * up, gate), of_up


def forgotten(x: Tensor, again: Callable[[], Tensor]) -> contextlib.AbstractContextManager:
    """While inside, autograd keeps how to make x instead of x: for what is cheaper to make than to hold.

    It is made when the first backward pass needs it, and held until the last that does has run.
    """
    if not x.requires_grad:
        return contextlib.nullcontext()
    made = _Again(x, again)
    return torch.autograd.graph.saved_tensors_hooks(made.pack, lambda kept: kept() if callable(kept) else kept)


class _Again:
    """A tensor that is dropped and made again."""

    def __init__(self, x: Tensor, again: Callable[[], Tensor]):
        self.where, self.shape, self.again, self.wanted, self.made = x.data_ptr(), x.shape, again, 0, None

    def pack(self, kept: Tensor) -> Tensor | Callable[[], Tensor]:
        if kept.data_ptr() != self.where or kept.numel() != self.shape.numel():
            return kept.detach()  # a node's own result would hold the node: a graph that no backward pass frees stays
        self.wanted += 1
        shape = kept.shape
        return lambda: self.get().view(shape)

    def get(self) -> Tensor:
        if self.made is None:
            with torch.no_grad():
                self.made = self.again()
        made, self.wanted = self.made, self.wanted - 1
        if self.wanted == 0:
            self.made = None
        return made


def rotated(x: Tensor, cos: Tensor, sin: Tensor, heads: int | None = None) -> Tensor:
    """Rotary positions, in place: each head's pairs (i, i + D / 2) turned by their angles.

    Args:
        x: [..., heads * D] or [..., heads, D], a result that nobody else needs; where there are gradients no view.
        cos, sin: [..., heads or 1, D]; sin negative in its first half (`signed`).
        heads: so many are turned, the others left as they are; None: all.
    """
    if torch.is_grad_enabled() and x.requires_grad:
        return _Rotated.apply(x, cos, sin, heads)
    return _turn(x, cos, sin, heads)


def signed(sin: Tensor) -> Tensor:
    """Sines [..., D] with equal halves, as `rotated` takes them."""
    half = sin[..., : sin.shape[-1] // 2]
    return torch.cat([-half, half], -1)


class _Rotated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, cos: Tensor, sin: Tensor, heads: int | None) -> Tensor:
        ctx.mark_dirty(x)
        ctx.save_for_backward(cos, sin)
        ctx.heads = heads
        return _turn(x, cos, sin, heads)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        back = grad.clone(memory_format=torch.contiguous_format)
        return _turn(back, cos, -sin, ctx.heads), None, None, None


def _turn(x: Tensor, cos: Tensor, sin: Tensor, heads: int | None) -> Tensor:
    """x cos + (x, its halves exchanged) sin, in x. The sum is rounded once where x is narrower than the angles."""
    some = x.view(*x.shape[: cos.ndim - 2], -1, cos.shape[-1])[..., :heads, :]
    other = some.roll(some.shape[-1] // 2, -1)
    if x.dtype == cos.dtype:
        some.mul_(cos).addcmul_(other, sin)
    else:
        some.copy_(torch.addcmul(some * cos, other, sin))
    return x
