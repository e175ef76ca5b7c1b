"""A simulated robot as a body: it advances by one tick with each target that is sent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from robot.registry import resolve
from robot.types import Channel, Robot, RobotDriver, RobotState, RobotStatus
from robot.workers import worker_find
from vlrl.decoders import load_json
from vlrl.media import load_rgb
from vlrl.system.clock import boottime
from vlrl.types import Observation, UserError


class Simulated(RobotDriver):
    """Any robot of `robot.registry` (`robot.types.RobotDriver`). What is in a unit a second is a speed.

    A position's measured value is the number of the state that has the same name; where there is none, NaN: the robot
    does not say. Pictures are `camera1`, `camera2`, ... in the order that the robot shows them.

    Args:
        robot: a short name, or `my_module:MyRobot`.
        options: of that robot.

    Raises:
        UserError: there is no such robot, or it cannot be made of these options.
    """

    simulated = True  # it stands still with this process, and loses nothing while it waits

    def __init__(self, *, robot: str, **options: Any):
        try:
            self._robot: Robot = worker_find(resolve(robot))(**options)
        except TypeError as error:
            raise UserError(f"robot: {str(error).splitlines()[0]}") from None
        controls = self._robot.controls
        self.hz = float(self._robot.hz)
        self.channels = tuple(
            Channel(name, unit, "speed" if unit.endswith("/s") else "position")
            for name, unit in zip(controls.names, controls.units, strict=True)
        )
        self.names = tuple(self._robot.names)
        self.ranges = {
            each.name: (float(low), float(high))
            for each, low, high in zip(self.channels, controls.low, controls.high, strict=True)
            if each.kind == "position"
        }
        self.task = ""  # the instruction of the scene
        self._moved = False

    def connect(self) -> None:
        """Makes scene 0, so that there is something to sense."""
        self.begin(0)
        observation = self._robot.get_observation()
        if observation.state is None:
            raise UserError(f"robot: {type(self._robot).__name__} shows no state: the motion process needs one")
        self.names = self.names or tuple(f"state{number}" for number in range(1, len(observation.state) + 1))

    def begin(self, seed: int) -> None:
        self._robot.reset(seed)
        self._moved = False

    def sense(self) -> RobotState:
        began = boottime()
        observation = self._robot.get_observation()
        self.task = observation.text
        signals = self._robot.status() if self._moved else RobotStatus()
        return RobotState(began, observation.state, self._measured(observation), _pictures(observation), {}, signals)

    def send(self, target: np.ndarray) -> np.ndarray:
        self._moved = True
        return self._robot.send_action(target)

    def rest(self, how: Literal["hold", "off"]) -> list[str]:
        """Nothing to do: it moves only when it is sent something."""
        return []

    def close(self) -> None:
        self._robot.close()

    def _measured(self, observation: Observation) -> np.ndarray:
        state = dict(zip(self.names, observation.state, strict=False))
        return np.array(
            [0.0 if channel.kind == "speed" else state.get(channel.name, math.nan) for channel in self.channels],
            np.float32,
        )


def _pictures(observation: Observation) -> dict[str, np.ndarray]:
    return {f"camera{number}": np.asarray(image.convert("RGB")) for number, image in enumerate(observation.images, 1)}


# A recorded episode as a body: it shows what was recorded, whatever it is sent, and says how far that is off.

STATE, ACTION, PICTURE = "observation.state", "action", "observation.images."


class ReplayDriver(RobotDriver):
    """An episode of a LeRobotDataset v3 (`robot.types.RobotDriver`), read without lerobot. One frame for each target.

    `signals.numbers` has `deviation`: the largest difference of a channel between the target that was sent last and
    the one recorded for that frame, in the channel's unit; and `mean_deviation`: its mean over the frames so far. After
    the last frame the episode is cut. Pictures are shown where the data set keeps them as PNG, not as video.

    Args:
        data: the data set's folder.
        episode: its number, from 0.
        units: of the actions; left out: as `meta/vlrl.json` says, or else degrees for names that end in .pos, percent
            for grippers, as lerobot has them.

    Raises:
        UserError: no such data set or episode, or one without state and actions.
    """

    simulated = True  # it moves nothing

    def __init__(self, *, data: str, episode: int = 0, units: Sequence[str] | None = None):
        folder = Path(data)
        info = _json(folder / "meta" / "info.json")
        features = info.get("features", {})
        if not {STATE, ACTION} <= features.keys():
            raise UserError(f"robot.data: {folder} has no {STATE} and {ACTION}: not a LeRobotDataset of a robot")
        self.hz, self.names = float(info["fps"]), _names(features[STATE], "state")
        self.channels = _channels(_names(features[ACTION], "action"), folder, units)
        pictures = [name for name, each in features.items() if each.get("dtype") == "image"]
        rows = _rows(folder, int(episode), [STATE, ACTION, *pictures])
        self._states, self._actions = (np.array(rows[name].to_pylist(), np.float32) for name in (STATE, ACTION))
        self._pictures = {name.removeprefix(PICTURE): rows[name] for name in pictures}
        self._frame, self._deviations = 0, [0.0]

    def connect(self) -> None:
        """It is all read already."""

    def begin(self, seed: int) -> None:
        """From the first frame on, whatever the seed."""
        self._frame, self._deviations = 0, [0.0]

    def sense(self) -> RobotState:
        frame = min(self._frame, len(self._states) - 1)
        state = dict(zip(self.names, self._states[frame], strict=True))
        measured = [0.0 if each.kind == "speed" else state.get(each.name, math.nan) for each in self.channels]
        images = {name: _png(column[frame].as_py()["bytes"]) for name, column in self._pictures.items()}
        numbers = {"deviation": self._deviations[-1], "mean_deviation": float(np.mean(self._deviations[1:] or [0.0]))}
        over = "the recording is over" if self._frame >= len(self._states) else None
        signals = RobotStatus(cut=over, numbers=numbers)
        return RobotState(boottime(), self._states[frame], np.array(measured, np.float32), images, {}, signals)

    def send(self, target: np.ndarray) -> np.ndarray:
        if self._frame < len(self._actions):
            self._deviations.append(float(np.abs(target - self._actions[self._frame]).max()))
            self._frame += 1
        return target

    def rest(self, how: Literal["hold", "off"]) -> list[str]:
        return []

    def close(self) -> None:
        """Nothing is open."""


def _json(file: Path) -> dict[str, Any]:
    try:
        return dict(load_json(file))
    except (OSError, ValueError) as error:
        raise UserError(f"robot.data: {file} cannot be read ({error}): is it a LeRobotDataset v3?") from None


def _names(feature: Mapping[str, Any], what: str) -> tuple[str, ...]:
    """Of a vector's numbers; older data sets keep them under a key, or not at all."""
    names = feature.get("names")
    if isinstance(names, Mapping):
        names = next(iter(names.values()), None)
    size = int(feature["shape"][0])
    known = isinstance(names, list) and len(names) == size
    return tuple(names) if known else tuple(f"{what}{number}" for number in range(1, size + 1))


