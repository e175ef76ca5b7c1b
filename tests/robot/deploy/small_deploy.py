"""A scripted policy behind the real server, and the pieces of a small deployment."""

import contextlib
import json
import os
import resource
import subprocess
import sys
import time
import urllib.request
from argparse import Namespace

import numpy as np
import yaml

from robot.deploy.recorder import load_frames, spools_of
from robot.sim.tabletop import STATE, expert
from vlrl.serving.protocol import Feature, Picture, PolicySpec

HZ, CHUNK = 20.0, 8
ALL = ("x", "y", "z")


class Scripted:
    """Solves `push` from the state: the script's speed now, for a whole chunk."""

    name, version = "scripted push", "1"

    def __init__(self, delay: float = 0.0, pictures: tuple[Picture, ...] = (), rtc: bool = False, chunk: int = CHUNK):
        action = tuple(Feature(name, "m/s") for name in ALL)
        self.spec = PolicySpec(tuple(Feature(name) for name in STATE), pictures, action, HZ, chunk, rtc)
        self.delay, self.asked = delay, []

    def infer(self, asked):
        time.sleep(self.delay)
        self.asked += asked
        return [np.repeat(expert("push", each.state)[None], self.spec.chunk, 0).astype(np.float32) for each in asked]

    def forget(self, session):
        pass


def written(folder, url, **changes):
    """A config's file."""
    config = {
        "robot": {"name": "simulated", "robot": "tabletop", "job": "push"},
        "policy": {"url": url, "mode": "sync", "execute": 4},
        "episodes": 1, "seconds": 20, "seed": 3, "scene": "body", "out": str(folder / "out"),
        "safety": {"default": {"acceleration": 20.0}},
    }  # fmt: skip
    for key, value in changes.items():
        here = config
        *path, last = key.split("__")
        for part in path:
            here = here.setdefault(part, {})
        here[last] = value
    file = folder / "deploy.yaml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    return file


def options(file, *changes, dry_run=False):
    return Namespace(config=str(file), changes=list(changes), dry_run=dry_run, out=None)


def ticks_of(folder, episode=0):
    take_writer = sorted(spools_of(folder / "data").glob("*.spool"))[episode]
    return load_frames(take_writer)


class Run:
    """A deployment as a process of its own; `lines` are what it said so far."""

    def __init__(self, file, limit=None):
        def limited():
            if limit:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        self.process = subprocess.Popen(
            [sys.executable, __file__, "deploy", str(file)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}, preexec_fn=limited,
        )  # fmt: skip
        self.lines = []

    def until(self, text):
        """Reads on until a line has the text."""
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if text in line:
                return line
        raise AssertionError(f"never said {text!r}: {self.lines}")

    def end(self):
        """Its exit code."""
        self.lines += self.process.stdout.read().splitlines()
        self.process.stdout.close()
        assert not any("Traceback" in line for line in self.lines), self.lines
        return self.process.wait()


class Page:
    """The live page as its script sees it. Args: address: what the deployment says."""

    def __init__(self, address):
        self._address = address
        page = urllib.request.urlopen(address).read().decode()
        self._token = {"X-Token": page.split('const token = "')[1].split('"')[0]}

    def order(self, text):
        request = urllib.request.Request(f"{self._address}order", text.encode(), self._token)
        assert urllib.request.urlopen(request).status == 200

    def state(self):
        told = json.load(urllib.request.urlopen(urllib.request.Request(f"{self._address}state", headers=self._token)))
        return told | {"facts": dict(told["facts"])}

    def until(self, holds, seconds=30.0):
        """The state once it holds."""
        end = time.monotonic() + seconds
        while not holds(told := self.state()):
            assert time.monotonic() < end, told
            time.sleep(0.02)
        return told


@contextlib.contextmanager
def killable(delay=0.0, port=0):
    """A server process: its url and the process."""
    command = [sys.executable, __file__, "serve", str(delay), str(port)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    try:
        yield process.stdout.readline().strip(), process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


if __name__ == "__main__":  # a server to be killed, or a deployment
    if sys.argv[1] == "serve":
        from vlrl.serving.server import Door, running

        with running(Scripted(float(sys.argv[2])), Door(port=int(sys.argv[3]))) as url:
            print(url, flush=True)
            time.sleep(600)
    else:
        from robot.deploy.main import main
        from vlrl.types import UserError

        try:
            code = main(options(sys.argv[2]))
            print("loaded:", [name for name in ("torch", "lerobot", "mujoco") if name in sys.modules])
            sys.exit(code)
        except UserError as error:
            print(f"vlrl: {error}", file=sys.stderr)
            sys.exit(2)
