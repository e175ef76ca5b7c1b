"""Rollouts beside others of shuffled frames, to pay for using their order: rollout strategy `temporal_contrast`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from vlrl import perturb, registry
from vlrl.methods import method
from vlrl.rollout import collect
from vlrl.types import Episode, Policy, Sample, UserError

PART = "temporal"  # of the reward, in scores and logs
Positive = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@method(source="T-GRPO: Video-R1, arXiv 2503.21776; github.com/tulerfeng/Video-R1, trainer/grpo_trainer.py")
class TemporalContrast:
    """Plain rollouts that earn a bonus where half as many of the same question with shuffled frames do no better.

    The shuffled ones are not trained on. Each group is compared with its own; samples without a video of two frames or
    more earn 0. The bonus is added to the reward, as its part `temporal`. For a group whose accuracies are 0 or 1 and
    whose other rewards are equal, `group` with std: group takes the bonus back (rewards.video_r1.temporal_bonus): it
    acts beside graded accuracies, beside other rewards, or with std: none.

    Args:
        accuracy: the part of the reward that counts as accuracy, in [0, 1]; default: what the task counts as correct.
        amount: of the bonus.
        ratio: the least mean accuracy in order, relative to that of the shuffled; 0.8 in the published code, which
            so also pays where order did harm.
        bonus: `module:function` that takes the accuracies of a group and of its shuffled rollouts, and as keywords
            `bonus` (the amount) and `ratio`, and returns what each rollout of the group earns.

    Raises:
        UserError: no such part or function; the task has a part `temporal`; it shows other prompts than its samples'.
    """

    def __init__(
        self, policy: Policy, task: Any, seed: int, *, accuracy: str | None = None, amount: Positive = 0.3,
        ratio: Positive = 1.0, bonus: str = "rewards.video_r1:temporal_bonus",
    ):  # fmt: skip
        if accuracy is not None and accuracy not in task.weights:
            raise UserError(f"rollouts.accuracy: {accuracy!r} is no part of the reward: {', '.join(task.weights)}")
        if PART in task.weights:
            raise UserError(f"rollouts: the task has a part of the reward called {PART!r} itself")
        if ":" not in bonus:
            raise UserError(f"rollouts.bonus: {bonus!r}: write module:function")
        self.seed, self.accuracy, self.options = seed, accuracy, {"bonus": amount, "ratio": ratio}
        self.bonus: Callable[..., list[float]] = registry.find("bonus", bonus, "rollouts.bonus")
        self.metrics: dict[str, float] = {}

    def __call__(
        self, policy: Policy, task: Any, samples: Sequence[Sample], group_size: int, step: int, **act: Any
    ) -> list[Episode]:
        asked = [i for i, sample in enumerate(samples) if perturb.moves(sample.prompt)]
        against = self._shuffled(policy, task, [samples[i] for i in asked], group_size, step, act)
        of = dict(zip(asked, against, strict=True))
        episodes = collect(policy, task, samples, group_size, **act)  # last, so that a prefill it keeps stays
        perturb.check_shown(episodes, "temporal_contrast")
        for i in range(len(samples)):
            self._pay(episodes[i * group_size : (i + 1) * group_size], of.get(i, []))
        ordered = [self._accuracy(e) for e in episodes if e.group in of]
        mixed = [value for values in against for value in values]
        self.metrics = {f"{PART}/ordered": _mean(ordered), f"{PART}/shuffled": _mean(mixed)} if asked else {}
        return episodes

    def _shuffled(
        self, policy: Policy, task: Any, samples: Sequence[Sample], group_size: int, step: int, act: dict[str, Any]
    ) -> list[list[float]]:
        """Per sample, the accuracies of its rollouts on shuffled frames: one order for all of them."""
        if not samples:
            return []
        size = max(1, group_size // 2)
        asked = [
            replace(sample, prompt=perturb.shuffled(sample.prompt, perturb.generator(self.seed, step, sample.id)))
            for sample in samples
        ]
        episodes = collect(policy, task, asked, size, **(act | {"keep": False}))
        values = [self._accuracy(episode) for episode in episodes]
        return [values[start : start + size] for start in range(0, len(values), size)]

    def _pay(self, group: Sequence[Episode], shuffled: Sequence[float]) -> None:
        """Adds the bonus to rewards and scores."""
        earned = self.bonus([self._accuracy(episode) for episode in group], shuffled, **self.options)
        for episode, value in zip(group, earned, strict=True):
            episode.score = replace(episode.score, parts={**episode.score.parts, PART: value})
            episode.reward += value

    def _accuracy(self, episode: Episode) -> float:
        return episode.score.correct if self.accuracy is None else episode.score.parts[self.accuracy]


temporal_contrast = TemporalContrast


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
