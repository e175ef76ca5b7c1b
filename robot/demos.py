"""Demonstrations: a robot's script plays the scenes of a part, and what it showed and did is kept as a data set."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from robot.demo_play import Demo, demonstrate
from robot.demo_writer import LerobotWriter, unfinished
from robot.robot import Robot
from robot.scenes import SEEDS, Part, checksum_of, seeds
from robot.worker import find
from vlrl.locks import check_free
from vlrl.types import Observation, UserError

HOPELESS = 50  # episodes in a row that were left out: the next ones would be too


class Writer(Protocol):
    """Keeps demonstrations in a folder, which is whole once it is closed."""

    def add(self, demo: Demo) -> None: ...
    def close(self) -> None: ...


@dataclass
class Tally:
    """What was played so far."""

    kept: int = 0
    frames: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)  # of all that was played
    starts: list[tuple[int, Observation]] = field(default_factory=list)  # scene and first observation of what is kept

    def add(self, demo: Demo, kept: bool) -> None:
        self.outcomes[demo.outcome] += 1
        if kept:
            self.kept, self.frames = self.kept + 1, self.frames + len(demo.moments)
            first = demo.moments[0].shown
            self.starts.append((demo.scene, Observation((first.text,), first.state)))  # pictures would fill the memory

    def __str__(self) -> str:
        played = self.outcomes.total()
        outcomes = ", ".join(f"{name} {count}" for name, count in self.outcomes.most_common())
        return f"{self.kept} of {played} episodes kept, {self.frames} frames; {outcomes}"


def record(
    robot: str, options: Mapping[str, Any], *, ticks: int, episodes: int, out: str | Path, part: Part = "train",
    noise: float = 0.0, keep: Literal["success", "all"] = "success", seed: int = 0,
    writer: Callable[[Path, Robot], Writer] = LerobotWriter,
) -> Tally:  # fmt: skip
    """Plays a part's scenes in order until `episodes` are kept, and writes them to the new folder `out`.

    The folder appears when it is whole. `meta/vlrl.json` in it says how the episodes were made.

    Args:
        robot: class, `my_module:MyRobot`, with a script `expert() -> float32 [A]`.
        ticks: of an episode, after which it is a time-out.
        noise: standard deviation of the normal noise on controls, in halves of the limits' width.
        keep: `success` leaves out every other outcome; `all` only what a fault of the robot ended.
        seed: of the noise.

    Raises:
        UserError: the folder is not free, a number out of range, no script, no scenes left, HOPELESS failures in a row.
    """
    out = Path(out)
    _check(out, episodes, noise, part)
    body = _made(robot, options)
    try:
        if not hasattr(body, "expert"):
            raise UserError(f"demos: {robot} has no script: give it a method expert() -> float32 [A]")
        with unfinished(out) as folder:
            written = writer(folder, body)
            tally = _play(body, written, episodes, part, keep, {"ticks": ticks, "noise": noise, "seed": seed})
            written.close()
            about = {"robot": robot, "options": dict(options), "part": part, "ticks": ticks, "noise": noise,
                     "seed": seed, "keep": keep, **_facts(body, tally)}  # fmt: skip
            (folder / "meta").mkdir(exist_ok=True)
            (folder / "meta" / "vlrl.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    finally:
        body.close()
    return tally


def _made(robot: str, options: Mapping[str, Any]) -> Robot:
    try:
        return find(robot)(**options)
    except TypeError as error:
        raise UserError(f"task.options: {str(error).splitlines()[0]}") from None


def _check(out: Path, episodes: int, noise: float, part: Part) -> None:
    check_free(out)
    if not 0 <= noise < float("inf"):
        raise UserError(f"--noise {noise:g}: at least 0, in halves of the limits' width")
    seeds(part, episodes)  # or says that there are not so many


def _play(body: Robot, written: Writer, episodes: int, part: Part, keep: str, how: Mapping[str, Any]) -> Tally:
    tally, left, told = Tally(), 0, _Line()
    for scene in SEEDS[part]:
        demo = demonstrate(body, scene, **how)
        kept = not demo.void and (keep == "all" or demo.outcome == "success")
        if kept:
            written.add(demo)
        tally.add(demo, kept)
        left = 0 if kept else left + 1
        told.show(f"{tally} (of {episodes})", last=tally.kept == episodes)
        if tally.kept == episodes:
            return tally
        if left == HOPELESS:
            raise UserError(f"demos: the last {left} episodes were left out ({tally}): more ticks, or less noise?")
    raise UserError(f"demos: the scenes of {part} are used up: {tally}")


def _facts(body: Robot, tally: Tally) -> dict[str, Any]:
    controls = body.controls
    return {
        "hz": body.hz,
        "controls": [
            {"name": name, "unit": unit, "low": float(low), "high": float(high)}
            for name, unit, low, high in zip(controls.names, controls.units, controls.low, controls.high, strict=True)
        ],
        "outcomes": dict(tally.outcomes),
        "scenes": [scene for scene, _ in tally.starts],
        "checksum": checksum_of(tally.starts),
    }


class _Line:
    """One line on how far it is: in place on a terminal, now and then in a file."""

    def __init__(self):
        self._last, self._terminal = time.monotonic(), sys.stderr.isatty()

    def show(self, text: str, last: bool) -> None:
        if self._terminal:
            sys.stderr.write(f"\r\x1b[K{text}" + "\n" * last)
        elif last or time.monotonic() - self._last > 10:
            self._last = time.monotonic()
            sys.stderr.write(text + "\n")
        sys.stderr.flush()
