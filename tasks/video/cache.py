"""Sampled videos that are asked for again: by the next epoch, or by another question about the same video."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path

from tasks.video import reader
from tasks.video.sampling import Sampling
from vlrl.types import Video


class Cache:
    """Reads each file once per sampling, while the frames fit into `limit` bytes; the longest unused make room.

    A file that has changed since is read again. Threads may share it; two that ask for a new video at the same time
    may both decode it.
    """

    def __init__(self, limit: int = 2**30):
        self.limit, self.held = limit, 0  # bytes
        self._videos: OrderedDict[tuple, Video] = OrderedDict()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple:
        return type(self), (self.limit,)  # another process begins with an empty one

    def read(self, file: str | Path, sampling: Sampling = reader.EVENLY) -> Video:
        """As `reader.read`, and the same object while it is kept; its frames cannot be written to.

        Raises:
            BadVideoError: as `reader.read`.
        """
        key = (*_state(file), sampling)
        with self._lock:
            if key in self._videos:
                self._videos.move_to_end(key)
                return self._videos[key]
        video = reader.read(file, sampling)
        with self._lock:
            return self._keep(key, video)

    def _keep(self, key: tuple, video: Video) -> Video:
        if key in self._videos or video.frames.nbytes > self.limit:
            return self._videos.get(key, video)
        self._videos[key] = video
        self.held += video.frames.nbytes
        while self.held > self.limit:
            self.held -= self._videos.popitem(last=False)[1].frames.nbytes
        return video


def _state(file: str | Path) -> tuple[str, int, int]:
    """What changes when the file does: path, time of writing, size."""
    path = Path(file).absolute()
    try:
        stat = path.stat()
    except OSError:
        return str(path), 0, 0  # reading it says what is wrong
    return str(path), stat.st_mtime_ns, stat.st_size
