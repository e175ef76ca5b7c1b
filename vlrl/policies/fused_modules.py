"""Attention over rows that share a prompt, and fused modules of language models with their kernels."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.nn.functional import all_to_all_single
from torch.nn.functional import linear, pad, scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

# Attention over rows that share a prompt: causal over the prompt, masked or separate over what follows it.

NAME = "shared_prefix"
BLOCK = 256  # masked queries that are looked up at once where there are many: later keys are hidden from all of them


@dataclass(frozen=True, eq=False)
class PrefixCache:
    """Keys, or values, of R prompts and of what each of their w completions has written so far.

    prompt: [R, key heads, P, D]; own: [R, key heads, w, T, D]; hidden: bool [R, 1, 1, 1, P + T], True where a row holds
    nothing, or None.
    """

    prompt: Tensor
    own: Tensor
    hidden: Tensor | None = None


@dataclass(frozen=True, eq=False)
class SlicedKeys:
    """Keys [R, key heads, l, D] of this process's slice of R sequences."""

    own: Tensor
    slices: SequenceSlices


@dataclass(frozen=True)
class SequenceSlices:
    """Sequences that N processes hold in slices of equal length: what a layer takes for a cache.

    link: the processes, a group of torch. length: of a sequence, L; the last slice may go on behind it.
    """

    link: Any
    length: int

    def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[SlicedKeys, Tensor]:
        return SlicedKeys(keys, self), values

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any
    ) -> Tensor:
        """Attention to whole sequences: slices are exchanged for heads, and back (arXiv 2309.14509, figure 2).

        Args:
            query: [R, heads, l, D]; key, value: [R, key heads, l, D]
            mask: as of `shared_prefix`, of whole sequences.

        Returns:
            [R, l, heads, D]
        """
        N, size = self.link.size(), query.shape[2]
        if key.shape[1] % N:
            key, value = (repeat_kv(each, module.num_key_value_groups) for each in (key, value))
        heads = query.shape[1] // N, key.shape[1] // N, value.shape[1] // N
        parts = torch.cat([each.unflatten(1, (N, -1)) for each in (query, key, value)], 2)  # [R, N, heads, l, D]
        whole = self.exchange(parts.transpose(0, 1)).permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, : self.length]
        groups = types.SimpleNamespace(num_key_value_groups=heads[0] // heads[1])
        out, _ = shared_prefix(groups, *whole.split(heads, 1), mask, **options)  # [R, L, heads, D]
        out = pad(out, (0, 0, 0, 0, 0, N * size - self.length)).unflatten(1, (N, size))
        return self.exchange(out.transpose(0, 1)).permute(1, 2, 0, 3, 4).flatten(2, 3)

    def exchange(self, parts: Tensor) -> Tensor:
        """The i-th part [N, ...] of each process's goes to process i."""
        return all_to_all_single(torch.empty_like(parts, memory_format=torch.contiguous_format), parts.contiguous(),
                                 group=self.link)  # fmt: skip


def shared_prefix(
    module: nn.Module, query: Tensor, key: Tensor | PrefixCache | SlicedKeys, value: Tensor | PrefixCache,
    attention_mask: Tensor | None, scaling: float | None = None, **options,
) -> tuple[Tensor, None]:  # fmt: skip
    """`sdpa`, but a mask may cover the last S of L queries alone, and keys may be a `PrefixCache` or in slices.

    The queries before the mask are plainly causal: that kernel skips half of the work, and no L x L mask of a long
    prompt is held.

    Args:
        query: [R, heads, L, D]; key, value: [R, key heads, L or more, D]
        attention_mask: bool [R, 1, S, keys], True where a query may look, never behind its own key; None: all queries
            are causal.

    Returns:
        ([R, L, heads, D], None)
    """
    if isinstance(key, PrefixCache):
        return one_token(query, key, value, scaling), None
    if isinstance(key, SlicedKeys):
        return key.slices.attend(module, query, key.own, value, attention_mask, scaling=scaling, **options), None
    if query.shape[2] == 0:  # completions of one token: their last is never forwarded
        return query.transpose(1, 2), None
    if attention_mask is not None and attention_mask.shape[2] == 0:
        attention_mask = None
    options["scaling"] = scaling
    masked = 0 if attention_mask is None else attention_mask.shape[2]
    causal, keys = query.shape[2] - masked, key.shape[2]
    if masked == 0 or (causal == 0 and masked <= 2 * BLOCK):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    parts = []
    if causal:
        parts.append(sdpa_attention_forward(
            module, query[:, :, :causal], key[:, :, :causal], value[:, :, :causal], None, **options
        )[0])  # fmt: skip
    size = BLOCK if masked > 2 * BLOCK else masked
    for start in range(0, masked, size):
        end = min(start + size, masked)
        first = keys - masked + end  # the queries are those of the last keys
        parts.append(sdpa_attention_forward(
            module, query[:, :, causal + start : causal + end], key[:, :, :first], value[:, :, :first],
            attention_mask[:, :, start:end, :first], **options,
        )[0])  # fmt: skip
    return torch.cat(parts, 1), None


def one_token(query: Tensor, key: PrefixCache, value: PrefixCache, scaling: float | None) -> Tensor:
    """The next token of each of w completions of R prompts: a prompt's keys and values are read once for them all.

    Args:
        query: [R, heads, w, D]
        scaling: of the scores; None: the query has it.

    Returns:
        [R, w, heads, D]
    """
    R, heads, w, D = query.shape
    kv, (P, T) = key.prompt.shape[1], (key.prompt.shape[2], key.own.shape[3])
    # the query heads of a key head beside each other, [R, key heads, w, heads / key heads, D]
    query = query if scaling is None else query * scaling
    grouped = query.unflatten(1, (kv, -1)).transpose(2, 3).contiguous()
    to_prompt = (grouped.view(R, kv, -1, D) @ key.prompt.mT).view(R, kv, w, -1, P)
    scores = torch.cat([to_prompt, grouped @ key.own.mT], -1)
    if key.hidden is not None:
        scores = scores.masked_fill(key.hidden, float("-inf"))
    of_prompt, of_own = scores.softmax(-1, dtype=torch.float32).to(value.own.dtype).split([P, T], -1)
    out = (of_prompt.reshape(R, kv, -1, P) @ value.prompt).view(grouped.shape) + of_own @ value.own
    return out.transpose(1, 2).reshape(R, w, heads, D)


def use_shared_prefix(model: nn.Module) -> None:
    """Makes the language model of a vision-language model attend this way."""
    AttentionInterface.register(NAME, shared_prefix)
    AttentionMaskInterface.register(NAME, sdpa_mask)  # for masks that transformers makes itself
    language = model.model.language_model
    language.set_attn_implementation(NAME)
    for layer in language.layers:
        layer._can_checkpoint_with_cache = True  # our caches give a layer's second pass the same keys and values


# The element-wise parts of a transformer's layer, with backward passes that keep less and take fewer steps.
#
# Same values as transformers' own; what autograd would keep between (normalised copies, the activation of a gate) is
# computed again, and rotary positions are turned in place.


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
    result = _Again(x, again)
    return torch.autograd.graph.saved_tensors_hooks(result.pack, lambda kept: kept() if callable(kept) else kept)


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
        result, self.wanted = self.made, self.wanted - 1
        if self.wanted == 0:
            self.made = None
        return result


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


# The lean forward passes of attention (`vlrl.policies.fused_modules`): of the tower, and of the language model.


def seeing(
    self, hidden_states: Tensor, cu_seqlens: Tensor, position_embeddings: tuple[Tensor, Tensor], **options
) -> Tensor:
    """Attention of the tower, each patch of [n, H] to those of its window, or image, between two of `cu_seqlens`."""
    n, (cos, sin) = len(hidden_states), _angles(*position_embeddings)
    qkv = rotated(self.qkv(hidden_states), cos, sin, 2 * self.num_heads)  # queries and keys, where they are
    query, key, value = qkv.view(n, 3, self.num_heads, -1).unbind(1)
    parts, start = [], 0
    for length, same in groupby(_lengths(cu_seqlens)):
        count = len(list(same))
        run = slice(start, start + count * length)
        split = (part[run].unflatten(0, (count, length)).transpose(1, 2) for part in (query, key, value))
        attended = scaled_dot_product_attention(*split, scale=self.scaling)
        parts.append(attended.transpose(1, 2).reshape(count * length, -1))
        start = run.stop
    return self.proj(parts[0] if len(parts) == 1 else torch.cat(parts))


def _lengths(borders: Tensor) -> list[int]:
    """What lies between two borders each, asked once for all layers: the answer waits for the device."""
    if not hasattr(borders, "lengths"):
        borders.lengths = borders.diff().tolist()
    return borders.lengths


def _angles(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """As `rotated` takes them, made once for all layers."""
    if not hasattr(sin, "signed"):
        sin.signed = signed(sin)[..., None, :]
    return cos[..., None, :], sin.signed


def head_norms(attention: Any) -> tuple[nn.Module, nn.Module] | None:
    """What normalises the queries and the keys of each head, as in Qwen3; None: nothing does."""
    return (attention.q_norm, attention.k_norm) if hasattr(attention, "q_norm") else None


def reading(
    self, hidden_states: Tensor, attention_mask=None, position_embeddings=None, past_key_values=None, **options
) -> tuple[Tensor, None]:
    """Attention of the language model over [R, L, H]."""
    heads, (cos, sin) = (*hidden_states.shape[:-1], -1, self.head_dim), _angles(*position_embeddings)
    query, key, value = self.q_proj(hidden_states), self.k_proj(hidden_states), self.v_proj(hidden_states)
    if norms := head_norms(self):
        query, key = norms[0](query.view(heads)), norms[1](key.view(heads))
    query, key, value = (
        x.view(heads).transpose(1, 2) for x in (rotated(query, cos, sin), rotated(key, cos, sin), value)
    )
    if past_key_values is not None:
        key, value = past_key_values.update(key, value, self.layer_idx)
    out, _ = shared_prefix(self, query, key, value, attention_mask, scaling=self.scaling, dropout=0.0)
    return self.o_proj(out.reshape(*hidden_states.shape[:-1], -1)), None


# A Hugging Face model's own modules with leaner forward passes: same parameters, same values, less time and memory.
#
# What is replaced, on the instances and not on the classes: RMS norms, gated MLPs, whole layers, the tower's first
# layer,
# and attention (`vlrl.policies.fused_modules`). Modules of any other form stay as they are. `plain` gives the model
# back
# as transformers made it.


def use(model: nn.Module) -> None:
    """Makes a vision-language model lean."""
    for module in model.modules():
        forward = _leaner(module)
        if forward:
            module.forward = types.MethodType(forward, module)


@contextmanager
def plain(model: nn.Module) -> Iterator[None]:
    """The model as it was before `use`, while inside."""
    drop(model)
    try:
        yield
    finally:
        use(model)


def drop(model: nn.Module) -> None:
    """Undoes `use`."""
    for module in model.modules():
        if _leaner(module):
            module.__dict__.pop("forward", None)


def known(layer: nn.Module) -> bool:
    """Whether a layer of the language model has been made lean in all its parts."""
    parts = (layer, layer.self_attn, layer.mlp, layer.input_layernorm, layer.post_attention_layernorm)
    return all("forward" in vars(part) for part in parts)


def _leaner(module: nn.Module):
    """The forward pass to use instead of a module's own; None: its own."""
    has = lambda *names: all(hasattr(module, name) for name in names)  # noqa: E731
    if type(module).__name__.endswith("RMSNorm") and has("weight", "variance_epsilon"):
        return _norm
    if has("gate_proj", "up_proj", "down_proj", "act_fn") and "SiLU" in type(module.act_fn).__name__:
        return _gated
    if type(module).__name__.endswith("VLVisionAttention") and has("qkv", "proj", "num_heads", "scaling"):
        return seeing
    projections = ("q_proj", "k_proj", "v_proj", "o_proj", "head_dim", "scaling", "layer_idx")
    if has(*projections) and not getattr(module, "sliding_window", None):
        return reading
    if has("input_layernorm", "post_attention_layernorm", "self_attn", "mlp"):
        return _layer
    if has("norm1", "norm2", "attn", "mlp"):
        return _block
    if has("proj") and isinstance(module.proj, nn.Conv3d) and module.proj.kernel_size == module.proj.stride:
        return _patches
    return None


def _layer(self, hidden_states: Tensor, **options) -> Tensor:
    """A layer of the language model."""
    return _checkpointed(
        self, (self.input_layernorm, self.self_attn, self.post_attention_layernorm), hidden_states, options
    )


def _block(self, hidden_states: Tensor, **options) -> Tensor:
    """A layer of the tower."""
    return _checkpointed(self, (self.norm1, self.attn, self.norm2), hidden_states, options)


def _checkpointed(self, parts: Sequence[nn.Module], hidden: Tensor, options: dict[str, Any]) -> Tensor:
    """A layer's pass, recomputed in the backward pass where the model's checkpointing is on.

    transformers wraps the forward passes of its layers to that end, and replaced ones it cannot.
    """
    first, attend, second = parts
    saving = self.gradient_checkpointing and self.training
    # what is recomputed anyway need not be forgotten as well; what hooks bring, as ZeRO's weights, may be gone by then
    forgets = not saving and not first._forward_pre_hooks
    forward = functools.partial(_pass, first, functools.partial(attend, **options), second, self.mlp, forgets)
    return self._gradient_checkpointing_func(forward, hidden) if saving else forward(hidden)


def _pass(
    first: nn.Module, attend: Callable, second: nn.Module, mlp: nn.Module, forgets: bool, hidden: Tensor
) -> Tensor:
    """A layer: attention and MLP, each behind its norm and beside what it adds to."""
    mlp.forgets = forgets
    hidden = hidden + _behind(first, attend, hidden, forgets)
    return hidden + _behind(second, mlp, hidden, forgets)


def _behind(norm: nn.Module, module: Callable, hidden: Tensor, forgets: bool) -> Tensor:
    """module(norm(hidden)), without keeping what is between.

    That is narrowed once to the type of products, where each of them would make its own copy.
    """
    narrow = product_type(hidden)
    normal = norm(hidden).to(narrow)
    with (
        forgotten(normal, functools.partial(_recompute_norm, norm, hidden.detach(), narrow))
        if forgets
        else nullcontext()
    ):
        result = module(normal)
    return result[0] if isinstance(result, tuple) else result


def product_type(hidden: Tensor) -> torch.dtype:
    """The type in which products of hidden states are made."""
    kind = hidden.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype


def _recompute_norm(norm: nn.Module, hidden: Tensor, kind: torch.dtype) -> Tensor:
    return norm.forward(hidden).to(kind)  # nobody's hooks are to hear of it


def _patches(self, hidden_states: Tensor) -> Tensor:
    """The tower's first layer: a convolution that is one product, as patches [n, values] lie beside each other."""
    weight = self.proj.weight
    if self.proj._forward_pre_hooks:
        return type(self).forward(self, hidden_states)
    return linear(hidden_states.to(weight.dtype).flatten(1), weight.flatten(1), self.proj.bias)


def _norm(self, hidden_states: Tensor) -> Tensor:
    return rms_norm(hidden_states, self.weight, self.variance_epsilon)


def _gated(self, x: Tensor) -> Tensor:
    gate, up = self.gate_proj(x), self.up_proj(x)
    product = silu_product(gate, up)
    if not getattr(self, "forgets", False):
        return self.down_proj(product)
    with forgotten(product, functools.partial(silu_product, gate.detach(), up.detach())):
        return self.down_proj(product)
