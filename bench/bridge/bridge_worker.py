"""Processes of `bench/bridge.py costs`: servers and clients that are told what to do, hogs, and a port that counts."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Worker:
    """An object of `module:Class` in a process of its own; its methods are called by name.

    Args:
        folder: where the process works; what it prints goes into a file there.
        heavy: begin with what `preload` has loaded.
    """

    def __init__(self, target: str, folder: Path, heavy: bool):
        context = multiprocessing.get_context("forkserver" if heavy else "spawn")
        self._log = folder / f"{target.replace(':', '.')}.log"
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, target, str(self._log)), daemon=False)
        self._process.start()
        theirs.close()

    def tell(self, method: str, **given: Any) -> None:
        """Calls a method; `told` waits for what it returns."""
        self._pipe.send((method, given))

    def told(self) -> Any:
        try:
            good, value = self._pipe.recv()
        except EOFError:
            good, value = False, "it died"
        if not good:
            raise RuntimeError(f"{value}\n(its log: {self._log})")
        return value

    def __call__(self, method: str, **given: Any) -> Any:
        self.tell(method, **given)
        return self.told()

    def cpu(self) -> float:
        """CPU seconds so far."""
        return cpu_of(self._process.pid)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._pipe.close()
        self._process.join(10)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()


def preload(*modules: str) -> None:
    """Loads what takes long once for all heavy workers."""
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    multiprocessing.set_forkserver_preload(list(modules))


def _work(pipe: Any, target: str, log: str) -> None:
    """The process' whole life."""
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.chdir(Path(log).parent)  # lerobot writes its log where it is
    module, _, name = target.partition(":")
    made = getattr(importlib.import_module(module), name)()
    with contextlib.suppress(EOFError):
        while True:
            method, given = pipe.recv()
            try:
                pipe.send((True, getattr(made, method)(**given)))
            except Exception:
                pipe.send((False, traceback.format_exc()))
    os._exit(0)  # whatever threads a library has left


def cpu_of(pid: int) -> float:
    """CPU seconds of a process so far, all threads (Linux: clock_getcpuclockid)."""
    return time.clock_gettime(~pid << 3 | 2)


@contextlib.contextmanager
def hogs(count: int) -> Iterator[None]:
    """Processes that use a core each."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


class Counter:
    """A port that passes everything on to another one, both ways, and counts it: `sent` and `received` bytes."""

    def __init__(self, host: str, port: int):
        self._to, self.sent, self.received = (host, port), 0, 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)  # wakes whoever accepts, which closing does not
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with near, socket.create_connection(self._to) as far:
            back = threading.Thread(target=self._pass, args=(far, near, "received"), daemon=True)
            back.start()
            self._pass(near, far, "sent")
            back.join()

    def _pass(self, source: socket.socket, drain: socket.socket, name: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 18):
                setattr(self, name, getattr(self, name) + len(data))
                drain.sendall(data)
        for each in (source, drain):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
