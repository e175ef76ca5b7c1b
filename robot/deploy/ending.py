"""How an episode ended, and what result.json says of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from robot.motion.body import Ticked
from robot.robot import Signals

STOPPED, LOST, SERVER, EMERGENCY, DIED = 3, 4, 5, 6, 7  # exit codes


class Ender:
    """What signals' handlers set.

    Attributes:
        code: of the first signal that ends the run, 128 and its number; 0: none came.
        signals: how many of those came. A second one raises KeyboardInterrupt, but not while `finishing`.
        stopped: whether an emergency stop came.
    """

    code = signals = 0
    finishing = stopped = False


@dataclass(frozen=True)
class Ending:
    """How an episode ended. `code`: of the run, if it cannot go on; else 0. `success` None: nobody knows."""

    outcome: str  # success, failure, time_out, stopped, error
    reason: str = ""
    success: bool | None = None
    code: int = 0


def judged(signals: Signals, problem: str, over: bool, knows: bool) -> Ending | None:
    """Whether an episode ends with this tick.

    Args:
        problem: why else it should, or ''.
        over: its time is.
        knows: there would have been signals, had the job been done.
    """
    if signals.success:
        return Ending("success", success=True)
    if signals.failure is not None:
        return Ending("failure", signals.failure, success=False)
    if signals.cut is not None:
        return Ending("stopped", signals.cut)
    if problem:
        return Ending("failure", problem, success=False)
    return Ending("time_out", success=False if knows else None) if over else None


def halted(ticked: Ticked, no_hand: str, no_server: str) -> Ending:
    """The motion process holds for good. Who is gone is the cause of a stop for want of actions.

    Args:
        no_hand: why a person who drives has no hand on the robot, or ''.
        no_server: why the policy cannot be asked, or ''.
    """
    cause = ticked.stopped
    if cause.startswith("estop") or any(event.stage == "estop" for event in ticked.events):
        return Ending("stopped", cause, code=EMERGENCY)
    if no_hand:
        return Ending("stopped", f"{cause}; the teleoperator was lost: {no_hand}", code=STOPPED)
    if no_server:
        return Ending("stopped", f"{cause}; the policy server: {no_server}", code=SERVER)
    return Ending("stopped", cause, code=STOPPED)


def row(number: int, seed: int, ending: Ending, ticks: int, seconds: float) -> dict[str, Any]:
    """An episode as result.json has it. `void`: the fault that makes it say nothing of the policy, or ''."""
    void = (
        ending.reason or ending.outcome if ending.outcome == "error" or ending.code in (SERVER, 129, 130, 143) else ""
    )
    return {
        "number": number, "seed": seed, "outcome": ending.outcome, "reason": ending.reason,
        "success": None if void else ending.success, "ticks": ticks, "seconds": round(seconds, 3), "void": void,
    }  # fmt: skip
