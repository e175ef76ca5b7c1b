"""What learned rewards are used by: a source whose transitions they pay, and a judge that discriminates policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from vlrl.config import Plugin
from vlrl.contrib.judges.base import JudgeQuestion, Verdict
from vlrl.contrib.process_rewards.progress import Form
from vlrl.methods import method
from vlrl.offpolicy.base import Transitions
from vlrl.types import Observation, UserError

Finite = Annotated[float, Field(allow_inf_nan=False)]


@method(source="RL-VLM-F (arXiv 2402.03681), offline: arXiv 2411.05273; potential: Ng, Harada and Russell, ICML 1999")
def labelled(
    task: Any, seed: int, *, source: Plugin, model: str, form: Form = "potential", low: Finite = 0.0,
    high: Finite = 1.0, gamma: Annotated[float, Field(gt=0, le=1)] = 0.99,
) -> Transitions:  # fmt: skip
    """The source's transitions as they are, but `reward` is what a model of `vlrl preferences` thinks of them.

    The model's value v of a moment, in a scale on which the lowest of this data is `low` and the highest `high`, earns
    the decision that led to it v, times the share of its ticks that were carried out (`form: reward`, as published); or
    the difference that the decision made, `gamma^ticks * v' - v` (`potential`).

    What is done ends: with `reward` that costs whatever would still have been earned, so take low=-1, high=0, and only
    where no failure ends an episode, which would then be worth as much. With `potential` the end earns what is reached.

    Args:
        source: of the transitions, by its name or with options.
        model: folder.
        gamma: should be the run's.

    Raises:
        UserError: there is no such model, or it cannot see what these transitions show.
    """
    from vlrl import registry
    from vlrl.contrib.preferences.labelling import StateAlbum, moments, with_album
    from vlrl.contrib.preferences.reward_model import model_load

    if low >= high:
        raise UserError(f"offline: labelled: low = {low:g} is not below high = {high:g}")
    judged, album = model_load(model), StateAlbum()
    transitions: Transitions = registry.make("source", source, "offline: labelled: source")(
        with_album(task, album), seed
    )
    states, before, after = moments(transitions)
    value = judged.value([_make_observation(state, album, judged.encoder is not None) for state in states])
    span = float(value.max() - value.min())
    if not np.isfinite(span) or span < 1e-6:
        raise UserError(f"offline: labelled: {model} thinks the same of all that this source gives")
    worth = low + (high - low) * (value.astype(np.float64) - value.min()) / span
    bonus = gamma ** transitions.ticks() * worth[after] - worth[before]
    reward = transitions.used * worth[after] if form == "reward" else bonus
    return Transitions(**transitions.columns() | {"reward": reward.astype(np.float32)})


def _make_observation(state: np.ndarray, album: Any, pictures: bool) -> Observation:
    images = album.of(state) if pictures else ()
    if images is None:
        raise UserError(
            "offline: labelled: one state was shown with different pictures, so that they cannot be told apart: "
            "let the robot's state hold all numbers"
        )
    return Observation(images, state)


class PolicyDiscriminator:
    """A model of `vlrl pretrain` with `discriminate`: is the answer by the policy that the reference is by (POLAR)?

    Published: scores without bounds; a judge's lie in [0, 1], so this is their sigmoid. It reads neither the task nor
    the criteria.

    Args:
        model: folder.

    Raises:
        UserError: there is no such model.
    """

    def __init__(self, seed: int, *, model: str):
        from vlrl.contrib.preferences.reward_model import discriminator_load

        self._model = discriminator_load(model)

    def ask(self, questions: Sequence[JudgeQuestion]) -> list[Verdict]:
        return [self._verdict(question) for question in questions]

    def _verdict(self, question: JudgeQuestion) -> Verdict:
        if question.reference is None:
            return Verdict(fault="no reference answer to compare with: use polar")
        scores = self._model.score([question.reference] * len(question.answers), question.answers)
        return Verdict(tuple(scores.sigmoid().tolist()), "by a trained discriminator")
