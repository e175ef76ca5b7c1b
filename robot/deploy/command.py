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
from robot.deploy.opening import moved, opened
from robot.deploy.practice import Practising
from robot.deploy.preflight import checklist
from robot.deploy.record import finished
from robot.deploy.report import write
from robot.deploy.rig import Ender

AT_ONCE = (129, 143)  # exit codes of runs that shall end now: the next one finds the recordings


def main(options: argparse.Namespace) -> int:
    """Runs a deployment -> its exit code: 0 done, 2 user error, 3 the governor stopped, 4 robot lost, 5 policy server
    lost, 6 emergency stop, 7 motion process died, 129 SIGHUP, 130 Ctrl-C, 143 SIGTERM. The robot
    is safe on all of them.

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
    with _signals(ender, config.safety.estop.signals), contextlib.ExitStack() as stack:
        rig, recorder, practice = opened(stack, config, ender)
        if options.dry_run:
            print(checklist(rig))
            return 0
        code, cause = loop.run(rig, recorder, practice)
        left = rig.motion.close()
        code, cause = (code, cause) if code or left.code in (0, 3) else (left.code, left.cause)
        result = {**rig.ledger.result(), "exit": {"code": code, "cause": cause}, "practice": _practised(practice)}
    facts = {"policy": f"{rig.client.model}", "robot": _named(config), "mode": config.policy.mode}
    write(out, {**result, "facts": facts, "config": config.model_dump(mode="json", exclude_unset=True)}, rig.ledger)
    if (
        config.record and config.record.finish and code not in (129, 143)
    ):  # it shall end now; the next run finds the recordings
        _finish(config)
    _say_end(result, code, cause, out)
    return code


@contextlib.contextmanager
def _signals(ender: Ender, stops: Sequence[str]) -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP end the run between two looks; a second one at once, and the motion process does the
    rest. Those named `stops` are an emergency stop, here as in the motion process."""

    def end(number: int, frame: object) -> None:
        if ender.code:
            raise KeyboardInterrupt
        ender.code = 128 + number

    def stop(number: int, frame: object) -> None:
        ender.stopped = True

    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = {number: end for number in ending if number != signal.SIGHUP or not _ignored(number)}  # nohup
    handlers |= {signal.Signals[name]: stop for name in stops if name in signal.Signals.__members__}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignored(number: int) -> bool:
    return signal.getsignal(number) == signal.SIG_IGN


def _practised(practice: Practising | None) -> dict[str, int] | None:
    if practice is None:
        return None
    return {"resets": practice.resets, "missed": practice.missed, "recoveries": practice.rig.ledger.recoveries}


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
    with _signals(ender, ()):
        told = replay(recorded, moved(config), ender)
    if getattr(options, "json", False):
        print(json.dumps(told, allow_nan=False))
    else:
        rows = [f"{name}: mean {each['mean']:.3g}, most {each['max']:.3g} {each['unit']}"
                for name, each in told["deviation"].items()]  # fmt: skip
        print("\n".join([f"{told['frames']} of {told['of']} frames", *rows]))
    if told["code"]:
        print(f"vlrl: {told['cause']} (exit code {told['code']})", file=sys.stderr)
    return told["code"]
