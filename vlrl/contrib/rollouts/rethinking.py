"""Rollout strategies that revise an answer."""

from __future__ import annotations

import bisect
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from vlrl.algorithms.rollout_common import (
    Share,
    append_text,
    check_single_prompts,
    check_words,
    evaluated,
    groups_accuracy,
    groups_of,
)
from vlrl.config import Count
from vlrl.methods import Recipe, RecipePart, RolloutStrategy, method
from vlrl.rollout import collect
from vlrl.types import Episode, Policy, Sample

# What makes a policy think again, and where in its response.

# after which a response goes on: neutral ones, and those that suit a right or a wrong response
WAIT, DOES_IT, CHECK, MISTAKE = (
    f"\n\nWait{rest}" for rest in ("", ", does it seem right?", ", let's double check", ", there might be a mistake")
)


def trigger(right: bool, neutral: float, which: float) -> str:
    """The trigger that two even draws from [0, 1) choose: half of them neutral, of these four in ten the bare one."""
    if neutral < 0.5:
        return WAIT if which < 0.4 else DOES_IT
    return CHECK if right else MISTAKE


def thoughts(text: str) -> str:
    """A response up to where its thoughts end, if tags tell: behind them there is room for an answer alone."""
    return text.partition("</think>")[0].rstrip() if "</think>" in text else text


def before_answer(text: str) -> str:
    """A response without its answer: nothing from the last "Wait" on, from the answer, or of the open paragraph."""
    text = text.rpartition("Wait")[0] if "Wait" in text else text
    text = text.rpartition("\\boxed")[0] if "\\boxed" in text else text
    text = re.split("<?answer", text, maxsplit=1, flags=re.IGNORECASE)[0]
    return (text.rpartition("\n\n")[0] if "\n\n" in text else text).rstrip()


def fitting(policy: Any, tokens: Sequence[int], text: str) -> int:
    """How many tokens from the beginning write no more than a text."""
    ends = range(len(tokens) + 1)
    return bisect.bisect_right(ends, len(text), key=lambda n: len(policy.codec.decode(tokens[:n]))) - 1


def count_rethinks(text: str) -> int:
    """How often a text thinks again."""
    return sum(text.lower().count(word) for word in ("wait,", "wait a", "alternatively"))


# The best of some drafts, shown to the answers that are trained: rollout strategy `igrpo`.

DRAFT = "An earlier answer: {}\nImprove on it."


@method(needs=("one_answer",), reads=("truth",), source="iGRPO, arXiv 2602.09000; the wording is ours")
class Igrpo(RolloutStrategy):
    """`drafts` answers to each prompt are written; the one of the highest reward is appended to the prompt, and
    `group_size` refinements are the step's episodes.

    Drafts are not trained. Of equal ones the first is taken: they were drawn alike. A prompt whose draft is empty, or
    with it is longer than the model takes, stays as it was. Held-out samples are answered without a draft. In the
    paper drafts and refinements are 8 in all; how they are divided was not found.

    Args:
        drafts: for each prompt.

    Raises:
        UserError: the task shows other prompts than its samples'; the policy does not write text.
    """

    def __init__(self, policy: Policy, task: Any, seed: int, *, drafts: Count = 4):
        check_words(policy, "igrpo")
        self.drafts = drafts
        self.played = 0  # episodes of the latest step, drafts included

    def __call__(
        self, policy: Policy, task: Any, samples: Sequence[Sample], group_size: int, step: int, **act: Any
    ) -> list[Episode]:
        drafts = collect(policy, task, samples, self.drafts, **(act | {"keep": False}))
        check_single_prompts(drafts, "igrpo")
        best = [max(group, key=lambda e: e.reward) for group in groups_of(drafts, self.drafts)]
        prompts = [
            append_text(policy, sample, DRAFT.format(draft.completion)) if draft.completion else None
            for sample, draft in zip(samples, best, strict=True)
        ]
        chosen = [prompt or sample for prompt, sample in zip(prompts, samples, strict=True)]
        refined = collect(policy, task, chosen, group_size, **act)  # last, so that a prefill it keeps stays
        self.played = len(drafts) + len(refined)
        self.metrics = {
            "igrpo/draft_accuracy": groups_accuracy(drafts),
            "igrpo/best_accuracy": groups_accuracy(best),
            "igrpo/refined_accuracy": groups_accuracy(refined),
            "igrpo/shown": sum(m is not None for m in prompts) / len(prompts),
        }
        return refined


igrpo = Igrpo


# Second thoughts that a policy is made to have: rollout strategy `rethink`.

HOPEFUL = 0.7  # accuracy of a group above which its wrong members are left alone


@dataclass(frozen=True)
class ReopenedResponse:
    """A finished response that is to be thought over."""

    place: int  # of its episode in the step
    kept: int  # tokens of the response that stay
    begun: tuple[int, ...]  # these and the trigger


def check_thinking(recipe: Recipe, part: RecipePart) -> str | None:
    """Where an answer alone is asked for, whatever is thought besides makes it wrong."""
    if recipe.one("task").options.get("thinking", True):  # a task without the option may think
        return None
    return f"{part.label} goes on with thoughts, which this task does not ask for: set task.thinking to true"


