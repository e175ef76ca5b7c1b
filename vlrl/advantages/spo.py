"""SPO (arXiv 2509.13232): a prompt's success rate, forgotten as fast as the policy's answer to that prompt changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vlrl.advantages.mssr import START_LIMIT, BetaTracker, Outcome
from vlrl.methods import method
from vlrl.strict import Rate
from vlrl.types import Decision, Episode, Rollouts, UserError

if TYPE_CHECKING:
    from torch import Tensor

BATCH = 32  # stored responses that are scored at a time


def retention(distance: float, half: float = 0.06, low: float = 0.875, high: float = 0.96) -> float:
    """Share of the past that a tracker keeps: `clip(2^(-D / half), low, high)`, D the mean change in nats a token."""
    return min(max(2.0 ** (-distance / half), low), high)


@method(source="SPO, arXiv 2509.13232; github.com/volcengine/verl, recipe/spo")
class SpoTracker:
    """Reward minus the prompt's running success rate `v = a / (a + b)`, with a forgetting rate of each prompt's own.

    `a <- rho a + o`, `b <- rho b + 1 - o`, outcome o, which is `v <- v + (o - v) / (rho (a + b) + 1)`; read before the
    update. rho = clip(2^(-D / half), low, high) with D the mean over tokens of |log p then - log p now| of the *same*
    response: the last one to this sample, scored again by the present policy. First visit: D = 0.

    As published: the rule, `half`, the range of rho, the smoothed start `8 (s + 0.5) / (n + 1)`. Ours: of an episode of
    several turns only the first is scored again, since what later ones were shown is not kept; of several episodes of a
    sample in one step the last is kept, and all but the first find D = 0. Costs one forward pass more a step. Trap: D
    contains how far sampling and scoring differ (`logprob_gap` in the log); 0.0035 of it leave the upper end.

    Args:
        half: change in nats a token that halves the past.
        outcome, scale, unseen, start, start_limit, smoothed: see `beta_tracker`.
        start_weight: observations that the start is worth (the paper: 1 / (1 - low) = 8; 1 with `start: 0`).
    """

    def __init__(
        self,
        *,
        half: Rate = 0.06,
        low: float = 0.875,
        high: float = 0.96,
        outcome: Outcome = "binary",
        scale: float = 1.0,
        unseen: float = 0.5,
        start: int = 8,
        start_limit: int = START_LIMIT,
        start_weight: float = 8.0,
        smoothed: bool = True,
    ):
        self.half, self.low, self.high, self.start, self.start_limit = half, low, high, start, start_limit
        self.tracker = BetaTracker(
            eta="fixed", outcome=outcome, scale=scale, unseen=unseen, start=start, start_weight=start_weight,
            smoothed=smoothed,
        )  # fmt: skip
        self.value, self.weight, self.begin = self.tracker.value, self.tracker.weight, self.tracker.begin
        self.compute_outcome = self.tracker.compute_outcome
        self.kept: dict[str, dict[str, Any]] = {}  # sample id -> its last response: action, ids, logprobs
        self.moved: dict[str, float] = {}  # sample id -> D, of this step's samples
        self.metrics: dict[str, float] = {}  # of the latest step, for the log

    def revisit(self, policy: Any, episodes: Sequence[Episode]) -> None:
        """Scores the last response to each sample again and keeps the new ones. Before the step's update.

        Raises:
            UserError: the policy cannot score a given action.
        """
        if not hasattr(policy, "decide"):
            raise UserError("advantages: spo_tracker scores earlier actions again, which this policy cannot")
        shown = {e.sample.id: e for e in episodes}
        again = [(e, self.kept[i]) for i, e in shown.items() if i in self.kept]
        self.moved = {}
        for begin in range(0, len(again), BATCH):
            part = again[begin : begin + BATCH]
            for (episode, _), distance in zip(part, distances(policy, part), strict=True):
                self.moved[episode.sample.id] = distance
        self.kept |= {e.sample.id: stored(policy, e.turns[0].decision) for e in episodes}

    def __call__(self, rollouts: Rollouts, advantage: Tensor) -> Tensor:
        """-> [B], and the trackers updated once per episode, in order."""
        reward = rollouts.reward / self.tracker.scale
        values = reward.new_tensor([self.value(key) for key in rollouts.keys])
        rates = []
        columns = (rollouts.sample_ids, rollouts.keys, self.tracker.outcomes(rollouts))
        for sample_id, key, outcome in zip(*columns, strict=True):
            rates.append(retention(self.moved.pop(sample_id, 0.0), self.half, self.low, self.high))
            self.tracker.update(key, outcome, rates[-1])
        self.metrics = {"spo/value": float(values.mean()), "spo/rho": sum(rates) / len(rates)}
        return (reward - values)[rollouts.episode]

    def state_dict(self) -> dict[str, Any]:
        return {"tracker": self.tracker.state_dict(), "kept": self.kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tracker.load_state_dict(state["tracker"])
        self.kept = state["kept"]


spo_tracker = SpoTracker


def stored(policy: Any, decision: Decision) -> dict[str, Any]:
    """What is needed to score a decision again: its text or numbers, its tokens where the policy has some, its law."""
    action = decision.action if isinstance(decision.action, str) else decision.action.tolist()
    ids = policy.ids(decision) if hasattr(policy, "ids") else None
    return {"action": action, "ids": ids, "logprobs": decision.logprobs.tolist()}


def distances(policy: Any, pairs: Sequence[tuple[Episode, dict[str, Any]]]) -> list[float]:
    """Mean |log p then - log p now| over the tokens of each stored response to its episode's first observation."""
    import torch

    decisions = []
    for episode, then in pairs:
        shown, action = episode.turns[0].observation, then["action"]
        given = action if isinstance(action, str) else np.asarray(action, np.float32)
        known = {} if then["ids"] is None else {"ids": then["ids"]}
        decision = policy.decide(shown, given, key=episode.sample.id, **known)
        decisions.append(replace(decision, logprobs=torch.tensor(then["logprobs"])))
    with torch.no_grad():
        now = policy.evaluate(decisions)
    rows = zip(decisions, now.logprobs.cpu(), now.mask.cpu(), strict=True)
    return [float((decision.logprobs - logprobs[mask]).abs().mean()) for decision, logprobs, mask in rows]
