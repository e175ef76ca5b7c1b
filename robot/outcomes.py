"""How an episode can end, and how that stands in `Step.info`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from robot.robot import RobotError

OUTCOMES = {  # name -> whether the policy is to answer for it (`done`), or else the episode was cut
    "success": True,
    "failure": True,  # the job can no longer be done
    "bad_action": True,  # an action that no robot may carry out
    "time_out": False,
    "stopped": False,  # by a person or the robot itself
    "error": False,  # of the robot, its simulator or its process
}


@dataclass(frozen=True)
class Ending:
    """Why an episode is over. `reason` is one line, for whoever counts the endings."""

    outcome: str  # of OUTCOMES
    reason: str = ""
    done: bool = field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "done", OUTCOMES[self.outcome])

    @property
    def void(self) -> str:
        """Why the episode says nothing of the policy, or ''."""
        return (self.reason or self.outcome) if self.outcome in ("stopped", "error") else ""

    def info(self) -> dict[str, float]:
        """{outcome: 1} and, where there is a reason, {outcome: reason: 1}."""
        return {self.outcome: 1.0} | ({f"{self.outcome}: {self.reason}": 1.0} if self.reason else {})


def outcome_in(info: Mapping[str, float]) -> str:
    """How the episode ended whose last `Step.info` this is: a name of OUTCOMES."""
    return next((name for name in OUTCOMES if name in info), "error")


def fault(error: Exception) -> Ending:
    """The ending of an episode whose robot raised."""
    said = (str(error).splitlines() or [""])[0]
    return Ending("error", said if isinstance(error, RobotError) else f"{type(error).__name__}: {said}".rstrip(": "))
