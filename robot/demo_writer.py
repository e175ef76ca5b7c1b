"""Demonstrations as a LeRobotDataset v3, written by lerobot itself (its docs: lerobot-dataset-v3)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from robot.demo_play import Demo, Moment
from robot.robot import Robot
from vlrl.locks import make_folder
from vlrl.types import Observation, UserError

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
            self._dataset = self._begin(demo.moments[0].shown)
        for moment in demo.moments:
            self._dataset.add_frame(frame(moment, demo.scene))
        with _quiet():
            self._dataset.save_episode()

    def close(self) -> None:
        """Finishes the files."""
        self._dataset.finalize()

    def _begin(self, shown: Observation) -> Any:
        return self._create(
            f"local/{self._folder.name}", round(self._robot.hz), features(self._robot, shown), root=self._folder,
            robot_type=type(self._robot).__name__, use_videos=False,
        )  # fmt: skip


def features(robot: Robot, shown: Observation) -> Features:
    """The columns of the data set. lerobot's policies read those of `observation.` and `action`, no others.

    `action` is what the script would do, so what is to be imitated; `sent_action` has the noise. A policy that learns
    from what was sent does worse by far (docs/demos.md).
    Without a camera the state is also `observation.environment_state`: lerobot's ACT and diffusion ask for one of them.
    """
    names, state = robot.controls.names, _vector(len(shown.state), getattr(robot, "names", None))
    pictures = {
        f"observation.images.camera{number}": {
            "dtype": "image", "shape": (picture.height, picture.width, 3), "names": ["height", "width", "channels"],
        }
        for number, picture in enumerate(shown.images, 1)
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
    shown = moment.shown
    pictures = {
        f"observation.images.camera{number}": np.asarray(picture.convert("RGB"))
        for number, picture in enumerate(shown.images, 1)
    }
    return {
        "observation.state": shown.state,
        **(pictures or {"observation.environment_state": shown.state}),
        "action": moment.clean,
        "sent_action": moment.control,
        "next.reward": np.array([moment.reward], np.float32),
        "next.success": np.array([moment.success]),
        "next.done": np.array([moment.done]),
        "scene": np.array([scene], np.int64),
        "task": shown.text,
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

    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()
