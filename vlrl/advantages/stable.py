"""StableReinforce (R1-Reward, arXiv 2505.02835): advantages on one scale, outliers left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from vlrl.methods import method
from vlrl.strict import Rate
from vlrl.types import Rollouts

if TYPE_CHECKING:
    from torch import Tensor


@method(source="StableReinforce: R1-Reward, arXiv 2505.02835; github.com/yfzhang114/r1_reward")
def sigma_filter(
    rollouts: Rollouts, advantage: Tensor, *, threshold: Rate = 3.0, bounds: Literal["paper", "released"] = "paper"
) -> Tensor:
    """`z = (A - mean) / std` over the step's decisions (biased), and 0 where |z| > threshold.

    `released` is the published code: it asks whether z lies within the *raw* mean +- threshold, and drops |z| > 10.
    Equal advantages give 0. Trap: |z| is at most sqrt(B - 1), so below 11 decisions nothing exceeds 3.

    Returns:
        [B]
    """
    if advantage.ndim != 1:
        raise ValueError("sigma_filter works on one value per decision: place it before token-level shaping")
    mean = advantage.mean()
    centred = (advantage - mean) * (advantage.max() > advantage.min())  # rounding of the mean is no advantage
    z = centred / (centred**2).mean().sqrt().clamp(min=1e-12)
    centre = mean if bounds == "released" else 0 * mean
    kept = (z - centre).abs() <= threshold
    return z * (kept if bounds == "paper" else kept & (z.abs() <= 10))
