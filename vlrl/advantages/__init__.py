"""Advantage estimators: pure functions `(rollouts, advantage, *, options) -> advantage`, applied in the YAML's order.

The list starts from the reward of each decision, [B]. Estimators keep [B] until one works token by token, [B, T]. Those
with a state are classes. Written with tensor methods only, so that reading a configuration needs no torch.

One with `start` responses per prompt is given their rewards before the first step, by `begin(key, rewards)`; one with
`revisit(policy, episodes)` is called in each step before it estimates, under the weights that are about to learn: those
that played the episodes, where `train.staleness` is 0. It may put log-probabilities of theirs in the decisions' place.
"""

from vlrl.advantages.statistics import group_deviations, group_means

__all__ = ["group_deviations", "group_means"]
