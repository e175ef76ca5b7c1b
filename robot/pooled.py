"""One episode on one of a pool's workers: what `robot.play.Play` is, with the robot in another process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np

from robot.messages import read_observation, write_snapshot
from robot.outcomes import fault
from robot.process import Process, WorkerError
from robot.robot import Snapshot
from vlrl.types import Frame, Observation, Step, UserError

if TYPE_CHECKING:
    from robot.pool import Pool

TRIES = 3  # workers on which an episode's start is tried


class PooledPlay:
    """An episode (`vlrl.types.Environment`); it has a worker from its reset to its end. Threads take turns."""

    def __init__(self, pool: Pool, start: int | Snapshot, ticks: int, video: Mapping[str, Any] | None = None):
        self._pool, self._start, self._ticks, self._video = pool, start, ticks, video
        self._worker: Process | None = None
        self._shown: Observation | None = None
        self._turn = RLock()

    def reset(self) -> Observation:
        """Begins on a worker, or on another where that fails.

        Raises:
            UserError: it failed on TRIES workers, none was free in time, or the robot says what the user can mend.
        """
        with self._turn:
            if self._shown is not None:
                raise RuntimeError("an environment is made for one episode: make a new one")
            reasons = []
            while len(reasons) < TRIES:
                try:
                    self._shown = self._begin()
                    return self._shown
                except WorkerError as error:
                    reasons.append(str(error))
                    self._lose(reasons[-1])
            raise UserError(f"robot.pool: an episode could not begin on {TRIES} workers: {reasons[-1]}")

    def step(self, action: str | np.ndarray, frames: Sequence[Frame] = ()) -> Step:
        with self._turn:
            try:
                step = self._step(self._held(), action)
            except WorkerError as error:
                self._lose(str(error))
                ending = fault(error)
                return Step(self._shown, cut=True, info=ending.info(), void=ending.void)
            if step.cut and "error" in step.info:  # its simulator may be in any state
                self._lose(next((key[len("error: ") :] for key in step.info if key.startswith("error: ")), "unnamed"))
            elif step.done or step.cut:
                self.close()
            return step

    def snapshot(self) -> Snapshot:
        """Where the episode stands, to begin others from.

        Raises:
            UserError: the robot has no snapshots.
            WorkerError: its worker is lost.
        """
        with self._turn:
            try:
                fields, arrays = self._held().ask("snapshot", {})
            except WorkerError as error:
                self._lose(str(error))
                raise
            return Snapshot(fields["seed"], arrays)

    def plan(self, ticks: int) -> np.ndarray:
        """What the robot's script would do next, float32 [ticks, A] (see `robot.plan.plan`).

        Raises:
            UserError: it has no script, or no snapshots.
            WorkerError: its worker is lost.
        """
        with self._turn:
            try:
                return self._held().ask("plan", {"ticks": ticks})[1]["plan"]
            except WorkerError as error:
                self._lose(str(error))
                raise

    def close(self) -> None:
        """Gives the worker back, once the request under way has been answered."""
        with self._turn:
            try:
                if self._video and self._worker is not None:
                    self._worker.ask("leave", {})
            except WorkerError as error:
                self._lose(str(error))
            worker, self._worker = self._worker, None
            if worker is not None:
                self._pool.give(worker)

    def _begin(self) -> Observation:
        self._worker = self._pool.take()
        seed, arrays = self._start, {}
        if isinstance(self._start, Snapshot):
            fields, arrays = write_snapshot(self._start)
            seed = fields["seed"]
        fields, arrays = self._worker.ask("reset", {"seed": seed, "ticks": self._ticks, "video": self._video}, arrays)
        return read_observation(fields, arrays, self._worker.memory)

    def _step(self, worker: Process, action: str | np.ndarray) -> Step:
        numbers = isinstance(action, np.ndarray) and action.dtype.kind in "fiu"
        sent = {"action": action.astype(np.float64, copy=False)} if numbers else {}
        fields, arrays = worker.ask("step", {}, sent)
        self._shown = read_observation(fields, arrays, worker.memory)
        names = ("reward", "done", "cut", "info", "used", "void")
        return Step(self._shown, **{name: fields[name] for name in names})

    def _held(self) -> Process:
        if self._worker is None:
            raise RuntimeError("step after reset, and not after the end")
        return self._worker

    def _lose(self, reason: str) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            self._pool.bury(worker, reason)
