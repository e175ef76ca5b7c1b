"""A video of an episode, written while it is played."""

from __future__ import annotations

import os
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from PIL import Image

from robot.outcomes import Ending
from robot.play import Tick
from robot.robot import Robot
from vlrl.types import UserError

CODECS = ("libx264", "mpeg4")  # browsers show the first, any player the second


class Film:
    """A watcher of `robot.play.Play` that writes an MP4: one frame at the beginning and one after each tick.

    Looking does not change the episode. The file appears under its name once it is whole: when the episode ends, or at
    `close`.

    Args:
        path: of the file; its folder is there.
        size: width and height in pixels of robots that have a method `picture(size)`; others keep their camera's.
        fps: frames a second; none: the robot's ticks, so that it runs at the robot's speed.

    Raises (when the episode begins):
        UserError: the robot has no picture, or cannot render.
    """

    def __init__(self, path: str, size: Sequence[int], fps: float | None = None):
        self._path, self._size, self._fps = Path(path), (int(size[0]), int(size[1])), fps
        self._part = self._path.with_name(f".{self._path.name}.part")
        self._file: Any = None
        self._stream: Any = None

    def begun(self, robot: Robot) -> None:
        first = picture(robot, self._size)
        self._open(first.size, Fraction(self._fps or robot.hz).limit_denominator(1000))
        self._add(first)

    def ticked(self, robot: Robot, tick: Tick) -> None:
        self._add(picture(robot, self._size))

    def ended(self, robot: Robot, ending: Ending) -> None:
        self.close()

    def close(self) -> None:
        """Finishes the file if that has not been done."""
        if self._file is None:
            return
        file, self._file = self._file, None
        file.mux(self._stream.encode())
        file.close()
        os.replace(self._part, self._path)

    def _open(self, size: tuple[int, int], fps: Fraction) -> None:
        import av  # takes as long as an episode, and few workers need it

        codec = next((name for name in CODECS if name in av.codecs_available), CODECS[-1])
        self._file = av.open(str(self._part), "w", format="mp4", options={"movflags": "faststart"})
        self._stream = self._file.add_stream(codec, rate=fps)
        self._stream.width, self._stream.height = (side // 2 * 2 for side in size)  # colours lie on every second pixel
        self._stream.pix_fmt = "yuv420p"
        self._stream.codec_context.thread_count = 1

    def _add(self, image: Image.Image) -> None:
        import av

        whole = image.convert("RGB").crop((0, 0, self._stream.width, self._stream.height))
        self._file.mux(self._stream.encode(av.VideoFrame.from_image(whole)))


def picture(robot: Robot, size: tuple[int, int]) -> Image.Image:
    """What a person would look at, RGB: the robot's own `picture(size)`, else the first image that it shows.

    Raises:
        UserError: it has neither.
    """
    if own := getattr(robot, "picture", None):
        return own(size)
    images = robot.observe().images
    if not images:
        name = type(robot).__name__
        raise UserError(f"video: {name} shows no picture: give it a camera, or a method picture(size)")
    return images[0]
