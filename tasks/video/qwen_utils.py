"""Lets qwen-vl-utils read videos with PyAV, for scripts that call it themselves; vlrl's policies do not need it.

On a machine without FFmpeg's libraries its own readers (torchcodec, torchvision) fail on every file.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tasks.video import reader
from tasks.video.sampling import Sampling

WHOLE = Sampling(max_pixels=2**62, total_pixels=2**62)  # qwen-vl-utils does the resizing itself
NAMES = {"fps": "fps", "nframes": "count", "min_frames": "least", "max_frames": "most", "video_start": "start",
         "video_end": "end"}  # fmt: skip


def register() -> None:
    """Makes `qwen_vl_utils.process_vision_info` and `fetch_video` read with `tasks.video.reader` in this process."""
    from qwen_vl_utils import vision_process

    vision_process.VIDEO_READER_BACKENDS["pyav"] = vision_process.VIDEO_READER_BACKENDS["torchvision"] = _read
    vision_process.FORCE_QWENVL_VIDEO_READER = "pyav"
    vision_process.get_video_reader_backend.cache_clear()


def _read(asked: dict[str, Any]) -> tuple[Any, dict[str, Any], float]:
    """Frames uint8 [T, 3, height, width], their times as a clock of a thousand frames a second, frames a second."""
    import torch

    file = Path(asked["video"].removeprefix("file://"))
    given = {ours: asked[theirs] for theirs, ours in NAMES.items() if asked.get(theirs) is not None}
    video = reader.read(file, replace(WHOLE, **given))
    clock = [round(1000 * time) for time in video.times]
    metadata = {"fps": 1000.0, "frames_indices": clock, "total_num_frames": round(1000 * video.duration),
                "video_backend": "pyav"}  # fmt: skip
    rate = (len(clock) - 1) / (video.times[-1] - video.times[0]) if len(clock) > 1 else video.fps
    return torch.from_numpy(video.frames.copy()).permute(0, 3, 1, 2), metadata, rate
