"""Rollout strategies with hints and guidance, and one that makes prompts easier or harder by how the policy does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from vlrl.algorithms import rollout_common
from vlrl.algorithms.rollout_common import (
    Share,
    append_text,
    begins_turns,
    check_single_prompts,
    check_words,
    generator,
    golds,
    groups_accuracy,
    groups_of,
    hints_hinted,
    redone,
)
from vlrl.config import Count
from vlrl.methods import Recipe, RecipePart, RolloutStrategy, method
from vlrl.rollout import collect, plain, with_environment
from vlrl.types import Environment, Episode, Frame, Observation, Policy, Sample, Step, UserError

# Groups that are all wrong, asked again with a longer and longer part of the solution: rollout strategy `ghpo`.


@method(
    reads=("truth",),
    needs=("group", "one_answer"),
    source="GHPO, arXiv 2507.10628; github.com/hkgc-1/GHPO, src/ghpo/ghpo_trainer.py",
)
class Ghpo(RolloutStrategy):
    """Groups of which nobody is right are played again with the first quarter, half, three quarters of the solution.

    The hint stands behind the prompt. A group whose members are all wrong goes to the next level, and takes the first
    one's place: the loss sees the hinted prompt that its completions answered. What is still all wrong after the last
    level stays so. The solution is the task's gold answer; the hint ends at a whole word, where the published code
    cuts anywhere, and its lead-in is a sentence of ours.

    Args:
        levels: shares of the solution, in order.
        start: training steps without hints (cold start).

    Raises:
        UserError: no right answer to a sample is known; the task shows other prompts than its samples'; the policy
            does not write text.
    """

    def __init__(
        self, policy: Policy, task: Any, seed: int, *,
        levels: tuple[Share, ...] = (0.25, 0.5, 0.75), start: Annotated[int, Field(ge=0)] = 0,
    ):  # fmt: skip
        check_words(policy, "ghpo")
        self.levels, self.start = levels, start
        self.played = 0  # episodes of the latest step, those included that were replaced

    def __call__(
        self, policy: Policy, task: Any, samples: Sequence[Sample], group_size: int, step: int, **act: Any
    ) -> list[Episode]:
        if step < self.start:
            self.played, self.metrics = len(samples) * group_size, {}
            return plain(policy, task, samples, group_size, step, **act)
        act["keep"] = False  # a prefill that is kept serves prompts of one forward pass only
        first = collect(policy, task, samples, group_size, **act)
        check_single_prompts(first, "ghpo")
        groups, used, played = groups_of(first, group_size), [0.0] * len(samples), len(samples)
        answers = dict(
            zip(wrong := lost(groups), golds(policy, task, [samples[i] for i in wrong], "ghpo"), strict=True)
        )
        for level in self.levels:
            made = {i: hints_hinted(policy, samples[i], answers[i], level) for i in lost(groups)}
            asked = {i: sample for i, sample in made.items() if sample}
            groups = redone(policy, task, groups, asked, act)
            used = [level if i in asked else share for i, share in enumerate(used)]
            played += len(asked)
        self.played = played * group_size
        self.metrics = {
            "ghpo/hinted": sum(share > 0 for share in used) / len(used), "ghpo/hint": sum(used) / len(used),
            "ghpo/lost": len(lost(groups)) / len(groups), "ghpo/first_lost": len(wrong) / len(groups),
            "ghpo/first_accuracy": groups_accuracy(first),
        }  # fmt: skip
        return [episode for group in groups for episode in group]


ghpo = Ghpo


def lost(groups: Sequence[Sequence[Episode]]) -> list[int]:
    """The places of groups of which nobody is right in any part."""
    return [i for i, group in enumerate(groups) if all(e.score.correct <= 0 for e in group)]


# Answers that a guide begins and the policy ends: rollout strategy `guide`.

GOLD = "gold"


@method(
    needs=("one_answer",),
    reads=("truth",),
    source="PPO++ of RLGF, arXiv 2306.11816; github.com/Cornell-RL/tril, src/tril/utils/logit_processors.py",
)
class Guide(RolloutStrategy):
    """A `share` of the completions goes on from the first tokens of a guide's answer, which earn no credit.

    How many is drawn evenly from 1 to all but the last, for each completion anew. So the policy learns from states that
    a good answer passes through, before it would find the way there itself. The others are written whole. The paper's
    beta is 0.8 in two of its three tasks, 0.6 in the third.

    Args:
        guide: `gold`, the task's right answer, or a model (a folder, or a name on the hub) that reads the same
            coordinates; its completions are as long as the policy's at most.

    Raises:
        UserError: no right answer to a sample is known; the policy or the guide does not write text; the guide writes
            other coordinates.
    """

    def __init__(self, policy: Any, task: Any, seed: int, *, share: Share = 0.8, guide: str = GOLD):
        check_words(policy, "guide")
        self.seed, self.share = seed, share
        self.guide = None if guide == GOLD else _loaded(guide, policy, seed)

    def __call__(
        self, policy: Any, task: Any, samples: Sequence[Sample], group_size: int, step: int, **act: Any
    ) -> list[Episode]:
        answers = self._answers(policy, task, samples, group_size)
        begun: list[list[int]] = []
        for i, sample in enumerate(samples):
            rng = generator(self.seed, step, sample.id)
            for answer in answers[i * group_size : (i + 1) * group_size]:
                tokens = policy.codec.tokens(answer)[:-1]
                guided, length = rng.random() < self.share, int(rng.integers(1, max(2, len(tokens))))
                begun.append(tokens[:length] if guided and len(tokens) > 1 else [])
        episodes = collect(policy, task, samples, group_size, begun=begun, **act)
        led = [episode for episode, tokens in zip(episodes, begun, strict=True) if tokens]
        alone = [episode for episode, tokens in zip(episodes, begun, strict=True) if not tokens]
        self.metrics = {
            "guide/share": len(led) / len(episodes), "guide/tokens": sum(map(len, begun)) / max(1, len(led)),
            **({"guide/led_accuracy": groups_accuracy(led)} if led else {}),
            **({"guide/alone_accuracy": groups_accuracy(alone)} if alone else {}),
        }  # fmt: skip
        return episodes

    def _answers(self, policy: Any, task: Any, samples: Sequence[Sample], size: int) -> list[str]:
        """A guide's answer for each completion."""
        if self.guide is None:
            return [answer for answer in golds(policy, task, samples, "guide") for _ in range(size)]
        return [episode.turns[0].decision.action for episode in collect(self.guide, task, samples, size)]

    def state_dict(self) -> dict[str, Any]:
        return {} if self.guide is None else {"guide": self.guide.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.guide is not None:
            self.guide.load_state_dict(state["guide"])


guide = Guide


def _loaded(name: str, policy: Any, seed: int) -> Any:
    """The model that guides."""
    from vlrl.config import PolicySection
    from vlrl.engines import load_policy

    guide = load_policy(PolicySection(model=name, max_tokens=policy.max_tokens), seed=seed)
    check_words(guide, "guide")
    if guide.codec.space != policy.codec.space:
        raise UserError(
            f"rollout_strategy.guide: {name} writes in {guide.codec.space}, the policy in {policy.codec.space}: choose "
            f"a guide "
            "of the same family"
        )
    return guide


# Episodes whose first turns a script plays: rollout strategy `guide_turns`.


@method(
    check_recipe=begins_turns("plays the first of several turns", "guide"),
    source="roll-in by a guide, over turns: PPO++ of RLGF, arXiv 2306.11816; with `until` the curriculum of JSRL, "
    "2204.02372, and of Learning to Navigate the Web, 1812.09195",
)
class GuideTurns(RolloutStrategy):
    """A `share` of the episodes is begun by the environment's own script; the policy plays on, and learns its part.

    How many turns the script takes is drawn evenly from 1 to a most of `turns`. They are recorded as what was done, but
    earn no credit. An episode that the script ends, or a page that it does not know, is left as it is.

    With `until` the most falls from step to step, and the start moves away from the goal: `ceil(turns (1 - step /
    until))`, 0 from step `until` on. Published (1812.09195): each part of the goal is done before the start with a
    chance that falls over training, in any order; the schedule is ours, and parts are done in the script's order.

    Args:
        turns: the most that the script takes; fewer than it needs to the end, or there is nothing left to do.
        until: the step from which episodes begin at their start; null: the script always takes up to `turns`.

    Raises:
        UserError: the task's environments have no script.
    """

    def __init__(
        self, policy: Policy, task: Any, seed: int, *, turns: Count, share: Share = 0.8, until: Count | None = None
    ):
        self.seed, self.share, self.turns, self.until = seed, share, turns, until

    def most(self, step: int) -> int:
        """The most turns that the script takes in this step."""
        if self.until is None:
            return self.turns
        return max(0, math.ceil(self.turns * (1 - step / self.until)))

    def __call__(
        self, policy: Policy, task: Any, samples: Sequence[Sample], group_size: int, step: int, **act: Any
    ) -> list[Episode]:
        act["keep"] = False  # a prefill that is kept knows nothing of the script's decisions
        most = self.most(step)
        turns: dict[int, int] = {}  # id of a sample -> turns of its script
        opened: dict[int, Begun] = {}  # id of a sample -> its latest environment

        def begin(sample: Sample) -> Begun:
            opened[id(sample)] = Begun(task.environment(sample), turns[id(sample)])
            return opened[id(sample)]

        asked = [replace(sample) for sample in samples for _ in range(group_size)]  # each of its own, to be told apart
        for i, sample in enumerate(samples):
            rng = generator(self.seed, step, sample.id)
            for own in asked[i * group_size : (i + 1) * group_size]:
                guided, count = rng.random() < self.share, int(rng.integers(1, max(most, 1) + 1))
                turns[id(own)] = count if guided and most else 0
        played = collect(policy, with_environment(task, begin), asked, 1, **act)
        scripts = [opened[id(own)].given for own in asked]
        episodes = [
            replace(_scripted(policy, episode, given), sample=samples[i // group_size], group=i // group_size)
            for i, (episode, given) in enumerate(zip(played, scripts, strict=True))
        ]
        began = [episode for episode, given in zip(episodes, scripts, strict=True) if given]
        self.metrics = {
            "guide/share": len(began) / len(episodes), "guide/turns": sum(map(len, scripts)) / max(1, len(began)),
            **({"guide/led_accuracy": groups_accuracy(began)} if began else {}),
        }  # fmt: skip
        return episodes


guide_turns = GuideTurns


class Begun(Environment):
    """An environment whose first turns are its script's, whatever the policy says."""

    def __init__(self, environment: Environment, turns: int):
        if turns and not environment.has_script:
            raise UserError(
                "rollout_strategy: guide_turns: this task's environments have no script: use guide, or plain"
            )
        self._environment, self._left = environment, turns
        self.given: list[str | np.ndarray] = []  # what the script did

    def reset(self) -> Observation:
        return self._environment.reset()

    def step(self, action: str | np.ndarray, frames: Sequence[Frame] = ()) -> Step:
        own = self._environment.gold(frames) if self._left else None
        self._left = self._left - 1 if own is not None else 0
        if own is None:
            return self._environment.step(action, frames)
        self.given.append(own)
        return self._environment.step(own, frames)

    def close(self) -> None:
        self._environment.close()


def _scripted(policy: Any, episode: Episode, given: Sequence[str | np.ndarray]) -> Episode:
    """The episode with what the script did in place of what the policy would have done."""
    turns = list(episode.turns)
    for number, action in enumerate(given):
        key = f"{episode.sample.id}, turn {number + 1}"
        decision = policy.decide(turns[number].observation, action, key=key, before=turns[:number])
        turns[number] = replace(turns[number], decision=decision.without_credit())
    return replace(episode, turns=turns)


# How likely a right answer is with a hint of some length: an item response curve, fitted to a few tries.

# the curves that are thought possible, all equally so before the first try
SLOPES = (2.0, 4.0, 8.0, 16.0)
MIDDLES = np.linspace(-0.5, 1.5, 41)  # below 0: solved without a hint; above 1: not even the whole answer helps
GUESSES = (0.0, 0.1, 0.25)
HINTS = np.linspace(0.0, 1.0, 101)  # shares of the answer that are considered

Tried = tuple[float, float, int]  # share that was told, how many were right, of how many


def curve(hint: np.ndarray, slope: float, middle: float, guess: float) -> np.ndarray:
    """Accuracy with a share `hint` of the answer told: the three-parameter logistic model.

    `guess + (1 - guess) / (1 + exp(-slope (hint - middle)))`, elementwise.
    """
    return guess + (1 - guess) / (1 + np.exp(-slope * (hint - middle)))


def predicted(tried: Sequence[Tried]) -> np.ndarray:
    """The expected accuracy at each of HINTS, over all curves by how well they explain what was tried. Rises."""
    grid = [axis[..., None] for axis in np.meshgrid(SLOPES, MIDDLES, GUESSES, indexing="ij")]
    log = np.zeros(grid[0].shape[:-1])
    for hint, right, count in tried:
        p = np.clip(curve(np.float64(hint), *grid)[..., 0], 1e-9, 1 - 1e-9)
        log += right * np.log(p) + (count - right) * np.log(1 - p)
    weight = np.exp(log - log.max())
    return (weight[..., None] * curve(HINTS, *grid)).sum((0, 1, 2)) / weight.sum()


def hint_for(tried: Sequence[Tried], target: float) -> float:
    """The shortest hint whose expected accuracy is nearest to the target, as a share of the answer."""
    return float(HINTS[np.abs(predicted(tried) - target).round(9).argmin()])


# Hints as long as it takes to be right half the time: rollout strategy `seele`.

Within = Annotated[float, Field(gt=0, lt=1)]


def check_rounds(recipe: Recipe, part: RecipePart) -> str | None:
    """A round of no completions tells nothing."""
    rounds, size = part.options["rounds"], recipe.config.train.group_size
    if rounds > size:
        return (
            f"rollout_strategy.rounds: at most train.group_size = {size}, which is divided into rounds (got {rounds})"
        )
    return None


@method(
    reads=("truth",),
    check_recipe=check_rounds,
    needs=("group", "one_answer"),
    source="SEELE, arXiv 2509.06923; rounds, prior and first hint are a reconstruction",
)
class Seele(RolloutStrategy):
    """A group is played in rounds; before each, the hint is chosen for which half of the answers should be right.

    The accuracy a with a share h of the solution told follows the three-parameter logistic model of item response
    theory, a = c + (1 - c) / (1 + exp(-s (h - m))). It is fitted to what the sample's earlier rounds of this step
    gave, and h is where a is nearest to `target`. The advantage is over all rounds: they are one group, of several
    prompts.

    The paper gives the model, the rounds and the target. Reconstructed are the fit, which few tries must do for (the
    mean over a grid of curves, weighted by their likelihood: vlrl/contrib/rollouts/hints.py), the number of rounds,
    and the
    first round, which takes the hint that the sample's last visit ended with, none at its first.

    Args:
        rounds: that a group is divided into, as evenly as possible.
        target: accuracy.
        most: the largest share, so that the end of the solution is never given away.

    Raises:
        UserError: no right answer to a sample is known; the task shows other prompts than its samples'; the policy
            does not write text; a group has fewer members than rounds.
    """

    def __init__(
        self, policy: Policy, task: Any, seed: int, *, rounds: Count = 4, target: Within = 0.5, most: Share = 0.9
    ):
        check_words(policy, "seele")
        self.rounds, self.target, self.most = rounds, target, most
        self.hints: dict[str, float] = {}  # sample -> the share that its next visit begins with

    def __call__(
        self, policy: Policy, task: Any, samples: Sequence[Sample], group_size: int, step: int, **act: Any
    ) -> list[Episode]:
        if group_size < self.rounds:
            raise UserError(f"rollout_strategy.rounds = {self.rounds}: at most train.group_size = {group_size}")
        act["keep"] = False  # a prefill that is kept serves prompts of one forward pass only
        answers = golds(policy, task, samples, "seele")
        shares = [self.hints.get(sample.id, 0.0) for sample in samples]
        tried: list[list[Tried]] = [[] for _ in samples]
        groups: list[list[Episode]] = [[] for _ in samples]
        for size in map(len, np.array_split(np.arange(group_size), self.rounds)):
            made = [hints_hinted(policy, *each) for each in zip(samples, answers, shares, strict=True)]
            asked = [used or sample for used, sample in zip(made, samples, strict=True)]
            used = [share if m else 0.0 for share, m in zip(shares, made, strict=True)]  # of what fits
            played = collect(policy, task, asked, size, **act)
            check_single_prompts(played, "seele")
            for i, part in enumerate(groups_of(played, size)):
                groups[i] += part
                tried[i].append((used[i], sum(e.score.correct for e in part), size))
            shares = [min(hint_for(each, self.target), self.most) for each in tried]
        self.hints.update((sample.id, share) for sample, share in zip(samples, shares, strict=True))
        self.metrics = _measured(tried, groups)
        return [replace(episode, group=i) for i, group in enumerate(groups) for episode in group]

    def state_dict(self) -> dict[str, Any]:
        return {"hints": self.hints}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.hints = state["hints"]


seele = Seele


def _measured(tried: Sequence[Sequence[Tried]], groups: Sequence[Sequence[Episode]]) -> dict[str, float]:
    """The mean hint, and the accuracies of the first round and of the last."""
    n = len(tried)
    return {
        "seele/hint": sum(each[-1][0] for each in tried) / n,
        "seele/first_accuracy": sum(each[0][1] / each[0][2] for each in tried) / n,
        "seele/last_accuracy": sum(each[-1][1] / each[-1][2] for each in tried) / n,
        "seele/silent": sum(len({e.score.correct for e in group}) == 1 for group in groups) / n,
        "seele/accuracy": groups_accuracy([e for group in groups for e in group]),
    }


# Prompts made easier or harder by how well the policy does on them: rollout strategy `augment`.

TOLD = "A right answer is: {}"
VISIBLE_NOISE = 0.5 / 255  # noise below half a level of brightness is rounded away
LEAST_HINT = 0.02  # share of an answer below which there is nothing to tell

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
        check_single_prompts(first, "augment")
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
            if -self.noise * gap >= VISIBLE_NOISE and (sample.prompt.images or sample.prompt.videos):
                rng = generator(self.seed, step, sample.id)
                noisy[i] = replace(sample, prompt=rollout_common.noisy(sample.prompt, -self.noise * gap, rng))
        return noisy

    def _hinted(
        self, policy: Policy, task: Any, samples: Sequence[Sample], gaps: Sequence[float], act: dict[str, Any]
    ) -> dict[int, Sample]:
        """The samples that are too hard, by their place, as they are asked again."""
        shares = {i: min(self.hint * gap, self.most) for i, gap in enumerate(gaps)}
        shares = {i: share for i, share in shares.items() if share >= LEAST_HINT}
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
