"""Whether what lies in a folder was made with the settings of now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
