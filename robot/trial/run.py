"""The trial itself: episode after episode, blind, until the test or the plan says that it is over."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from robot.trial.plan import (
    Desk,
    Journal,
    State,
    Trial,
    TrialArm,
    TrialPlan,
    TrialVerdict,
    draw,
    load_trial,
    over,
    read,
    save,
)
from robot.trial.report import write
from vlrl.decoders import load_json
from vlrl.io import hold_folder
from vlrl.system.children import end_with_owner
from vlrl.types import UserError

# How one episode of a trial is run: by `vlrl deploy` in a process of its own, or by the operator.

KEYS = "While it plays: SPACE emergency stop, s success, f failure; where nothing moves, Enter says that it may begin"
LOST = {4: "the robot or its bus was lost", 5: "the policy server was lost", 7: "the motion process died"}
STOPPED = {3: "the safety governor stopped the robot", 6: "emergency stop"}
LABELS = ("number", "seed")  # in a row of result.json: they measure nothing
REST_S = 60.0  # for a deployment whose owner was killed to make the robot safe
PAUSED = (130, 143, -2, -15)  # Ctrl-C or SIGTERM: the operator's, or the machine's


@dataclass(frozen=True)
class Outcome:
    """What came of an episode. `success` None: the operator is to say. `void`: the fault that made it say nothing."""

    success: bool | None
    void: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)
    message: str = ""  # for the operator; it must not tell which policy ran


Play = Callable[[TrialArm, str | int | None, int], Outcome]  # the policy, the start, the episode's number, from 1


def by_hand(arm: TrialArm, start: str | int | None, number: int) -> Outcome:
    """The operator runs the policy and says what came of it."""
    return Outcome(None)


def by_deploy(trial: Trial, folder: Path, deploy: Sequence[str] = (sys.executable, "-m", "vlrl.cli", "deploy")) -> Play:
    """`vlrl deploy` runs each episode; what it prints goes to a log, since it names the policy. The keys are its own
    while it plays.

    A lost robot or server makes an episode void. A stop by the governor or by hand does not, or unsafe policies would
    profit: the operator judges it.
    """

    def play(arm: TrialArm, start: str | int | None, number: int) -> Outcome:
        place = _fresh(folder, number)
        overrides = [*_overrides(trial, arm, start), f"out={place}"]
        return outcome(_run([*deploy, str(trial.deploy), *overrides], place / "log.txt"), place)

    return play


def check_play(trial: Trial) -> None:
    """Reads the deployment's YAML as it will be read for each policy and start: a mistake must not wait for its turn.

    Raises:
        UserError: a key is unknown or ill-typed, or two do not go together.
    """
    from robot.deploy.config import load

    for name, arm in trial.policies.items():
        try:
            load(str(trial.deploy), _overrides(trial, arm, None))
        except UserError as error:
            raise UserError(f"policies.{name}: {error}") from None


def _overrides(trial: Trial, arm: TrialArm, start: str | int | None) -> list[str]:
    seed = [f"seed={start}"] if isinstance(start, int) else []
    return ["view=none", *trial.changes, *arm.overrides, "episodes=1", *seed]


def outcome(code: int, place: Path) -> Outcome:
    """What an exit code of `vlrl deploy` and the `result.json` in its folder say.

    Raises:
        UserError: it could not begin. KeyboardInterrupt: it was interrupted.
    """
    if code in PAUSED:
        raise KeyboardInterrupt
    if code in LOST:
        return Outcome(None, void=LOST[code])
    if code in STOPPED:
        return Outcome(None, message=STOPPED[code])
    try:
        row = load_json(place / "result.json", finite=False)["episodes"][-1]
        if code == 0 and isinstance(row, Mapping):
            return _of(row)
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        pass
    raise UserError(f"`vlrl deploy` ended with code {code} and no result: {place / 'log.txt'} says why (and names the "
                    "policy); the episode is void, go on with --resume")  # fmt: skip


def _run(command: Sequence[str], log: Path) -> int:
    """The exit code. Whatever ends the trial ends the deployment first, and waits until it has made the robot safe."""
    with log.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT) as process:
        end_with_owner(process.pid, notice=signal.SIGTERM, patience=REST_S)
        before = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        try:
            return process.wait()
        except KeyboardInterrupt:
            if not sys.stdin.isatty():  # a terminal sends Ctrl-C to both, and a second signal would hurry it
                process.terminate()
            process.wait()
            raise
        finally:
            signal.signal(signal.SIGTERM, before)


def _of(row: Mapping[str, Any]) -> Outcome:
    numbers = {k: float(v) for k, v in row.items() if type(v) in (int, float) and k not in LABELS}
    success = row.get("success")
    return Outcome(success if isinstance(success, bool) else None, str(row.get("void") or ""), numbers)


def _fresh(folder: Path, number: int) -> Path:
    """A new folder for this try of the episode."""
    tries = len(list(folder.glob(f"episodes/{number:04d}_*"))) + 1
    place = folder / "episodes" / f"{number:04d}_{tries}"
    place.mkdir(parents=True)
    return place


def begin(trial: Trial, manual: bool) -> Path:
    """Freezes a new plan in `trial.out` and returns that folder.

    Raises:
        UserError: the folder holds something already.
    """
    folder = Path(trial.out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        hint = f"go on with --resume {folder}, or " if (folder / "plan.json").is_file() else ""
        raise UserError(f"out: {folder} holds something already: {hint}name a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    save(draw(trial, manual), folder)
    return folder


def run(folder: Path, play: Play, desk: Desk) -> dict[str, Any] | None:
    """Goes on with the trial in a folder until it is over or paused (None), from where its files say that it stands.

    Returns:
        The result, which `report.write` has also written into the folder.

    Raises:
        UserError: the files are not as the trial left them, or another process is at work on it.
    """
    with hold_folder(folder):
        plan = read(folder)
        journal = Journal(folder, plan)
        desk.say(f"Plan {plan.checksum[:16]}, at most {len(plan.order)} episodes. Stay blind: do not open {folder}.")
        try:
            while not journal.state.ended:
                if not _step(plan, journal, play, desk):
                    return None
        except EOFError:
            return None
        return write(folder, plan, journal.state)


def _step(plan: TrialPlan, journal: Journal, play: Play, desk: Desk) -> bool:
    """One thing that the operator does; False: pause."""
    state = journal.state
    if state.is_running:  # and interrupted, or its verdict was taken back
        journal.verdict(desk.judge(state.next))
        return True
    why, undo = over(plan, state), bool(state.verdicts)
    reply = desk.over(undo) if why else desk.ready(_title(plan, state), undo)
    if reply == "undo":
        journal.undo()
    elif reply == "end":
        journal.end(why or "operator")
    elif reply == "begin":
        journal.begin()
        _play(plan, journal, play, desk)
    return reply != "pause"


def _play(plan: TrialPlan, journal: Journal, play: Play, desk: Desk) -> None:
    number = journal.state.next
    assigned = plan.order[number - 1]
    try:
        outcome = play(plan.trial.policies[assigned.policy], assigned.start, number)
    except UserError:  # nothing was played
        journal.verdict(TrialVerdict(number, "void", "robot", "the episode could not be run"))
        raise
    if outcome.message:
        desk.say(f"Episode {number}: {outcome.message}")
    if outcome.void:
        desk.say(f"Episode {number} is void and will be repeated: {outcome.void}")
        journal.verdict(TrialVerdict(number, "void", "robot", outcome.void, outcome.numbers))
    elif outcome.success is None:
        message = desk.judge(number)
        journal.verdict(TrialVerdict(number, message.verdict, message.by, message.note, outcome.numbers))
    else:
        verdict = "success" if outcome.success else "failure"
        desk.say(f"Episode {number}: {verdict}, says the robot")
        journal.verdict(TrialVerdict(number, verdict, "robot", "", outcome.numbers))


def _title(plan: TrialPlan, state: State) -> str:
    """What the operator may know of the next episode."""
    assigned = plan.order[state.next - 1]
    again = any(each.episode == assigned.episode for each in state.verdicts)
    slot = f", slot {plan.slot(assigned.policy)}" if plan.manual else ""
    start = f", start: {assigned.start}" if assigned.start is not None else ""
    return f"Episode {assigned.episode}{' again' if again else ''}{slot}{start}"


# `vlrl trial`: a fair comparison of policies on a robot, or its continuation.


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
    plan = read(folder)
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
    trial = load_trial(options.config, options.changes, options.manual)
    if not options.manual:
        check_play(trial)
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
