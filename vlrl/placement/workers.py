"""Workers: how one is started with what it needs, asked, lost and replaced. Here: processes of this machine.

A worker holds a `WorkerService` and answers requests, fields and arrays as `vlrl.decoders` packs them: bytes in, bytes
out, and nothing that is read can run code. It answers in time or counts as dead. Whoever needs workers has a pool;
where they run is decided once, by the configuration's `placement` (`use_placement`).

As a program, `python -m vlrl.placement.workers PIPE MODULE:SERVICE`, this file is the process around a service.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import weakref
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from threading import Condition
from typing import Any, Literal

import numpy as np
import psutil
from PIL import Image

from vlrl.decoders import wire_pack, wire_unpack
from vlrl.plugins import load_object
from vlrl.system.children import end_child, start_child
from vlrl.types import LOST_MOST, UserError, one_line

Arrays = Mapping[str, np.ndarray]
Packed = tuple[dict[str, Any], dict[str, np.ndarray]]  # fields, what JSON can hold, and arrays
Kind = Literal["simulator", "browser", "judge", "reward", "engine"]

FAREWELL = 2.0  # seconds for a worker to leave what it holds safe
NODE = "VLRL_NODE_ADDRESS"  # the variable that tells a worker under which address others reach its node
ALONE = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "LP_NUM_THREADS")}


class WorkerError(Exception):
    """A worker that is lost, or whose service raised. It is not to be asked again."""


class LostWorkerError(WorkerError):
    """A worker that died, did not answer in time, or went with its node: another time it may work."""


class WorkerService(ABC):
    """What a worker holds: made without arguments in the worker's process, and closed before that ends."""

    @abstractmethod
    def answers(self) -> Mapping[str, Callable[[Mapping[str, Any], Arrays], Packed]]:
        """What it can be asked for: each takes and gives fields and arrays. `make` takes the pool's options first."""

    def describe_error(self, error: Exception) -> str:
        """What a request raised, in one line."""
        return one_line(error)

    def close(self) -> None:
        """Leaves what it holds safe; it has FAREWELL seconds."""


def pack_images(images: Sequence[Image.Image]) -> dict[str, np.ndarray]:
    """Images as arrays uint8 [H, W, 3] by number. Alpha channels and palettes become RGB."""
    return {f"image{i}": np.asarray(image.convert("RGB")) for i, image in enumerate(images)}


def unpack_images(arrays: Arrays) -> list[Image.Image]:
    return [Image.fromarray(arrays[f"image{i}"]) for i in range(sum(name.startswith("image") for name in arrays))]


# A worker as those see it that ask it.


class Worker(ABC):
    """One that answers. `busy` from a request until its answer has been read; `keeps`: what `take` may look for in it.

    Attributes:
        patience: seconds after which it counts as dead when it does not answer.
    """

    patience: float
    busy = False
    keeps: Collection[str] = ()

    @property
    @abstractmethod
    def pid(self) -> int:
        """Of its process, on its node."""

    @abstractmethod
    def exchange(self, message: bytes) -> bytes:
        """Its answer's bytes.

        Raises:
            LostWorkerError: it died, or did not answer in time.
        """

    @abstractmethod
    def cpu_s(self) -> float:
        """Processor seconds that it and what it started have used; 0 once it is gone."""

    @abstractmethod
    def kill(self) -> None:
        """Ends it at once, also while another thread waits for its answer."""

    @abstractmethod
    def end(self) -> None:
        """Lets it leave what it holds safe if it can, and ends it. May be called twice."""

    def ask(self, request: str, fields: Mapping[str, Any], arrays: Arrays | None = None) -> Packed:
        """The fields and arrays of its answer.

        Raises:
            UserError: what it says that the user can mend.
            LostWorkerError: as `exchange`.
            WorkerError: its service raised.
        """
        message = wire_pack({"request": request, **fields}, arrays)
        self.busy = True
        answer, received = wire_unpack(self.exchange(message))
        if "lost" in answer:
            raise LostWorkerError(answer["lost"])
        self.busy = False
        if "user_error" in answer:
            raise UserError(answer["user_error"])
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer, received