@method(
    reads=("truth",),
    gives=("demonstrations",),
    check_recipe=check_thinking,
    needs=("group", "one_answer"),
    source="forced rethinking: VL-Rethinker, arXiv 2504.08837; code at 1474fd5",
)
class Rethink(RolloutStrategy):
    """Finished responses go on with a trigger such as "Wait"; what is right then takes its response's place.

    A `share` of the finished responses is thought over, but no wrong one of a group that is right more often than 0.7.
    They go on where their thoughts ended, before `</think>`; a response without it, at its end. A `cut` of them first
    lose their answer, all from the last "Wait" on, and the unfinished paragraph. Half of the triggers are neutral,
    half suit whether the response was right. Kept is what ends up right after `shortest` to `longest` new tokens with
    at most `waits` waits and alternatives in them, at most `most` a prompt, in the group's order. It is marked as
    `shown`, for the loss `sft` to imitate besides (0.05 in the paper).

    As in the published code, the response is trained as a whole, the trigger included, with log-probabilities of the
    present policy: that is how it comes to doubt unasked. `trigger: forced` leaves the trigger without credit. The
    continuation is drawn like any other completion; there at temperature 0.9.

    Raises:
        UserError: the policy does not write text.
    """

    def __init__(
        self, policy: Policy, task: Any, seed: int, *,
        share: Share = 0.65, cut: Share = 0.5, shortest: Count = 31, longest: Count = 1023, most: Count = 2,
        waits: Count = 4, trigger: Literal["learned", "forced"] = "learned",
    ):  # fmt: skip
        check_words(policy, "rethink")
        self.seed, self.share, self.cut, self.trigger = seed, share, cut, trigger
        self.shortest, self.longest, self.most, self.waits = shortest, longest, most, waits
        self.played = 0  # episodes of the latest step, those included that were left out

    def __call__(
        self, policy: Any, task: Any, samples: Sequence[Sample], group_size: int, step: int, **act: Any
    ) -> list[Episode]:
        act["keep"] = False  # a prefill that is kept serves prompts of one forward pass only
        first = collect(policy, task, samples, group_size, **act)
        chosen = self._choose_responses(policy, first, group_size, np.random.default_rng([self.seed, step]))
        again = collect(
            policy, task, [samples[first[a.place].group] for a in chosen], 1, begun=[a.begun for a in chosen],
            room=self.longest + 1, **act,
        ) if chosen else []  # fmt: skip
        episodes, kept = list(first), self._kept(policy, first, chosen, again)
        for number, episode in zip(kept, self._learned(policy, chosen, again, kept), strict=True):
            place = chosen[number].place
            episodes[place] = replace(episode, group=first[place].group, is_demonstration=True)
        self.played = len(first) + len(again)
        self.metrics = {
            "rethink/asked": len(chosen) / len(first),
            "rethink/kept": len(kept) / len(first),
            "rethink/first_accuracy": groups_accuracy(first),
            "rethink/accuracy": groups_accuracy(again) if again else 0.0,
            "rethink/mended": sum(not first[chosen[n].place].score.is_correct for n in kept) / len(first),
        }
        return episodes

    def _choose_responses(
        self, policy: Any, first: Sequence[Episode], size: int, rng: np.random.Generator
    ) -> list[ReopenedResponse]:
        """The responses that are thought over, each with what it goes on from."""
        responses = []
        for place, episode in enumerate(first):
            group = first[place - place % size :][:size]
            chance, shortened, neutral, which = rng.random(4)  # as many for each, whatever becomes of it
            right = episode.score.is_correct
            hopeless = not right and groups_accuracy(group) > HOPEFUL
            if episode.turns[-1].decision.truncated or hopeless or chance >= self.share:
                continue
            tokens = response_tokens(policy, episode)
            text = thoughts(episode.completion)
            kept = fitting(policy, tokens, before_answer(text) if shortened < self.cut else text)
            doubt = policy.codec.tokens(trigger(right, neutral, which))[:-1]
            responses.append(ReopenedResponse(place, kept, (*tokens[:kept], *doubt)))
        return responses

    def _kept(
        self, policy: Any, first: Sequence[Episode], asked: Sequence[ReopenedResponse], again: Sequence[Episode]
    ) -> list[int]:
        """Which of the second thoughts are worth learning, by number."""
        kept, of_group = [], dict.fromkeys((e.group for e in first), 0)
        for number, (a, episode) in enumerate(zip(asked, again, strict=True)):
            tokens, group = policy.ids(episode.turns[-1].decision)[len(a.begun) :], first[a.place].group
            few = self.shortest <= len(tokens) <= self.longest and of_group[group] < self.most
            if few and episode.score.is_correct and 1 + count_rethinks(policy.codec.decode(tokens)) <= self.waits:
                kept.append(number)
                of_group[group] += 1
        return kept

    def _learned(
        self, policy: Any, asked: Sequence[ReopenedResponse], again: Sequence[Episode], kept: Sequence[int]
    ) -> list[Episode]:
        """The kept episodes as if the policy had written all of them, but for the trigger where that is forced."""
        import torch

        lessons_learned = []
        for number, episode in zip(kept, evaluated(policy, [again[n] for n in kept]), strict=True):
            (turn,), a = episode.turns, asked[number]
            forced = None
            if self.trigger == "forced":
                forced = torch.zeros(len(turn.decision.logprobs), dtype=torch.bool)
                forced[a.kept : len(a.begun)] = True
            lessons_learned.append(
                replace(episode, turns=[replace(turn, decision=replace(turn.decision, forced_mask=forced))])
            )
        return lessons_learned


rethink = Rethink


def response_tokens(policy: Any, episode: Episode) -> list[int]:
    """The tokens of a response without the one that stopped it."""
    return [token for token in policy.ids(episode.turns[-1].decision) if token not in policy.codec.stop_ids]
