"""A robot as an environment of the trainer: observations, noise, plans of actions, videos."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from robot.types import (
    ActionSpec,
    BadControlError,
    Ending,
    Robot,
    RobotError,
    RobotStatus,
    Snapshot,
    fault,
    send_home,
    smoothness,
)
from vlrl.types import Environment, Frame, Observation, Step, UserError

# Looking at a robot, and at whether what it shows can be shown to a policy.

LOOKS = 3  # a camera may drop a frame
BLANK = 8  # of 255: a picture whose values all lie so close shows nothing


def look(robot: Robot) -> tuple[Observation, int]:
    """What the robot shows, and how often it had to be asked again.

    Raises:
        RobotError: the state or a camera is no good, also when asked LOOKS times.
    """
    for repeats in range(LOOKS):
        observation = robot.get_observation()
        problem = _problem(observation)
        if problem is None:
            return observation, repeats
    raise RobotError(problem)


def _problem(shown: Observation) -> str | None:
    state = shown.state
    if state is None or state.dtype != np.float32 or state.ndim != 1:
        return "the state is not float32 [S]"
    if not np.isfinite(state).all():
        return "the state is not finite"
    for number, image in enumerate(shown.images):
        extrema = image.convert("RGB").getextrema()
        if max(high for _, high in extrema) - min(low for low, _ in extrema) < BLANK:
            return f"camera {number} shows nothing"
    return None


# Noise on a script's controls, so that its demonstrations show how to come back (DART, arXiv 1703.09327).


def noisy(rng: np.random.Generator, controls: ActionSpec, control: np.ndarray, noise: float) -> np.ndarray:
    """The control float32 [A] within the limits, with normal noise of `noise` times half the limits' width."""
    half = (controls.high - controls.low) / 2
    return controls.checked(control.clip(controls.low, controls.high) + rng.normal(0, noise, len(half)) * half)


# What a robot's script would do next, as the chunk of controls that a policy would give.


def plan_chunk(robot: Robot, ticks: int) -> np.ndarray:
    """The script's next controls, float32 [ticks, A], within the limits. The robot is afterwards where it was, exactly.

    The script sees what comes of each control, as if no noise came between.

    Raises:
        UserError: the robot has no script or no snapshots.
    """
    if ticks == 1 or not robot.has_script:
        return robot.expert()[None]
    if not robot.has_snapshots:
        raise UserError(f"robot: {type(robot).__name__} has no snapshots: plan one tick at a time")
    start, controls = robot.snapshot(), []
    for _ in range(ticks):
        controls.append(robot.expert())
        robot.send_action(controls[-1])
    robot.restore(start)
    return np.stack(controls)


# A robot as the environment of one episode: what the collector, which knows no robots, resets, steps and closes.


@dataclass(frozen=True, eq=False)
class ControlTick:
    """One control and what came of it."""

    index: int  # in the episode, from 0
    requested: np.ndarray  # float32 [A], by the policy
    sent: np.ndarray  # float32 [A], by the robot
    signals: RobotStatus


class Watcher(Protocol):
    """Is told of an episode tick by tick: a recorder, a video. It may observe the robot, but not move it."""

    def on_begin(self, robot: Robot) -> None: ...
    def on_tick(self, robot: Robot, tick: ControlTick) -> None: ...
    def on_end(self, robot: Robot, ending: Ending) -> None: ...