class LocalWorker(Worker):
    """A process of this machine that answers over a pipe, and ends with this object.

    Args:
        command: starts it; it gets one file descriptor more, of the pipe, before `arguments`.
        environment: its variables.
        name: what it is, in errors.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], patience: float, name: str,
                 arguments: Sequence[str] = ()):  # fmt: skip
        self.patience, self._name = patience, name
        self._pipe, theirs = Pipe()
        self._process = start_child(
            [*command, str(theirs.fileno()), *arguments],
            pass_fds=(theirs.fileno(),),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=2,  # what a simulator prints is no result of ours
            patience=FAREWELL,  # it sees that its pipe is closed, unless it hangs
        )
        theirs.close()
        self._end = weakref.finalize(self, _end_process, os.getpid(), self._pipe, self._process)

    @property
    def pid(self) -> int:
        return self._process.pid

    def exchange(self, message: bytes) -> bytes:
        try:
            self._pipe.send_bytes(message)
            if not self._pipe.poll(self.patience):
                self.kill()
                raise LostWorkerError(f"no answer in {self.patience:g} s")
            return self._pipe.recv_bytes()
        except (EOFError, OSError):
            raise LostWorkerError(self._death()) from None

    def cpu_s(self) -> float:
        try:
            process = psutil.Process(self._process.pid)
            used = [each.cpu_times() for each in (process, *process.children(recursive=True))]
        except psutil.Error:
            return 0.0
        return sum(each.user + each.system for each in used)

    def end(self) -> None:
        self._end()

    def kill(self) -> None:
        end_child(self._process)

    def _death(self) -> str:
        """How it ended, once its pipe is closed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(FAREWELL)
        code = self._process.returncode
        how = f"died (signal {-code})" if code and code < 0 else f"ended (exit status {code})"
        return f"{self._name} {how}"


def _end_process(owner: int, pipe: Connection, process: subprocess.Popen[bytes]) -> None:
    if os.getpid() == owner:  # a fork of it drops its copies only
        pipe.close()
        end_child(process, FAREWELL)


def start_process(service: str, patience: float, path: Sequence[str]) -> LocalWorker:
    """A process of this machine around a service; `path` is its Python path."""
    environment = os.environ | ALONE | {"PYTHONPATH": os.pathsep.join(filter(None, path))}
    return LocalWorker([sys.executable, "-m", __name__], environment, patience, "the worker", [service])


# Where workers run.


class Placement(ABC):
    """Starts workers. Made with the options of the configuration's `placement`."""

    @abstractmethod
    def start(self, service: str, kind: Kind, patience: float) -> Worker:
        """A worker of `module:WorkerService`, from anywhere on this process' Python path, with what its kind needs.

        Raises:
            OSError, WorkerError: it cannot be started.
        """


class LocalPlacement(Placement):
    """Processes of this machine."""

    def start(self, service: str, kind: Kind, patience: float) -> Worker:
        return start_process(service, patience, sys.path)


_placement: Placement = LocalPlacement()


def use_placement(placement: Placement) -> None:
    """Where workers that start from now on run. Of a process: a run has one."""
    global _placement
    _placement = placement


def get_placement() -> Placement:
    return _placement


# Workers that outlive what they are used for: as many at a time as there are workers.


