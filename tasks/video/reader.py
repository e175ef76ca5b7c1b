"""Videos from files with PyAV, which brings its own FFmpeg: nothing else has to be installed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from pathlib import Path

import av
import numpy as np

from tasks.readers.rows import BadRowError
from tasks.video.sampling import Sampling
from vlrl.media import MAX_FRAMES, MediaError, open_video
from vlrl.types import UserError, Video

EVENLY = Sampling()
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


def read(file: str | Path, sampling: Sampling = EVENLY) -> Video:
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
        shown = _turned(frame, sampling, len(chosen))
        if frames is None:
            frames = np.empty((len(chosen), *shown.shape), np.uint8)
        if shown.shape != frames[i].shape:
            raise BadVideoError(f"video {file}: its frames change in size at {track.seconds(_time(frame)):.2f} s")
        frames[i] = shown
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
        reason = getattr(error, "strerror", None) or error
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


def _turned(frame: av.VideoFrame, sampling: Sampling | None = None, count: int = 1) -> np.ndarray:
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
