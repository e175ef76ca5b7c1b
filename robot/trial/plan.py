"""The order of a trial: drawn once, frozen before the first episode, known by its checksum."""

from __future__ import annotations

import hashlib
import json
import random
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from robot.trial.config import Trial
from robot.trial.files import write_whole
from vlrl.decoders import load_json
from vlrl.types import UserError

LETTERS = "ABCDEFGH"


@dataclass(frozen=True)
class Assignment:
    """One episode: which policy, from where."""

    episode: int  # from 1, in the order of play
    round: int  # from 0; a round holds each policy once, from one start
    policy: str
    start: str | int | None


@dataclass(frozen=True)
class Plan:
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


def draw(trial: Trial, manual: bool) -> Plan:
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
    return Plan(trial.model_dump(mode="json"), manual, seed, slots, tuple(assigned))


def _starts(starts: list[str | int], rounds: int, source: random.Random) -> list[str | int | None]:
    drawn: list[str | int | None] = []
    while starts and len(drawn) < rounds:
        drawn += source.sample(starts, len(starts))
    return drawn[:rounds] if starts else [None] * rounds


def save(plan: Plan, folder: Path) -> None:
    """`plan.json`, whole or not at all."""
    said = {"checksum": plan.checksum, **asdict(plan)}
    write_whole(folder / "plan.json", json.dumps(said, indent=1, ensure_ascii=False) + "\n")


def read(folder: Path) -> Plan:
    """The plan in a trial's folder.

    Raises:
        UserError: there is none, or it is not as it was drawn.
    """
    path = folder / "plan.json"
    try:
        said = load_json(path)
        checksum = said.pop("checksum")
        plan = Plan(**{**said, "order": tuple(Assignment(**each) for each in said["order"])})
    except OSError as error:
        raise UserError(f"{folder} is no trial's folder: plan.json: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path} is no plan of a trial; begin a new one in another folder") from None
    if checksum != plan.checksum:
        raise UserError(f"{path} was changed after the trial began (checksum {plan.checksum[:12]}, frozen as "
                        f"{str(checksum)[:12]}): put back the frozen plan, or begin a new trial")  # fmt: skip
    return plan
