"""A deployment on a simulated arm: server, network, `vlrl deploy`, each to be harmed; its recording is read."""

import contextlib
import copy
import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import yaml
from proxy import Proxy
from ticks import Tail, eventually

HERE = Path(__file__).parent
HOLD_S = 0.5  # of the configuration: an action older than this is not carried out
SAFETY = {
    "stale": {"hold_s": HOLD_S, "stop_s": 2.5}, "silence_s": 1.0,
    "default": {"speed": 60, "acceleration": 720},
}  # fmt: skip


def environment(*folders):
    """Of a child process; `folders` go before the packages."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([*map(str, folders), *filter(None, sys.path)])}


class Server:
    """The policy server as a process; `say` tells its policy what to do."""

    def __init__(self, folder, version="1", actions=6):
        self._told = folder / "policy"
        self.say("steady")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.start(version, actions)

    def start(self, version="1", actions=6):
        """As a new process at the same port."""
        command = [sys.executable, HERE / "faulty_server.py", str(self.port), self._told, version, str(actions)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment())
        return self

    def ready(self):
        assert self.process.stdout.readline()
        return self

    def say(self, word):
        self._told.with_suffix(".new").write_text(word)
        self._told.with_suffix(".new").rename(self._told)

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def signal(self, number):
        self.process.send_signal(number)

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
        self.kill()


def _alone(limit):
    """Of a child process, before it begins: it ends with its terminal, also where these tests run under nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


class Deployed:
    """A running deployment. To be closed.

    Args:
        changes: of the configuration, key by key.
        limit: bytes that a file may have: what is beyond is a full disk.
        folders: before the packages, for the deployment and what it starts.
        stdin: of the deployment; none: nothing.
    """

    def __init__(self, folder, *, changes=None, limit=None, folders=(), stdin=subprocess.DEVNULL):
        self.folder = folder
        self.server = Server(folder).ready()
        self.proxy = Proxy(self.server.port)
        self.tail = Tail(folder / "data.spool")
        self._lines = (folder / "said").open("w+")
        command = [sys.executable, "-c", "from vlrl.cli import main; raise SystemExit(main())", "deploy"]
        self.process = subprocess.Popen(
            [*command, str(self._config(changes or {}))],
            stdin=stdin, stdout=self._lines, stderr=self._lines, env=environment(*folders),
            preexec_fn=lambda: _alone(limit),
        )  # fmt: skip

    def _config(self, changes):
        config = {
            "robot": {"name": "simulated", "robot": "so101", "drive": "position",
                      "state": ["shoulder_pan.pos", "shoulder_lift.pos", "elbow_flex.pos", "wrist_flex.pos",
                                "wrist_roll.pos", "gripper.pos"]},
            "policy": {"url": f"ws://127.0.0.1:{self.proxy.port}", "mode": "async", "execute": 5},
            "episodes": 1, "seconds": 600, "scene": "body", "out": str(self.folder / "out"),
            "safety": copy.deepcopy(SAFETY), "record": {"out": str(self.folder / "data"), "finish": False},
        }  # fmt: skip
        for key, value in changes.items():
            *path, last = key.split(".")
            here = config
            for part in path:
                here = here.setdefault(part, {})
            here[last] = value
        file = self.folder / "deploy.yaml"
        file.write_text(yaml.safe_dump(config))
        return file

    def moving(self, ticks=12):
        """Waits until the policy moves the arm: in three of four of the last ticks, so many, from now on."""
        start = len(self.tail.read())

        def found():
            told = self.tail.read()[start:]
            free = [each.free for each in told[-ticks:]]
            return len(free) == ticks and free[-1] and sum(free) >= 0.75 * ticks

        eventually(found, self.said)
        return self

    def ticks(self):
        return self.tail.read()

    def said(self):
        """What it printed, and how it is."""
        self._lines.flush()
        return f"{(self.folder / 'said').read_text()} (exit code {self.process.poll()}, {len(self.ticks())} ticks)"

    def child(self, module):
        """The process id of a child that runs this module."""
        listed = subprocess.run(
            ["ps", "--ppid", str(self.process.pid), "-o", "pid=,args="], capture_output=True, text=True
        )
        return next(int(line.split()[0]) for line in listed.stdout.splitlines() if module in line)

    def end(self, seconds=60):
        """Its exit code."""
        code = self.process.wait(seconds)
        assert "Traceback" not in self.said(), self.said()
        return code

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()
        self.proxy.close()
        self.server.close()
        self.tail.close()
        self._lines.close()
