"""What process rewards share: how a value of everything that was shown becomes what the steps earned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from vlrl.types import Episode

Form = Literal["reward", "potential"]
Discount = Annotated[float, Field(ge=0, le=1)]
Chosen = str | Mapping[str, Any]  # an encoder, by its name or with options


def won(episode: Episode) -> bool:
    """Whether the episode counts as a success."""
    return bool(episode.score) and episode.score.is_correct


def earning(episode: Episode, values: Sequence[float], *, coef: float, form: Form, gamma: float) -> Episode:
    """The episode, each step of which earned what its end is worth, or the difference that it made.

    With `potential` (Ng, Harada and Russell, ICML 1999) step t earns `coef * (gamma * v[t + 1] - v[t])`. Discounted and
    summed that is `coef * (gamma^n * v[n] - v[0])`, whatever lies between: going to and fro earns nothing.

    Args:
        values: [turns + 1], of everything shown, what the last step led to included.
        gamma: should be the discount of the estimator that sums what was earned.
    """
    turns = []
    for turn, before, after in zip(episode.turns, values[:-1], values[1:], strict=True):
        gain = after if form == "reward" else gamma * after - before
        turns.append(replace(turn, earned=turn.earned + coef * float(gain)))
    return replace(episode, turns=turns)
