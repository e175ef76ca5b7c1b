"""`vlrl deploy` and `vlrl replay`: checks before the start, the policy server, opening and closing what they use."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from robot.control.messages import ActionPlan, MotionInfo
from robot.control.process import Motion
from robot.deploy import episode
from robot.deploy.cameras import CameraProcess
from robot.deploy.config import Deploy, Served, load
from robot.deploy.dashboard import DashboardServer
from robot.deploy.episode import PracticeWatcher, check_practice, pose_of
from robot.deploy.recorder import EpisodeRecorder, finished, hold_data
from robot.deploy.report import write
from robot.deploy.scene import BodyScene, DeployScene, EmulatorScene, Operator, ServedScene, connected
from robot.deploy.session import (
    PAUSE_S,
    Chunks,
    DeploySession,
    Ender,
    Keyboard,
    TickStatistics,
    find_state_indices,
    select_pictures,
    wants,
)
from robot.deploy.teleop import TeleopDevice
from robot.drivers.lerobot import hold_ports
from robot.serving.client import Client
from robot.types import RobotError, TickRecord
from vlrl.decoders import load_json
from vlrl.system.children import end_child, start_child
from vlrl.system.clock import boottime
from vlrl.types import UserError

# An episode of a LeRobotDataset v3, its numbers alone, read without lerobot.

STATE, ACTION, SCENE = "observation.state", "action", "scene"


@dataclass(frozen=True, eq=False)
class RecordedMotion:
    hz: float
    state_names: tuple[str, ...]
    action_names: tuple[str, ...]
    states: np.ndarray  # float32 [T, S]
    actions: np.ndarray  # float32 [T, A], as they were sent
    scene: int  # the seed; 0 where the recording does not say


def load_recorded(folder: Path, episode: int) -> RecordedMotion:
    """Raises UserError: no such data set or episode, or one without state and action."""
    import pyarrow
    from pyarrow import parquet

    try:
        info = load_json(folder / "meta" / "info.json")
        columns = [name for name in (STATE, ACTION, SCENE) if name in info["features"]]
        table = parquet.read_table(
            folder / "data", columns=[*columns, "frame_index"], filters=[("episode_index", "=", episode)]
        ).sort_by("frame_index")
    except (OSError, ValueError, KeyError, pyarrow.ArrowException) as error:
        raise UserError(f"{folder}: cannot be read as a LeRobotDataset v3: {str(error).splitlines()[0]}") from None
    if not {STATE, ACTION} <= set(columns):
        raise UserError(f"{folder}: has no {STATE} and {ACTION}: not a recording of a robot")
    if not len(table):
        raise UserError(f"--episode {episode}: {folder} has {info.get('total_episodes', 0)} episodes, from 0")
    states, actions = (np.array(table[name].to_pylist(), np.float32) for name in (STATE, ACTION))
    scene = int(table[SCENE][0].as_py()) if SCENE in columns else 0
    names = info["features"]
    return RecordedMotion(float(info["fps"]), _names(names[STATE]), _names(names[ACTION]), states, actions, scene)


def _names(feature: Mapping[str, Any]) -> tuple[str, ...]:
    names = feature.get("names") or ()
    names = next(iter(names.values()), ()) if isinstance(names, Mapping) else names
    return tuple(names) or tuple(str(number) for number in range(int(feature["shape"][0])))


PIECE_S = 0.4  # seconds of actions that are handed over at a time, so that none is old
SLOW = 5.0  # a replay that takes so many times as long as the recording is given up


def replay(recorded: RecordedMotion, motion: Motion, ender: Ender) -> dict[str, Any]:
    """Plays and closes the motion process -> frames, of, deviation {joint: mean, max, unit}, code, cause.

    Raises:
        UserError: the recording is of another robot.
    """
    try:
        _check(recorded, motion)
        states = _play(recorded, motion, ender)
    except BaseException:
        motion.close()
        raise
    left = motion.close()
    stopped = states[-1].stopped if states else ""
    code, cause = (left.code, left.cause) if left.code else (ender.code, "interrupted") if ender.code else (0, stopped)
    frames = _frames(recorded, motion, states)
    return {
        "frames": len(frames), "of": len(recorded.actions), "code": code, "cause": cause,
        "deviation": _deviation(recorded, motion, frames),
    }  # fmt: skip


def _check(recorded: RecordedMotion, motion: Motion) -> None:
    about = motion.info
    names = [channel.name for channel in about.channels]
    if list(recorded.action_names) != names:
        raise UserError(
            f"replay: the recording's actions are {', '.join(recorded.action_names)}, the robot's {', '.join(names)}"
        )
    if about.controls != about.channels:
        raise UserError("replay: the robot is driven by speeds, the recording has targets: set robot.drive=position")


def _play(recorded: RecordedMotion, motion: Motion, ender: Ender) -> list[TickRecord]:
    """The ticks from the first action on."""
    about = motion.info
    ratio = about.hz / recorded.hz
    first = motion.begin(recorded.scene)
    start = first.tick + 2
    end = start + round(len(recorded.actions) * ratio)
    states, sent = [], -1
    until = boottime() + SLOW * len(recorded.actions) / recorded.hz + 10
    while motion.alive and not ender.code and boottime() < until:
        states += [ticked for ticked in motion.ticks() if ticked.tick >= start]
        tick = motion.latest().tick
        if tick >= end or motion.latest().stopped:
            break
        frame = max(0, int((tick - start) / ratio))
        if frame > sent:
            motion.plan(_piece(recorded, frame, start, ratio))
            sent = frame + round(PIECE_S * recorded.hz / 2) - 1
        motion.pet()
        time.sleep(PAUSE_S)
    motion.idle()
    return states


def _piece(recorded: RecordedMotion, frame: int, start: int, ratio: float) -> ActionPlan:
    actions = recorded.actions[frame : frame + max(2, round(PIECE_S * recorded.hz))]
    now = boottime()
    return ActionPlan(frame, start + round(frame * ratio), actions, recorded.hz, now + 2 * PIECE_S, now)


def _frames(recorded: RecordedMotion, motion: Motion, seen: list[TickRecord]) -> dict[int, np.ndarray]:
    """Frame of the recording -> the robot's state then, float32 [S]."""
    if not seen:
        return {}
    ratio, start = motion.info.hz / recorded.hz, seen[0].tick
    frames: dict[int, np.ndarray] = {}
    for ticked in seen:
        frame = int((ticked.tick - start) / ratio + 1e-6)
        if frame < len(recorded.states):
            frames.setdefault(frame, ticked.sensed.state)
    return frames


