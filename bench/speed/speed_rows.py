"""Rows of a benchmark that are kept as soon as they are measured, and what they were measured on."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path


def measured(
    names: Iterable[str], measure: Callable[[str], dict], file: Path | None, resume: bool, about: dict
) -> dict[str, dict]:
    """{name: row}, each from `measure`. With `file`, JSON that grows row by row; `resume` keeps what is in it.

    Args:
        about: the settings; rows that were measured under others are measured anew.
    """
    kept: dict[str, dict] = {}
    if resume and file and file.exists():
        held = json.loads(file.read_text())
        kept = held["rows"] if held["about"] | {"date": 0} == about | {"date": 0} else {}
    rows = {}
    for name in names:
        rows[name] = kept.get(name) or measure(name)
        if file:
            file.write_text(json.dumps({"about": about, "rows": kept | rows}, indent=1) + "\n")
    return rows


def machine() -> dict[str, str | int]:
    """The kind of machine and the versions; nothing that names it."""
    text = Path("/proc/cpuinfo").read_text()
    vendors = [line.split(":")[1].strip() for line in text.splitlines() if line.startswith("model name")]
    versions = {name: metadata.version(name) for name in ("torch", "transformers")}
    kind = {"cpu": vendors[0] if vendors else platform.machine(), "threads": 1}
    return kind | versions | {"date": datetime.now(UTC).date().isoformat()}
