"""`vlrl trial`: a fair comparison of policies on a robot, or its continuation."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from robot.trial import plan as plans
from robot.trial.config import load
from robot.trial.play import KEYS, by_deploy, by_hand, check
from robot.trial.run import begin, run
from robot.trial.verdict import Desk
from vlrl.types import UserError


def main(options: argparse.Namespace) -> int:
    """Begins or resumes; returns the exit code, 0 also for a trial that was paused.

    Args:
        options: config (str or None), changes (list of str), manual (bool), resume (a trial's folder or None).

    Raises:
        UserError: for what the user can mend; KeyboardInterrupt: the trial can be resumed.
    """
    if options.resume and (options.config or options.changes):
        raise UserError("--resume takes the trial's own plan: name no config and no changes")
    if not options.resume and not options.config:
        raise UserError("name a config, for example: vlrl trial trial.yaml")
    folder = Path(options.resume) if options.resume else _begin(options)
    plan = plans.read(folder)
    play = by_hand if plan.manual else by_deploy(plan.trial, folder)
    if not plan.manual:
        _say(KEYS)
    result = run(folder, play, Desk(say=_say, ask=_ask))
    if result is None:
        _say(f"Paused. Go on with: vlrl trial --resume {folder}")
        return 0
    for line in (*result["sentences"], *result["warnings"], f"report: {folder / 'report.html'}"):
        _say(line)
    return 0


def _begin(options: argparse.Namespace) -> Path:
    trial = load(options.config, options.changes, options.manual)
    if not options.manual:
        check(trial)
    return begin(trial, options.manual)


def _say(text: str) -> None:
    print(text, flush=True)


def _ask(question: str) -> str:
    print(question, end="", flush=True)
    line = sys.stdin.readline()
    if not line:
        print(flush=True)
        raise EOFError
    return line
