"""Demonstrations: a robot's script plays the scenes of a part, and what it showed and did is kept as a data set."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from robot.env import RobotEnv, noisy
from robot.types import Robot, RobotError, outcome_in
from robot.workers import worker_find
from vlrl.io import check_free, make_folder
from vlrl.types import Observation, UserError

# One demonstration: a robot's script plays a scene, tick by tick.


@dataclass(frozen=True, eq=False)
class Moment:
    """What the robot showed, what was done then, and how that tick went."""

    observation: Observation
    control: np.ndarray  # float32 [A], as given to the robot: within the limits, noise included
    clean: np.ndarray  # float32 [A], the script's own: what is to be imitated
    reward: float
    success: bool
    done: bool  # the episode's last


@dataclass(frozen=True, eq=False)
class Demo:
    scene: int  # the seed
    moments: tuple[Moment, ...]  # at least one
    outcome: str  # of robot.types.OUTCOMES
    void: str  # why it says nothing of the script, or ''


def demonstrate(robot: Robot, scene: int, *, ticks: int, noise: float, seed: int) -> Demo:
    """An episode of at most `ticks` played by the robot's script, `robot.expert()`, with noise on its controls.

    It hangs on the scene and `seed`, and not on what was played before.

    Raises:
        UserError: the robot has no script for its job, or does not begin.
    """
    rng, moments = np.random.default_rng([seed, scene]), []
    play = RobotEnv(robot, scene, ticks=ticks)
    script: Any = robot  # which has one, or this fails
    try:
        observation, over = play.reset(), False
        while not over:
            clean = np.asarray(script.expert(), np.float32)
            control = noisy(rng, robot.controls, clean, noise)
            step = play.step(control)
            over = step.terminated or step.truncated
            moments.append(Moment(observation, control, clean, step.reward, "success" in step.info, over))
            observation = step.observation
    except RobotError as error:
        raise UserError(f"demos: scene {scene}: {error}") from None
    return Demo(scene, tuple(moments), outcome_in(step.info), step.fault)


# Scenes by seed: which ones are trained on and which are held out, and a checksum that says what they were.

Part = Literal["train", "validation", "test"]
SEEDS: dict[Part, range] = {
    "train": range(0, 10_000),
    "validation": range(10_000, 20_000),
    "test": range(20_000, 30_000),
}


def seeds(part: Part, count: int) -> range:
    """The first `count` scenes of a part. No scene is in two parts.

    Raises:
        UserError: the part has fewer.
    """
    if part not in SEEDS:
        raise UserError(f"scenes: {part!r}: must be one of {', '.join(SEEDS)}")
    if not 0 < count <= len(SEEDS[part]):
        raise UserError(f"scenes: {count} of {part}: must be 1 to {len(SEEDS[part])}")
    return SEEDS[part][:count]


def checksum(robot: Robot, chosen: Iterable[int]) -> str:
    """SHA-256 (16 hex digits) of the scenes: seed, state and instruction at home, without images.

    Two results with one checksum were measured on the same scenes: it changes with the seeds, with their order and with
    what the simulator makes of them. Images are left out because renderers differ in single bits between machines.
    """

    def homes() -> Iterator[tuple[int, Observation]]:
        for seed in chosen:
            robot.reset(seed)
            yield seed, robot.get_observation()

    return checksum_of(homes())


def checksum_of(starts: Iterable[tuple[int, Observation]]) -> str:
    """`checksum` of scenes whose beginnings were seen: seed and first observation of each."""
    digest = hashlib.sha256()
    for seed, start in starts:
        state = np.zeros(0, np.float32) if start.state is None else start.state
        digest.update(f"{seed} {start.text} {state.astype('<f4').tobytes().hex()}\n".encode())
    return digest.hexdigest()[:16]


# Demonstrations as a LeRobotDataset v3, written by lerobot itself (its docs: lerobot-dataset-v3).

Features = dict[str, dict[str, Any]]


class LerobotWriter:
    """Makes `folder`, which must not exist, a data set of the demonstrations that are added, once it is closed.

    Pictures are kept as PNG, exact: at 64 x 64 lerobot's videos change single values by up to 147 of 255, because
    they halve the resolution of colours. `lerobot-edit-dataset` makes videos of them.

    Raises:
        UserError: lerobot is missing, or the robot's rate is no whole number, which the format asks for.
    """

    def __init__(self, folder: Path, robot: Robot):
        if robot.hz != round(robot.hz):
            raise UserError(f"demos: {robot.hz:g} ticks a second: a LeRobotDataset needs a whole number")
        self._create, self._folder, self._robot = _lerobot().create, folder, robot
        self._dataset: Any = None  # made when it is known what the robot shows

    def add(self, demo: Demo) -> None:
        """Writes one episode."""
        if self._dataset is None:
            self._dataset = self._begin(demo.moments[0].observation)
        for moment in demo.moments:
            self._dataset.add_frame(frame(moment, demo.scene))
        with _quiet():
            self._dataset.save_episode()

    def close(self) -> None:
        """Finishes the files."""
        self._dataset.finalize()

    def _begin(self, observation: Observation) -> Any:
        return self._create(
            f"local/{self._folder.name}", round(self._robot.hz), features(self._robot, observation), root=self._folder,
            robot_type=type(self._robot).__name__, use_videos=False,
        )  # fmt: skip


def features(robot: Robot, observation: Observation) -> Features:
    """The columns of the data set. lerobot's policies read those of `observation.` and `action`, no others.

    `action` is what the script would do, so what is to be imitated; `sent_action` has the noise. A policy that learns
    from what was sent does worse by far (docs/demos.md).
    Without a camera the state is also `observation.environment_state`: lerobot's ACT and diffusion ask for one of them.
    """
    names, state = robot.controls.names, _vector(len(observation.state), robot.names)
    pictures = {
        f"observation.images.camera{number}": {
            "dtype": "image", "shape": (picture.height, picture.width, 3), "names": ["height", "width", "channels"],
        }
        for number, picture in enumerate(observation.images, 1)
    }  # fmt: skip
    return {
        "observation.state": state,
        **(pictures or {"observation.environment_state": state}),
        "action": _vector(len(names), names),
        "sent_action": _vector(len(names), names),
        "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
        "next.success": {"dtype": "bool", "shape": (1,), "names": None},
        "next.done": {"dtype": "bool", "shape": (1,), "names": None},
        "scene": {"dtype": "int64", "shape": (1,), "names": None},
    }


def frame(moment: Moment, scene: int) -> Mapping[str, Any]:
    """A moment as lerobot's `add_frame` takes it: the values of `features`, and the instruction as `task`."""
    observation = moment.observation
    pictures = {
        f"observation.images.camera{number}": np.asarray(picture.convert("RGB"))
        for number, picture in enumerate(observation.images, 1)
    }
    return {
        "observation.state": observation.state,
        **(pictures or {"observation.environment_state": observation.state}),
        "action": moment.clean,
        "sent_action": moment.control,
        "next.reward": np.array([moment.reward], np.float32),
        "next.success": np.array([moment.success]),
        "next.done": np.array([moment.done]),
        "scene": np.array([scene], np.int64),
        "task": observation.text,
    }


