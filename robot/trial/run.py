"""The trial itself: episode after episode, blind, until the test or the plan says that it is over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from robot.trial import plan as plans
from robot.trial.config import Trial
from robot.trial.journal import Journal, State, Verdict
from robot.trial.plan import Plan
from robot.trial.play import Play
from robot.trial.report import write
from robot.trial.standing import over
from robot.trial.verdict import Desk
from vlrl.locks import hold_folder
from vlrl.types import UserError


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
    plans.save(plans.draw(trial, manual), folder)
    return folder


def run(folder: Path, play: Play, desk: Desk) -> dict[str, Any] | None:
    """Goes on with the trial in a folder until it is over or paused (None), from where its files say that it stands.

    Returns:
        The result, which `report.write` has also written into the folder.

    Raises:
        UserError: the files are not as the trial left them, or another process is at work on it.
    """
    with hold_folder(folder):
        plan = plans.read(folder)
        journal = Journal(folder, plan)
        desk.say(f"Plan {plan.checksum[:16]}, at most {len(plan.order)} episodes. Stay blind: do not open {folder}.")
        try:
            while not journal.state.ended:
                if not _step(plan, journal, play, desk):
                    return None
        except EOFError:
            return None
        return write(folder, plan, journal.state)


def _step(plan: Plan, journal: Journal, play: Play, desk: Desk) -> bool:
    """One thing that the operator does; False: pause."""
    state = journal.state
    if state.begun:  # and interrupted, or its verdict was taken back
        journal.verdict(desk.judge(state.next))
        return True
    why, undo = over(plan, state), bool(state.verdicts)
    asked = desk.over(undo) if why else desk.ready(_title(plan, state), undo)
    if asked == "undo":
        journal.undo()
    elif asked == "end":
        journal.end(why or "operator")
    elif asked == "begin":
        journal.begin()
        _play(plan, journal, play, desk)
    return asked != "pause"


def _play(plan: Plan, journal: Journal, play: Play, desk: Desk) -> None:
    number = journal.state.next
    assigned = plan.order[number - 1]
    try:
        outcome = play(plan.trial.policies[assigned.policy], assigned.start, number)
    except UserError:  # nothing was played
        journal.verdict(Verdict(number, "void", "robot", "the episode could not be run"))
        raise
    if outcome.said:
        desk.say(f"Episode {number}: {outcome.said}")
    if outcome.void:
        desk.say(f"Episode {number} is void and will be repeated: {outcome.void}")
        journal.verdict(Verdict(number, "void", "robot", outcome.void, outcome.numbers))
    elif outcome.success is None:
        said = desk.judge(number)
        journal.verdict(Verdict(number, said.verdict, said.by, said.note, outcome.numbers))
    else:
        verdict = "success" if outcome.success else "failure"
        desk.say(f"Episode {number}: {verdict}, says the robot")
        journal.verdict(Verdict(number, verdict, "robot", "", outcome.numbers))


def _title(plan: Plan, state: State) -> str:
    """What the operator may know of the next episode."""
    assigned = plan.order[state.next - 1]
    again = any(each.episode == assigned.episode for each in state.verdicts)
    slot = f", slot {plan.slot(assigned.policy)}" if plan.manual else ""
    start = f", start: {assigned.start}" if assigned.start is not None else ""
    return f"Episode {assigned.episode}{' again' if again else ''}{slot}{start}"
