"""Attention over rows that share a prompt: causal over the prompt, masked over what follows it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "shared_prefix"


def shared_prefix(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options
) -> tuple[Tensor, None]:
    """`sdpa`, except that a mask may cover the last S of L queries alone; those before it are plainly causal.

    The causal kernel skips half of the work and stays the fast one, and no L x L mask of a long prompt is held.

    Args:
        query: [R, heads, L, D]; key, value: [R, key heads, L or more, D]
        attention_mask: bool [R, 1, S, keys], True where a query may look; None: all queries are causal.

    Returns:
        ([R, L, heads, D], None)
    """
    causal = 0 if attention_mask is None else query.shape[2] - attention_mask.shape[2]
    if causal == 0:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    first, _ = sdpa_attention_forward(
        module, query[:, :, :causal], key[:, :, :causal], value[:, :, :causal], None, **options
    )
    rest, _ = sdpa_attention_forward(module, query[:, :, causal:], key, value, attention_mask, **options)
    return torch.cat([first, rest], 1), None


def use(model: nn.Module) -> None:
    """Makes the language model of a vision-language model attend this way."""
    AttentionInterface.register(NAME, shared_prefix)
    AttentionMaskInterface.register(NAME, sdpa_mask)  # for masks that transformers makes itself
    model.model.language_model.set_attn_implementation(NAME)