class WorkerPool:
    """At most `size` workers of one service. Safe to use from several threads.

    A worker is started when first needed, and ends with the pool. One that dies, does not answer in time or whose
    service raised is to be buried, and replaced when the next one is needed. `counts` has workers `started`, `errors`
    and of them those of each `error: reason`.

    Args:
        service: `module:WorkerService`; it is asked to `make` what it holds of `options`, what JSON can hold.
        kind: what they are, by which a placement knows what they need.
        patience: seconds after which a worker that does not answer counts as dead, and after which whoever waits for
            a free one gives up.
        name: the pool, in errors.
    """

    def __init__(
        self,
        service: str,
        options: Mapping[str, Any],
        *,
        kind: Kind,
        size: int,
        patience: float = 120.0,
        name: str = "",
    ):
        self.name = name or f"{kind} workers"
        if size < 1 or patience <= 0:
            raise UserError(f"{self.name}: size {size}, patience {patience}: size must be at least 1, patience above 0")
        self.size, self.patience = size, patience
        self.counts: Counter[str] = Counter()
        self._service, self._kind, self._options = service, kind, dict(options)
        self._room, self._closed = size, False
        self._spent = 0.0  # processor seconds of workers that are gone
        self._idle: list[Worker] = []
        self._taken: set[Worker] = set()
        self._changed = Condition()

    @property
    def workers(self) -> list[Worker]:
        """Those that there are."""
        with self._changed:
            return [*self._idle, *self._taken]

    def cpu_s(self) -> float:
        """Processor seconds of all workers so far."""
        return self._spent + sum(worker.cpu_s() for worker in self.workers)

    def take(self, key: str = "") -> Worker:
        """A worker; waits for one. With a key, if possible one that keeps it, else a new one while there is room.

        Raises:
            UserError: none was free in time, or a new one says what the user can mend.
            WorkerError: a new one could not be started.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._idle or self._room or self._closed, self.patience):
                raise UserError(
                    f"{self.name}: {self.size} workers were busy for {self.patience:g} s: open fewer episodes"
                )
            if self._closed:
                raise UserError(f"{self.name}: it is closed")
            fit = [worker for worker in self._idle if key in worker.keeps] if key else self._idle[-1:]
            if fit or not self._room:
                worker = fit[0] if fit else self._idle[-1]
                self._idle.remove(worker)
                self._taken.add(worker)
                return worker
            self._room -= 1
            self.counts["started"] += 1
        try:
            worker = self._start()
        except BaseException as error:
            self._free(str(error) if isinstance(error, WorkerError) else None)
            raise
        with self._changed:
            self._taken.add(worker)
        if self._closed:  # since it was begun
            self.bury(worker, "closed")
            raise UserError(f"{self.name}: it is closed")
        return worker

    def call(
        self, request: str, fields: Mapping[str, Any], arrays: Arrays | None = None, lost: int = LOST_MOST
    ) -> Packed:
        """What one of the workers answers, or another where it is lost.

        Args:
            lost: workers after which it is given up.

        Raises:
            UserError, WorkerError: as `take` and `Worker.ask`.
        """
        for _ in range(lost - 1):
            with contextlib.suppress(LostWorkerError):
                return self._call(request, fields, arrays)
        return self._call(request, fields, arrays)

    def _call(self, request: str, fields: Mapping[str, Any], arrays: Arrays | None) -> Packed:
        worker = self.take()
        try:
            answer = worker.ask(request, fields, arrays)
        except WorkerError as error:
            self.bury(worker, str(error))
            raise
        except BaseException:
            self.give(worker)
            raise
        self.give(worker)
        return answer

    def give(self, worker: Worker) -> None:
        """A worker back, for whoever is next."""
        if worker.busy:  # a request was interrupted, so that its answer would be taken for the next one's
            self.bury(worker, "interrupted")
            return
        with self._changed:
            self._taken.discard(worker)
            self._idle.append(worker)
            self._changed.notify()
        if self._closed:
            self.close()

    def bury(self, worker: Worker, reason: str) -> None:
        """A worker that is not to be used again: its processes are ended, and its place is free for another."""
        spent = worker.cpu_s()
        worker.end()
        with self._changed:
            self._spent += spent
            self._taken.discard(worker)
        self._free(reason)

    def end_idle(self) -> None:
        """Ends the workers that nobody has; others start when they are needed."""
        with self._changed:
            idle, self._idle = self._idle, []
        for worker in idle:
            self._spent += worker.cpu_s()
            worker.end()
            self._free(None)

    def close(self) -> None:
        """Ends all workers, those that are being asked at once; there will be no others."""
        self._closed = True
        with self._changed:
            taken = list(self._taken)
            self._changed.notify_all()
        for worker in taken:
            worker.kill()
        self.end_idle()

    def _start(self) -> Worker:
        worker = get_placement().start(self._service, self._kind, self.patience)
        try:
            worker.ask("make", self._options)
        except BaseException:
            worker.end()
            raise
        return worker

    def _free(self, reason: str | None) -> None:
        with self._changed:
            self.counts["errors"] += reason is not None
            self.counts[f"error: {reason}"] += reason is not None
            self._room += 1
            self._changed.notify()


# The process around a service.


def serve(pipe: Connection, service: WorkerService) -> None:
    """Answers until the other side is gone. What a request raises goes back as `error`, or `user_error`."""
    answers = service.answers()
    try:
        while True:
            fields, arrays = wire_unpack(pipe.recv_bytes())
            try:
                reply = wire_pack(*answers[fields["request"]](fields, arrays))
            except UserError as error:
                reply = wire_pack({"user_error": str(error)})
            except Exception as error:  # the border to drivers, browsers and simulators, which raise what they like
                reply = wire_pack({"error": service.describe_error(error)})
            pipe.send_bytes(reply)
    except (EOFError, OSError):  # the other side has closed the pipe, or is gone
        pass
    finally:
        service.close()


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])), load_object(sys.argv[2], "worker")())
