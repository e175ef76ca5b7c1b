"""GUI-Odyssey's action matching (2406.08451), as rewards for one step. Coordinates are in 0..1000 of the screen.

Source: github.com/OpenGVLab/GUI-Odyssey, GUIOdyssey_action_matching.py; differences in docs/rewards.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from rewards import parse, points, text
from rewards.total import total

SIZE = (1000.0, 1000.0)


@total(point=2, target=2)
def click(point: Sequence[float], target: Sequence[float], box: Sequence[float] = ()) -> float:
    """0 or 1: the point is in the target's `box` where one is given, or at most 14 % of the screen from its point."""
    return max(points.in_box(point, box) if len(box) == 4 else 0.0, points.near(point, target, SIZE))


@total()
def step(
    kind: str,
    argument: str | Sequence[float] | None,
    true_kind: str,
    true_argument: str | Sequence[float] | None,
    box: Sequence[float] = (),
) -> float:
    """0 or 1: the right kind of action with the right point, direction or text. Never raises on plain data.

    Points are two numbers: a text that looks like one is not read.
    """
    if kind != true_kind:
        return 0.0
    if kind in ("CLICK", "LONG_PRESS"):
        given, right = parse.point(argument), parse.point(true_argument)
        return 0.0 if given.reason or right.reason else click(given.value, right.value, box)
    if kind not in ("SCROLL", "TYPE"):
        return 1.0
    if not (isinstance(argument, str) and isinstance(true_argument, str)):
        return 0.0
    return (text.direction if kind == "SCROLL" else text.similar)(argument, true_argument)
