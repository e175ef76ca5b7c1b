"""What a method declares of itself, so that a wrong recipe fails when it is read and not at step 40."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

Need = Literal["group", "reference", "features", "sequence_mean"]
Level = Literal["sequence", "token"]
T = TypeVar("T", bound=Callable)

ALTERNATIVES = {
    "group": "needs several completions per prompt: set train.group_size to 2 or more, or use beta_tracker",
    "sequence_mean": "is a loss of whole completions, which count the same: set weighing to sequence_mean",
}


@dataclass(frozen=True)
class Method:
    """needs: what the run must give. level: `sequence` works on one value per decision, `token` on [B, T]."""

    needs: tuple[Need, ...] = ()
    level: Level = "sequence"
    source: str = ""


def method(*, needs: tuple[Need, ...] = (), level: Level = "sequence", source: str = "") -> Callable[[T], T]:
    """Marks a function or class as a plug-in and states its needs and its source (paper, equation or repository)."""

    def mark(target: T) -> T:
        target.method = Method(needs, level, source)
        return target

    return mark


def of(target: object) -> Method:
    return getattr(target, "method", Method())
