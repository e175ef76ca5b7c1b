"""The order of a trial: drawn once, frozen before the first episode, known by its checksum."""

from __future__ import annotations

import hashlib
import json
import os
import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from robot.trial.stats import ComparisonRule, Course, follow
from vlrl.config import Count, Section, load_as
from vlrl.decoders import load_json, parse_log_row
from vlrl.io import write_atomic
from vlrl.types import UserError

# A trial's YAML.

Share = Annotated[float, Field(gt=0, lt=1)]
MOST = 8  # policies


class TrialArm(Section):
    """Where a policy is: url or dir. Neither where the operator runs it (`--manual`)."""

    url: str | None = None  # of a policy server
    dir: str | None = None  # a policy's folder, for `vlrl deploy` to load itself
    changes: list[str] = Field(default_factory=list)  # overrides of the deployment for this policy, key.path=value

    @property
    def overrides(self) -> list[str]:
        """Of `vlrl deploy`: what selects this policy."""
        return [f"policy.url={self.url or 'null'}", f"policy.dir={self.dir or 'null'}", *self.changes]


class Trial(Section):
    """All that is fixed before the first episode."""

    policies: dict[str, TrialArm]
    deploy: str | None = None  # the YAML of `vlrl deploy`; not with --manual
    changes: list[str] = Field(default_factory=list)  # further overrides of it, key.path=value
    alpha: Share = 0.05  # the chance of any false claim in the whole trial
    delta: Share = 0.1  # a difference of success that would not matter
    max_episodes: Count = 100  # of all policies together, voids not counted
    block: Count = 1  # how often each policy is in a block
    seed: Annotated[int, Field(ge=0)] | None = None  # of the order; none: drawn, and recorded in the plan
    starts: list[str | int] = Field(default_factory=list)  # of episodes, each with every policy: words, or seeds
    out: str

    @model_validator(mode="after")
    def _fits(self):
        if not 2 <= len(self.policies) <= MOST:
            raise ValueError(f"policies: a trial compares 2 to {MOST} of them, got {len(self.policies)}")
        if self.max_episodes < len(self.policies):
            raise ValueError(f"max_episodes: {self.max_episodes} is not one for each policy")
        if both := [name for name, arm in self.policies.items() if arm.url and arm.dir]:
            raise ValueError(f"policies.{both[0]}: url or dir, not both")
        return self


def load_trial(path: str | Path, changes: list[str], manual: bool) -> Trial:
    """A trial's YAML with changes; the path of its `deploy` is made absolute.

    Raises:
        UserError: a key is unknown or ill-typed, or what is needed to run the policies is missing.
    """
    trial = load_as(Trial, path, changes)
    if manual:
        return trial
    if missing := [name for name, arm in trial.policies.items() if not (arm.url or arm.dir)]:
        raise UserError(f"{path}: policies.{missing[0]}: name a url or a dir, or run them yourself with --manual")
    if not trial.deploy:
        raise UserError(f"{path}: deploy: name the YAML of `vlrl deploy`, or run the policies yourself with --manual")
    if not Path(trial.deploy).is_file():
        raise UserError(f"{path}: deploy: there is no file {trial.deploy}")
    return trial.model_copy(update={"deploy": str(Path(trial.deploy).resolve())})


# A file of lines that a kill at any moment leaves readable.


