"""Clocks with hands. Content, which splits never share: the time and the colour of the dial.

Level 1 has full hours; 2 quarters; 3 steps of five minutes, and asks for the time some minutes later.
"""

from __future__ import annotations

import math

from tasks.drawn.quiz import Asked, Quiz, Rng, Size, dealt, one, paper, whole, write
from tasks.drawn.screens import COLORS
from vlrl.types import Split

STEPS = {1: 60, 2: 15, 3: 5}  # level -> minutes
HOUR, MINUTE = (0.5, 0.09), (0.8, 0.05)  # length and width of a hand, as shares of the dial's radius


def clocks(rng: Rng, split: Split, size: Size, level: int) -> Quiz:
    step = STEPS[level]
    names = tuple(COLORS)
    hour, minute, color = dealt(
        split, lambda: (whole(rng, 1, 12), step * whole(rng, 0, 60 // step - 1), one(rng, names))
    )
    image, pen, ink = paper(rng, size)
    radius = rng.uniform(0.4, 0.47) * min(size)
    x, y = (side / 2 + rng.uniform(-0.03, 0.03) * side for side in size)
    pen.ellipse((x - radius, y - radius, x + radius, y + radius), outline=COLORS[color], width=max(2, int(radius / 10)))
    for mark in range(12):
        turn = math.radians(30 * mark)
        if level > 1 and min(size) >= 96 and mark % 3 == 0:
            spot = x + 0.74 * radius * math.sin(turn), y - 0.74 * radius * math.cos(turn)
            write(pen, spot, str(mark or 12), radius / 5, ink)
        ends = [(x + r * radius * math.sin(turn), y - r * radius * math.cos(turn)) for r in (0.82, 0.92)]
        pen.line(ends, fill=ink)
    for (length, width), degrees in ((HOUR, 30 * hour + minute / 2), (MINUTE, 6 * minute)):
        turn = math.radians(degrees)
        tip = x + length * radius * math.sin(turn), y - length * radius * math.cos(turn)
        pen.line(((x, y), tip), fill=ink, width=max(1, round(2 * width * radius)))
    return Quiz(image, _asked(rng, hour, minute, level), _hands(hour, minute))


def _hands(hour: int, minute: int) -> str:
    """Where the hands point to, by the figures of the dial."""
    short = f"at {hour}" if minute == 0 else f"between {hour} and {hour % 12 + 1}"
    return f"The short hand points {short}, the long one at {minute // 5 or 12}."


def _asked(rng: Rng, hour: int, minute: int, level: int) -> list[Asked]:
    if level == 1:
        return [Asked("clocks/hour", "What hour is it?", "number", str(hour))]
    asked = [Asked("clocks/time", "What time is it?", "text", told(hour, minute))]
    if level == 3:
        more = 5 * whole(rng, 2, 11)
        asked.append(Asked("clocks/later", f"What time is it {more} minutes later?", "text", told(hour, minute + more)))
    return asked


def told(hour: int, minute: int) -> str:
    """`3:05`; minutes may go beyond the hour."""
    return f"{(hour - 1 + minute // 60) % 12 + 1}:{minute % 60:02}"


TOPICS = {"clocks": clocks}
