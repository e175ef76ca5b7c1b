"""Recording of a run: a spool for each episode, and the process that makes a data set of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from robot.deploy.config import Deploy, Record
from robot.deploy.ending import Ender
from robot.deploy.finish import fits, spools_of
from robot.deploy.frames import features
from robot.deploy.sight import Seen
from robot.deploy.spool import Spool
from robot.motion.body import Ticked
from robot.motion.messages import About
from vlrl.types import UserError

LARGE = 128  # pixels of a picture from which on `auto` makes videos
LOOK_S = 0.1  # between two looks for a signal while the data set is made


class Recording:
    """One episode's ticks on their way into its spool, each picture once.

    Args:
        spool: None: nothing is kept.
        seen: the cameras' newest pictures.
    """

    def __init__(self, spool: Spool | None, seen: Callable[[], Mapping[str, Seen]]):
        self._spool, self._seen, self._told = spool, seen, False
        self._kept: dict[str, int] = {}  # camera -> the last picture that was kept

    def tick(self, ticked: Ticked) -> str:
        """Why nothing more can be kept, once; else ''."""
        if self._spool is None:
            return ""
        fresh = {}
        for name, seen in self._seen().items():
            if self._kept.get(name) != seen.seq:
                fresh[name], self._kept[name] = seen.picture, seen.seq
        self._spool.tick(ticked, fresh | dict(ticked.sensed.images))
        problem = "" if self._told else self._spool.problem
        self._told = bool(problem) or self._told
        return problem

    def note(self, text: str) -> None:
        if self._spool is not None:
            self._spool.note(text=text)


class Recorder:
    """Makes spools, all with the same columns.

    Args:
        pictures: camera -> height, width.
        hz: frames a second, rounded: the format asks for a whole number.
        task: the instruction, where the config gives none.

    Raises:
        UserError: the data set that is there has other columns, or the folder cannot be written.
    """

    def __init__(self, config: Deploy, about: About, pictures: Mapping[str, Sequence[int]], hz: float, policy: str):
        record = config.record
        self.out = Path(record.out)
        self._folder = spools_of(self.out)
        self._header = {
            "hz": about.hz, "fps": max(1, round(min(record.hz or hz, about.hz))), "names": list(about.names),
            "channels": [each.name for each in about.channels], "units": [each.unit for each in about.channels],
            "kinds": [each.kind for each in about.channels], "policy": policy,
            "pictures": {name: [int(side) for side in size[:2]] for name, size in pictures.items()},
            "robot": str(config.robot.get("type") or config.robot.get("robot") or config.robot["name"]),
        }  # fmt: skip
        large = any(max(size) > LARGE for size in self._header["pictures"].values())
        video = record.pictures == "video" or (record.pictures == "auto" and large)
        if problem := fits(self.out, features(self._header, video and bool(pictures)), self._header["fps"]):
            raise UserError(f"record.out: {problem}: name another folder")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"record.out: {self._folder}: {error.strerror}") from None

    def begin(self, number: int, seed: int, task: str) -> Spool:
        """Raises OSError: the file cannot be made."""
        name = uuid.uuid4().hex
        order = f"{len(list(self._folder.glob('*.spool'))):05d}"
        header = {**self._header, "id": name, "episode": number, "seed": seed, "task": task or "no instruction"}
        return Spool(self._folder / f"{order}_{name[:8]}.spool", header)


def waiting(out: Path) -> int:
    """Recordings that are not yet in the data set."""
    return len(list(spools_of(out).glob("*.spool")))


def finished(record: Record, lease: int, ender: Ender) -> dict[str, Any]:
    """Makes a data set of what waits, in a process of its own -> its counts, or {"problem"}. Nothing is lost by one.

    Args:
        lease: descriptor of the data set's lease, which the process inherits.
        ender: a signal that comes meanwhile ends the process.
    """
    out = Path(record.out)
    if not waiting(out) and not out.with_name(f".{out.name}.old").exists():
        return {}
    command = [sys.executable, "-m", "robot.deploy.finish", str(out), record.pictures]
    command += [f"lease={lease}", *(["corrections"] if record.corrections else [])]
    said, errors = _outcome(command, lease, ender)
    with contextlib.suppress(ValueError, IndexError):
        return dict(json.loads(said.splitlines()[-1]))
    why = (errors.strip().splitlines() or ["no reason"])[-1]
    return {"problem": f"record: the data set was not made ({why}); {spools_of(out)} keeps the recordings"}


def _outcome(command: Sequence[str], lease: int, ender: Ender) -> tuple[str, str]:
    """What a finisher printed to both its outputs. In a session of its own: a terminal's Ctrl-C is for this process."""
    path, signals = os.pathsep.join(filter(None, sys.path)), ender.signals
    process = subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": path}, text=True, pass_fds=(lease,), start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=LOOK_S)
        if ender.signals > signals:
            os.killpg(process.pid, signal.SIGKILL)  # at any moment the data set is as it was, or whole
            process.communicate()
            return "", "ended by a signal"
