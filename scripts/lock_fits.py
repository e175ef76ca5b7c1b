#!/usr/bin/env python3
"""Whether requirements.lock pins what pyproject.toml asks for, without resolving anything: 1 and a line where not."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
EXTRAS = ("sims", "test")  # what `make lock` resolves; others follow from these


def asked(project: dict, extras: tuple[str, ...], seen: set[str]) -> list[Requirement]:
    """What vlrl with these extras requires itself."""
    lines = [line for extra in extras if extra not in seen for line in project["optional-dependencies"][extra]]
    seen |= set(extras)
    found = []
    for requirement in map(Requirement, lines):
        own = requirement.name == "vlrl"
        found += asked(project, tuple(requirement.extras), seen) if own else [requirement]
    return found


def problems() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split(";")[0].strip().split("==") for line in lines if "==" in line)
    wanted = [*map(Requirement, project["dependencies"]), *asked(project, EXTRAS, set())]
    told = ((each, pins.get(canonicalize_name(each.name))) for each in wanted)
    return [
        f"requirements.lock: {each} is asked for, {pin or 'nothing'} is pinned: make lock"
        for each, pin in told
        if pin is None or not each.specifier.contains(pin, prereleases=True)
    ]


if __name__ == "__main__":
    print("\n".join(found := problems()), end="\n" if found else "")
    sys.exit(bool(found))
