"""One camera's pictures of an episode, kept as they were written and opened one by one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image

from vlrl.media import load_rgb, open_regular_file, open_video

LATE = 0.5  # of a frame's time by which a video's frame may differ from the row's


class Pictures(Sequence):
    """RGB pictures, from PNG or JPEG bytes or from uint8 [height, width, 3]."""

    def __init__(self, frames: Sequence[bytes | np.ndarray]):
        self._frames = frames

    def __len__(self) -> int:
        return len(self._frames)

    def __getitem__(self, t: int) -> Image.Image:
        frame = self._frames[t]
        if isinstance(frame, np.ndarray):
            return Image.fromarray(frame)
        return load_rgb(frame, name=f"the image of frame {t}")


def kept(column: pa.ChunkedArray, root: Path) -> Pictures:
    """Pictures of a data file: inside it, or beside the data set where it names their files."""

    def frame(cell: dict) -> bytes:
        if cell["bytes"] is not None:
            return cell["bytes"]
        file = (root / cell["path"]).resolve()
        if not file.is_relative_to(root.resolve()):
            raise ValueError(f"a picture outside the data set: {cell['path']}")
        with open_regular_file(file) as opened:
            return opened.read()

    return Pictures([frame(cell) for cell in column.to_pylist()])


def video(file: Path, start: float, count: int, fps: float) -> Pictures:
    """`count` frames of a video from `start` seconds on.

    Raises:
        ValueError: the video is damaged or ends before.
    """
    import av

    frames: list[np.ndarray] = []
    try:
        with open_video(file) as opened:
            stream = opened.streams.video[0]
            opened.seek(int(start / stream.time_base), stream=stream)  # to the key frame before it
            for frame in opened.decode(stream):
                if frame.time is not None and frame.time > start - LATE / fps:
                    frames.append(frame.to_ndarray(format="rgb24"))
                if len(frames) == count:
                    return Pictures(frames)
    except (av.FFmpegError, IndexError) as error:
        raise ValueError(f"{file.name}: {error}") from None
    raise ValueError(f"{file.name} has {len(frames)} of {count} frames")
