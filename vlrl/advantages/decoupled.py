"""Decoupled PPO, for episodes that older weights played: `decoupled`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vlrl.advantages.truncated import by_token, ratio, ratios_of
from vlrl.methods import method
from vlrl.strict import Rate
from vlrl.types import Decision, Episode, Rollouts

if TYPE_CHECKING:
    from torch import Tensor


@method(
    level="token",
    source="AReaL, arXiv 2505.24298; decoupled: Hilton et al., arXiv 2110.00641; what is left out: "
    "github.com/inclusionAI/AReaL, behav_imp_weight_cap",
)
class Decoupled:
    """Three laws instead of two: q played the episodes, p is the policy as the update begins, p_now as it goes on.

    Each token's advantage is multiplied by w = p / q, and 0 where w > most; the losses' ratio becomes p_now / p. With
    `ppo_clip` that is `w min(u A, clip(u) A)`, u = p_now / p: clipping keeps the policy near what it is now, and not
    near an older one that it has left on purpose. One forward pass a step more. Where the engine's log-probabilities
    are known (docs/engines.md), q is the engine's.

    Published: the code's configurations leave out what is above 5. By weights that are not older all weights are 1, up
    to rounding.

    Args:
        most: null leaves nothing out.
    """

    def __init__(self, *, most: Rate | None = 5.0):
        self.most = most
        self.metrics: dict[str, float] = {}
        self._ratios: list[Tensor] = []

    def revisit(self, policy: Any, episodes: Sequence[Episode]) -> None:
        """Scores what was played by the present policy, whose log-probabilities become the decisions' own."""
        decisions = [turn.decision for episode in episodes for turn in episode.turns]
        present = iter(scored(policy, decisions))
        self._ratios = []
        for episode in episodes:
            for i, turn in enumerate(episode.turns):
                logprobs = next(present)
                sampled = getattr(turn.decision.inputs, "sampled", None)
                self._ratios.append(ratio(logprobs, turn.decision.logprobs if sampled is None else sampled))
                episode.turns[i] = replace(turn, decision=replace(turn.decision, logprobs=logprobs))

    def __call__(self, rollouts: Rollouts, advantage: Tensor) -> Tensor:
        """-> [B, T]; unchanged where nothing was revisited: no older weights played."""
        if len(self._ratios) != len(rollouts.mask):
            self.metrics = {}
            return advantage
        weight = ratios_of(self._ratios, rollouts)
        kept = weight <= (self.most or float("inf"))
        counted = weight[rollouts.mask]
        self.metrics = {
            "decoupled/weight": float(weight.where(kept, 0.0)[rollouts.mask].mean()),
            "decoupled/left_out": float((~kept)[rollouts.mask].to(counted.dtype).mean()),
            "decoupled/kl": float(-counted.log().mean()),  # of q from p, estimated from what q sampled
        }
        return by_token(advantage, rollouts) * weight.where(kept, 0.0)


decoupled = Decoupled


def scored(policy: Any, decisions: Sequence[Decision]) -> list[Tensor]:
    """Log-probabilities [T] of each decision under the present weights, on the CPU; 0 where forced."""
    import torch

    if hasattr(policy, "score"):
        rows = [logprobs for logprobs, _ in policy.score(decisions)]
    else:
        with torch.no_grad():
            now = policy.evaluate(decisions)
        rows = [row[mask].cpu() for row, mask in zip(now.logprobs, now.mask, strict=True)]
    forced = [decision.forced for decision in decisions]
    return [row if gone is None else row.where(~gone, 0.0) for row, gone in zip(rows, forced, strict=True)]
