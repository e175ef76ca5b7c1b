"""Videos with questions about them: the rows of video question answering and temporal grounding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rewards.intervals import Interval


@dataclass(frozen=True)
class Clip:
    """One question about a video, or about images. Times are seconds of the whole video, also where a clip is cut."""

    id: str
    question: str
    video: Path | None = None
    images: tuple[Path | bytes, ...] = ()  # shown behind the video
    start: float = 0.0  # of what is shown of the video
    end: float | None = None  # None: its end
    duration: float = 0.0  # of the video, as it is, not as annotated; 0 without a video
    options: tuple[str, ...] = ()  # without their letters, in order
    answer: str = ""  # a letter where there are options, else the truth as text
    kind: str = "multiple choice"  # how `answer` is judged: a key of rewards.video_r1.PROBLEMS
    spans: tuple[Interval, ...] = ()  # when what is asked about is seen, inside the video
    weight: float = 1.0
    tags: Mapping[str, str] = field(default_factory=dict)  # level, type, duration group, ...
