"""The protocols of few-shot classification as CoOp (2109.01134) set them and CLS-RL (2503.16188) uses them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import Protocol

from vlrl.types import UserError


class Labelled(Protocol):
    """What is drawn from: `answer` is the class."""

    @property
    def id(self) -> str: ...

    @property
    def answer(self) -> str: ...


def shots[P: Labelled](pictures: Sequence[P], k: int, seed: int = 0) -> list[P]:
    """`k` pictures of each class, in their order. UserError where a class has fewer.

    Chosen by a hash of seed and id: the same on every machine and in any order, and a picture that is added takes the
    place of one other at most.
    """
    classes: dict[str, list[P]] = {}
    for picture in pictures:
        classes.setdefault(picture.answer, []).append(picture)
    if few := [f"{name} ({len(listed)})" for name, listed in sorted(classes.items()) if len(listed) < k]:
        raise UserError(f"task.shots: {k}: more than there are of {', '.join(few)}; take fewer or add images")
    drawn = [sorted(listed, key=lambda picture: _draw(picture.id, seed))[:k] for listed in classes.values()]
    chosen = {picture.id for listed in drawn for picture in listed}
    return [picture for picture in pictures if picture.id in chosen]


def _draw(name: str, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}/{name}".encode()).digest()


def halves(classes: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(base, new): the first half of the sorted names, the larger one where they are odd, and the rest."""
    names = sorted(set(classes))
    middle = math.ceil(len(names) / 2)
    return tuple(names[:middle]), tuple(names[middle:])
