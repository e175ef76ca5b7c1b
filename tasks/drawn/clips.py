"""Draws short videos of shapes that move, grow, change colour, blink or hide, one after another or at once.

An event may come at any time with the same chance: the best constant answer scores about 0.28 mean IoU, and an eye
without language cannot tell which of three events is meant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tasks.drawn.screens import COLORS
from tasks.drawn.story import Event, Story
from vlrl.types import Video

SHAPES = ("circle", "square", "triangle")
FAR = 0.36  # of the picture's side: the length of a move
RADIUS = (0.13, 0.17)  # of the picture's side
LENGTHS = (0.15, 0.4)  # of the video: how long an event takes
TRIES = 50  # arrangements that are tried for one plot


@dataclass(frozen=True)
class Look:
    """A shape at one time: `x`, `y` its middle and `radius`, in shares of the picture's side."""

    shape: str
    color: tuple[float, float, float]
    x: float
    y: float
    radius: float
    seen: bool = True


Change = Callable[[Look, float, float], Look]  # (look before, progress in (0, 1], seconds since the start) -> look


def _moving(right: float, down: float) -> Change:
    return lambda look, progress, _: replace(look, x=look.x + right * progress, y=look.y + down * progress)


def _sizing(factor: float) -> Change:
    return lambda look, progress, _: replace(look, radius=look.radius * (1 + (factor - 1) * progress))


def _coloring(name: str) -> Change:
    """That colour meanwhile; then its own again."""
    return lambda look, progress, _: replace(look, color=COLORS[name] if progress < 1 else look.color)


def _blinking(look: Look, progress: float, seconds: float) -> Look:
    """Gone every first half of a second."""
    return replace(look, seen=progress >= 1 or seconds % 1 >= 0.5)


def _hiding(look: Look, progress: float, _: float) -> Look:
    return replace(look, seen=progress >= 1)


def _appearing(look: Look, progress: float, _: float) -> Look:
    return replace(look, seen=progress < 1)


APPEARS = "appears"  # to go again: who does is not seen before
ACTIONS: dict[str, Change] = {
    "moves left": _moving(-FAR, 0),
    "moves right": _moving(FAR, 0),
    "moves up": _moving(0, -FAR),
    "moves down": _moving(0, FAR),
    "grows": _sizing(1.7),
    "shrinks": _sizing(0.5),
    "blinks": _blinking,
    "hides": _hiding,
    APPEARS: _appearing,
    **{f"turns {color}": _coloring(color) for color in COLORS},
}
MOVES = tuple(action for action in ACTIONS if action.startswith("moves"))
TURNS = tuple(action for action in ACTIONS if action.startswith("turns"))


def draw(
    rng: np.random.Generator,
    *,
    frames: int,
    size: tuple[int, int],
    duration: float,
    shapes: int,
    events: int,
    actions: Sequence[str],
    step: float,
) -> Story:
    """A video of `frames` frames of `size` (width, height), evenly over `duration` seconds, and its events.

    `shapes` shapes do `events` different things out of `actions`, no shape two at a time; no two begin together. Events
    begin and end at multiples of `step` seconds and take a share `LENGTHS` of the video.
    """
    while True:
        first = _cast(rng, shapes)
        plot = _plot(rng, first, events, actions, duration, step)
        placed = plot and _placed(rng, first, plot)
        if placed:
            break
    times = tuple((i + 0.5) * duration / frames for i in range(frames))
    scenes = [[_at(look, _of(look, plot), time) for look in placed] for time in times]
    video = Video(_drawn(rng, size, scenes), times, frames / duration, duration)
    cast = ", ".join(map(_name, first))
    return Story(video, tuple(sorted(plot, key=lambda event: event.span)), {"cast": cast})


def _cast(rng: np.random.Generator, count: int) -> list[Look]:
    """Different shapes; two may share their form or their colour."""
    pairs = [(shape, color) for shape in SHAPES for color in COLORS]
    return [
        Look(pairs[i][0], COLORS[pairs[i][1]], 0.5, 0.5, rng.uniform(*RADIUS))
        for i in rng.choice(len(pairs), count, replace=False)
    ]


def _name(look: Look) -> str:
    return f"{next(name for name, rgb in COLORS.items() if rgb == look.color)} {look.shape}"