class RobotEnv(Environment):
    """One episode of a robot. An action is float32 [K, A], K ticks in physical units, or [A], one tick.

    Controls are held to the robot's limits. The robot is observed, so rendered, once an action and not once a tick. An
    episode ends within an action when the job is done or lost, or after `ticks`; what was left of the action is not
    carried out. An action that no robot may carry out ends it before any tick (`bad_action`); whatever the robot
    raises after its start is an `error`, which cuts it. `Step.info` has the numbers of the last tick's signals,

        ticks     carried out of this action
        clipped   of them, those asked for beyond the limits
        repeats   observations that had to be repeated

    and at the end what `Ending.info` and `smoothness` give. `Step.reward` is the sum over the ticks, `Step.executed`
    the share of the action that was carried out. An `error` or a stop makes the episode void (`Step.fault`).

    Args:
        start: the scene's seed, or a snapshot of a simulator.
        ticks: after as many the episode is cut (`time_out`), unless its last tick ends it.
        stopped: asked before each tick; True cuts the episode.
    """

    def __init__(
        self,
        robot: Robot,
        start: int | Snapshot,
        *,
        ticks: int,
        watchers: Sequence[Watcher] = (),
        stopped: Callable[[], bool] = lambda: False,
    ):
        self.robot, self.ending = robot, None
        self._start, self._limit, self._watchers, self._stopped = start, ticks, watchers, stopped
        self._sent: list[np.ndarray] = []
        self._observation: Observation | None = None

    def reset(self) -> Observation:
        """Raises RobotError, UserError or what the robot raises: an episode that did not begin has no result."""
        if self._observation is not None:
            raise RuntimeError("an environment is made for one episode: make a new one")
        send_home(self.robot, self._start)
        self._observation, _ = look(self.robot)
        for watcher in self._watchers:
            watcher.on_begin(self.robot)
        return self._observation

    def step(self, action: str | np.ndarray, frames: Sequence[Frame] = ()) -> Step:
        if self._observation is None or self.ending:
            raise RuntimeError("step after reset, and not after the end")
        counts, reward, numbers = Counter(ticks=0, clipped=0, repeats=0), 0.0, {}
        controls = self._controls(action)
        for control in controls:
            tick = self._tick(control, counts)
            if tick is not None:
                reward, numbers = reward + tick.signals.reward, tick.signals.numbers
                for watcher in self._watchers:
                    watcher.on_tick(self.robot, tick)
            if self.ending:
                break
        self._look(counts)
        used = counts["ticks"] / len(controls) if counts["ticks"] else 1.0
        return self._reply(reward, {**numbers, **counts}, used)

    def close(self) -> None:
        """Leaves the robot safe."""
        self.robot.close()

    def _controls(self, action: object) -> np.ndarray | tuple[()]:
        try:
            return self.robot.controls.chunk(action)
        except BadControlError as error:
            self.ending = Ending("bad_action", str(error))
            return ()

    def _tick(self, control: np.ndarray, counts: Counter[str]) -> ControlTick | None:
        """Carries out one control; None where that came to nothing."""
        if self._stopped():
            self.ending = Ending("stopped")
            return None
        within = control.clip(self.robot.controls.low, self.robot.controls.high)
        try:
            sent, signals = self.robot.send_action(within), self.robot.status()
        except Exception as error:  # the border to drivers and simulators, which raise what they like
            self.ending = fault(error)
            return None
        tick = ControlTick(len(self._sent), control, sent, signals)
        self._sent.append(np.array(sent))  # a copy: the robot may write into its own
        counts.update(ticks=1, clipped=int((within != control).any()))
        self.ending = self._verdict(signals)
        return tick

    def _verdict(self, signals: RobotStatus) -> Ending | None:
        if signals.success:
            return Ending("success")
        if signals.failure is not None:
            return Ending("failure", signals.failure)
        if signals.cut is not None:
            return Ending("stopped", signals.cut)
        return Ending("time_out") if len(self._sent) >= self._limit else None

    def _look(self, counts: Counter[str]) -> None:
        """What a policy will see next; after the end, of use only to critics, so that its failure changes nothing."""
        if self.ending and self.ending.outcome in ("bad_action", "error"):
            return
        try:
            self._observation, repeats = look(self.robot)
            counts.update(repeats=repeats)
        except Exception as error:  # as in `_tick`
            self.ending = self.ending or fault(error)

    def _reply(self, reward: float, numbers: dict[str, float], used: float) -> Step:
        ending, reward, info = self.ending, float(reward), {name: float(each) for name, each in numbers.items()}
        if ending is None:
            return Step(self._observation, reward, info=info)
        for watcher in self._watchers:
            watcher.on_end(self.robot, ending)
        info |= smoothness(self._sent, self.robot.controls) | ending.info()
        return Step(self._observation, reward, ending.done, not ending.done, info, used, ending.void)


# A video of an episode, written while it is played.

CODECS = ("libx264", "mpeg4")  # browsers show the first, any player the second


class VideoWriter:
    """A watcher of `robot.env.RobotEnv` that writes an MP4: one frame at the beginning and one after each tick.

    Looking does not change the episode. The file appears under its name once it is whole: when the episode ends, or at
    `close`.

    Args:
        path: of the file; its folder is there.
        size: width and height in pixels of robots that have a method `picture(size)`; others keep their camera's.
        fps: frames a second; none: the robot's ticks, so that it runs at the robot's speed.

    Raises (when the episode begins):
        UserError: the robot has no picture, or cannot render.
    """

    def __init__(self, path: str, size: Sequence[int], fps: float | None = None):
        self._path, self._size, self._fps = Path(path), (int(size[0]), int(size[1])), fps
        self._part = self._path.with_name(f".{self._path.name}.part")
        self._file: Any = None
        self._stream: Any = None

    def on_begin(self, robot: Robot) -> None:
        first = robot.picture(self._size)
        self._open(first.size, Fraction(self._fps or robot.hz).limit_denominator(1000))
        self._add(first)

    def on_tick(self, robot: Robot, tick: ControlTick) -> None:
        self._add(robot.picture(self._size))

    def on_end(self, robot: Robot, ending: Ending) -> None:
        self.close()

    def close(self) -> None:
        """Finishes the file if that has not been done."""
        if self._file is None:
            return
        file, self._file = self._file, None
        file.mux(self._stream.encode())
        file.close()
        os.replace(self._part, self._path)

    def _open(self, size: tuple[int, int], fps: Fraction) -> None:
        import av  # takes as long as an episode, and few workers need it

        codec = next((name for name in CODECS if name in av.codecs_available), CODECS[-1])
        self._file = av.open(str(self._part), "w", format="mp4", options={"movflags": "faststart"})
        self._stream = self._file.add_stream(codec, rate=fps)
        self._stream.width, self._stream.height = (side // 2 * 2 for side in size)  # colours lie on every second pixel
        self._stream.pix_fmt = "yuv420p"
        self._stream.codec_context.thread_count = 1

    def _add(self, image: Image.Image) -> None:
        import av

        whole = image.convert("RGB").crop((0, 0, self._stream.width, self._stream.height))
        self._file.mux(self._stream.encode(av.VideoFrame.from_image(whole)))
