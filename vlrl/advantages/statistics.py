"""Statistics over groups: of each member's own group, for every member."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def group_means(values: Tensor, group: Tensor) -> Tensor:
    """Mean of each member's group [N], for values [N] and group numbers [N]."""
    _, index, sizes = group.unique(return_inverse=True, return_counts=True)
    sums = values.new_zeros(len(sizes)).index_add(0, index, values)
    return (sums / sizes)[index]


def group_deviations(values: Tensor, group: Tensor) -> Tensor:
    """Bessel-corrected standard deviation of each member's group [N]; exactly 0 where all members are equal."""
    _, index, sizes = group.unique(return_inverse=True, return_counts=True)
    squares = (values - group_means(values, group)) ** 2
    low = values.new_full((len(sizes),), float("inf")).scatter_reduce(0, index, values, "amin")
    high = values.new_full((len(sizes),), float("-inf")).scatter_reduce(0, index, values, "amax")
    variance = values.new_zeros(len(sizes)).index_add(0, index, squares) / (sizes - 1).clamp(min=1)
    return variance.sqrt().masked_fill(low == high, 0.0)[index]


def group_sizes(group: Tensor) -> Tensor:
    """How many members each member's group has, int64 [N]."""
    _, index, sizes = group.unique(return_inverse=True, return_counts=True)
    return sizes[index]


def group_centred(values: Tensor, group: Tensor) -> Tensor:
    """Each member [N] minus its group's mean; exactly 0 where all members are equal, whatever the mean's rounding."""
    return (values - group_means(values, group)).masked_fill(group_deviations(values, group) == 0, 0.0)
