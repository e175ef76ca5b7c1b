"""Loss terms: pure functions `(now, batch, *, options) -> [b, T]`, to be minimised.

The trainer weighs every unit with one weight that sums to 1 over the optimizer step (vlrl/weighing.py) and adds the
terms, each times its `coef`. Written with tensor methods only, so that reading a configuration needs no torch.
"""

from vlrl.losses.ratios import clip_fraction, log_ratio

__all__ = ["clip_fraction", "log_ratio"]
