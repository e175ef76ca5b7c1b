"""Rewards of a verifier that errs on purpose: what noise does to a run, and what a correction is worth."""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b
from typing import TYPE_CHECKING, Literal

from vlrl.methods import method
from vlrl.shaping.noise import ErrorRate
from vlrl.strict import Rate
from vlrl.types import Rollouts

if TYPE_CHECKING:
    from torch import Tensor


@method(source="verifiers that err: arXiv 2505.22203 (pitfalls of verifiers), 2510.00915 (noisy rewards); for studies")
class Flipped:
    """Wrong completions gain `worth` with the chance `false_positive`, right ones lose it with `false_negative`.

    Right is what the task's accuracy counts; it is not changed, so that the log and held-out accuracy tell the truth
    while the policy learns from the noise, and `noise_backward` behind this one can be tried. List it first: shapings
    that ask what is right (`kimi_length`, `shortest_bonus`) see the truth.

    The errors of a real verifier are its own: with `errs: answer` the same answer to the same prompt is misjudged
    always or never, which a policy can learn. With `completion` every completion is judged anew, and groups average it
    out. Nothing is remembered: errors follow from seed, prompt and answer, or also step and place among equal ones.

    Args:
        worth: what being right earns: the weight of the reward's accuracy.
        seed: of the errors.
    """

    def __init__(
        self, *, false_positive: ErrorRate = 0.0, false_negative: ErrorRate = 0.0,
        errs: Literal["answer", "completion"] = "answer", worth: Rate = 1.0, seed: int = 0,
    ):  # fmt: skip
        self.false_positive, self.false_negative = false_positive, false_negative
        self.errs, self.worth, self.seed = errs, worth, seed
        self.metrics: dict[str, float] = {}

    def __call__(self, rollouts: Rollouts) -> Tensor:
        """-> [N]"""
        solved = rollouts.is_correct
        chance = rollouts.reward.new_tensor(self._chances(rollouts))
        up, down = ~solved & (chance < self.false_positive), solved & (chance < self.false_negative)
        self.metrics = {
            "flipped/false_positive": float(up.sum() / (~solved).sum().clamp(min=1)),
            "flipped/false_negative": float(down.sum() / solved.sum().clamp(min=1)),
        }
        return rollouts.reward + self.worth * (up.to(rollouts.reward.dtype) - down.to(rollouts.reward.dtype))

    def _chances(self, rollouts: Rollouts) -> list[float]:
        """A number in [0, 1) for each episode."""
        n = len(rollouts.reward)
        said = rollouts.answers or rollouts.texts or ("",) * n
        written = [a or t for a, t in zip(said, rollouts.texts or said, strict=True)]
        seen: Counter[tuple[str, str]] = Counter()
        found = []
        for key in zip(rollouts.sample_ids, written, strict=True):
            again = (rollouts.step, seen[key]) if self.errs == "completion" else ()
            seen[key] += 1
            digest = blake2b(repr((self.seed, key, again)).encode(), digest_size=8).digest()
            found.append(int.from_bytes(digest) / 2**64)
        return found


flipped = Flipped
