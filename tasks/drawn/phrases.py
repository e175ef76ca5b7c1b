"""Phrases that fit exactly one object of a drawn scene, by colour, pattern, size or place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tasks.drawn.scenes import Thing

EXTREMES: dict[str, Callable[[Thing], float]] = {  # word -> what the object has least of
    "left": lambda thing: thing.box[0] + thing.box[2],
    "right": lambda thing: -thing.box[0] - thing.box[2],
    "top": lambda thing: thing.box[1] + thing.box[3],
    "bottom": lambda thing: -thing.box[1] - thing.box[3],
    "small": lambda thing: thing.side,
    "big": lambda thing: -thing.side,
}
CLEAR = 1.15  # a size must differ from the next one's by this factor, centres by half as many of the object's sides


def by_place(phrase: str) -> bool:
    """Whether a phrase tells its object by place or size, not by its look."""
    return phrase.split()[0] in EXTREMES


def fitting(things: Sequence[Thing], target: Thing) -> list[str]:
    """Every phrase that fits the target and no other thing; those with a look come first."""
    found = []
    for looks in (f"{target.color} {target.shape}", f"{target.pattern} {target.shape}", target.shape):
        same = [thing for thing in things if _fits(thing, looks)]
        if len(same) == 1:
            found.append(looks)
    same = [thing for thing in things if thing.shape == target.shape]
    found += [f"{word} {target.shape}" for word in EXTREMES if len(same) > 1 and _extreme(same, target, word)]
    return found


def _fits(thing: Thing, looks: str) -> bool:
    return looks in (thing.shape, f"{thing.color} {thing.shape}", f"{thing.pattern} {thing.shape}")


def _extreme(things: Sequence[Thing], target: Thing, word: str) -> bool:
    """Whether the target has clearly least of what the word measures."""
    others = [thing for thing in things if thing is not target]
    own, next_ = EXTREMES[word](target), min(map(EXTREMES[word], others))
    if word == "small":
        return own * CLEAR <= next_
    if word == "big":
        return own <= next_ * CLEAR
    return next_ - own >= target.side * CLEAR