def _deviation(recorded: RecordedMotion, motion: Motion, frames: dict[int, np.ndarray]) -> dict[str, Any]:
    """Of each number of the state that both have, over the frames that were played."""
    units = {channel.name: channel.unit for channel in motion.info.channels}
    names = [name for name in motion.info.names if name in recorded.state_names]
    ours = [motion.info.names.index(name) for name in names]
    theirs = [recorded.state_names.index(name) for name in names]
    off = np.array([np.abs(state[ours] - recorded.states[frame][theirs]) for frame, state in frames.items()])
    return {
        name: {"mean": float(off[:, i].mean()), "max": float(off[:, i].max()), "unit": units.get(name, "")}
        for i, name in enumerate(names)
        if len(off)
    }


# What can be known to go wrong before anything moves.


def check_setup(config: Deploy, about: MotionInfo, client: Client, hz: float) -> None:
    """Raises UserError for what cannot work. `hz`: actions a second."""
    policy, spec, stale = config.policy, client.spec, config.safety.stale
    if len(spec.action) != len(about.controls):
        raise UserError(
            f"policy: its actions have {len(spec.action)} numbers, the robot takes {len(about.controls)}: "
            + ", ".join(each.name for each in about.controls)
        )
    if policy.mode == "rtc" and not spec.rtc:
        raise UserError(f"policy.mode: {client.model} cannot in-paint (real-time chunking): choose async or blend")
    actions = min(policy.execute or spec.chunk, spec.chunk)
    if policy.mode == "sync" and actions / hz > stale.hold_s:
        fit = max(1, math.floor(stale.hold_s * hz * 0.8))
        raise UserError(
            f"policy.mode sync: {actions} actions last {actions / hz:.1f} s, but safety.stale.hold_s is "
            f"{stale.hold_s:g} s: set policy.execute to {fit} or raise the other"
        )
    if policy.execute and policy.execute > spec.chunk:
        raise UserError(f"policy.execute: {policy.execute}: the policy gives {spec.chunk} actions at a time")


