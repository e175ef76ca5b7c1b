"""Advantage estimators: pure functions `(rollouts, advantage, *, options) -> advantage`, applied in the YAML's order.

The list starts from the reward of each decision, [B]. Estimators keep [B] until one works token by token, [B, T]. Those
with a state are classes. Written with tensor methods only, so that reading a configuration needs no torch.
"""

from vlrl.advantages.statistics import group_deviations, group_means

__all__ = ["group_deviations", "group_means"]
