"""Attention over rows that share a prompt: causal over the prompt, masked or apart over what follows it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "shared_prefix"
BLOCK = 256  # masked queries that are looked up at once where there are many: later keys are hidden from all of them


@dataclass(frozen=True, eq=False)
class Apart:
    """Keys, or values, of R prompts and of what each of their w completions has written so far.

    prompt: [R, key heads, P, D]; own: [R, key heads, w, T, D]; hidden: bool [R, 1, 1, 1, P + T], True where a row holds
    nothing, or None.
    """

    prompt: Tensor
    own: Tensor
    hidden: Tensor | None = None


def shared_prefix(
    module: nn.Module, query: Tensor, key: Tensor | Apart, value: Tensor | Apart, attention_mask: Tensor | None,
    scaling: float | None = None, **options,
) -> tuple[Tensor, None]:  # fmt: skip
    """`sdpa`, except that a mask may cover the last S of L queries alone, and that keys may lie apart (`one_token`).

    The queries before the mask are plainly causal: that kernel skips half of the work, and no L x L mask of a long
    prompt is held.

    Args:
        query: [R, heads, L, D]; key, value: [R, key heads, L or more, D]
        attention_mask: bool [R, 1, S, keys], True where a query may look, never behind its own key; None: all queries
            are causal.

    Returns:
        ([R, L, heads, D], None)
    """
    if isinstance(key, Apart):
        return one_token(query, key, value, scaling), None
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
        seen = keys - masked + end  # the queries are those of the last keys
        parts.append(sdpa_attention_forward(
            module, query[:, :, causal + start : causal + end], key[:, :, :seen], value[:, :, :seen],
            attention_mask[:, :, start:end, :seen], **options,
        )[0])  # fmt: skip
    return torch.cat(parts, 1), None


def one_token(query: Tensor, key: Apart, value: Apart, scaling: float | None) -> Tensor:
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


def use(model: nn.Module) -> None:
    """Makes the language model of a vision-language model attend this way."""
    AttentionInterface.register(NAME, shared_prefix)
    AttentionMaskInterface.register(NAME, sdpa_mask)  # for masks that transformers makes itself
    language = model.model.language_model
    language.set_attn_implementation(NAME)
    for layer in language.layers:
        layer._can_checkpoint_with_cache = True  # our caches give a layer's second pass the same keys and values