def checklist(session: DeploySession) -> str:
    """What a dry run found, for people."""
    about, client, config = session.motion.info, session.client, session.config
    ticked = session.motion.latest()
    spec, mode = client.spec, config.policy.mode
    where = zip(about.channels, ticked.sensed.measured.tolist() if ticked else [], strict=False)
    lines = [
        f"robot: {about.hz:g} ticks a second, scheduled {about.priority}; {len(about.channels)} channels",
        *(f"  {channel.name}: {value:.2f} {channel.unit}" for channel, value in where),
        f"policy: {client.model}, {session.chunks.hz:g} actions a second in chunks of {spec.chunk}, {mode}",
        *(f"camera {name}: {size[1]}x{size[0]}" for name, size in _preflight_sizes(session).items()),
        f"recording: {config.record.out if config.record else 'none'}",
        "all is ready; nothing was sent",
    ]
    return "\n".join(lines)


def _preflight_sizes(session: DeploySession) -> dict[str, tuple[int, ...]]:
    return {name: latest.picture.shape for name, latest in session.latest_pictures().items()} | dict(
        session.motion.info.images
    )


# A local policy as a server of our own: torch stays in its process, as with one on another machine.

FAREWELL = 5.0  # seconds for it to end by itself
ADDRESS = re.compile(r"wss?://127\.0\.0\.1:\d+")


@contextlib.contextmanager
def served(folder: str, patience: float) -> Iterator[str]:
    """`vlrl serve` of a policy's folder on a free port of this machine -> its url.

    Raises:
        UserError: it does not start; with what it says.
    """
    command = [sys.executable, "-m", "vlrl.cli", "serve", "--policy", folder, "--host", "127.0.0.1", "--port", "0"]
    path = os.pathsep.join(filter(None, sys.path))
    process = start_child(
        command, env=os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, notice=signal.SIGTERM, patience=FAREWELL,
    )  # fmt: skip
    try:
        yield _address(process, patience)
    finally:
        process.send_signal(signal.SIGTERM)
        end_child(process, FAREWELL)
        process.stdout.close()


def _address(process: subprocess.Popen[bytes], patience: float) -> str:
    """What it prints once it serves."""
    end, output = time.monotonic() + patience, b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while time.monotonic() < end:
            if not selector.select(0.2):
                continue
            data = os.read(process.stdout.fileno(), 4096)
            output += data
            if match := ADDRESS.search(output.decode(errors="replace")):
                return match[0]
            if not data:
                break
    lines = output.decode(errors="replace").strip().splitlines() or ["it said nothing"]
    raise UserError(f"policy.dir: `vlrl serve` did not start: {lines[-1].removeprefix('vlrl: ')}")


# What a run opens, in which order, checked against each other before anything moves.

FIRST_S = 20.0  # for the cameras' first pictures
CONNECT_S = 60.0  # for the robot

Sizes = Mapping[str, Sequence[int]]  # camera -> height, width


def opened(
    stack: contextlib.ExitStack, config: Deploy, ender: Ender
) -> tuple[DeploySession, EpisodeRecorder | None, PracticeWatcher | None]:
    """Everything that the config names. `stack` closes it, the motion process first.

    Raises:
        UserError: something is missing, or two things do not fit.
    """
    with hold_ports(config.robot, "robot"):  # before it takes minutes to find out; the motion process holds them
        pass
    stack.enter_context(hold_ports(config.teleop.options if config.teleop else {}, "teleop"))
    keys = stack.enter_context(Keyboard(config.safety.estop.keys))
    view = _view(stack, config)
    if config.practice:  # before it takes minutes to find out
        check_practice(config.practice, view is not None or keys.open)
    url = config.policy.url or stack.enter_context(served(config.policy.dir, config.policy.start_s))
    camera_process = _closed(stack, CameraProcess(config.cameras)) if config.cameras else None
    motion = _closed(stack, moved(config))
    sizes = _opening_sizes(camera_process, motion)
    scene = _closed(stack, _scene(config, motion.info.names, sizes))
    client = _closed(stack, _client("policy", config, url, motion, sizes))
    teleop_device = _closed(stack, _open_teleop_device(config, motion)) if config.teleop else None
    stack.callback(motion.close)  # again: first of all
    if config.home:
        pose_of(config.home.pose, motion.info.channels, "home.pose")
    chunks = Chunks(config.policy, client.spec, motion.info.hz)
    check_setup(config, motion.info, client, chunks.hz)
    session = DeploySession(
        config,
        motion,
        client,
        chunks,
        scene,
        TickStatistics(motion.info.hz),
        ender,
        keys,
        camera_process,
        teleop_device,
        view,
    )
    recorder = EpisodeRecorder(config, motion.info, sizes, chunks.hz, client.model) if config.record else None
    return session, recorder, _practising(stack, session, sizes)


