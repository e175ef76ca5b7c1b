"""Scenes of shapes to be counted, drawn by tasks.drawn.pictures. Content, which splits never share: which shapes.

A content is the scene's shapes, those of one kind together. Level 1 has up to three plain ones; 2 up to five in
patterns over photographs (each split its own); 3 up to nine, and compares two kinds.
"""

from __future__ import annotations

from collections import Counter

from tasks.drawn.pictures import SOURCES
from tasks.drawn.quiz import Asked, Quiz, Rng, Size, dealt, one, whole
from tasks.drawn.scenes import SHAPES
from vlrl.types import Split

MOST = {1: 3, 2: 5, 3: 9}
SIDES = {1: (0.25, 0.4), 2: (0.2, 0.32), 3: (0.12, 0.2)}  # of objects, as shares of the picture's


def counted(rng: Rng, split: Split, size: Size, level: int) -> Quiz:
    kinds = dealt(split, lambda: _kinds(rng, level))
    source = SOURCES["plain" if level == 1 else "scenes"]
    mixed = [kinds[int(i)] for i in rng.permutation(len(kinds))]
    while True:  # until there was room for all
        image, objects = source.draw(rng, split, mixed, size, SIDES[level])
        if len(objects) == len(kinds):
            break
    counts = Counter(found.label for found in objects)
    name = one(rng, sorted(counts)) if rng.random() < 0.8 else one(rng, SHAPES)
    asked = [Asked("counted/one", f"How many {plural(name)}?", "number", str(counts[name]))]
    if level > 1:
        asked.append(Asked("counted/all", "How many shapes?", "number", str(len(objects))))
    if level == 3 and len(counts) > 1 and len({count for _, count in counts.most_common(2)}) == 2:
        (most, _), (other, _) = counts.most_common(2)
        options = tuple(sorted((most, other)))
        asked.append(
            Asked("counted/more", f"More {plural(options[0])} or {plural(options[1])}?", "choice", most, options)
        )
    return Quiz(image, asked, f"Shapes: {', '.join(found.label for found in objects)}.")


def _kinds(rng: Rng, level: int) -> tuple[str, ...]:
    """Of few kinds, so that there is something to be counted."""
    total, few = whole(rng, 1, MOST[level]), [one(rng, SHAPES) for _ in range(3)]
    return tuple(sorted(one(rng, few) for _ in range(total)))


def plural(name: str) -> str:
    return f"{name}es" if name.endswith("s") else f"{name}s"


TOPICS = {"counted": counted}
