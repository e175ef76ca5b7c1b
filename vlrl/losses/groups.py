"""What losses of whole completions and of groups share: statistics over rows [b] that stand for all their tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlrl.types import Batch, UserError

if TYPE_CHECKING:
    from torch import Tensor


def token_means(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over each row's tokens [b], for values [b, T]; 0 for a row without tokens."""
    return values.masked_fill(~mask, 0.0).sum(1) / mask.sum(1).clamp(min=1)


def same_group(batch: Batch, like: Tensor) -> Tensor:
    """1 where two rows are of one group, else 0: [b, b], in the type of `like`."""
    return (batch.group[:, None] == batch.group).to(like.dtype)


def check_one_turn(batch: Batch, name: str, instead: str = "ppo_clip") -> None:
    """UserError where an episode took several turns, each of which would be compared as a completion of its own."""
    if len(batch.episode.unique()) < len(batch.episode):
        raise UserError(f"losses: {name} compares whole completions, but an episode took several turns: use {instead}")