@contextlib.contextmanager
def unfinished(out: Path) -> Iterator[Path]:
    """A folder to be made, that takes the name `out` at the end and is removed where it does not come to that."""
    with make_folder(out) as folder:
        folder.rmdir()  # lerobot creates it
        yield folder


def _vector(size: int, names: Any) -> dict[str, Any]:
    return {"dtype": "float32", "shape": (size,), "names": list(names) if names else None}


def _lerobot() -> Any:
    """The class LeRobotDataset."""
    try:
        from lerobot.datasets.lerobot_dataset import LeRobotDataset
    except ImportError as error:
        raise UserError(f"demos: needs lerobot: pip install 'vlrl[robot]' ({str(error).splitlines()[0]})") from None
    return LeRobotDataset


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without a progress bar for each episode."""
    import datasets

    had_bars = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if had_bars:
            datasets.enable_progress_bars()


HOPELESS = 50  # episodes in a row that were left out: the next ones would be too


class DemoWriter(Protocol):
    """Keeps demonstrations in a folder, which is whole once it is closed."""

    def add(self, demo: Demo) -> None: ...
    def close(self) -> None: ...


@dataclass
class DemoTally:
    """What was played so far."""

    kept: int = 0
    frames: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)  # of all that was played
    starts: list[tuple[int, Observation]] = field(default_factory=list)  # scene and first observation of what is kept

    def add(self, demo: Demo, kept: bool) -> None:
        self.outcomes[demo.outcome] += 1
        if kept:
            self.kept, self.frames = self.kept + 1, self.frames + len(demo.moments)
            first = demo.moments[0].observation
            self.starts.append((demo.scene, Observation((first.text,), first.state)))  # pictures would fill the memory

    def __str__(self) -> str:
        played = self.outcomes.total()
        outcomes = ", ".join(f"{name} {count}" for name, count in self.outcomes.most_common())
        return f"{self.kept} of {played} episodes kept, {self.frames} frames; {outcomes}"


def record(
    robot: str, options: Mapping[str, Any], *, ticks: int, episodes: int, out: str | Path, part: Part = "train",
    noise: float = 0.0, keep: Literal["success", "all"] = "success", seed: int = 0,
    writer: Callable[[Path, Robot], DemoWriter] = LerobotWriter,
) -> DemoTally:  # fmt: skip
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
    body = _make_robot(robot, options)
    try:
        if not body.has_script:
            raise UserError(f"demos: {robot} has no script: give it a method expert() -> float32 [A]")
        with unfinished(out) as folder:
            demo_writer = writer(folder, body)
            tally = _play(body, demo_writer, episodes, part, keep, {"ticks": ticks, "noise": noise, "seed": seed})
            demo_writer.close()
            about = {"robot": robot, "options": dict(options), "part": part, "ticks": ticks, "noise": noise,
                     "seed": seed, "keep": keep, **_facts(body, tally)}  # fmt: skip
            (folder / "meta").mkdir(exist_ok=True)
            (folder / "meta" / "vlrl.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    finally:
        body.close()
    return tally


def _make_robot(robot: str, options: Mapping[str, Any]) -> Robot:
    try:
        return worker_find(robot)(**options)
    except TypeError as error:
        raise UserError(f"task.options: {str(error).splitlines()[0]}") from None


def _check(out: Path, episodes: int, noise: float, part: Part) -> None:
    check_free(out)
    if not 0 <= noise < float("inf"):
        raise UserError(f"--noise {noise:g}: at least 0, in halves of the limits' width")
    seeds(part, episodes)  # or says that there are not so many


def _play(body: Robot, written: DemoWriter, episodes: int, part: Part, keep: str, how: Mapping[str, Any]) -> DemoTally:
    tally, left, line = DemoTally(), 0, _Line()
    for scene in SEEDS[part]:
        demo = demonstrate(body, scene, **how)
        kept = not demo.void and (keep == "all" or demo.outcome == "success")
        if kept:
            written.add(demo)
        tally.add(demo, kept)
        left = 0 if kept else left + 1
        line.show(f"{tally} (of {episodes})", last=tally.kept == episodes)
        if tally.kept == episodes:
            return tally
        if left == HOPELESS:
            raise UserError(f"demos: the last {left} episodes were left out ({tally}): more ticks, or less noise?")
    raise UserError(f"demos: the scenes of {part} are used up: {tally}")


def _facts(body: Robot, tally: DemoTally) -> dict[str, Any]:
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