def append_line(path: Path, line: str) -> None:
    """On the disk when it returns. What a kill left of a line is overwritten."""
    with path.open("ab+") as file:
        file.seek(0)
        file.truncate(len(_complete_lines(file.read())))
        file.write(line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_lines(path: Path) -> list[str]:
    """The whole lines; [] where there is no file."""
    return _complete_lines(path.read_bytes()).decode().splitlines() if path.exists() else []


def _complete_lines(data: bytes) -> bytes:
    return data[: data.rfind(b"\n") + 1]


LETTERS = "ABCDEFGH"


@dataclass(frozen=True)
class Assignment:
    """One episode: which policy, from where."""

    episode: int  # from 1, in the order of play
    round: int  # from 0; a round holds each policy once, from one start
    policy: str
    start: str | int | None


@dataclass(frozen=True)
class TrialPlan:
    """What is fixed. `slots` are letters that stand for policies where a person starts them: {letter: name}."""

    settings: Mapping[str, Any]  # the trial's YAML, complete
    manual: bool
    seed: int
    slots: Mapping[str, str]
    order: tuple[Assignment, ...]

    @property
    def trial(self) -> Trial:
        return Trial.model_validate(self.settings)

    @property
    def policies(self) -> list[str]:
        return list(self.settings["policies"])

    @property
    def rounds(self) -> int:
        return len(self.order) // len(self.policies)

    @property
    def paired(self) -> bool:
        return bool(self.settings["starts"])

    @property
    def checksum(self) -> str:
        """SHA-256 of all of it, in hex."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def slot(self, policy: str) -> str:
        return next(letter for letter, name in self.slots.items() if name == policy)


def draw(trial: Trial, manual: bool) -> TrialPlan:
    """A plan of as many whole rounds as `max_episodes` allows.

    Each block holds each policy `block` times in random order: slow changes of the robot and the light meet all
    policies alike, and whoever knows the past learns of what comes only what the block's remainder tells. A round's
    start is drawn so that all starts come up equally often, up to one.
    """
    seed = secrets.randbits(63) if trial.seed is None else trial.seed
    source = random.Random(seed)
    names, letters = list(trial.policies), list(LETTERS[: len(trial.policies)])
    source.shuffle(letters)
    rounds = trial.max_episodes // len(names)
    starts = _starts(trial.starts, rounds, source)
    order: list[tuple[int, str]] = []
    for first in range(0, rounds, trial.block):
        block = [(each, name) for each in range(first, min(first + trial.block, rounds)) for name in names]
        source.shuffle(block)
        order += block
    slots = dict(sorted(zip(letters, names, strict=True)))
    assigned = (Assignment(i + 1, each, name, starts[each]) for i, (each, name) in enumerate(order))
    return TrialPlan(trial.model_dump(mode="json"), manual, seed, slots, tuple(assigned))


def _starts(starts: list[str | int], rounds: int, source: random.Random) -> list[str | int | None]:
    order: list[str | int | None] = []
    while starts and len(order) < rounds:
        order += source.sample(starts, len(starts))
    return order[:rounds] if starts else [None] * rounds


def save(plan: TrialPlan, folder: Path) -> None:
    """`plan.json`, whole or not at all."""
    content = {"checksum": plan.checksum, **asdict(plan)}
    write_atomic(folder / "plan.json", json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def read(folder: Path) -> TrialPlan:
    """The plan in a trial's folder.

    Raises:
        UserError: there is none, or it is not as it was drawn.
    """
    path = folder / "plan.json"
    try:
        content = load_json(path)
        checksum = content.pop("checksum")
        plan = TrialPlan(**{**content, "order": tuple(Assignment(**each) for each in content["order"])})
    except OSError as error:
        raise UserError(f"{folder} is no trial's folder: plan.json: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path} is no plan of a trial; begin a new one in another folder") from None
    if checksum != plan.checksum:
        raise UserError(f"{path} was changed after the trial began (checksum {plan.checksum[:12]}, frozen as "
                        f"{str(checksum)[:12]}): put back the frozen plan, or begin a new trial")  # fmt: skip
    return plan


# What happened in a trial: one JSON object a line, only ever appended. The state is what its lines add up to.

NAME = "verdicts.jsonl"


@dataclass(frozen=True)
class TrialVerdict:
    """Of one try of an episode. `by`: 'operator' or 'robot'. A void has its reason in `note`."""

    episode: int
    verdict: str  # success, failure, void
    by: str
    note: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass
class State:
    """What the journal adds up to."""

    verdicts: list[TrialVerdict] = field(default_factory=list)  # in force, voids among them, in order
    is_running: bool = False  # the next episode was begun and has no verdict
    undone: int = 0  # verdicts taken back
    ended: str = ""  # why the trial is over; from then on nothing may be added

    @property
    def counted(self) -> list[TrialVerdict]:
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

    def __init__(self, folder: Path, plan: TrialPlan):
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

    def verdict(self, verdict: TrialVerdict) -> None:
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

    def _take(self, number: int, event: dict[str, Any], plan: TrialPlan) -> None:
        if (number == 1) != (event["event"] == "frozen"):
            raise ValueError(event["event"])
        if number == 1 and event["plan"] != plan.checksum:
            raise UserError(f"{self._path} began with the plan {event['plan'][:12]}, plan.json now is "
                            f"{plan.checksum[:12]}: put back the frozen plan, or begin a new trial")  # fmt: skip
        self._apply(event)

    def _apply(self, event: Mapping[str, Any]) -> None:
        state = self.state
        if event["event"] == "begin":
            state.is_running = True
        elif event["event"] == "verdict":
            state.verdicts.append(TrialVerdict(**{key: event[key] for key in TrialVerdict.__dataclass_fields__}))
            state.is_running = False
        elif event["event"] == "undo":
            state.verdicts.pop()
            state.is_running, state.undone = True, state.undone + 1
        elif event["event"] == "end":
            state.ended = event["why"]
        elif event["event"] != "frozen":
            raise ValueError(event["event"])


# Where a trial stands: outcomes by policy and round, and the course of each pair's test.


def tries(plan: TrialPlan, state: State) -> dict[str, list[TrialVerdict]]:
    """The verdicts in force of each policy, voids among them, in order."""
    return {
        name: [each for each in state.verdicts if plan.order[each.episode - 1].policy == name] for name in plan.policies
    }


def courses(plan: TrialPlan, state: State) -> dict[tuple[str, str], Course]:
    """The test of each pair of policies, with alpha shared evenly among them (Bonferroni).

    A pair's rounds are taken in the order in which both of its episodes were done, which the plan alone fixes.
    """
    trial = plan.trial
    both = list(combinations(plan.policies, 2))
    rule = ComparisonRule(trial.alpha / len(both), trial.delta, plan.paired)
    done = _rounds(plan, state)
    return {pair: follow(rule, *_columns(done, pair)) for pair in both}


def over(plan: TrialPlan, state: State) -> str:
    """Why the trial needs no further episode: 'decided', 'all episodes', or '' while it does."""
    if all(course.decided for course in courses(plan, state).values()):
        return "decided"
    return "all episodes" if len(state.counted) == len(plan.order) else ""


def _rounds(plan: TrialPlan, state: State) -> list[tuple[int, str, bool]]:
    """(round, policy, success) in order of play."""
    played = zip(plan.order, state.counted, strict=False)
    return [(each.round, each.policy, verdict.verdict == "success") for each, verdict in played]


def _columns(done: Sequence[tuple[int, str, bool]], pair: tuple[str, str]) -> list[list[bool]]:
    """Outcomes of both policies over the rounds that both have played."""
    half: dict[int, Mapping[str, bool]] = {}
    columns: list[list[bool]] = [[], []]
    for number, policy, success in done:
        if policy in pair:
            half[number] = {**half.get(number, {}), policy: success}
            if len(half[number]) == 2:
                for column, name in zip(columns, pair, strict=True):
                    column.append(half[number][name])
    return columns


# The operator's desk: what is shown, which is never a policy's name, and what a typed line means.

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

    def judge(self, episode: int) -> TrialVerdict:
        """The operator's verdict on what was just played."""
        while True:
            key, _, note = self.ask(f"Episode {episode}: {JUDGE}").strip().partition(" ")
            verdict, note = VERDICTS.get(key.lower()), note.strip()
            if verdict == "void" and not note:
                self.say("A void needs its reason, for example: v the camera fell over")
            elif verdict:
                return TrialVerdict(episode, verdict, "operator", note)
            else:
                self.say(f"{key!r} is none of s, f, v")

    def _one_of(self, question: str, words: dict[str, str]) -> str:
        while (typed := self.ask(question).strip().lower()) not in words:
            self.say(f"{typed!r} is none of {', '.join(key or 'Enter' for key in words)}")
        return words[typed]
