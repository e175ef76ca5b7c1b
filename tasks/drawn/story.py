"""What a drawn or simulated video tells: who does what, and when. The truth of every question about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rewards.intervals import Interval
from vlrl.types import Video

HISSING = ("ches", "shes", "sses", "xes")  # verbs that take -es


@dataclass(frozen=True)
class Event:
    """Something that one actor does for a while. `said` reads as 'the red circle grows'."""

    actor: str  # 'red circle', 'robot'
    action: str  # 'grows', 'grasps the blue cube'
    span: Interval  # seconds, inside the video

    @property
    def said(self) -> str:
        return f"the {self.actor} {self.action}"

    @property
    def bare(self) -> str:
        """The action behind an auxiliary verb: 'grow', 'grasp the blue cube'."""
        verb, space, rest = self.action.partition(" ")
        return verb[: -2 if verb.endswith(HISSING) else -1] + space + rest


@dataclass(frozen=True)
class Story:
    """A video and all that happens in it, in order of time. No two events say the same."""

    video: Video
    events: tuple[Event, ...]
    facts: Mapping[str, str] = field(default_factory=dict)  # what else is known: 'level', 'goal', ...
