"""The type checker's word on all four packages, by pyproject.toml: what is not yet checked in full is listed there."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_packages_are_typed_as_they_say():
    """They are marked as typed: a wrong annotation would mislead every editor and checker of a user."""
    ty = Path(sys.executable).with_name("ty")
    done = subprocess.run(
        [ty, "check", "--python", sys.prefix, "--output-format", "concise"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_not_checked_in_full_is_there():
    """A file that was mended or moved would stay on the list, and nobody would see that the list can shrink."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    overrides = tomllib.loads(text)["tool"]["ty"]["overrides"]
    assert text.count("[[tool.ty.overrides]]  # ") == len(overrides)  # each with its reason
    for over in overrides:
        assert len(over["rules"]) == 1
        assert [name for name in over["include"] if not (ROOT / name).is_file()] == []
        core = ("rewards", "vlrl/types", "vlrl/config", "robot/types")
        assert [name for name in over["include"] if name.startswith(core)] == []