def _plot(
    rng: np.random.Generator, cast: Sequence[Look], count: int, actions: Sequence[str], duration: float, step: float
) -> tuple[Event, ...] | None:
    """`count` events at random times; None where they do not go together."""
    events = []
    for _ in range(count):
        length = max(1, round(rng.uniform(*LENGTHS) * duration / step))
        start = int(rng.integers(round(duration / step) - length + 1))
        actor, action = _name(cast[rng.integers(len(cast))]), actions[rng.integers(len(actions))]
        events.append(Event(actor, action, (start * step, (start + length) * step)))
    return tuple(events) if _together(events) else None


def _together(events: Sequence[Event]) -> bool:
    """No two begin or read alike, no shape does two things at a time, or any before it appears, or turns what it is."""
    pairs = [(a, b) for i, a in enumerate(events) for b in events[:i]]
    starts = all(a.span[0] != b.span[0] and a.said != b.said for a, b in pairs)
    apart = all(a.span[1] <= b.span[0] or b.span[1] <= a.span[0] for a, b in pairs if a.actor == b.actor)
    shown = all(a.actor != b.actor or APPEARS not in (a.action, b.action) for a, b in pairs)
    return starts and apart and shown and all(event.action != f"turns {event.actor.split()[0]}" for event in events)


def _of(look: Look, plot: Sequence[Event]) -> list[Event]:
    return sorted((event for event in plot if event.actor == _name(look)), key=lambda event: event.span)


def _at(look: Look, events: Sequence[Event], time: float) -> Look:
    """The look after all that it did by then."""
    look = replace(look, seen=all(event.action != APPEARS for event in events))
    for event in events:
        start, end = event.span
        if time > start:
            look = ACTIONS[event.action](look, min(1.0, (time - start) / (end - start)), time - start)
    return look


def _placed(rng: np.random.Generator, cast: Sequence[Look], plot: Sequence[Event]) -> list[Look] | None:
    """The cast at places from which all stay in the picture and apart; None where none is found."""
    ends = sorted({time for event in plot for time in event.span} | {0.0})
    # [shape, time, (x, y, radius)], as if all began in the middle
    courses = np.array([[_spot(_at(look, _of(look, plot), time + 1e-6)) for time in ends] for look in cast])
    low = (courses[..., 2:] - courses[..., :2]).max(1)
    high = (1 - courses[..., :2] - courses[..., 2:]).min(1)
    if (low > high).any():
        return None
    for _ in range(TRIES):
        shift = rng.uniform(low, high)
        spots = courses[..., :2] + shift[:, None]
        if all(
            _apart(spots[i], spots[j], courses[i, :, 2] + courses[j, :, 2]) for i in range(len(cast)) for j in range(i)
        ):
            return [replace(look, x=look.x + dx, y=look.y + dy) for look, (dx, dy) in zip(cast, shift, strict=True)]
    return None


def _spot(look: Look) -> tuple[float, float, float]:
    return look.x, look.y, look.radius


def _apart(first: np.ndarray, second: np.ndarray, least: np.ndarray) -> bool:
    return bool((np.hypot(*(first - second).T) > least).all())


def _drawn(rng: np.random.Generator, size: tuple[int, int], scenes: Sequence[Sequence[Look]]) -> np.ndarray:
    """uint8 [T, height, width, 3]: the scenes before a plain ground that is darker on one side, and a little noise."""
    width, height = size
    x, y = np.meshgrid((np.arange(width) + 0.5) / width, (np.arange(height) + 0.5) / height)
    slope = rng.uniform(-40, 40, 2)
    ground = rng.uniform(70, 210) + slope[0] * (x - 0.5) + slope[1] * (y - 0.5) + rng.normal(0, 4, x.shape)
    pixels = np.empty((len(scenes), height, width, 3), np.float32)
    pixels[:] = ground[None, ..., None]
    for frame, scene in zip(pixels, scenes, strict=True):
        for look in scene:
            if look.seen:
                frame[_mask(look, x, y)] = look.color
    return pixels.clip(0, 255).astype(np.uint8)


def _mask(look: Look, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    right, down = (x - look.x) / look.radius, (y - look.y) / look.radius
    if look.shape == "circle":
        return right**2 + down**2 <= 1
    if look.shape == "square":
        return np.maximum(abs(right), abs(down)) <= 0.88
    return (down <= 0.8) & (2 * abs(right) <= down + 1)
