"""Robots in processes of their own, which outlive episodes: as many episodes at a time as there are workers."""

from __future__ import annotations

import atexit
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from threading import Condition
from typing import Any

from robot.controls import Controls
from robot.pooled import PooledPlay
from robot.process import Process, WorkerError
from robot.robot import Snapshot
from vlrl.types import UserError


@dataclass(frozen=True, eq=False)
class About:
    """What the robots of a pool are."""

    hz: float
    controls: Controls
    names: tuple[str, ...]  # of the numbers of the state; (): it does not say
    script: bool  # whether they have one that shows the job


class Pool:
    """At most `size` workers, each with a robot of its own. Safe to use from several threads.

    A worker is started when first needed. One that dies, does not answer in time or whose robot raised is replaced;
    its episode is cut with the outcome `error`. `counts` has workers `started`, `errors` and of them those of each
    `error: reason`.

    Args:
        robot: class of the robots, `my_module:MyRobot`.
        options: of that class; what JSON can hold.
        size: workers, so also episodes that may be open at a time.
        patience: seconds after which a worker that does not answer counts as dead, and after which an episode that
            waits for a free worker gives up.
    """

    def __init__(self, robot: str, options: Mapping[str, Any], *, size: int, patience: float = 120.0):
        if size < 1 or patience <= 0:
            raise UserError(f"robot.pool: size {size}, patience {patience}: size must be at least 1, patience above 0")
        self.size, self.patience = size, patience
        self.counts: Counter[str] = Counter()
        self._robot, self._options, self._room, self._closed = robot, dict(options), size, False
        self._spent = 0.0  # processor seconds of workers that are gone
        self._idle: list[Process] = []
        self._taken: set[Process] = set()
        self._changed = Condition()
        atexit.register(self.close)

    @cached_property
    def about(self) -> About:
        """What the robots are; starts a worker if there is none.

        Raises:
            UserError: they cannot be made.
        """
        try:
            worker = self.take()
            try:
                fields, arrays = worker.ask("about", {})
            finally:
                self.give(worker)
        except WorkerError as error:
            raise UserError(f"robot: {self._robot} cannot be made: {error}") from None
        controls = Controls(tuple(fields["names"]), tuple(fields["units"]), arrays["low"], arrays["high"])
        return About(fields["hz"], controls, tuple(fields["state"]), fields["script"])

    def cpu_s(self) -> float:
        """Processor seconds of all workers so far."""
        with self._changed:
            return self._spent + sum(worker.cpu_s() for worker in (*self._idle, *self._taken))

    def environment(self, start: int | Snapshot, *, ticks: int, video: Mapping[str, Any] | None = None) -> PooledPlay:
        """One episode, as `robot.play.Play` plays it; it has a worker from its reset to its end.

        Args:
            video: to write one, what `robot.video.Film` takes.
        """
        return PooledPlay(self, start, ticks, video)

    def take(self) -> Process:
        """A worker for one episode; waits for one.

        Raises:
            UserError: none was free in time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._idle or self._room or self._closed, self.patience):
                raise UserError(
                    f"robot.pool: {self.size} workers were busy for {self.patience:g} s: open fewer episodes"
                )
            if self._closed:
                raise UserError("robot.pool: it is closed")
            if self._idle:
                self._taken.add(worker := self._idle.pop())
                return worker
            self._room -= 1
            self.counts["started"] += 1
        try:
            worker = Process(self._robot, self._options, self.patience)
        except BaseException as error:
            self._free(str(error) if isinstance(error, WorkerError) else None)
            raise
        with self._changed:
            self._taken.add(worker)
        if self._closed:  # since it was begun
            self.bury(worker, "closed")
            raise UserError("robot.pool: it is closed")
        return worker

    def give(self, worker: Process) -> None:
        """A worker back, for the next episode."""
        if worker.busy:  # a request was interrupted, so that its answer would be taken for the next one's
            self.bury(worker, "interrupted")
            return
        with self._changed:
            self._taken.discard(worker)
            self._idle.append(worker)
            self._changed.notify()
        if self._closed:
            self.close()

    def bury(self, worker: Process, reason: str) -> None:
        """A worker that is not to be used again."""
        spent = worker.cpu_s()
        worker.end()
        with self._changed:
            self._spent += spent
            self._taken.discard(worker)
        self._free(reason)

    def close(self) -> None:
        """Ends all workers; episodes that are still open end with an `error`."""
        self._closed = True
        atexit.unregister(self.close)
        with self._changed:
            idle, self._idle = self._idle, []
            taken = list(self._taken)
            self._changed.notify_all()
        for worker in taken:
            worker.kill()
        for worker in idle:
            worker.end()

    def _free(self, reason: str | None) -> None:
        with self._changed:
            self.counts["errors"] += reason is not None
            self.counts[f"error: {reason}"] += reason is not None
            self._room += 1
            self._changed.notify()
