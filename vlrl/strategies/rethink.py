"""Second thoughts that a policy is made to have: rollout strategy `rethink`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from vlrl.methods import method
from vlrl.rollout import collect
from vlrl.strategies.doubts import before_answer, doubts, fitting, thoughts, trigger
from vlrl.strategies.earlier import evaluated
from vlrl.strategies.groups import accuracy
from vlrl.strategies.hints import Share, check_words
from vlrl.strict import Count
from vlrl.types import Episode, Policy, Sample

HOPEFUL = 0.7  # accuracy of a group above which its wrong members are left alone


@dataclass(frozen=True)
class Asked:
    """A finished response that is to be thought over."""

    place: int  # of its episode in the step
    kept: int  # tokens of the response that stay
    begun: tuple[int, ...]  # these and the trigger


@method(needs=("group",), source="forced rethinking: VL-Rethinker, arXiv 2504.08837; code at 1474fd5")
class Rethink:
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
        self.metrics: dict[str, float] = {}

    def __call__(
        self, policy: Any, task: Any, samples: Sequence[Sample], group_size: int, step: int, **act: Any
    ) -> list[Episode]:
        act["keep"] = False  # a prefill that is kept serves prompts of one forward pass only
        first = collect(policy, task, samples, group_size, **act)
        asked = self._asked(policy, first, group_size, np.random.default_rng([self.seed, step]))
        again = collect(
            policy, task, [samples[first[a.place].group] for a in asked], 1, begun=[a.begun for a in asked],
            room=self.longest + 1, **act,
        ) if asked else []  # fmt: skip
        episodes, kept = list(first), self._kept(policy, first, asked, again)
        for number, episode in zip(kept, self._learned(policy, asked, again, kept), strict=True):
            place = asked[number].place
            episodes[place] = replace(episode, group=first[place].group, shown=True)
        self.played = len(first) + len(again)
        self.metrics = {
            "rethink/asked": len(asked) / len(first), "rethink/kept": len(kept) / len(first),
            "rethink/first_accuracy": accuracy(first), "rethink/accuracy": accuracy(again) if again else 0.0,
            "rethink/mended": sum(not first[asked[n].place].score.is_correct for n in kept) / len(first),
        }  # fmt: skip
        return episodes

    def _asked(self, policy: Any, first: Sequence[Episode], size: int, rng: np.random.Generator) -> list[Asked]:
        """The responses that are thought over, each with what it goes on from."""
        made = []
        for place, episode in enumerate(first):
            group = first[place - place % size :][:size]
            chance, shortened, neutral, which = rng.random(4)  # as many for each, whatever becomes of it
            right = episode.score.is_correct
            hopeless = not right and accuracy(group) > HOPEFUL
            if episode.turns[-1].decision.cut or hopeless or chance >= self.share:
                continue
            tokens = written(policy, episode)
            text = thoughts(episode.completion)
            kept = fitting(policy, tokens, before_answer(text) if shortened < self.cut else text)
            doubt = policy.codec.tokens(trigger(right, neutral, which))[:-1]
            made.append(Asked(place, kept, (*tokens[:kept], *doubt)))
        return made

    def _kept(
        self, policy: Any, first: Sequence[Episode], asked: Sequence[Asked], again: Sequence[Episode]
    ) -> list[int]:
        """Which of the second thoughts are worth learning, by number."""
        kept, of_group = [], dict.fromkeys((e.group for e in first), 0)
        for number, (a, episode) in enumerate(zip(asked, again, strict=True)):
            tokens, group = policy.ids(episode.turns[-1].decision)[len(a.begun) :], first[a.place].group
            few = self.shortest <= len(tokens) <= self.longest and of_group[group] < self.most
            if few and episode.score.is_correct and 1 + doubts(policy.codec.decode(tokens)) <= self.waits:
                kept.append(number)
                of_group[group] += 1
        return kept

    def _learned(
        self, policy: Any, asked: Sequence[Asked], again: Sequence[Episode], kept: Sequence[int]
    ) -> list[Episode]:
        """The kept episodes as if the policy had written all of them, but for the trigger where that is forced."""
        import torch

        made = []
        for number, episode in zip(kept, evaluated(policy, [again[n] for n in kept]), strict=True):
            (turn,), a = episode.turns, asked[number]
            forced = None
            if self.trigger == "forced":
                forced = torch.zeros(len(turn.decision.logprobs), dtype=torch.bool)
                forced[a.kept : len(a.begun)] = True
            made.append(replace(episode, turns=[replace(turn, decision=replace(turn.decision, forced=forced))]))
        return made


rethink = Rethink


def written(policy: Any, episode: Episode) -> list[int]:
    """The tokens of a response without the one that stopped it."""
    return [token for token in policy.ids(episode.turns[-1].decision) if token not in policy.codec.stop_ids]
