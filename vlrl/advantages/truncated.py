"""Truncated importance weights between the engine that samples and the policy that trains: `truncated_weights`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vlrl.methods import method
from vlrl.strict import Rate
from vlrl.types import Episode, Rollouts, UserError

if TYPE_CHECKING:
    from torch import Tensor


@method(
    level="token", source="TIS: Yao et al. 2025, Your Efficient RL Framework Secretly Brings You Off-Policy RL Training"
)
class TruncatedWeights:
    """Each token's advantage times `min(p / q, most)`, p its probability by the trainer's weights, q by the engine's.

    Both are of the same weights, so that without rounding all weights are 1; where kernels, types or batches differ,
    the gradient is again the policy's own, up to the tokens that are cut off. As the weight is a constant and not
    negative, a surrogate such as `ppo_clip` is weighed as a whole by it. Terms that do not read advantages are not
    weighed. With `policy.engine: local` nothing changes, but a kept prefill is given up: leave it out there.

    Published: the weight per token. most: 2 is ms-swift's and verl's threshold; 1 lets no token count more than once.

    Raises:
        UserError: the engine's log-probabilities are not compared with the trainer's (`rescore: false`): the
            surrogate's own ratio is then p / q already.
    """

    def __init__(self, *, most: Rate = 2.0):
        self.most = most
        self.metrics: dict[str, float] = {}
        self._ratios: list[Tensor | None] = []

    def revisit(self, policy: Any, episodes: Sequence[Episode]) -> None:
        """Reads both log-probabilities of what was played."""
        engine = getattr(policy, "engine", None)
        if engine is not None and not engine.rescore:
            raise UserError("advantages: truncated_weights: the ratio of the loss is p / q already: leave it out, or "
                            "set policy.engine.rescore: true")  # fmt: skip
        self._ratios = [_ratio(turn.decision) for episode in episodes for turn in episode.turns]

    def __call__(self, rollouts: Rollouts, advantage: Tensor) -> Tensor:
        if len(self._ratios) != len(rollouts.mask) or all(ratio is None for ratio in self._ratios):
            self.metrics = {}
            return advantage
        weight = ratios_of(self._ratios, rollouts)
        counted = weight[rollouts.mask]
        self.metrics = {
            "engine/weight": float(counted.clamp(max=self.most).mean()),
            "engine/truncated": float((counted > self.most).to(counted.dtype).mean()),
        }
        return by_token(advantage, rollouts) * weight.clamp(max=self.most)


truncated_weights = TruncatedWeights


def by_token(advantage: Tensor, rollouts: Rollouts) -> Tensor:
    """An advantage [B] or [B, T] as [B, T]."""
    return advantage[:, None] * rollouts.mask if advantage.ndim == 1 else advantage


def ratios_of(rows: Sequence[Tensor | None], rollouts: Rollouts) -> Tensor:
    """Each decision's ratios [T] as rows of [B, T], 1 behind them and where there are none."""
    made = rollouts.logprobs.new_ones(rollouts.mask.shape)
    for row, ratio in zip(made, rows, strict=True):
        if ratio is not None:
            row[: len(ratio)] = ratio.to(row)
    return made


def _ratio(decision: Any) -> Tensor | None:
    """p / q [T] of a decision's tokens; None where the policy itself sampled them."""
    sampled = getattr(decision.inputs, "sampled", None)
    return None if sampled is None else ratio(decision.logprobs, sampled)


def ratio(logprobs: Tensor, sampled: Tensor) -> Tensor:
    """p / q [T] of log-probabilities, between exp(-20) and exp(20)."""
    return (logprobs - sampled).clamp(-20.0, 20.0).exp()
