"""Advantages from a single rollout a prompt."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from vlrl.config import Rate
from vlrl.methods import Need, PromptTracker, method
from vlrl.types import CORRECT_ABOVE, Decision, Episode, Rollouts, UserError

if TYPE_CHECKING:
    from torch import Tensor


# The state of single-rollout training: what a prompt is worth before it is answered (MSSR, arXiv 2512.18215).

Eta = Literal["paper", "monotone", "fixed"]
Outcome = Literal["binary", "fractional", "unbounded"]
START_LIMIT = 4096  # prompts that are answered before the first step; a task that is drawn has 100,000


def forgetting_rate(kl: float | None, mode: Eta, low: float = 0.875, high: float = 0.96, target: float = 0.01) -> float:
    """Share of the past that a tracker keeps, from the mean KL of the last steps.

    `paper` is the released rule, which is not monotone: it rises from `low` at KL 0 to `high` at the target and drops
    to `low` beyond. `monotone` is what the paper's prose describes. `fixed` is the middle.
    """
    if mode == "fixed" or kl is None:
        return (low + high) / 2
    if mode == "monotone":
        return high - min(kl / target, 1.0) * (high - low)
    return low if kl > target else low + kl / target * (high - low)


def k3(logprobs: Tensor, reference: Tensor, mask: Tensor) -> float:
    """Mean over sequences of the token-mean k3 estimate of KL(policy || reference)."""
    gap = (reference - logprobs) * mask
    per_token = (gap.exp() - gap - 1) * mask
    return float((per_token.sum(1) / mask.sum(1).clamp(min=1)).mean())


@method(
    reads=("reward", "reference"),
    gives=("baseline", "prompt_values"),
    needs=("reference",),
    source="MSSR, arXiv 2512.18215, released code; smoothed start from SPO, 2509.13232",
)
class BetaTracker(PromptTracker):
    """Reward minus the prompt's running success rate `v = a / (a + b)`, read before this step's outcome updates it.

    Each prompt, or bucket of them, has its own Beta(a, b): `a <- eta a + o`, `b <- eta b + 1 - o`, outcome o in [0, 1].

    Args:
        eta: rule for the forgetting rate; all but `fixed` need the reference's log-probabilities.
        outcome: `binary` counts correct episodes (`Score.is_correct`: form is never a success); `fractional` takes how
            correct they are, in [0, 1]; `unbounded` takes the reward, so that v is no success rate but the reward's
            running mean, `v += (r - v) / (eta (a + b) + 1)`.
        scale: the reward that counts as a full success; rewards are divided by it before all else.
        unseen: v of a prompt without history.
        start: prior responses per prompt, sampled before the first step (0: none).
        start_limit: prompts that get them, the first ones that the sampler may draw; others begin at `unseen`.
        start_weight: observations that the start is worth (the paper: 1 / (1 - low) = 8).
        smoothed: start from `(successes + 0.5) / (n + 1)` instead of the raw rate, which with one response is 0 or 1.
        kl_window: steps over which the KL is averaged.
    """

    def __init__(
        self,
        *,
        eta: Eta = "paper",
        low: float = 0.875,
        high: float = 0.96,
        target_kl: float = 0.01,
        kl_window: int = 20,
        outcome: Outcome = "binary",
        scale: float = 1.0,
        unseen: float = 0.5,
        start: int = 1,
        start_limit: int = START_LIMIT,
        start_weight: float = 8.0,
        smoothed: bool = True,
    ):
        self.start_limit = start_limit
        self.eta, self.low, self.high, self.target_kl = eta, low, high, target_kl
        self.outcome, self.scale = outcome, scale
        self.unseen, self.start, self.start_weight, self.smoothed = unseen, start, start_weight, smoothed
        self.counts: dict[str, tuple[float, float]] = {}
        self.kl: deque[float] = deque(maxlen=kl_window)

    @property
    def needs(self) -> tuple[Need, ...]:
        return () if self.eta == "fixed" else ("reference",)

    def value(self, key: str) -> float:
        a, b = self.counts.get(key, (0.0, 0.0))
        return a / (a + b) if a + b > 0 else self.unseen

    def weight(self, key: str) -> float:
        """Observations that a prompt's value rests on; that of its start where it has no history."""
        return sum(self.counts.get(key, (self.start_weight, 0.0)))

    def rate(self) -> float:
        kl = sum(self.kl) / len(self.kl) if self.kl else None
        return forgetting_rate(kl, self.eta, self.low, self.high, self.target_kl)

    def begin(self, key: str, outcomes: list[float]) -> None:
        """A prompt's history from the outcomes of the initial policy's responses."""
        n, good = len(outcomes), sum(outcomes)
        rate = (good + 0.5) / (n + 1) if self.smoothed else good / n
        self.counts[key] = (self.start_weight * rate, self.start_weight * (1 - rate))

    def __call__(self, rollouts: Rollouts, advantage: Tensor) -> Tensor:
        """-> [B], and the trackers updated once per episode, in order."""
        reward = rollouts.reward / self.scale
        values = reward.new_tensor([self.value(i) for i in rollouts.keys])
        if rollouts.reference is not None:
            self.kl.append(k3(rollouts.logprobs, rollouts.reference, rollouts.mask))
        eta = self.rate()
        for sample_id, outcome in zip(rollouts.keys, self.outcomes(rollouts), strict=True):
            self.update(sample_id, outcome, eta)
        return (reward - values)[rollouts.episode]

    def outcomes(self, rollouts: Rollouts) -> list[float]:
        """[N], what each episode counts as."""
        columns = (rollouts.reward.tolist(), rollouts.correctness.tolist())
        return [self.compute_outcome(reward, correct) for reward, correct in zip(*columns, strict=True)]

    def update(self, sample_id: str, outcome: float, eta: float) -> None:
        """One more outcome of a prompt, after the share `eta` of its past is kept."""
        a, b = self.counts.get(sample_id, (0.0, 0.0))
        if a + b == 0.0:
            a, b = self.start_weight * self.unseen, self.start_weight * (1 - self.unseen)
        self.counts[sample_id] = (eta * a + outcome, eta * b + 1 - outcome)

    def compute_outcome(self, reward: float, correct: float) -> float:
        """What an episode counts as, from its reward and from `Score.correct`."""
        if self.outcome == "unbounded":
            return reward / self.scale
        return float(correct > CORRECT_ABOVE) if self.outcome == "binary" else min(max(correct, 0.0), 1.0)

    def state_dict(self) -> dict[str, Any]:
        return {"counts": {i: list(ab) for i, ab in self.counts.items()}, "kl": list(self.kl)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.counts = {i: (a, b) for i, (a, b) in state["counts"].items()}
        self.kl = deque(state["kl"], maxlen=self.kl.maxlen)


beta_tracker = BetaTracker


# SPO (arXiv 2509.13232): a prompt's success rate, forgotten as fast as the policy's answer to that prompt changes.

BATCH = 32  # stored responses that are scored at a time


def retention(distance: float, half: float = 0.06, low: float = 0.875, high: float = 0.96) -> float:
    """Share of the past that a tracker keeps: `clip(2^(-D / half), low, high)`, D the mean change in nats a token."""
    return min(max(2.0 ** (-distance / half), low), high)


@method(
    reads=("reward", "reference", "all_turns"),
    gives=("baseline", "prompt_values"),
    source="SPO, arXiv 2509.13232; github.com/volcengine/verl, recipe/spo",
)
class SpoTracker(BetaTracker):
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
        super().__init__(
            eta="fixed", low=low, high=high, outcome=outcome, scale=scale, unseen=unseen, start=start,
            start_limit=start_limit, start_weight=start_weight, smoothed=smoothed,
        )  # fmt: skip
        self.half = half
        self.kept: dict[str, dict[str, Any]] = {}  # sample id -> its last response: action, ids, logprobs
        self.moved: dict[str, float] = {}  # sample id -> D, of this step's samples

    def revisit(self, policy: Any, episodes: Sequence[Episode]) -> None:
        """Scores the last response to each sample again and keeps the new ones. Before the step's update.

        Raises:
            UserError: the policy cannot score a given action.
        """
        if not policy.can_decide:
            raise UserError("advantages: spo_tracker scores earlier actions again, which this policy cannot")
        newest = {e.sample.id: e for e in episodes}
        again = [(e, self.kept[i]) for i, e in newest.items() if i in self.kept]
        self.moved = {}
        for begin in range(0, len(again), BATCH):
            part = again[begin : begin + BATCH]
            for (episode, _), distance in zip(part, distances(policy, part), strict=True):
                self.moved[episode.sample.id] = distance
        self.kept |= {e.sample.id: stored(policy, e.turns[0].decision) for e in episodes}

    def __call__(self, rollouts: Rollouts, advantage: Tensor) -> Tensor:
        """-> [B], and the trackers updated once per episode, in order."""
        reward = rollouts.reward / self.scale
        values = reward.new_tensor([self.value(key) for key in rollouts.keys])
        rates = []
        columns = (rollouts.sample_ids, rollouts.keys, self.outcomes(rollouts))
        for sample_id, key, outcome in zip(*columns, strict=True):
            rates.append(retention(self.moved.pop(sample_id, 0.0), self.half, self.low, self.high))
            self.update(key, outcome, rates[-1])
        self.metrics = {"spo/value": float(values.mean()), "spo/rho": sum(rates) / len(rates)}
        return (reward - values)[rollouts.episode]

    def state_dict(self) -> dict[str, Any]:
        return {"tracker": super().state_dict(), "kept": self.kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state["tracker"])
        self.kept = state["kept"]


spo_tracker = SpoTracker


def stored(policy: Any, decision: Decision) -> dict[str, Any]:
    """What is needed to score a decision again: its text or numbers, its tokens where the policy has some."""
    action = decision.action if isinstance(decision.action, str) else decision.action.tolist()
    return {"action": action, "ids": policy.ids(decision), "logprobs": decision.logprobs.tolist()}


def distances(policy: Any, pairs: Sequence[tuple[Episode, dict[str, Any]]]) -> list[float]:
    """Mean |log p then - log p now| over the tokens of each stored response to its episode's first observation."""
    import torch

    decisions = []
    for episode, then in pairs:
        observation, action = episode.turns[0].observation, then["action"]
        reference = action if isinstance(action, str) else np.asarray(action, np.float32)
        known = {} if then["ids"] is None else {"ids": then["ids"]}
        decision = policy.decide(observation, reference, key=episode.sample.id, **known)
        decisions.append(replace(decision, logprobs=torch.tensor(then["logprobs"])))
    with torch.no_grad():
        now = policy.evaluate(decisions)
    rows = zip(decisions, now.logprobs.cpu(), now.mask.cpu(), strict=True)
    return [float((decision.logprobs - logprobs[mask]).abs().mean()) for decision, logprobs, mask in rows]
