"""Prompts made easier or harder by how well the policy does on them: rollout strategy `augment`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from vlrl import perturb
from vlrl.methods import method
from vlrl.rollout import collect
from vlrl.strict import Count
from vlrl.types import Episode, Policy, Sample, UserError

TOLD = "A right answer is: {}"
HINT = "A right answer begins with: {}"
RIGHT = 0.5  # `correct` from which a trace counts as successful
VISIBLE = 0.5 / 255  # noise below half a level of brightness is rounded away
LEAST = 0.02  # share of an answer below which there is nothing to tell

Scale = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]


@method(source="difficulty-aware augmentation: DeepVideo-R1, arXiv 2506.07464; the scales are a reconstruction")
class Augment:
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
        self.metrics: dict[str, float] = {}

    def __call__(
        self, policy: Policy, task: Any, samples: Sequence[Sample], group_size: int, step: int, **act: Any
    ) -> list[Episode]:
        act["keep"] = False  # a prefill that is kept serves prompts of one forward pass only
        first = collect(policy, task, samples, group_size, **act)
        perturb.check_shown(first, "augment")
        means = [sum(e.reward for e in group) / group_size for group in _groups(first, group_size)]
        reference = sum(self.recent) / len(self.recent) if self.recent else None
        gaps = [0.0 if reference is None else reference - mean for mean in means]
        hinted = self._hinted(policy, task, samples, gaps, act)
        changed = self._noisy(samples, gaps, step) | hinted
        self.recent = [*self.recent, *means][-self.window :]
        self.metrics = {
            "augment/hinted": len(hinted) / len(samples), "augment/noisy": (len(changed) - len(hinted)) / len(samples),
            "augment/first_reward": sum(means) / len(means),
            "augment/first_accuracy": sum(e.score.correct for e in first) / len(first),
        }  # fmt: skip
        return _redone(policy, task, first, changed, group_size, act) if changed else first

    def _noisy(self, samples: Sequence[Sample], gaps: Sequence[float], step: int) -> dict[int, Sample]:
        """The samples that are too easy, by their place, as they are asked again."""
        made = {}
        for i, (sample, gap) in enumerate(zip(samples, gaps, strict=True)):
            if -self.noise * gap >= VISIBLE and (sample.prompt.images or sample.prompt.videos):
                rng = perturb.generator(self.seed, step, sample.id)
                made[i] = replace(sample, prompt=perturb.noisy(sample.prompt, -self.noise * gap, rng))
        return made

    def _hinted(
        self, policy: Policy, task: Any, samples: Sequence[Sample], gaps: Sequence[float], act: dict[str, Any]
    ) -> dict[int, Sample]:
        """The samples that are too hard, by their place, as they are asked again."""
        shares = {i: min(self.hint * gap, self.most) for i, gap in enumerate(gaps)}
        shares = {i: share for i, share in shares.items() if share >= LEAST}
        answers = _traces(policy, task, [samples[i] for i in shares], act)
        made = {}
        for (i, share), answer in zip(shares.items(), answers, strict=True):
            begun = beginning(answer, share)
            asked = replace(samples[i], prompt=perturb.hinted(samples[i].prompt, HINT.format(begun)))
            if begun and _fits(policy, asked):
                made[i] = asked
        return made

    def state_dict(self) -> dict[str, Any]:
        return {"recent": self.recent}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.recent = state["recent"]


augment = Augment


def beginning(answer: str, share: float) -> str:
    """The first share of an answer's characters, without a word that would be cut in two unless it is the only one."""
    begun = answer[: int(share * len(answer))]
    return begun if begun == answer or " " not in begun else begun.rpartition(" ")[0].rstrip()


def _traces(policy: Any, task: Any, samples: Sequence[Sample], act: dict[str, Any]) -> list[str]:
    """A right answer to each sample: the policy's own with the gold answer before it, or else the gold answer."""
    golds = [task.gold(sample, policy.prompt(sample.prompt, sample.id).frames) for sample in samples]
    for sample, gold in zip(samples, golds, strict=True):
        if gold is None:
            raise UserError(f"rollouts: augment: no gold answer to {sample.id} is known, from which to give a hint")
    told = [replace(s, prompt=perturb.hinted(s.prompt, TOLD.format(g))) for s, g in zip(samples, golds, strict=True)]
    fitting = [i for i, sample in enumerate(told) if _fits(policy, sample)]
    written = collect(policy, task, [told[i] for i in fitting], 1, **act) if fitting else []
    own = {i: e.completion for i, e in zip(fitting, written, strict=True) if e.score.correct >= RIGHT}
    return [own.get(i, gold) for i, gold in enumerate(golds)]


def _fits(policy: Any, sample: Sample) -> bool:
    """Whether the model takes a prompt of this length."""
    try:
        policy.prompt(sample.prompt, sample.id)
    except UserError:
        return False
    return True


def _redone(
    policy: Policy, task: Any, first: Sequence[Episode], changed: dict[int, Sample], size: int, act: dict[str, Any]
) -> list[Episode]:
    """The episodes with the changed samples' groups played again."""
    groups, places = _groups(first, size), list(changed)
    again = collect(policy, task, list(changed.values()), size, **act)
    for place, group in zip(places, _groups(again, size), strict=True):
        groups[place] = [replace(episode, group=place) for episode in group]
    return [episode for group in groups for episode in group]


def _groups(episodes: Sequence[Episode], size: int) -> list[list[Episode]]:
    return [list(episodes[start : start + size]) for start in range(0, len(episodes), size)]
