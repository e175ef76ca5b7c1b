"""Which frames of a video are looked at, and how large."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vlrl.types import UserError


@dataclass(frozen=True)
class Sampling:
    """Either `fps` frames a second of the clip, within `least` and `most`, or `count` frames, evenly in time.

    The first and the last frame of the clip are among them, as in qwen-vl-utils, whose numbers of frames and, where
    frames come evenly, choice of frames these are. Timestamps stay those of the whole video.

    Raises:
        UserError: numbers that leave no frame.
    """

    fps: float = 2.0
    count: int | None = None  # at most as many as there are; takes the place of `fps`
    least: int = 4
    most: int = 768
    start: float = 0.0  # seconds, of the clip in the video
    end: float | None = None
    max_pixels: int = 768 * 28 * 28  # of a frame
    total_pixels: int = 20480 * 28 * 28  # of all frames; a pair counts as one, as it does in tokens and qwen-vl-utils
    multiple: int = 1  # sides are multiples of this; a model's patch times merge size spares its own resizing

    def __post_init__(self):
        for name in ("fps", "count", "least", "most", "max_pixels", "total_pixels", "multiple"):
            if (value := getattr(self, name)) is not None and not value > 0:
                raise UserError(f"sampling a video: {name} is {value}; it must be above 0")
        if self.least > self.most:
            raise UserError(f"sampling a video: least, {self.least} frames, is above most, {self.most}")
        if not self.start >= 0 or (self.end is not None and not self.end > self.start):
            raise UserError(f"sampling a video: there is no time between start {self.start} s and end {self.end} s")

    def chosen(self, times: Sequence[float], fps: float) -> list[int]:
        """Indices of the frames to look at, ascending, of those shown at `times` (seconds); [] if none is in the clip.

        An even number, for models see frames in pairs, unless there is but one; fewer where a frame that is shown for
        long would be taken twice.
        """
        end = math.inf if self.end is None else self.end
        inside = [i for i, time in enumerate(times) if self.start <= time <= end]
        if not inside:
            return []
        wanted = self.count if self.count is not None else _clamped(len(inside) / fps * self.fps, self.least, self.most)
        n = max(1, min(int(wanted), len(inside)) // 2 * 2)
        clip = np.asarray(times)[inside]
        # Rounded twice: a half is to go to the even index, not where the last bit of a time happens to send it.
        places = np.interp(np.linspace(clip[0], clip[-1], n), clip, np.arange(len(clip))).round(6).round().astype(int)
        return inside if n == len(inside) else [inside[place] for place in np.unique(places)]

    def size(self, width: int, height: int, frames: int) -> tuple[int, int]:
        """Width and height that a frame is scaled down to; never scaled up beyond the next multiple."""
        room = min(self.max_pixels, 2 * self.total_pixels // frames)
        scale = min(1.0, math.sqrt(room / (width * height)))
        sides = [max(self.multiple, round(side * scale / self.multiple) * self.multiple) for side in (width, height)]
        if sides[0] * sides[1] > room:
            sides = [max(self.multiple, int(side * scale / self.multiple) * self.multiple) for side in (width, height)]
        return sides[0], sides[1]


def _clamped(value: float, least: float, most: float) -> float:
    return min(max(value, least), most)
