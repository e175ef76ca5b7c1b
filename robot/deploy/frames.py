"""What a spool says, as frames at the data set's rate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from robot.deploy.spool import picture, read

REACTIONS = ("warn", "clip", "hold", "stop")
SOURCES = ("none", "policy", "person", "hold", "script")


@dataclass(frozen=True, eq=False)
class Take:
    """One episode as it was recorded."""

    header: Mapping[str, Any]
    ticks: Sequence[tuple[Mapping[str, Any], Mapping[str, np.ndarray]]]  # pictures as kept, only where they are new
    end: Mapping[str, Any]  # {} where the file was cut
    lost: int


def load(path: Path) -> Take | None:
    """None where not even a header was written."""
    header, ticks, end, lost = None, [], {}, 0
    for fields, arrays in read(path):
        kind = fields["kind"]
        if kind == "header":
            header = fields
        elif kind == "tick":
            ticks.append((fields, arrays))
        elif kind == "end":
            end = fields
        elif kind == "lost":
            lost += fields["count"]
    return Take(header, ticks, end, lost) if header else None


def features(header: Mapping[str, Any], video: bool) -> dict[str, dict[str, Any]]:
    """The columns of the data set. `action` is what was sent; `asked_action` what was asked for before the governor."""
    channels, names = list(header["channels"]), list(header["names"])
    pictures = {
        f"observation.images.{name}": {
            "dtype": "video" if video else "image",
            "shape": (height, width, 3),
            "names": ["height", "width", "channels"],
        }
        for name, (height, width) in header["pictures"].items()
    }
    state = _column("float32", names)
    return {
        "observation.state": state,
        **(pictures or {"observation.environment_state": state}),
        "action": _column("float32", channels),
        "asked_action": _column("float32", channels),
        "intervention": _column("bool"),
        "source": _column("int64"),
        "next.reward": _column("float32"),
        "next.success": _column("bool"),
        "next.done": _column("bool"),
        "timing.tick_s": _column("float32"),
        "timing.age_s": _column("float32"),
        "timing.chunk": _column("int64"),
        "events": _column("int64", list(REACTIONS)),
        "scene": _column("int64"),
    }


def units(header: Mapping[str, Any]) -> list[dict[str, str]]:
    """What the numbers of an action are in."""
    pairs = zip(header["channels"], header["units"], strict=True)
    return [{"name": name, "unit": unit} for name, unit in pairs]


Ticks = Sequence[tuple[Mapping[str, Any], Mapping[str, np.ndarray]]]


@dataclass(frozen=True, eq=False)
class Grid:
    """The ticks of a take from when every camera has shown something, and which of them begin a frame."""

    take: Take
    ticks: Ticks  # each with the newest pictures, as kept, and what was sent last
    starts: Sequence[int]

    def __len__(self) -> int:
        return len(self.starts)

    def frame(self, index: int, last: bool) -> dict[str, Any]:
        """The values of `features`, and `task`. Its state and action are its first tick's; rewards and events all."""
        start = self.starts[index]
        end = self.starts[index + 1] if index + 1 < len(self) else len(self.ticks)
        return _frame(self.take, self.ticks[start : end + 1], end - start, index + 1 == len(self)) | {
            "next.done": np.array([last])
        }

    def driven(self) -> list[range]:
        """The frames of each stretch that a person drove, of two or more."""
        ends = [*self.starts[1:], len(self.ticks)]
        by_hand = [
            any(fields["source"] == "person" for fields, _ in self.ticks[start:end])
            for start, end in zip(self.starts, ends, strict=True)
        ]
        marks = np.array([False, *by_hand, False])
        begins, ends = np.flatnonzero(marks[1:] & ~marks[:-1]), np.flatnonzero(marks[:-1] & ~marks[1:])
        return [range(*pair) for pair in zip(begins.tolist(), ends.tolist(), strict=True) if pair[1] - pair[0] > 1]


def grid(take: Take) -> Grid:
    """A take at the data set's rate: `fps` frames a second, of `hz` ticks."""
    ticks = list(_filled(take))
    step = take.header["hz"] / take.header["fps"]
    places = [int((fields["tick"] - ticks[0][0]["tick"]) / step + 1e-6) for fields, _ in ticks]
    return Grid(take, ticks, [i for i in range(len(ticks)) if i == 0 or places[i] > places[i - 1]])


def _frame(take: Take, ticks: Ticks, own: int, final: bool) -> dict[str, Any]:
    """ticks: `own` ticks of the frame and, where there is one, the next, which tells how the last of them went."""
    fields, arrays = ticks[0]
    told = [each for each, _ in ticks[1:]]
    reactions = [event[1] for each, _ in ticks[:own] for event in each["events"]]
    won = bool(take.end.get("success")) if final else any(each["success"] for each in told)
    reward = sum(each["reward"] for each in told) or float(final and won)
    pictures = {f"observation.images.{name}": picture(arrays[f"picture:{name}"]) for name in take.header["pictures"]}
    return {
        "observation.state": arrays["state"],
        **(pictures or {"observation.environment_state": arrays["state"]}),
        "action": arrays["sent"],
        "asked_action": arrays.get("asked", arrays["sent"]),
        "intervention": np.array([any(each["source"] == "person" for each, _ in ticks[:own])]),
        "source": np.array([SOURCES.index(fields["source"])], np.int64),
        "next.reward": np.array([reward], np.float32),
        "next.success": np.array([won]),
        "timing.tick_s": np.array([fields["t"] - take.ticks[0][0]["t"]], np.float32),
        "timing.age_s": np.array([fields["age"]], np.float32),
        "timing.chunk": np.array([fields["seq"]], np.int64),
        "events": np.array([reactions.count(each) for each in REACTIONS], np.int64),
        "scene": np.array([take.header["seed"]], np.int64),
        "task": take.header["task"],
    }


def _filled(take: Take) -> Iterator[tuple[Mapping[str, Any], dict[str, np.ndarray]]]:
    wanted = [f"picture:{name}" for name in take.header["pictures"]]
    shown: dict[str, np.ndarray] = {}
    sent = None
    speeds = np.array([kind == "speed" for kind in take.header["kinds"]])
    for fields, arrays in take.ticks:
        shown |= {name: arrays[name] for name in wanted if name in arrays}
        sent = arrays.get("sent", sent)
        if len(shown) == len(wanted):
            here = _start(arrays["measured"], speeds) if sent is None else sent
            yield fields, {**arrays, **shown, "sent": here}


def _start(measured: np.ndarray, speeds: np.ndarray) -> np.ndarray:
    """What stands for an action before anything was sent: to stay."""
    return np.where(speeds | ~np.isfinite(measured), np.float32(0), measured)


def _column(dtype: str, names: list[str] | None = None) -> dict[str, Any]:
    return {"dtype": dtype, "shape": (len(names) if names else 1,), "names": names}