def moved(config: Deploy) -> Motion:
    """The robot, connected. Raises UserError: it cannot be."""
    try:
        return Motion(config.robot, config.safety, patience=CONNECT_S)
    except RobotError as error:
        raise UserError(f"robot: {error}") from None


def _closed[T](stack: contextlib.ExitStack, made: T) -> T:
    stack.callback(made.close)
    return made


def _view(stack: contextlib.ExitStack, config: Deploy) -> DashboardServer | None:
    if config.view is None:
        return None
    view = _closed(stack, DashboardServer(config.view.port))
    print(f"live view: {view.url}", file=sys.stderr)
    return view


def _opening_sizes(camera_process: CameraProcess | None, motion: Motion) -> Sizes:
    """Of all pictures that there are: the cameras', then the body's own."""
    if camera_process:
        camera_process.wait(FIRST_S)
    latest = {name: each.picture.shape for name, each in camera_process.latest().items()} if camera_process else {}
    return latest | dict(motion.info.images)


def _scene(config: Deploy, names: Sequence[str], sizes: Sizes) -> DeployScene:
    """The scene that the config names; its options were checked when it was read."""
    name, options = config.scene.name, config.scene.options
    if name == "served":
        return ServedScene(Served.model_validate(options), names, sizes, config.task)
    return EmulatorScene(options["socket"]) if name == "emulator" else BodyScene() if name == "body" else Operator()


def _client(key: str, config: Deploy, url: str, motion: Motion, sizes: Sizes) -> Client:
    """Of a policy that drives the robot: it must see and give what the robot does."""
    policy = config.policy
    state = [motion.info.names[place] for place in find_state_indices(motion.info.names, policy.state)]
    problem = wants(motion, state, select_pictures(sizes, policy.pictures)) if policy.names else None
    return connected(key, url, policy.token_file, policy.ca, problem, policy.start_s)


def _open_teleop_device(config: Deploy, motion: Motion) -> TeleopDevice:
    return TeleopDevice(config.teleop.type, config.teleop.options, [each.name for each in motion.info.channels])


def _practising(stack: contextlib.ExitStack, session: DeploySession, sizes: Sizes) -> PracticeWatcher | None:
    practice, motion = session.config.practice, session.motion
    if practice is None:
        return None
    resetter = None
    if practice.reset.url:
        resetter = _closed(stack, _client("practice.reset", session.config, practice.reset.url, motion, sizes))
        check_setup(session.config, motion.info, resetter, resetter.spec.hz or motion.info.hz)
        stack.callback(motion.close)
    return PracticeWatcher(session, practice, resetter)


# `vlrl deploy`: from the command line to the exit code.

AT_ONCE = (129, 143)  # exit codes of runs that shall end now: the next one finds the recordings


def main(options: argparse.Namespace) -> int:
    """Runs a deployment -> its exit code, one of `vlrl.cli.robots.EXITS`. The robot is safe on all of them.

    Args:
        options: config (str), changes (list of str), dry_run (bool), out (str or None).

    Raises:
        UserError: before anything moved.
    """
    config, ender = load(options.config, options.changes), Ender()
    out = Path(options.out or config.out or f"runs/deploy_{Path(options.config).stem}")
    with _signals(ender, config.safety.estop.signals), contextlib.ExitStack() as stack:
        lease = stack.enter_context(hold_data(Path(config.record.out))) if config.record else None
        return _deploy(config, out, lease, ender, options.dry_run)
    return ender.code  # a second signal


