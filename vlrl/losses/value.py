"""What a critic minimises. Functions of values [B] and targets [B], no terms of the policy's loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def clipped_squares(value: Tensor, target: Tensor, old: Tensor, clip: float | None) -> Tensor:
    """`max((V - R)^2, (V_clip - R)^2) / 2` [B], `V_clip = old + clip(V - old, -clip, clip)`; None: no clipping.

    As in the reference implementation of PPO (github.com/openai/baselines, ppo2): the larger of the two, so that a
    step that ran past the clip towards the target has no gradient left.
    """
    plain = (value - target) ** 2
    if clip is None:
        return plain / 2
    near = old + (value - old).clamp(-clip, clip)
    return plain.maximum((near - target) ** 2) / 2


def edges(like: Tensor, low: float, high: float, bins: int) -> Tensor:
    """The bins' bounds [bins + 1], evenly from low to high, in the type and place of a tensor."""
    return like.new_ones(bins + 1).cumsum(0).sub(1).mul((high - low) / bins).add(low)


def hl_gauss(target: Tensor, low: float, high: float, bins: int, sigma: float = 0.75) -> Tensor:
    """Targets [B] as distributions [B, bins]: a normal density around each, integrated over the bins.

    HL-Gauss, "Stop Regressing", arXiv 2403.03950, section 3.1 and appendix A: the share of a bin is a difference of the
    normal distribution function, over its whole in [low, high]. Trap: what the bounds cut off shifts the mean inwards,
    so they should lie several standard deviations beyond the targets. Targets outside are taken to the nearest bound.

    Args:
        sigma: standard deviation in widths of a bin; the paper's 0.75 spreads a target over about six of them.
    """
    deviation = sigma * (high - low) / bins
    centred = edges(target, low, high, bins) - target.clamp(low, high)[:, None]
    below = (centred / (2**0.5 * deviation)).erf()
    return below.diff(dim=1) / (below[:, -1:] - below[:, :1])


def expected(probability: Tensor, low: float, high: float) -> Tensor:
    """The mean [B] of distributions [B, bins], each bin by its centre."""
    bounds = edges(probability, low, high, probability.shape[1])
    return probability @ ((bounds[1:] + bounds[:-1]) / 2)
