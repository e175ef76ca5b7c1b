"""What is kept of a video that a rollout showed: some of its frames as one picture, and when each was shown."""

from __future__ import annotations

from typing import Any

from PIL import Image

from vlrl.types import Video

GRID = (4, 2)  # columns and rows at most
SIDE = 128  # pixels of a frame's longer side


def strip(video: Video) -> tuple[Image.Image, dict[str, Any]]:
    """Up to eight frames from the first to the last, in rows, and `{grid, times, axis}` of them.

    `grid`: columns and rows; `times`: of the frames, seconds; `axis`: from when to when frames were taken, seconds.
    """
    count = min(GRID[0] * GRID[1], len(video.frames))
    picks = [round(i * (len(video.frames) - 1) / max(1, count - 1)) for i in range(count)]
    small = [Image.fromarray(video.frames[pick]) for pick in picks]
    for frame in small:
        frame.thumbnail((SIDE, SIDE))
    columns, rows = min(GRID[0], count), -(-count // GRID[0])
    width, height = small[0].size
    whole = Image.new("RGB", (columns * width, rows * height))
    for i, frame in enumerate(small):
        whole.paste(frame, (i % columns * width, i // columns * height))
    times = [_rounded(video.times[pick]) for pick in picks]
    return whole, {"grid": [columns, rows], "times": times, "axis": _axis(video)}


def _axis(video: Video) -> list[float]:
    """The whole video; of a clip of it, from the first frame to the last: an hour would hide twenty seconds."""
    first, last = video.times[0], video.times[-1]
    gap = max((b - a for a, b in zip(video.times, video.times[1:], strict=False)), default=video.duration)
    start = 0.0 if first <= gap else first
    return [_rounded(start), _rounded(video.duration if video.duration - last <= 2 * gap else last)]


def _rounded(seconds: float) -> float:
    return round(float(seconds), 3)
