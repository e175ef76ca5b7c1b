"""Who plays: the policy, the robot's script, chance, the policy's frozen start, other policies."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlrl import registry
from vlrl.config import Config
from vlrl.policies.load import load
from vlrl.types import Policy, UserError

SCRIPTS = ("expert", "random")  # of the task; all else is a policy


@dataclass(frozen=True)
class Arm:
    """One of those who play the same scenes."""

    name: str  # in tables and files
    source: str  # the policy's folder or name; '' of a script
    script: str  # '' of a policy
    policy: Policy
    task: Any  # what `vlrl.rollout.collect` plays


def arms_of(config: Config, task: Any, policy: str | None, against: Sequence[str]) -> list[Arm]:
    """The policy (default: the configuration's), then those it is compared with, all ready to act.

    Args:
        against: `expert`, `random`, `start` (the configuration's own policy), or a policy's folder or name.

    Raises:
        UserError: no such policy or script, one that cannot drive the robot, or one named twice.
    """
    made: list[Arm] = []
    for name in (policy or config.policy.model, *against):
        arm = _script(task, name) if made and name in SCRIPTS else _policy(config, task, name, first=not made)
        if any((arm.source, arm.script) == (other.source, other.script) for other in made):
            raise UserError(f"--against {name}: it plays already, as {arm.source or arm.script!r}")
        if any(arm.name == other.name for other in made):
            raise UserError(f"--against {name}: {arm.name!r} is the name of another arm: rename the folder")
        made.append(arm)
    return made


def _script(task: Any, name: str) -> Arm:
    played = task.arm(name)
    return Arm(name, "", name, played.policy, played)


def _policy(config: Config, task: Any, name: str, first: bool) -> Arm:
    model = config.policy.model if name == "start" and not first else name
    section = config.policy.model_copy(update={"model": model})
    policy = load(section, shared_prefix=config.train.shared_prefix, seed=config.seed)
    registry.check_fit(task, policy)
    shown = "policy" if first else "start" if name == "start" else re.sub(r"[^\w.-]", "_", Path(name).name)
    return Arm(shown, model, "", policy, task.arm())
