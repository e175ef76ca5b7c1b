"""Video decoding: frames within a budget, a cache, Qwen's sampling of frames."""

from __future__ import annotations

import math
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import av
import numpy as np

from tasks.data.images import BadRowError
from vlrl.media import MAX_FRAMES, MediaError, open_video
from vlrl.types import UserError, Video, shallow

# Which frames of a video are looked at, and how large.


@dataclass(frozen=True)
class FrameSampling:
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
        for name, value in shallow(self).items():
            if name not in ("start", "end") and value is not None and not value > 0:
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
        number = self.count if self.count is not None else _clamped(len(inside) / fps * self.fps, self.least, self.most)
        n = max(1, min(int(number), len(inside)) // 2 * 2)
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


# Videos from files with PyAV, which brings its own FFmpeg: nothing else has to be installed.

EVENLY = FrameSampling()
SLACK = 0.5  # seconds by which a header may promise too much
JUMP = 16  # frames that must be skipped for a jump to be faster than decoding them


class BadVideoError(BadRowError, UserError):
    """A video that cannot be used: where rows are read a bad row, later the user's error."""


@dataclass(frozen=True)
class Info:
    """What a file says of its video, every frame's time included; nothing but the first frame is decoded for it."""

    size: tuple[int, int]  # width and height as shown, after rotation
    fps: float  # on average
    duration: float  # seconds
    times: tuple[float, ...]  # seconds from the first frame, ascending


@dataclass(frozen=True)
class _Track:
    """The frames of a file in order of presentation, in its own units of time."""

    base: Fraction  # seconds of a unit
    pts: list[int]
    keys: list[int]  # those of `pts` from which decoding can start
    last: int  # how long the last frame is shown

    def seconds(self, pts: int) -> float:
        return float((pts - self.pts[0]) * self.base)

    @property
    def times(self) -> tuple[float, ...]:
        return tuple(map(self.seconds, self.pts))

    @property
    def duration(self) -> float:
        return self.seconds(self.pts[-1] + self.last)

    @property
    def fps(self) -> float:
        return len(self.pts) / self.duration


def probe(file: str | Path) -> Info:
    """Size, rate and times of a video, for checking a row before anything runs.

    Raises:
        BadVideoError: no such file, no video in it, no frame, or cut short so that this is seen without decoding.
    """
    track = _track(file)
    height, width, _ = _turned(next(_frames(file, track, track.pts[:1]))).shape
    return Info((width, height), track.fps, track.duration, track.times)


def read_clip_frames(file: str | Path, sampling: FrameSampling = EVENLY) -> Video:
    """The sampled frames, turned as they are to be shown, with their own times of presentation.

    Raises:
        BadVideoError: as `probe`; a frame that is asked for is broken or missing; no frame lies in the clip.
    """
    track = _track(file)
    chosen = [track.pts[place] for place in sampling.chosen(track.times, track.fps)]
    if not chosen:
        clip = f"from {sampling.start} s to {sampling.end} s"
        raise BadVideoError(f"video {file}: no frame {clip}; it lasts {track.duration:.2f} s")
    frames, times = None, []
    for i, frame in enumerate(_frames(file, track, chosen)):
        picture = _turned(frame, sampling, len(chosen))
        if frames is None:
            frames = np.empty((len(chosen), *picture.shape), np.uint8)
        if picture.shape != frames[i].shape:
            raise BadVideoError(f"video {file}: its frames change in size at {track.seconds(_time(frame)):.2f} s")
        frames[i] = picture
        times.append(track.seconds(_time(frame)))
    if frames is None:
        raise BadVideoError(f"video {file} holds none of the frames that were asked for")
    frames.setflags(write=False)  # it may be shared
    return Video(frames, tuple(times), track.fps, track.duration)


@contextmanager
def _opened(file: str | Path) -> Iterator[tuple[av.container.InputContainer, av.VideoStream]]:
    """The file and its first video stream; what goes wrong with them meanwhile is the file's fault."""
    try:
        with open_video(file) as container:
            if not container.streams.video:
                raise BadVideoError(f"video {file} holds no video stream")
            stream = container.streams.video[0]
            if stream.codec_context is None:  # PyAV 15 would crash at its first frame
                raise BadVideoError(f"video {file} is of a kind that cannot be decoded here")
            yield container, stream
    except MediaError as error:
        raise BadVideoError(str(error)) from None
    except (OSError, av.FFmpegError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise BadVideoError(f"video {file} is broken or cut short ({reason})") from None


def _track(file: str | Path) -> _Track:
    """The times of all frames, by the packets alone: headers of WebM and Matroska do not even count them."""
    with _opened(file) as (container, stream):
        base, stated, even = stream.time_base, _stated(container, stream), 1 / (stream.average_rate or 25)
        timed, corrupt = [], False
        for packet in islice(container.demux(stream), MAX_FRAMES + 1):
            corrupt |= packet.is_corrupt
            if packet.size and not packet.is_discard:
                timed.append((_time(packet), packet.is_keyframe, packet.duration or 0))
    if len(timed) > MAX_FRAMES:
        raise BadVideoError(f"video {file} has over {MAX_FRAMES:,} frames: cut it into clips")
    timed.sort()
    if not timed:
        raise BadVideoError(f"video {file} holds no frame")
    pts = sorted({time for time, _, _ in timed})
    last = timed[-1][2] or (pts[-1] - pts[-2] if len(pts) > 1 else round(even / base))
    track = _Track(base, pts, [time for time, key, _ in timed if key], max(1, last))
    if corrupt:
        raise BadVideoError(f"video {file} is broken or cut short (a damaged packet)")
    if track.duration < stated - max(SLACK, 2 * even):
        raise BadVideoError(f"video {file} is cut short: {track.duration:.2f} of {float(stated):.2f} s are there")
    return track


def _stated(container: av.container.InputContainer, stream: av.VideoStream) -> Fraction:
    """How long the file says that its video is, in seconds; 0 where it does not say."""
    if stream.duration:
        return stream.duration * stream.time_base
    alone = len(container.streams) == 1 and container.duration  # else another stream may be the longer one
    return Fraction(container.duration, av.time_base) if alone else Fraction(0)


def _frames(file: str | Path, track: _Track, wanted: Sequence[int], jump: int = JUMP) -> Iterator[av.VideoFrame]:
    """For each wanted time the frame shown then, or the first after it. Skips ahead where over `jump` frames can be."""
    with _opened(file) as (container, stream):
        stream.thread_type = "AUTO"
        decoded, at = container.decode(stream), track.pts[0]
        frame = next(decoded, None)
        for place, pts in enumerate(wanted):
            key = track.keys[bisect_right(track.keys, pts) - 1] if track.keys else at
            if bisect_right(track.pts, key) - bisect_right(track.pts, at) > jump:
                container.seek(key, stream=stream)
                decoded = container.decode(stream)
                frame = next(decoded, None)
                if frame is None or _time(frame) > key:  # without an index, as in MPEG-TS, it may land too late
                    yield from _frames(file, track, wanted[place:], jump=len(track.pts))
                    return
            while frame is not None and _time(frame) < pts:
                frame = next(decoded, None)
            if frame is None or frame.is_corrupt:
                raise BadVideoError(f"video {file}: the frame at {track.seconds(pts):.2f} s is broken or missing")
            at = _time(frame)
            yield frame


def _turned(frame: av.VideoFrame, sampling: FrameSampling | None = None, count: int = 1) -> np.ndarray:
    """uint8 [height, width, 3] as it is to be shown, scaled to what a sampling of `count` frames allows."""
    quarters = round(frame.rotation / 90) % 4
    sides = (frame.height, frame.width) if quarters % 2 else (frame.width, frame.height)
    width, height = sampling.size(*sides, count) if sampling else sides
    if quarters % 2:
        width, height = height, width
    small = frame.reformat(width, height, "rgb24", interpolation="BICUBIC")
    return np.rot90(small.to_ndarray(), quarters)


def _time(timed: av.Packet | av.VideoFrame) -> int:
    """When it is shown; AVI has no such times, and decodes in the order of showing."""
    time = timed.dts if timed.pts is None else timed.pts
    if time is None:
        raise OSError("it does not say when a frame is shown")
    return time


# Sampled videos that are asked for again: by the next epoch, or by another question about the same video.


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

    def read(self, file: str | Path, sampling: FrameSampling = EVENLY) -> Video:
        """As `reader.read`, and the same object while it is kept; its frames cannot be written to.

        Raises:
            BadVideoError: as `reader.read`.
        """
        key = (*_state(file), sampling)
        with self._lock:
            if key in self._videos:
                self._videos.move_to_end(key)
                return self._videos[key]
        video = read_clip_frames(file, sampling)
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


# Lets qwen-vl-utils read videos with PyAV, for scripts that call it themselves; vlrl's policies do not need it.
#
# On a machine without FFmpeg's libraries its own readers (torchcodec, torchvision) fail on every file.

WHOLE = FrameSampling(max_pixels=2**62, total_pixels=2**62)  # qwen-vl-utils does the resizing itself
NAMES = {"fps": "fps", "nframes": "count", "min_frames": "least", "max_frames": "most", "video_start": "start",
         "video_end": "end"}  # fmt: skip


def register() -> None:
    """Makes `qwen_vl_utils.process_vision_info` and `fetch_video` read with `tasks.data.video` in this process."""
    from qwen_vl_utils import vision_process

    vision_process.VIDEO_READER_BACKENDS["pyav"] = vision_process.VIDEO_READER_BACKENDS["torchvision"] = _read
    vision_process.FORCE_QWENVL_VIDEO_READER = "pyav"
    vision_process.get_video_reader_backend.cache_clear()


def _read(asked: dict[str, Any]) -> tuple[Any, dict[str, Any], float]:
    """Frames uint8 [T, 3, height, width], their times as a clock of a thousand frames a second, frames a second."""
    import torch

    file = Path(asked["video"].removeprefix("file://"))
    options = {ours: asked[theirs] for theirs, ours in NAMES.items() if asked.get(theirs) is not None}
    video = read_clip_frames(file, replace(WHOLE, **options))
    clock = [round(1000 * time) for time in video.times]
    metadata = {"fps": 1000.0, "frames_indices": clock, "total_num_frames": round(1000 * video.duration),
                "video_backend": "pyav"}  # fmt: skip
    rate = (len(clock) - 1) / (video.times[-1] - video.times[0]) if len(clock) > 1 else video.fps
    return torch.from_numpy(video.frames.copy()).permute(0, 3, 1, 2), metadata, rate