def _deploy(config: Deploy, out: Path, lease: int | None, ender: Ender, dry_run: bool) -> int:
    """Args: lease: descriptor of the lease of the data set; None: nothing is recorded."""
    if _finish(config, lease, ender):
        return ender.code
    with contextlib.ExitStack() as stack:
        session, recorder, practice = opened(stack, config, ender)
        if dry_run:
            print(checklist(session))
            return 0
        code, cause = episode.run(session, recorder, practice)
        left = session.motion.close()
        code, cause = (code, cause) if code or left.code in (0, 3) else (left.code, left.cause)
        result = {**session.ledger.result(), "exit": {"code": code, "cause": cause}, "practice": _practised(practice)}
    facts = {"policy": f"{session.client.model}", "robot": _named(config), "mode": config.policy.mode}
    write(out, {**result, "facts": facts, "config": config.model_dump(mode="json", exclude_unset=True)}, session.ledger)
    if code not in AT_ONCE and _finish(config, lease, ender) and not code:
        code, cause = ender.code, "interrupted"
    _say_end(result, code, cause, out)
    return code


@contextlib.contextmanager
def _signals(ender: Ender, stops: Sequence[str]) -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP end the run between two looks; a second one ends the `with` at once, and the motion
    process does the rest. Those named `stops` are an emergency stop, here as in the motion process."""

    def end(number: int, frame: object) -> None:
        second, ender.code = bool(ender.code), ender.code or 128 + number
        ender.signals += 1
        if second and not ender.finishing:
            raise KeyboardInterrupt

    def stop(number: int, frame: object) -> None:
        ender.stopped = True

    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = {number: end for number in ending if number != signal.SIGHUP or not _ignored(number)}  # nohup
    handlers |= {signal.Signals[name]: stop for name in stops if name in signal.Signals.__members__}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    except KeyboardInterrupt:
        print("vlrl: a second signal: ended at once, without a report; recordings are kept", file=sys.stderr)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignored(number: int) -> bool:
    return signal.getsignal(number) == signal.SIG_IGN


def _practised(practice: PracticeWatcher | None) -> dict[str, int] | None:
    if practice is None:
        return None
    return {"resets": practice.resets, "missed": practice.missed, "recoveries": practice.session.ledger.recoveries}


def _finish(config: Deploy, lease: int | None, ender: Ender) -> bool:
    """Makes a data set of the recordings that wait, where the config says so -> whether a signal ended that."""
    if not (config.record and config.record.finish):
        return False
    signals, ender.finishing = ender.signals, True
    report = finished(config.record, lease, ender)
    ender.finishing = False
    if "problem" in report:
        print(f"vlrl: {report['problem']}", file=sys.stderr)
    elif report.get("episodes"):
        driven = f", {report['corrections']} corrections" if report["corrections"] else ""
        print(f"{config.record.out}: {report['episodes']} episodes more, {report['frames']} frames{driven}")
    return ender.signals > signals


def _named(config: Deploy) -> str:
    return " ".join(str(config.robot[key]) for key in ("name", "type", "robot") if key in config.robot)


def _say_end(result: Mapping[str, Any], code: int, cause: str, out: Path) -> None:
    success = result["success"]
    if success["n"]:
        print(
            f"success {success['value']:.0%} [{success['low']:.0%}, {success['high']:.0%}] of {success['n']} episodes"
        )
    print(f"{out / 'report.html'}, {out / 'result.json'}")
    if code:
        print(f"vlrl: {cause} (exit code {code})", file=sys.stderr)


def replay_main(options: argparse.Namespace) -> int:
    """Plays a recorded episode's sent actions on a robot -> exit code, as `main`.

    Args:
        options: dataset (str), config (str), changes (list of str), episode (int, from 0), json (bool).
    """

    config = load(options.config, options.changes)
    recorded = load_recorded(Path(options.dataset), options.episode)
    ender = Ender()
    report = None
    with _signals(ender, ()):
        report = replay(recorded, moved(config), ender)
    if report is None:  # a second signal
        return ender.code
    if options.json:
        print(json.dumps(report, allow_nan=False))
    else:
        rows = [f"{name}: mean {each['mean']:.3g}, most {each['max']:.3g} {each['unit']}"
                for name, each in report["deviation"].items()]  # fmt: skip
        print("\n".join([f"{report['frames']} of {report['of']} frames", *rows]))
    if report["code"]:
        print(f"vlrl: {report['cause']} (exit code {report['code']})", file=sys.stderr)
    return report["code"]
