"""Filtering and windows of rollouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from vlrl import registry
from vlrl.algorithms import rollout_common
from vlrl.algorithms.rollout_common import (
    Share,
    check_one_answer,
    check_words,
    complete_samples,
    groups_accuracy,
    groups_of,
    played,
    remembered,
)
from vlrl.config import Count
from vlrl.methods import Recipe, RecipePart, RolloutStrategy, method
from vlrl.rollout import PolicyWrapper, act_within_memory, collect
from vlrl.types import BASELINE, MALFORMED, Decision, Episode, Observation, Policy, Sample, Score, Step, Turn, UserError

if TYPE_CHECKING:
    from torch import Tensor


# Groups that teach nothing, drawn anew: rollout strategy `filter_refill`.


@method(
    reads=("truth",),
    needs=("group",),
    source="dynamic sampling: DAPO, arXiv 2503.14476; bounds: EasyR1, online filtering",
)
class FilterRefill(RolloutStrategy):
    """Plain groups; those whose members all score the same are played anew on other prompts, `rounds` times at most.

    A group is kept where its scores differ and, with `least` and `most`, where its mean accuracy lies between them. The
    others' places are filled with prompts drawn at random from those of the sampler, none twice in a step; the
    published code goes on through its loader. What is left after the last round takes the places that remain, so that
    a step always has all its groups; those stay silent under `grpo`. `filter/played` says how many times a step's
    groups were played; the run's count of rollouts has them all.

    Unlike the published code no surplus is drawn and thrown away: a round plays as many groups as are missing.

    Args:
        metric: what must differ: the reward before any shaping, or accuracy as the task counts it, as in DAPO's run.
        rounds: of drawing anew; DAPO stops after 10 batches in all.
        least, most: bounds of the mean accuracy; a group on a bound is kept.

    Raises:
        UserError: least is above most.
    """

    def __init__(
        self, policy: Policy, task: Any, seed: int, *,
        metric: Literal["reward", "accuracy"] = "accuracy", rounds: Count = 9,
        least: Share = 0.0, most: Share = 1.0,
    ):  # fmt: skip
        if least > most:
            raise UserError(f"rollout_strategy: filter_refill: least = {least:g} is above most = {most:g}")
        self.seed, self.metric, self.rounds, self.least, self.most = seed, metric, rounds, least, most
        self.played = 0  # episodes of the latest step, those included that were left out

    def __call__(
        self, policy: Policy, task: Any, samples: Sequence[Sample], group_size: int, step: int, **act: Any
    ) -> list[Episode]:
        act["keep"] = False  # a prefill that is kept serves prompts of one forward pass only
        others, groups = self._others(task, samples, step), _filtering_played(policy, task, samples, group_size, act)
        first, played, rounds = groups_accuracy([e for group in groups for e in group]), len(groups), 0
        taught = [group for group in groups if self._teaches(group)]
        silent = [group for group in groups if not self._teaches(group)]
        while (missing := len(samples) - len(taught)) and rounds < self.rounds:
            groups = _filtering_played(policy, task, list(islice(others, missing)), group_size, act)
            if not groups:  # the task has no other prompts
                break
            for group in groups:
                (taught if self._teaches(group) else silent).append(group)
            played, rounds = played + len(groups), rounds + 1
        self.played = played * group_size
        self.metrics = {
            "filter/played": played / len(samples), "filter/rounds": float(rounds),
            "filter/taught": len(taught) / len(samples), "filter/first_accuracy": first,
        }  # fmt: skip
        chosen = [*taught, *silent][: len(samples)]
        return [replace(episode, group=place) for place, group in enumerate(chosen) for episode in group]

    def _teaches(self, group: Sequence[Episode]) -> bool:
        scores = [e.reward if self.metric == "reward" else e.score.correct for e in group]
        return min(scores) < max(scores) and self.least <= groups_accuracy(group) <= self.most

    def _others(self, task: Any, samples: Sequence[Sample], step: int) -> Iterator[Sample]:
        """The prompts that the step does not begin with, in an order known from the step's number."""
        every = task.samples("train") if self.pool is None else self.pool
        present = {sample.id for sample in samples}
        order = np.random.default_rng([self.seed, step]).permutation(len(every)).tolist()
        return (sample for i in order if (sample := every[i]).id not in present)


