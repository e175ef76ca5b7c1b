"""The operator's desk: what is shown, which is never a policy's name, and what a typed line means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from robot.trial.journal import Verdict

VERDICTS = {"s": "success", "f": "failure", "v": "void"}
JUDGE = "s success, f failure, v void and why; a note may follow the letter: "
READY = "Enter: begin{undo}, p: pause, end: end the trial now: "
UNDO = ", u: undo the last verdict"


@dataclass(frozen=True)
class Desk:
    """Where the operator reads and types. `ask` raises EOFError when there is nobody any more."""

    say: Callable[[str], None]
    ask: Callable[[str], str]

    def ready(self, title: str, undo: bool) -> str:
        """Before an episode: 'begin', 'undo', 'pause' or 'end'."""
        self.say(title)
        words = {"": "begin", "p": "pause", "end": "end"} | ({"u": "undo"} if undo else {})
        return self._one_of(READY.format(undo=UNDO if undo else ""), words)

    def over(self, undo: bool) -> str:
        """After the last episode: 'end' or 'undo'."""
        self.say("The trial is over.")
        words = {"": "end"} | ({"u": "undo"} if undo else {})
        return self._one_of(f"Enter: unblind and report{UNDO if undo else ''}: ", words)

    def judge(self, episode: int) -> Verdict:
        """The operator's verdict on what was just played."""
        while True:
            key, _, note = self.ask(f"Episode {episode}: {JUDGE}").strip().partition(" ")
            verdict, note = VERDICTS.get(key.lower()), note.strip()
            if verdict == "void" and not note:
                self.say("A void needs its reason, for example: v the camera fell over")
            elif verdict:
                return Verdict(episode, verdict, "operator", note)
            else:
                self.say(f"{key!r} is none of s, f, v")

    def _one_of(self, question: str, words: dict[str, str]) -> str:
        while (typed := self.ask(question).strip().lower()) not in words:
            self.say(f"{typed!r} is none of {', '.join(key or 'Enter' for key in words)}")
        return words[typed]
