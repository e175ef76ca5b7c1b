"""Prompts made easier or harder by how well the policy does on them: rollout strategy `augment`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from vlrl.algorithms import rollout_common
from vlrl.algorithms.rollout_common import Share, append_text, golds, groups_accuracy, groups_of, hints_hinted, redone
from vlrl.config import Count
from vlrl.methods import RolloutStrategy, method
from vlrl.rollout import collect
from vlrl.types import Episode, Policy, Sample

TOLD = "A right answer is: {}"
VISIBLE = 0.5 / 255  # noise below half a level of brightness is rounded away
LEAST = 0.02  # share of an answer below which there is nothing to tell

Scale = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@method(
    reads=("truth",),
    source="difficulty-aware augmentation: DeepVideo-R1, arXiv 2506.07464; the scales are a reconstruction",
)
class Augment(RolloutStrategy):
    """Groups that went worse than the last samples get a hint, better ones noise on what they see, and are redone.

    With the difference d = reference - the group's mean reward, where the reference is the mean of the last `window`
    samples' group means before this step (none in the first step):

    * d > 0: the prompt ends with the first min(hint d, most) of a successful answer. The policy writes that answer
      itself while the task's gold answer is shown to it; where it is not right even then, the gold answer is taken.
    * d < 0: Gaussian noise on all images and frames, with a standard deviation of noise |d| of full brightness.

    A redone group takes the first one's place; the reference knows first ones alone. The paper gives neither scale.

    Args:
        hint: share of the answer per unit of reward.
        most: the largest share, so that the end of the answer is never given away.
        noise: share of full brightness per unit of reward.

    Raises:
        UserError: no gold answer to a sample is known; the task shows other prompts than its samples'.
    """

    def __init__(
        self, policy: Policy, task: Any, seed: int, *,
        window: Count = 100, hint: Scale = 0.5, most: Share = 0.5, noise: Scale = 0.2,
    ):  # fmt: skip
        self.seed, self.window, self.hint, self.most, self.noise = seed, window, hint, most, noise
        self.recent: list[float] = []  # the last samples' mean rewards

    def __call__(
        self, policy: Policy, task: Any, samples: Sequence[Sample], group_size: int, step: int, **act: Any
    ) -> list[Episode]:
        act["keep"] = False  # a prefill that is kept serves prompts of one forward pass only
        first = collect(policy, task, samples, group_size, **act)
        rollout_common.check_single_prompts(first, "augment")
        groups = groups_of(first, group_size)
        means = [sum(e.reward for e in group) / group_size for group in groups]
        reference = sum(self.recent) / len(self.recent) if self.recent else None
        gaps = [0.0 if reference is None else reference - mean for mean in means]
        hinted = self._hinted(policy, task, samples, gaps, act)
        changed = self._noisy(samples, gaps, step) | hinted
        self.recent = [*self.recent, *means][-self.window :]
        self.metrics = {
            "augment/hinted": len(hinted) / len(samples), "augment/noisy": (len(changed) - len(hinted)) / len(samples),
            "augment/first_reward": sum(means) / len(means),
            "augment/first_accuracy": groups_accuracy(first),
        }  # fmt: skip
        return [episode for group in redone(policy, task, groups, changed, act) for episode in group]

    def _noisy(self, samples: Sequence[Sample], gaps: Sequence[float], step: int) -> dict[int, Sample]:
        """The samples that are too easy, by their place, as they are asked again."""
        noisy = {}
        for i, (sample, gap) in enumerate(zip(samples, gaps, strict=True)):
            if -self.noise * gap >= VISIBLE and (sample.prompt.images or sample.prompt.videos):
                rng = rollout_common.generator(self.seed, step, sample.id)
                noisy[i] = replace(sample, prompt=rollout_common.noisy(sample.prompt, -self.noise * gap, rng))
        return noisy

    def _hinted(
        self, policy: Policy, task: Any, samples: Sequence[Sample], gaps: Sequence[float], act: dict[str, Any]
    ) -> dict[int, Sample]:
        """The samples that are too hard, by their place, as they are asked again."""
        shares = {i: min(self.hint * gap, self.most) for i, gap in enumerate(gaps)}
        shares = {i: share for i, share in shares.items() if share >= LEAST}
        answers = _traces(policy, task, [samples[i] for i in shares], act)
        hinted = {}
        for (i, share), answer in zip(shares.items(), answers, strict=True):
            if sample := hints_hinted(policy, samples[i], answer, share):
                hinted[i] = sample
        return hinted

    def state_dict(self) -> dict[str, Any]:
        return {"recent": self.recent}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.recent = state["recent"]


augment = Augment


def _traces(policy: Any, task: Any, samples: Sequence[Sample], act: dict[str, Any]) -> list[str]:
    """A right answer to each sample: the policy's own with the gold answer before it, or else the gold answer."""
    answers = golds(policy, task, samples, "augment")
    prompts = [
        append_text(policy, sample, TOLD.format(answer)) for sample, answer in zip(samples, answers, strict=True)
    ]
    fitting = {i: sample for i, sample in enumerate(prompts) if sample}
    episodes = collect(policy, task, list(fitting.values()), 1, **act) if fitting else []
    own = {i: e.completion for i, e in zip(fitting, episodes, strict=True) if e.score.is_correct}
    return [own.get(i, answer) for i, answer in enumerate(answers)]
