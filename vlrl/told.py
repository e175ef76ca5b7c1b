"""What a training step reports of its episodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from vlrl.advantages.mssr import k3
from vlrl.parts import part_of
from vlrl.types import Episode, Rollouts
from vlrl.update import Totals


def spread(n: int, count: int) -> list[int]:
    """`count` positions evenly over n, so that a look at a few rollouts shows many prompts."""
    return [i * n // min(n, count) for i in range(min(n, count))]


def mean_advantage(rollouts: Rollouts, advantage: torch.Tensor) -> torch.Tensor:
    """Each episode's mean advantage over its units [N]."""
    share = advantage.sum(1) / rollouts.mask.sum(1).clamp(min=1)
    totals = share.new_zeros(len(rollouts.sample_ids)).index_add(0, rollouts.episode, share)
    return totals / torch.bincount(rollouts.episode, minlength=len(totals))


def part_means(episodes: Sequence[Episode]) -> dict[str, float]:
    """Each part of the reward, unweighted: its mean over the episodes that have it (tasks differ in theirs)."""
    found: dict[str, list[float]] = {}
    for episode in episodes:
        for name, value in episode.score.parts.items():
            found.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in found.items()}


def by_task(episodes: Sequence[Episode]) -> dict[str, float]:
    """Of a mixture of tasks: accuracy and reward of each that was met, and its share of the episodes."""
    own: dict[str, list[Episode]] = {}
    for episode in episodes:
        if name := part_of(episode.score):
            own.setdefault(name, []).append(episode)
    row = {}
    for name, each in sorted(own.items()):
        row[f"task/{name}/accuracy"] = sum(e.score.correct for e in each) / len(each)
        row[f"task/{name}/reward"] = sum(e.reward for e in each) / len(each)
        row[f"task/{name}/share"] = len(each) / len(episodes)
    return row


def describe(episodes: list[Episode], rollouts: Rollouts, advantage: torch.Tensor, totals: Totals) -> dict[str, float]:
    """A step's row of metrics."""
    n, mask = len(episodes), rollouts.mask
    silent = advantage.abs().amax(1) < 1e-8
    reasons = Counter(e.score.reason for e in episodes if e.score.reason)
    row = {
        "reward": float(rollouts.reward.mean()),
        **{f"reward/{name}": value for name, value in part_means(episodes).items()},
        "accuracy": sum(e.score.correct for e in episodes) / n,
        "entropy": float(rollouts.entropy[mask].mean()),
        "length": float(mask.sum(1).float().mean()),
        "actions": sum(turn.step.used for e in episodes for turn in e.turns),
        "cut": sum(turn.decision.cut for e in episodes for turn in e.turns) / len(mask),
        "zero_advantage": float(silent.float().mean()),
        "loss": totals.loss, "grad_norm": totals.grad_norm, "clip_fraction": totals.clip_fraction,
        "logprob_gap": totals.gap, "update_kl": totals.kl, "epochs": totals.epochs,
        "skipped": totals.skipped, "left_out": totals.left_out,
        "repeated": sum(len(e.faults) for e in episodes),
        **by_task(episodes),
        **{f"parse_fail/{reason}": count / n for reason, count in sorted(reasons.items())},
        **{f"fault/{why}": count for why, count in sorted(Counter(w for e in episodes for w in e.faults).items())},
    }  # fmt: skip
    for name, other in (("kl", rollouts.reference), ("kl_teacher", rollouts.teacher)):
        if other is not None:
            row[name] = k3(rollouts.logprobs, other, mask)
    return row
