"""One line of the doctor's report, and what its subjects share."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[2]
GIB = 2**30
CHECKOUT = (ROOT / "pyproject.toml").is_file()
SETUP = "run `make setup`" if CHECKOUT else "pip install --force-reinstall vlrl"


@dataclass(frozen=True)
class Finding:
    """One line of the report. `missing` is an optional part that is not there; only `error` stops vlrl from working."""

    name: str
    status: Literal["ok", "warn", "missing", "error"]
    value: str
    fix: str = ""


def optional(name: str, found: str | None, fix: str) -> Finding:
    return Finding(name, "ok", found) if found else Finding(name, "missing", "not found", fix)


def install(extra: str) -> str:
    """The command that brings an extra of ours."""
    return f"pip install -e '.[{extra}]' --constraint requirements.lock" if CHECKOUT else f"pip install 'vlrl[{extra}]'"


def program(*names: str) -> str | None:
    """The path of the first program of these names that is installed."""
    return next(filter(None, map(shutil.which, names)), None)


def read(path: str) -> str:
    """A file's text, '' where it cannot be read."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""
