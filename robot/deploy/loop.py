"""The episodes of a run, one after the other."""

from __future__ import annotations

import time

from robot.deploy.ending import LOST, STOPPED, Ending, row
from robot.deploy.episode import Episode
from robot.deploy.practice import Practising
from robot.deploy.record import Recorder
from robot.deploy.reset import pose_of, ramp
from robot.deploy.rig import Rig
from robot.deploy.spool import Spool
from robot.motion.body import Ticked
from robot.robot import RobotError


def run(rig: Rig, recorder: Recorder | None, practice: Practising | None) -> tuple[int, str]:
    """All episodes -> exit code and why it is not 0."""
    config, number, began = rig.config, 0, time.monotonic()
    hours = config.practice.hours if config.practice else None
    while number < config.episodes if hours is None else time.monotonic() - began < 3600 * hours:
        number += 1
        seed = config.seed + number - 1
        try:
            ending = _one(rig, recorder, practice, number, seed)
        except RobotError as error:
            died = not rig.motion.alive
            return (rig.motion.close().code or LOST) if died else LOST, str(error)
        if ending.code:
            return ending.code, ending.reason
        if rig.ender.code:
            return rig.ender.code, "interrupted"
        if practice is not None and not practice.reset(number, seed):
            return rig.ender.code or STOPPED, "the scene could not be reset: a person is needed"
    return 0, ""


def _one(rig: Rig, recorder: Recorder | None, practice: Practising | None, number: int, seed: int) -> Ending:
    if rig.scene.ready and practice is None:
        _wait_for_person(rig, number)
    if rig.ender.code:
        return Ending("stopped", "interrupted", code=rig.ender.code)
    _go_home(rig, seed)
    rig.scene.begin(seed)
    rig.ledger.pause()
    first = rig.motion.begin(seed)
    spool = _spool(rig, recorder, number, seed)
    task = rig.config.task or rig.motion.task
    rig.say(f"episode {number}{f': {task}' if task else ''}")
    after = practice.watch if practice else lambda ticked: ""
    ending = Episode(rig, number, seconds=rig.config.seconds, spool=spool, after=after).play(first)
    if practice is None:
        ending = _judged(rig, ending)
    told = row(number, seed, ending, *_lasted(rig, first))
    if spool is not None:
        spool.close(**told)
        rig.ledger.lost_records += spool.lost
    rig.ledger.episodes.append(told)
    rig.say(
        f"episode {number}: {ending.outcome}{f' ({ending.reason})' if ending.reason else ''}", bad=bool(ending.code)
    )
    return ending


def _go_home(rig: Rig, seed: int) -> None:
    home = rig.config.home
    if home is None:
        return
    rig.say("to the home pose")
    rig.motion.begin(seed)
    pose = pose_of(home.pose, rig.motion.about.channels, "home.pose")
    if not ramp(rig, pose, home.seconds) and not rig.motion.latest().stopped:
        rig.say("the home pose was not reached", bad=True)
    rig.motion.idle()


def _lasted(rig: Rig, first: Ticked) -> tuple[int, float]:
    """Ticks, and seconds at the robot's rate."""
    ticks = (rig.motion.latest() or first).tick - first.tick
    return ticks, ticks / rig.motion.about.hz


def _spool(rig: Rig, recorder: Recorder | None, number: int, seed: int) -> Spool | None:
    if recorder is None:
        return None
    try:
        return recorder.begin(number, seed, rig.config.task or rig.motion.task)
    except OSError as error:
        rig.say(f"nothing is recorded of episode {number}: {error.strerror}", bad=True)
        rig.ledger.count("record", "warn", str(error.strerror))
        return None


def _wait_for_person(rig: Rig, number: int) -> None:
    if not rig.by_person:
        return
    rig.say(f"episode {number}: arrange the scene, then press n")
    rig.idle(lambda: "next" in rig.orders())


def _judged(rig: Rig, ending: Ending) -> Ending:
    """A person says how an episode went that ended for want of time."""
    if ending.outcome != "time_out" or ending.success is not None or not rig.by_person:
        return ending
    rig.say("time is up: s success, f failure, n nobody knows")
    said: list[str] = []

    def answered() -> bool:
        said.extend(order for order in rig.orders() if order in ("success", "failure", "next"))
        return bool(said)

    rig.idle(answered)
    if not said or said[0] == "next":
        return ending
    return Ending(said[0], "the operator says so", said[0] == "success")
