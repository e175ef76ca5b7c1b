"""Whether what lies in a folder was made with the settings of now."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from vlrl.types import UserError


def check_same(folder: Path, there: Mapping[str, Any], wanted: Mapping[str, Any], but: Sequence[str] = ()) -> None:
    """UserError where the settings `there` are not those wanted, with the first key that differs; `but` may."""
    old, new = flat(there), flat(wanted)
    other = [k for k in sorted(old | new) if k not in but and old.get(k) != new.get(k)]
    if other:
        key = other[0]
        raise UserError(
            f"{folder} was made with other settings ({key}: {old.get(key)} there, {new.get(key)} now): "
            "name another `out`, or move it away"
        )


def flat(values: Any, path: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}; lists stay whole."""
    if not isinstance(values, Mapping):
        return {path: values}
    parts = [flat(value, f"{path}.{key}" if path else str(key)) for key, value in values.items()]
    return {key: value for part in parts for key, value in part.items()}


# what makes another run of it
DEFINING = ("seed", "task", "data.train", "data.test", "data.format", "data.images", "sampler", "rollouts",
            "advantages", "policy.model", "train.prompts", "train.group_size", "agent.name", "start",
            "offline")  # fmt: skip


def find_changes(before: Mapping[str, Any], config: BaseModel) -> dict[str, list[Any]]:
    """Key -> its old and its new value, of a run's configuration as saved and as it is resumed with; not of `out`."""
    with contextlib.suppress(ValidationError):
        before = type(config).model_validate(before).model_dump(mode="json")  # keys that are new have their defaults
    old, new = flat(before), flat(config.model_dump(mode="json"))
    return {key: [old.get(key), new.get(key)] for key in sorted(old | new)
            if key != "out" and old.get(key) != new.get(key)}  # fmt: skip


def check_changes(changes: Mapping[str, Sequence[Any]], allowed: bool) -> None:
    """UserError for the first change that makes another run of it, unless all are allowed."""
    for key, (old, new) in changes.items():
        if not allowed and any(f"{key}.".startswith(f"{each}.") for each in DEFINING):
            raise UserError(
                f"{key}: the run began with {old}, and is resumed with {new}, which makes another run of it: put it "
                "back, or resume with --allow-changes, which notes it in the metrics"
            )
