"""A reward model for what no rule can grade, rules for the rest (VLAA-Thinker)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from vlrl.judges import Chosen
from vlrl.judges.asked import OnFailure
from vlrl.methods import method
from vlrl.process.judged_answer import SAME, JudgedAnswer, Weight
from vlrl.process.wording import Form
from vlrl.types import Episode, Policy, UserError


@method(source="mixed reward of VLAA-Thinker, arXiv 2504.11468; its formulas and code were not released")
class OpenEnded:
    """Samples of some kinds earn a judge's score of their answer; all others keep what their rules pay.

    Published: answers are rewarded by the question's type; digits, choices, formulas and boxes by rules, open-ended
    ones by a reward model; and all for their form. Ours: any judge as the reward model, asked by a strict schema
    whether the answer says what the truth says; its score in [0, 1] as it is, or with `least` as right or wrong. The
    part `judged` of these samples' score; `open_ended/share` in the log is their share of the episodes.

    Args:
        judge: who scores: `vlrl.judges`.
        tag: of samples, by which they are chosen: `kind` of visual_reasoning, `task` of a mixture.
        values: the tag's values whose samples are judged.
        instead: the part of the task's reward in whose place the score stands, with that part's weight taken away.
        least: score from which on an answer is right; null: the score itself is earned.
        criteria: what is right, in words.
        amount: what a score of 1 earns.
        form: `outcome` or `reward`, see `vlrl.process.wording.paid`.
        on_failure: an answer without a score has the mean of its group's (`neutral`), 0 (`zero`), or `stop`s the run.

    Raises:
        UserError: the task's reward has no part `instead`.
    """

    def __init__(
        self, policy: Policy, task: Any, seed: int, *,
        judge: Chosen, tag: str = "kind", values: Annotated[tuple[str, ...], Field(min_length=1)] = ("text",),
        instead: str | None = None, least: Annotated[float, Field(gt=0, le=1)] | None = None, criteria: str = SAME,
        amount: Weight = 1.0, form: Form = "outcome", on_failure: OnFailure = "neutral",
    ):  # fmt: skip
        if instead is not None and instead not in task.weights:
            raise UserError(
                f"process: open_ended: instead: the task's reward has no part {instead!r} "
                f"(one of: {', '.join(task.weights) or 'none: set the weights of its parts'})"
            )
        self.tag, self.values = tag, values
        self.part, self.weight = instead, task.weights[instead] if instead else 0.0
        self._judged = JudgedAnswer(
            policy, task, seed, judge=judge, least=least, criteria=criteria, amount=amount, form=form,
            on_failure=on_failure,
        )  # fmt: skip
        self.metrics: dict[str, float] = {}

    def __call__(self, episodes: Sequence[Episode], step: int) -> list[Episode]:
        chosen = [i for i, episode in enumerate(episodes) if episode.sample.tags.get(self.tag) in self.values]
        whole = list(episodes)
        self.metrics = {"open_ended/share": len(chosen) / len(episodes)}
        if chosen:
            judged = self._judged([self._without_rule(episodes[i]) for i in chosen], step)
            for i, episode in zip(chosen, judged, strict=True):
                whole[i] = episode
            self.metrics |= self._judged.metrics
        return whole

    def _without_rule(self, episode: Episode) -> Episode:
        paid = self.weight * episode.score.part(self.part) if self.part else 0.0
        return replace(episode, reward=episode.reward - paid)


open_ended = OpenEnded
