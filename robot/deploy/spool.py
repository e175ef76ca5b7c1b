"""A recording that loses nothing: one append-only file for each episode, readable up to wherever it was cut.

8 bytes   b"vlrlspl1"
records   length (u32) and CRC-32 (u32) of what follows, little endian, then a message of `robot.wire`

The kinds of records (`fields["kind"]`): header, tick, note, lost, end. A thread writes them; control never waits.
"""

from __future__ import annotations

import io
import os
import queue
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from robot.motion.body import Ticked
from robot.wire import pack, unpack
from vlrl.media import load_rgb
from vlrl.system.clock import boottime

MAGIC = b"vlrlspl1"
EXACT = 128  # pixels of the longer side up to which pictures are kept exactly, as PNG; larger ones are JPEG
QUALITY = 95  # of JPEG
SYNC = 1.0  # seconds between flushes to the disk
ROOM = 256  # records that may wait; further ones are dropped and counted
LARGEST = 1 << 28  # bytes of a record; a longer one is damage


class Spool:
    """Writes one episode. Used by one thread; it never raises and never waits once it is made.

    Args:
        path: of the file, which is not there yet.
        header: what finishing needs to know; what JSON can hold.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(self, path: Path, header: Mapping[str, Any], *, room: int = ROOM):
        self.path, self.problem = path, ""  # why it stopped keeping anything, or ''
        self.lost = 0  # records that were not kept
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115 - the thread closes it
        self._queue: queue.Queue[tuple[dict[str, Any], dict[str, np.ndarray]] | None] = queue.Queue(room)
        self._untold = 0  # of `lost`, those that the file does not say yet
        self._end = 0  # where the last whole record ends
        self._thread = threading.Thread(target=self._run, name="spool", daemon=True)
        self._thread.start()
        self._put({"kind": "header", **header})

    def tick(self, ticked: Ticked, pictures: Mapping[str, np.ndarray], **fields: Any) -> None:
        """A tick, and the pictures uint8 [height, width, 3] that are new since the last one."""
        sensed, signals = ticked.sensed, ticked.sensed.signals
        told = {
            "kind": "tick", "tick": ticked.tick, "t": sensed.t, "source": ticked.source, "age": ticked.age,
            "seq": ticked.seq, "events": [[e.stage, e.reaction, e.cause] for e in ticked.events],
            "stopped": ticked.stopped, "reward": signals.reward, "success": signals.success, **fields,
        }  # fmt: skip
        numbers = {"state": sensed.state, "measured": sensed.measured, "asked": ticked.asked, "sent": ticked.sent}
        arrays = {name: np.asarray(value, np.float32) for name, value in numbers.items() if value is not None}
        self._put(told, arrays | {f"picture:{name}": picture for name, picture in pictures.items()})

    def note(self, **fields: Any) -> None:
        """Something worth keeping between ticks."""
        self._put({"kind": "note", "t": boottime(), **fields})

    def close(self, **ending: Any) -> None:
        """Writes how the episode ended and the rest of what waits. May be called twice."""
        if self._thread.is_alive():
            self._queue.put(({"kind": "end", "t": boottime(), **ending}, {}))
            self._queue.put(None)
            self._thread.join()

    def _put(self, fields: dict[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> None:
        try:
            self._queue.put_nowait((fields, dict(arrays or {})))
        except queue.Full:
            self.lost += 1
            self._untold += 1

    def _run(self) -> None:
        synced = time.monotonic()
        self._write(MAGIC)
        while (item := self._queue.get()) is not None:
            if self._untold:
                count, self._untold = self._untold, 0
                self._record({"kind": "lost", "count": count}, {})
            self._record(*item)
            if time.monotonic() - synced > SYNC:
                self._sync()
                synced = time.monotonic()
        self._sync()
        self._file.close()

    def _record(self, fields: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        if self.problem:
            self.lost += fields["kind"] == "tick"
            return
        message = pack(fields, {name: _small(name, array) for name, array in arrays.items()})
        self._write(len(message).to_bytes(4, "little") + zlib.crc32(message).to_bytes(4, "little") + message)
        self.lost += bool(self.problem) and fields["kind"] == "tick"

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[self._file.write(view) :]
            self._end += len(data)
        except OSError as error:
            self.problem = f"{error.strerror} ({self.path})"
            self._file.truncate(self._end)  # half a record would be in the way of nothing, but is no use

    def _sync(self) -> None:
        try:
            os.fdatasync(self._file.fileno())
        except OSError as error:
            self.problem = self.problem or f"{error.strerror} ({self.path})"


def read(path: Path) -> Iterator[tuple[dict[str, Any], dict[str, np.ndarray]]]:
    """The records of a file, up to the last whole one; pictures as they are kept, for `picture`."""
    with open(path, "rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            return
        while len(head := file.read(8)) == 8:
            size, check = int.from_bytes(head[:4], "little"), int.from_bytes(head[4:], "little")
            message = file.read(size) if size <= LARGEST else b""
            if len(message) != size or zlib.crc32(message) != check:
                return
            yield unpack(message)


def picture(kept: np.ndarray) -> np.ndarray:
    """uint8 [height, width, 3] of a picture as it is kept."""
    return np.array(load_rgb(kept.tobytes()))


def _small(name: str, array: np.ndarray) -> np.ndarray:
    if not name.startswith("picture:"):
        return array
    made = io.BytesIO()
    image = Image.fromarray(array)
    if max(image.size) <= EXACT:
        image.save(made, "PNG", compress_level=1)
    else:
        image.save(made, "JPEG", quality=QUALITY, subsampling=0)
    return np.frombuffer(made.getvalue(), np.uint8)