filter_refill = FilterRefill


def _filtering_played(
    policy: Policy, task: Any, samples: Sequence[Sample], size: int, act: dict[str, Any]
) -> list[list[Episode]]:
    """The samples' groups."""
    return groups_of(collect(policy, task, samples, size, **act), size) if samples else []


# Earlier successes, whose first turns are repeated to come back to where they went through.


@dataclass(frozen=True, eq=False)
class WonEpisode:
    """A won episode of n turns, or its beginning: per turn what was seen, as a key, and what was done."""

    sample: Sample
    seen: Sequence[str]  # [n]
    actions: Sequence[str] | np.ndarray  # [n] texts, or float32 [n, K, A]

    def first(self, count: int) -> WonEpisode:
        return replace(self, seen=self.seen[:count], actions=self.actions[:count])


def success_of(episode: Episode) -> WonEpisode:
    """An episode as it would be repeated."""
    actions = [turn.decision.action for turn in episode.turns]
    numbers = not isinstance(actions[0], str)
    keys = [key_of(turn.observation) for turn in episode.turns]
    return WonEpisode(episode.sample, keys, np.stack(actions) if numbers else actions)


def key_of(shown: Observation) -> str:
    """A key of what is shown, the body's state included: equal for equal ones, in every process."""
    from vlrl.batch import action_key, observation_key

    return observation_key(shown) if shown.state is None else f"{observation_key(shown)} {action_key(shown.state)}"


class Repeating(PolicyWrapper):
    """Each group's episodes repeat a beginning, and the policy goes on.

    A turn is repeated where its episode shows what was seen then; from the first one on that shows something else the
    policy takes its own decisions, so that an environment that does not repeat itself costs the beginning alone.

    Args:
        begins: of each group; None: the policy plays from the start.
    """

    def __init__(self, policy: Policy, begins: Sequence[WonEpisode | None]):
        super().__init__(policy)
        self._begins = begins

    def act(self, episodes: Sequence[Episode], observations: Sequence[Observation], **options: Any) -> list[Decision]:
        decisions = [self._repeated(*each) for each in zip(episodes, observations, strict=True)]
        own = [i for i, decision in enumerate(decisions) if decision is None]
        if own:
            rest, rest_observations = [episodes[i] for i in own], [observations[i] for i in own]
            for i, decision in zip(
                own, act_within_memory(self.policy, rest, rest_observations, **options), strict=True
            ):
                decisions[i] = decision
        return decisions

    def _repeated(self, episode: Episode, shown: Observation) -> Decision | None:
        """The decision that was taken here, all of it forced; None: the policy's turn."""
        begin, number = self._begins[episode.group], len(episode.turns)
        if begin is None or number >= len(begin.seen) or repeated(episode) < number:
            return None
        if begin.seen[number] != key_of(shown):
            return None
        action = begin.actions[number]
        decision = self.policy.decide(
            shown, action, key=f"{episode.sample.id}, turn {number + 1}", before=episode.turns
        )
        return replace(decision, action=action).without_credit()


def repeated(episode: Episode) -> int:
    """How many of an episode's first turns were repeated."""
    return next((i for i, turn in enumerate(episode.turns) if turn.decision.forced_mask is None), len(episode.turns))


# Rollouts beside others of shuffled frames, to pay for using their order: rollout strategy `temporal_contrast`.

