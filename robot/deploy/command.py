"""`vlrl deploy`: from the command line to the exit code."""

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
from robot.deploy.config import Deploy, load
from robot.deploy.ending import Ender
from robot.deploy.finish import hold_data
from robot.deploy.opening import moved, opened
from robot.deploy.practice import Practising
from robot.deploy.preflight import checklist
from robot.deploy.record import finished
from robot.deploy.report import write

AT_ONCE = (129, 143)  # exit codes of runs that shall end now: the next one finds the recordings


def main(options: argparse.Namespace) -> int:
    """Runs a deployment -> its exit code, one of `vlrl.commands.bridge.EXITS`. The robot is safe on all of them.

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
        rig, recorder, practice = opened(stack, config, ender)
        if dry_run:
            print(checklist(rig))
            return 0
        code, cause = loop.run(rig, recorder, practice)
        left = rig.motion.close()
        code, cause = (code, cause) if code or left.code in (0, 3) else (left.code, left.cause)
        result = {**rig.ledger.result(), "exit": {"code": code, "cause": cause}, "practice": _practised(practice)}
    facts = {"policy": f"{rig.client.model}", "robot": _named(config), "mode": config.policy.mode}
    write(out, {**result, "facts": facts, "config": config.model_dump(mode="json", exclude_unset=True)}, rig.ledger)
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


def _practised(practice: Practising | None) -> dict[str, int] | None:
    if practice is None:
        return None
    return {"resets": practice.resets, "missed": practice.missed, "recoveries": practice.rig.ledger.recoveries}


def _finish(config: Deploy, lease: int | None, ender: Ender) -> bool:
    """Makes a data set of the recordings that wait, where the config says so -> whether a signal ended that."""
    if not (config.record and config.record.finish):
        return False
    signals, ender.finishing = ender.signals, True
    told = finished(config.record, lease, ender)
    ender.finishing = False
    if "problem" in told:
        print(f"vlrl: {told['problem']}", file=sys.stderr)
    elif told.get("episodes"):
        driven = f", {told['corrections']} corrections" if told["corrections"] else ""
        print(f"{config.record.out}: {told['episodes']} episodes more, {told['frames']} frames{driven}")
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
    from robot.deploy.recorded import load as load_recorded
    from robot.deploy.replay import replay

    config = load(options.config, options.changes)
    recorded = load_recorded(Path(options.dataset), options.episode)
    ender = Ender()
    told = None
    with _signals(ender, ()):
        told = replay(recorded, moved(config), ender)
    if told is None:  # a second signal
        return ender.code
    if getattr(options, "json", False):
        print(json.dumps(told, allow_nan=False))
    else:
        rows = [f"{name}: mean {each['mean']:.3g}, most {each['max']:.3g} {each['unit']}"
                for name, each in told["deviation"].items()]  # fmt: skip
        print("\n".join([f"{told['frames']} of {told['of']} frames", *rows]))
    if told["code"]:
        print(f"vlrl: {told['cause']} (exit code {told['code']})", file=sys.stderr)
    return told["code"]
