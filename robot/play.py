"""A robot as the environment of one episode: what the collector, which knows no robots, resets, steps and closes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from robot.controls import BadControlError
from robot.look import look
from robot.outcomes import Ending, fault
from robot.robot import Robot, Signals, Snapshot, send_home
from robot.smoothness import smoothness
from vlrl.types import Frame, Observation, Step


@dataclass(frozen=True, eq=False)
class Tick:
    """One control and what came of it."""

    index: int  # in the episode, from 0
    asked: np.ndarray  # float32 [A], by the policy
    sent: np.ndarray  # float32 [A], by the robot
    signals: Signals


class Watcher(Protocol):
    """Is told of an episode tick by tick: a recorder, a video. It may observe the robot, but not move it."""

    def begun(self, robot: Robot) -> None: ...
    def ticked(self, robot: Robot, tick: Tick) -> None: ...
    def ended(self, robot: Robot, ending: Ending) -> None: ...


class Play:
    """One episode of a robot. An action is float32 [K, A], K ticks in physical units, or [A], one tick.

    Controls are held to the robot's limits. The robot is observed, so rendered, once an action and not once a tick. An
    episode ends within an action when the job is done or lost, or after `ticks`; what was left of the action is not
    carried out. An action that no robot may carry out ends it before any tick (`bad_action`); whatever the robot
    raises after its start is an `error`, which cuts it. `Step.info` has the numbers of the last tick's signals,

        ticks     carried out of this action
        clipped   of them, those asked for beyond the limits
        repeats   observations that had to be repeated

    and at the end what `Ending.info` and `smoothness` give. `Step.reward` is the sum over the ticks, `Step.used` the
    share of the action that was carried out. An `error` or a stop makes the episode void (`Step.void`).

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
        self._shown: Observation | None = None

    def reset(self) -> Observation:
        """Raises RobotError, UserError or what the robot raises: an episode that did not begin has no result."""
        if self._shown is not None:
            raise RuntimeError("an environment is made for one episode: make a new one")
        send_home(self.robot, self._start)
        self._shown, _ = look(self.robot)
        for watcher in self._watchers:
            watcher.begun(self.robot)
        return self._shown

    def step(self, action: str | np.ndarray, frames: Sequence[Frame] = ()) -> Step:
        if self._shown is None or self.ending:
            raise RuntimeError("step after reset, and not after the end")
        counts, reward, numbers = Counter(ticks=0, clipped=0, repeats=0), 0.0, {}
        controls = self._controls(action)
        for control in controls:
            tick = self._tick(control, counts)
            if tick is not None:
                reward, numbers = reward + tick.signals.reward, tick.signals.numbers
                for watcher in self._watchers:
                    watcher.ticked(self.robot, tick)
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

    def _tick(self, control: np.ndarray, counts: Counter[str]) -> Tick | None:
        """Carries out one control; None where that came to nothing."""
        if self._stopped():
            self.ending = Ending("stopped")
            return None
        within = control.clip(self.robot.controls.low, self.robot.controls.high)
        try:
            sent, signals = self.robot.move(within), self.robot.signals()
        except Exception as error:  # the border to drivers and simulators, which raise what they like
            self.ending = fault(error)
            return None
        tick = Tick(len(self._sent), control, sent, signals)
        self._sent.append(np.array(sent))  # a copy: the robot may write into its own
        counts.update(ticks=1, clipped=int((within != control).any()))
        self.ending = self._verdict(signals)
        return tick

    def _verdict(self, signals: Signals) -> Ending | None:
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
            self._shown, repeats = look(self.robot)
            counts.update(repeats=repeats)
        except Exception as error:  # as in `_tick`
            self.ending = self.ending or fault(error)

    def _reply(self, reward: float, numbers: dict[str, float], used: float) -> Step:
        ending, reward, info = self.ending, float(reward), {name: float(each) for name, each in numbers.items()}
        if ending is None:
            return Step(self._shown, reward, info=info)
        for watcher in self._watchers:
            watcher.ended(self.robot, ending)
        info |= smoothness(self._sent, self.robot.controls) | ending.info()
        return Step(self._shown, reward, ending.done, not ending.done, info, used, ending.void)
