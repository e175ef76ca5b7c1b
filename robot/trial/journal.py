"""What happened in a trial: one JSON object a line, only ever appended. The state is what its lines add up to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from robot.trial.files import append_line, read_lines
from robot.trial.plan import Plan
from vlrl.decoders import parse_log_row
from vlrl.types import UserError

NAME = "verdicts.jsonl"


@dataclass(frozen=True)
class Verdict:
    """Of one try of an episode. `by`: 'operator' or 'robot'. A void has its reason in `note`."""

    episode: int
    verdict: str  # success, failure, void
    by: str
    note: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass
class State:
    """What the journal adds up to."""

    verdicts: list[Verdict] = field(default_factory=list)  # in force, voids among them, in order
    begun: bool = False  # the next episode was begun and has no verdict
    undone: int = 0  # verdicts taken back
    ended: str = ""  # why the trial is over; from then on nothing may be added

    @property
    def counted(self) -> list[Verdict]:
        """Of episodes 1, 2, ... in order."""
        return [each for each in self.verdicts if each.verdict != "void"]

    @property
    def next(self) -> int:
        return len(self.counted) + 1


class Journal:
    """The journal of a trial whose plan is frozen.

    Raises:
        UserError: it is of another plan, or not as it was written.
    """

    def __init__(self, folder: Path, plan: Plan):
        self._path = folder / NAME
        self.state = State()
        lines = read_lines(self._path)
        if not lines:
            return self._append({"event": "frozen", "plan": plan.checksum})
        for number, line in enumerate(lines, 1):
            try:
                self._take(number, parse_log_row(line), plan)
            except (ValueError, KeyError, TypeError, IndexError, AttributeError):
                raise UserError(f"{self._path}:{number} is not as it was written: put back the original") from None

    def begin(self) -> None:
        """The next episode begins: the last verdict stands from now on."""
        self._do({"event": "begin", "episode": self.state.next})

    def verdict(self, verdict: Verdict) -> None:
        self._do({"event": "verdict", **vars(verdict), "numbers": dict(verdict.numbers)})

    def undo(self) -> None:
        """Takes the last verdict back; its episode waits for another."""
        self._do({"event": "undo", "episode": self.state.verdicts[-1].episode})

    def end(self, why: str) -> None:
        """The trial is over and may be unblinded: 'decided', 'all episodes' or 'operator'."""
        self._do({"event": "end", "why": why})

    def _do(self, event: dict[str, Any]) -> None:
        self._append(event)
        self._apply(event)

    def _append(self, event: dict[str, Any]) -> None:
        at = datetime.now(UTC).isoformat(timespec="seconds")
        append_line(self._path, json.dumps(event | {"at": at}, ensure_ascii=False))

    def _take(self, number: int, event: dict[str, Any], plan: Plan) -> None:
        if (number == 1) != (event["event"] == "frozen"):
            raise ValueError(event["event"])
        if number == 1 and event["plan"] != plan.checksum:
            raise UserError(f"{self._path} began with the plan {event['plan'][:12]}, plan.json now is "
                            f"{plan.checksum[:12]}: put back the frozen plan, or begin a new trial")  # fmt: skip
        self._apply(event)

    def _apply(self, event: Mapping[str, Any]) -> None:
        state = self.state
        if event["event"] == "begin":
            state.begun = True
        elif event["event"] == "verdict":
            state.verdicts.append(Verdict(**{key: event[key] for key in Verdict.__dataclass_fields__}))
            state.begun = False
        elif event["event"] == "undo":
            state.verdicts.pop()
            state.begun, state.undone = True, state.undone + 1
        elif event["event"] == "end":
            state.ended = event["why"]
        elif event["event"] != "frozen":
            raise ValueError(event["event"])