PART = "temporal"  # of the reward, in scores and logs
Positive = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@method(source="T-GRPO: Video-R1, arXiv 2503.21776; github.com/tulerfeng/Video-R1, trainer/grpo_trainer.py")
class TemporalContrast(RolloutStrategy):
    """Plain rollouts that earn a bonus where half as many of the same question with shuffled frames do no better.

    The shuffled ones are not trained on. Each group is compared with its own; samples without a video of two frames or
    more earn 0. The bonus is added to the reward, as its part `temporal`. For a group whose accuracies are 0 or 1 and
    whose other rewards are equal, `grpo` with std: group takes the bonus back
    (rewards.video.video_r1_temporal_bonus): it
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
        ratio: Positive = 1.0, bonus: str = "rewards.video:video_r1_temporal_bonus",
    ):  # fmt: skip
        if accuracy is not None and accuracy not in task.weights:
            raise UserError(
                f"rollout_strategy.accuracy: {accuracy!r} is no part of the reward: {', '.join(task.weights)}"
            )
        if PART in task.weights:
            raise UserError(f"rollout_strategy: the task has a part of the reward called {PART!r} itself")
        if ":" not in bonus:
            raise UserError(f"rollout_strategy.bonus: {bonus!r}: write module:function")
        self.seed, self.accuracy, self.options = seed, accuracy, {"bonus": amount, "ratio": ratio}
        self.bonus: Callable[..., list[float]] = registry.find("bonus", bonus, "rollout_strategy.bonus")

    def __call__(
        self, policy: Policy, task: Any, samples: Sequence[Sample], group_size: int, step: int, **act: Any
    ) -> list[Episode]:
        movable = [i for i, sample in enumerate(samples) if rollout_common.moves(sample.prompt)]
        against = self._shuffled(policy, task, [samples[i] for i in movable], group_size, step, act)
        of = dict(zip(movable, against, strict=True))
        episodes = collect(policy, task, samples, group_size, **act)  # last, so that a prefill it keeps stays
        rollout_common.check_single_prompts(episodes, "temporal_contrast")
        for i in range(len(samples)):
            self._pay(episodes[i * group_size : (i + 1) * group_size], of.get(i, []))
        ordered = [self._accuracy(e) for e in episodes if e.group in of]
        mixed = [value for values in against for value in values]
        self.metrics = {f"{PART}/ordered": _mean(ordered), f"{PART}/shuffled": _mean(mixed)} if movable else {}
        return episodes

    def _shuffled(
        self, policy: Policy, task: Any, samples: Sequence[Sample], group_size: int, step: int, act: dict[str, Any]
    ) -> list[list[float]]:
        """Per sample, the accuracies of its rollouts on shuffled frames: one order for all of them."""
        if not samples:
            return []
        size = max(1, group_size // 2)
        prompts = [
            replace(
                sample,
                prompt=rollout_common.shuffled(sample.prompt, rollout_common.generator(self.seed, step, sample.id)),
            )
            for sample in samples
        ]
        episodes = collect(policy, task, prompts, size, **(act | {"keep": False}))
        values = [self._accuracy(episode) for episode in episodes]
        return [values[start : start + size] for start in range(0, len(values), size)]

    def _pay(self, group: Sequence[Episode], shuffled: Sequence[float]) -> None:
        """Adds the bonus to rewards and scores."""
        bonuses = self.bonus([self._accuracy(episode) for episode in group], shuffled, **self.options)
        for episode, value in zip(group, bonuses, strict=True):
            episode.score = replace(episode.score, parts={**episode.score.parts, PART: value})
            episode.reward += value

    def _accuracy(self, episode: Episode) -> float:
        return episode.score.correct if self.accuracy is None else episode.score.parts[self.accuracy]


temporal_contrast = TemporalContrast


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


# A fixed number of new tokens a step, long completions going on in the next: rollout strategy `window`.


@dataclass(frozen=True, eq=False)
class Open:
    """A completion under way, with the values of its tokens [n] when they were written."""

    sample: Sample
    group: int  # which prompt of the run it answers, counting from 0
    tokens: tuple[int, ...]
    logprobs: Tensor
    entropy: Tensor


def check_window(recipe: Recipe, part: RecipePart) -> str | None:
    """An answer that is not finished has no reward, which others take for a bad one."""
    if problem := check_one_answer(recipe, part):
        return problem
    if not any("unfinished" in reader.reads or reader.undeclared for reader in recipe.of("advantages")):
        return (
            "rollout_strategy: window gives unfinished answers, whose reward is not known: put egae first in advantages"
        )
    tokens, most = part.options.get("tokens", 0), recipe.config.policy.max_tokens
    if 2 * tokens > most:
        return (
            f"rollout_strategy: window: tokens is {tokens}, but at most half of policy.max_tokens = {most} make "
            f"two windows"
        )
    return None


@method(
    reads=("all_episodes",),
    check_recipe=check_window,
    lacks=("group",),
    source="successive batches of T-PPO, arXiv 2506.15050; the filling of places is ours",
)
class Window(RolloutStrategy):
    """At most `tokens` new tokens of each completion a step; what is not finished goes on in the next one.

    A step has prompts x group_size places. Completions under way keep theirs and go on from their own tokens, which are
    forced, with the log-probabilities that they had: only new ones are trained. What a completion finishes with makes
    room, and new prompts enter with their whole group as soon as it fits; of what the sampler drew the first do, the
    others are left out until they are drawn again. A completion ends at the last whole window in policy.max_tokens.

    An unfinished completion is an episode without a reward yet, cut by the window (`Rollouts.truncated`): parts of the
    reward and accuracy are 0 there, and `window/accuracy` in the log is that of finished ones. `egae` knows what to
    make of it. Members of a group end in different steps, so that groups cannot be compared.

    Raises:
        UserError: the policy writes no text; not two windows in policy.max_tokens; the task shows other prompts than
            its samples'; a run is resumed whose samples are gone.
    """

    def __init__(self, policy: Policy, task: Any, seed: int, *, tokens: Count):
        if not policy.writes_text:
            raise UserError("rollout_strategy: window goes on writing texts, but this policy writes none: use plain")
        if 2 * tokens > policy.max_tokens:
            raise UserError(
                f"rollout_strategy: window: tokens: at most half of policy.max_tokens = {policy.max_tokens}"
            )
        self.tokens, self.last = tokens, policy.max_tokens // tokens * tokens
        self.open: list[Open] = []
        self.groups = 0  # begun so far
        self.played = 0  # completions that the latest step began: each is counted once
        self._all = lambda: task.samples("train")

    def __call__(
        self, policy: Policy, task: Any, samples: Sequence[Sample], group_size: int, step: int, **act: Any
    ) -> list[Episode]:
        act.pop("keep", None)  # a prefill that is kept serves completions from their beginning
        prefixes = self._open_groups(samples, group_size)
        under_way, self.played = [*self.open, *prefixes], len(prefixes)
        decisions = self._write_window(policy, under_way, act)
        goes_on = [d.truncated and len(d.inputs.tokens) < self.last for d in decisions]
        pairs = list(zip(under_way, decisions, strict=True))
        ended = iter(_window_played(policy, task, [p for p, more in zip(pairs, goes_on, strict=True) if not more]))
        episodes = [unfinished(*pair, task) if more else next(ended) for pair, more in zip(pairs, goes_on, strict=True)]
        self._tell(episodes, goes_on, len(samples) * group_size)
        self.open = [
            replace(part, tokens=d.inputs.tokens, logprobs=d.logprobs, entropy=d.entropy)
            for (part, d), more in zip(pairs, goes_on, strict=True)
            if more
        ]
        return episodes

    def _open_groups(self, samples: Sequence[Sample], group_size: int) -> list[Open]:
        """The first of the samples, as many whole groups as there is room for."""
        import torch

        room = (len(samples) * group_size - len(self.open)) // group_size
        first, nothing = self.groups, torch.zeros(0)
        self.groups += room
        return [
            Open(sample, first + i, (), nothing, nothing)
            for i, sample in enumerate(samples[:room])
            for _ in range(group_size)
        ]

    def _write_window(self, policy: Any, under_way: Sequence[Open], act: dict[str, Any]) -> list[Decision]:
        """One more window of each."""
        prefixes = [part.tokens for part in under_way] if self.open else None
        completions = complete_samples(policy, [part.sample for part in under_way], act, prefixes, self.tokens)
        return [remembered(d, part.logprobs, part.entropy) for d, part in zip(completions, under_way, strict=True)]

    def _tell(self, episodes: Sequence[Episode], goes_on: Sequence[bool], places: int) -> None:
        ended = [episode for episode, more in zip(episodes, goes_on, strict=True) if not more]
        self.metrics = {"window/finished": len(ended) / len(episodes), "window/filled": len(episodes) / places}
        if ended:
            self.metrics["window/accuracy"] = sum(e.score.correct for e in ended) / len(ended)
            self.metrics["window/reward"] = sum(e.reward for e in ended) / len(ended)

    def state_dict(self) -> dict[str, Any]:
        return {"open": write_open(self.open), "groups": self.groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.open = read_open(Open, state["open"], self._all() if self.pool is None else self.pool)
        self.groups = state["groups"]


window = Window


def unfinished(part: Open, decision: Decision, task: Any) -> Episode:
    """An episode that the window has cut: no reward yet."""
    observation, nothing = part.sample.prompt, {name: 0.0 for name in task.weights if name not in (MALFORMED, BASELINE)}
    turn = Turn(observation, decision, Step(observation, truncated=True))
    return Episode(part.sample, part.group, [turn], Score(nothing, 0.0))


def write_open(completions: Sequence[Open]) -> list[dict[str, Any]]:
    """What a checkpoint holds of unfinished completions: of their samples the ids."""
    return [vars(each) | {"sample": each.sample.id, "tokens": list(each.tokens)} for each in completions]


def read_open[T: Open](kind: type[T], rows: Sequence[dict[str, Any]], pool: Sequence[Sample]) -> list[T]:
    """What `write_open` gave. UserError as `find_samples_by_id`."""
    samples = find_samples_by_id(pool, {row["sample"] for row in rows})
    return [kind(**row | {"sample": samples[row["sample"]], "tokens": tuple(row["tokens"])}) for row in rows]


def find_samples_by_id(samples: Sequence[Sample], wanted: set[str]) -> dict[str, Sample]:
    """The samples of these ids.

    Raises:
        UserError: one is gone.
    """
    of: dict[str, Sample] = {}
    for sample in samples if wanted else ():
        if sample.id in wanted:
            of[sample.id] = sample
            if len(of) == len(wanted):
                break
    if lost := sorted(wanted - set(of)):
        raise UserError(f"rollout_strategy: sample {lost[0]}, whose answer was under way, is gone: give back its data")
    return of


def _window_played(policy: Any, task: Any, pairs: Sequence[tuple[Open, Decision]]) -> list[Episode]:
    """Finished completions as scored episodes."""
    episodes = played(policy, task, [part.sample for part, _ in pairs], [d for _, d in pairs], "window")
    return [replace(e, group=part.group) for e, (part, _) in zip(episodes, pairs, strict=True)]


# Whole groups whose completions were written over several steps: rollout strategy `partial`.


@dataclass(frozen=True, eq=False)
class PartialCompletion(Open):
    """A completion of a group of which some members have not ended."""

    engine_logprobs: Tensor | None = None  # [n], under the engine; None: the policy itself wrote
    segments: int = 0  # that it was written in
    truncated: bool = True  # the latest segment was stopped by its length limit

    def extend(self, decision: Decision, tokens: Sequence[int], most: int) -> PartialCompletion:
        """With one more segment. tokens: of all segments; what is behind `most` of them is cut off."""
        values = remembered(decision, self.logprobs, self.entropy, self.engine_logprobs)
        engine = values.engine_logprobs
        return replace(
            self, tokens=tuple(tokens[:most]), logprobs=values.logprobs[:most], entropy=values.entropy[:most],
            engine_logprobs=None if engine is None else engine[:most], segments=self.segments + 1,
            truncated=decision.truncated or len(tokens) > most,
        )  # fmt: skip

    def decide(self, policy: Any) -> Decision:
        """The completion as one decision, with the log-probabilities that its tokens were written with."""
        prompt = policy.prompt(self.sample.prompt, self.sample.id)
        return replace(
            policy.decision(prompt, self.tokens, policy.codec.decode(self.tokens)), logprobs=self.logprobs,
            entropy=self.entropy, engine_logprobs=self.engine_logprobs, truncated=self.truncated,
        )  # fmt: skip


@method(
    check_recipe=check_one_answer,
    needs=("group",),
    source="partial rollouts: Kimi k1.5, arXiv 2501.12599, section 2.6.2; groups are learned from whole: ours",
)
class PartialRollouts(RolloutStrategy):
    """At most `tokens` new tokens of each completion a step; a group is learned from when all its members have ended.

    An unfinished completion continues in the next step from its own tokens, under that step's weights, so that a long
    answer keeps no step waiting. Each token keeps the log-probability that it was written with: an answer of several
    steps has several behaviour policies, and its ratios are those of its tokens. Every step starts the groups that the
    sampler draws; how many end depends on their lengths, so that the first steps learn from short answers. Where none
    ends, the step writes on until one does. Checkpoints hold what is unfinished; behind the last step it is lost.

    Args:
        tokens: of a segment. A segment is scored as if it were an answer, so a task's scores should be cheap.

    Raises:
        UserError: the policy writes no text; the task shows other prompts than its samples'; a run is resumed whose
            samples are gone.
    """

    def __init__(self, policy: Policy, task: Any, seed: int, *, tokens: Count):
        check_words(policy, "partial")
        self.tokens, self.most = tokens, policy.max_tokens
        self.under_way: list[PartialCompletion] = []  # groups one after the other
        self.groups = 0  # begun so far
        self._all = lambda: task.samples("train")

    def __call__(
        self, policy: Policy, task: Any, samples: Sequence[Sample], group_size: int, step: int, **act: Any
    ) -> list[Episode]:
        import torch

        act |= {"keep": False, "room": self.tokens}  # a prefill that is kept serves completions from their beginning
        first, nothing = self.groups, torch.zeros(0)
        self.groups += len(samples)
        numbers = [first + i for i in range(len(samples)) for _ in range(group_size)]
        new = [PartialCompletion(samples[n - first], n, (), nothing, nothing) for n in numbers]
        self._go_on(policy, task, act)
        self.under_way += self._extend(policy, new, collect(policy, task, samples, group_size, **act))
        while not (complete := self._take_complete()):
            self._go_on(policy, task, act)
        self.metrics = {
            "partial/groups": len(complete) / group_size, "partial/under_way": float(len(self.under_way)),
            "partial/segments": sum(each.segments for each in complete) / len(complete),
        }  # fmt: skip
        episodes = played(policy, task, [e.sample for e in complete], [e.decide(policy) for e in complete], "partial")
        return [replace(episode, group=each.group) for episode, each in zip(episodes, complete, strict=True)]

    def _is_open(self, completion: PartialCompletion) -> bool:
        return completion.truncated and len(completion.tokens) < self.most

    def _extend(
        self, policy: Policy, completions: Sequence[PartialCompletion], segments: Sequence[Episode]
    ) -> list[PartialCompletion]:
        decisions = [episode.turns[0].decision for episode in segments]
        pairs = zip(completions, decisions, strict=True)
        return [each.extend(decision, policy.ids(decision) or (), self.most) for each, decision in pairs]

    def _go_on(self, policy: Policy, task: Any, act: dict[str, Any]) -> None:
        """Writes one more segment of each completion that is open."""
        opened = [each for each in self.under_way if self._is_open(each)]
        if opened:
            samples, prefixes = [each.sample for each in opened], [each.tokens for each in opened]
            longer = iter(self._extend(policy, opened, collect(policy, task, samples, 1, begun=prefixes, **act)))
            self.under_way = [next(longer) if self._is_open(each) else each for each in self.under_way]

    def _take_complete(self) -> list[PartialCompletion]:
        """The completions of groups of which no member is open."""
        waiting = {each.group for each in self.under_way if self._is_open(each)}
        complete = [each for each in self.under_way if each.group not in waiting]
        self.under_way = [each for each in self.under_way if each.group in waiting]
        return complete

    def state_dict(self) -> dict[str, Any]:
        return {"under_way": write_open(self.under_way), "groups": self.groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pool = self._all() if self.pool is None else self.pool
        self.under_way = read_open(PartialCompletion, state["under_way"], pool)
        self.groups = state["groups"]


partial = PartialRollouts