def _channels(names: Sequence[str], folder: Path, units: Sequence[str] | None) -> tuple[Channel, ...]:
    if units is None:
        file = folder / "meta" / "vlrl.json"
        unit_of = {each["name"]: each["unit"] for each in (_json(file) if file.is_file() else {}).get("controls", ())}
        units = [unit_of.get(name, _guess(name)) for name in names]
    if len(units) != len(names):
        raise UserError(f"robot.units: {len(units)} units for the {len(names)} actions {', '.join(names)}")
    return tuple(
        Channel(name, unit, "speed" if unit.endswith("/s") else "position")
        for name, unit in zip(names, units, strict=True)
    )


def _guess(name: str) -> str:
    return "%" if "gripper" in name else "deg" if name.endswith(".pos") else ""


def _rows(folder: Path, episode: int, columns: Sequence[str]) -> Any:
    """The episode's frames in order: a pyarrow table."""
    import pyarrow
    from pyarrow import parquet

    try:
        files = sorted((folder / "data").rglob("*.parquet"))
        read = parquet.read_table(files, columns=[*columns, "frame_index"],
                                  filters=[("episode_index", "=", episode)])  # fmt: skip
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"robot.data: {folder / 'data'} cannot be read: {str(error).splitlines()[0]}") from None
    if not len(read):
        raise UserError(f"robot.episode: {folder} has no episode {episode}")
    return read.sort_by("frame_index").combine_chunks()


def _png(data: bytes) -> np.ndarray:
    return np.asarray(load_rgb(data))
