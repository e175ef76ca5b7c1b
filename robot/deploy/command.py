"""`vlrl deploy` and `vlrl replay`: what they open, in which order, and how they end."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from robot.deploy import loop
from robot.deploy.chunks import Chunks
from robot.deploy.config import Deploy, load
from robot.deploy.hands import Hands
from robot.deploy.keys import Keys
from robot.deploy.ledger import Ledger
from robot.deploy.practice import Practising
from robot.deploy.practice import check as check_practice
from robot.deploy.preflight import check, checklist
from robot.deploy.record import Recorder, finished
from robot.deploy.report import write
from robot.deploy.reset import pose_of
from robot.deploy.rig import Ender, Rig, shown, told_of, wants
from robot.deploy.scene import make as make_scene
from robot.deploy.serve import served
from robot.deploy.sight import Eyes
from robot.deploy.view import View
from robot.motion.process import Motion
from robot.robot import RobotError
from robot.serving.client import Client
from vlrl.types import UserError

FIRST_S = 20.0  # for the cameras' first pictures
CONNECT_S = 60.0  # for the robot


def main(options: argparse.Namespace) -> int:
    """Runs a deployment -> its exit code: 0 done, 2 user error, 3 the governor stopped, 4 robot lost, 5 policy server
    lost, 6 emergency stop, 7 motion process died, 130 Ctrl-C, 143 SIGTERM. The robot is safe on all of them.

    Args:
        options: config (str), changes (list of str), dry_run (bool), out (str or None).

    Raises:
        UserError: before anything moved.
    """
    config = load(options.config, options.changes)
    out = Path(options.out or config.out or f"runs/deploy_{Path(options.config).stem}")
    if config.record and config.record.finish:
        _finish(config)
    ender = Ender()
    with _ended_by_signals(ender), contextlib.ExitStack() as stack:
        rig, recorder, practice = _opened(stack, config, ender)
        if options.dry_run:
            print(checklist(rig))
            return 0
        code, cause = loop.run(rig, recorder, practice)
        left = rig.motion.close()
        code, cause = (code, cause) if code or left.code in (0, 3) else (left.code, left.cause)
        result = {**rig.ledger.result(), "exit": {"code": code, "cause": cause}, "practice": _practised(practice)}
    facts = {"policy": f"{rig.client.model}", "robot": _named(config), "mode": config.policy.mode}
    write(out, {**result, "facts": facts, "config": config.model_dump(mode="json", exclude_unset=True)}, rig.ledger)
    if config.record and config.record.finish and code != 143:  # it shall end now; the next run finds the recordings
        _finish(config)
    _say_end(result, code, cause, out)
    return code


@contextlib.contextmanager
def _ended_by_signals(ender: Ender) -> Iterator[None]:
    """SIGINT and SIGTERM end the run between two looks; a second one at once, and the motion process does the rest."""

    def end(number: int, frame: object) -> None:
        if ender.code:
            raise KeyboardInterrupt
        ender.code = 128 + number

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _opened(
    stack: contextlib.ExitStack, config: Deploy, ender: Ender
) -> tuple[Rig, Recorder | None, Practising | None]:
    """Everything that the config names, checked against each other. `stack` closes it, the motion process first."""
    keys = stack.enter_context(Keys(config.safety.estop.keys))
    view = View(config.view.port) if config.view else None
    if view:
        stack.callback(view.close)
        print(f"live view: {view.url}", file=sys.stderr)
    if config.practice:  # before it takes minutes to find out
        check_practice(config.practice, view is not None or keys.open)
    scene = make_scene(config.scene)
    stack.callback(scene.close)
    url = config.policy.url or stack.enter_context(served(config.policy.dir, config.policy.start_s))
    eyes = Eyes(config.cameras) if config.cameras else None
    if eyes:
        stack.callback(eyes.close)
    motion = _motion(config.robot, config)
    stack.callback(motion.close)
    if eyes:
        eyes.wait(FIRST_S)
    images = {name: seen.picture.shape for name, seen in eyes.latest().items()} if eyes else {}
    images |= dict(motion.about.images)
    client = _client(config, url, motion, images)
    stack.callback(client.close)
    hands = None
    if config.teleop:
        hands = Hands(config.teleop.type, config.teleop.options, [each.name for each in motion.about.channels])
        stack.callback(hands.close)
    stack.callback(motion.close)  # again: first of all
    if config.home:
        pose_of(config.home.pose, motion.about.channels, "home.pose")
    chunks = Chunks(config.policy, client.spec, motion.about.hz)
    check(config, motion.about, client, chunks.hz)
    rig = Rig(config, motion, client, chunks, scene, Ledger(motion.about.hz), ender, keys, eyes, hands, view)
    model = f"{client.model}"
    recorder = Recorder(config, motion.about, images, chunks.hz, model) if config.record else None
    return rig, recorder, _practising(stack, rig)


def _motion(body: Mapping[str, Any], config: Deploy) -> Motion:
    try:
        return Motion(body, config.safety, patience=CONNECT_S)
    except RobotError as error:
        raise UserError(f"robot: {error}") from None


def _client(config: Deploy, url: str, motion: Motion, images: Mapping[str, Sequence[int]]) -> Client:
    policy = config.policy
    token, ca = _token(policy.token_file), Path(policy.ca) if policy.ca else None
    state = [motion.about.names[place] for place in told_of(motion.about.names, policy.state)]
    said = wants(motion, state, shown(images, policy.pictures)) if policy.names else None
    return Client(url, token=token, ca=ca, wants=said, patience=policy.start_s)


def _token(file: str | None) -> str | None:
    if file is None:
        return None
    try:
        return Path(file).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"policy.token_file: {file}: {getattr(error, 'strerror', None) or error}") from None


def _practising(stack: contextlib.ExitStack, rig: Rig) -> Practising | None:
    practice = rig.config.practice
    if practice is None:
        return None
    resetter = None
    if practice.reset.url:
        resetter = Client(practice.reset.url, token=_token(rig.config.policy.token_file), wants=None)
        stack.callback(resetter.close)
    return Practising(rig, practice, resetter)


def _practised(practice: Practising | None) -> dict[str, int] | None:
    return {"resets": practice.resets, "recoveries": practice.rig.ledger.recoveries} if practice else None


def _finish(config: Deploy) -> None:
    told = finished(config.record)
    if "problem" in told:
        print(f"vlrl: {told['problem']}", file=sys.stderr)
    elif told.get("episodes"):
        driven = f", {told['corrections']} corrections" if told["corrections"] else ""
        print(f"{config.record.out}: {told['episodes']} episodes more, {told['frames']} frames{driven}")


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
    from robot.deploy.recorded import load as load_recorded
    from robot.deploy.replay import replay

    config = load(options.config, options.changes)
    recorded = load_recorded(Path(options.dataset), options.episode)
    ender = Ender()
    with _ended_by_signals(ender):
        told = replay(recorded, _motion(config.robot, config), ender)
    if getattr(options, "json", False):
        print(json.dumps(told, allow_nan=False))
    else:
        rows = [f"{name}: mean {each['mean']:.3g}, most {each['max']:.3g} {each['unit']}"
                for name, each in told["deviation"].items()]  # fmt: skip
        print("\n".join([f"{told['frames']} of {told['of']} frames", *rows]))
    if told["code"]:
        print(f"vlrl: {told['cause']} (exit code {told['code']})", file=sys.stderr)
    return told["code"]
