"""Packages: what vlrl asks for, and whether what is installed fits together."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib import metadata
from typing import TYPE_CHECKING

from vlrl.doctor.finding import CHECKOUT, ROOT, SETUP, Finding, install

if TYPE_CHECKING:  # it may not be installed
    from packaging.requirements import Requirement

REASONS = {"transformers": "older ones count the time positions of Qwen2.5-VL's videos wrongly"}


def version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def packages() -> Iterator[Finding]:
    """Each package that vlrl or one of its extras names, once."""
    try:
        from packaging.requirements import Requirement
    except ImportError:
        yield Finding("packages", "error", "not installed", SETUP)
        return
    wanted = {}
    for requirement in map(Requirement, _requirements()):
        if requirement.name != "vlrl":  # our own extras, whose parts are listed themselves
            wanted.setdefault((requirement.name, requirement.specifier), requirement)
    yield from map(_package, wanted.values())


def conflicts() -> Iterator[Finding]:
    """What a package that vlrl uses needs in another version than is there, as after an installation of something else.

    Such a package may import and fail later: `numpy.dtype size changed`, `operator torchvision::nms does not exist`.
    """
    try:
        from packaging.requirements import Requirement
        from packaging.utils import canonicalize_name
    except ImportError:
        return
    waiting = [Requirement(line).name for line in _requirements()]
    seen: set[str] = {"vlrl"}
    wrong = []
    while waiting:
        name = canonicalize_name(waiting.pop())
        version = version_of(name)
        if name in seen or version is None:
            continue
        seen.add(name)
        for needed in _needs(name):
            waiting.append(needed.name)
            found = version_of(needed.name)
            if found is not None and not needed.specifier.contains(found, prereleases=True):
                wrong.append((f"{name} {version} needs {needed.name}{needed.specifier}, and {found} is there", needed))
    for value, needed in sorted(wrong, key=lambda each: each[0]):
        locked = " --constraint requirements.lock" if CHECKOUT else ""
        yield Finding("versions", "warn", value, f"pip install '{needed.name}{needed.specifier}'{locked}")
    if not wrong:
        yield Finding("versions", "ok", f"the {len(seen)} packages in use fit together")


def _needs(package: str) -> Iterator[Requirement]:
    """What an installed package asks for on this machine, its own extras left out."""
    from packaging.requirements import Requirement

    for requirement in map(Requirement, metadata.requires(package) or ()):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement


def _requirements() -> list[str]:
    """What vlrl asks for: from its installed metadata, or from the checkout when it is run uninstalled."""
    try:
        return metadata.requires("vlrl") or []
    except metadata.PackageNotFoundError:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].items()
    return project["dependencies"] + [f"{line}; extra == '{extra}'" for extra, lines in extras for line in lines]


def _package(requirement: Requirement) -> Finding:
    extra = str(requirement.marker).partition("extra == ")[2].strip("\"'")
    fix = install(extra) if extra else SETUP
    wrong = "error" if extra in ("", "train") else "warn"  # what trains must be right where it is
    version = version_of(requirement.name)
    if version is None:
        return Finding(requirement.name, "missing" if extra else "error", "not installed", fix)
    if not requirement.specifier.contains(version, prereleases=True):
        why = REASONS.get(requirement.name)
        wanted = f"needs {requirement.specifier}{f': {why}' if why else ''}; {fix}"
        return Finding(requirement.name, wrong, version, wanted)
    if lacking := _lacking(requirement):
        return Finding(requirement.name, wrong, f"{version} without {', '.join(lacking)}", fix)
    return Finding(requirement.name, "ok", version)


def _lacking(requirement: Requirement) -> list[str]:
    """What its own extras bring and is not there: a bare lerobot can read no demonstrations."""
    from packaging.requirements import Requirement

    parts = [Requirement(line) for line in metadata.requires(requirement.name) or ()]
    asked = [p for p in parts if p.marker and any(p.marker.evaluate({"extra": e}) for e in requirement.extras)]
    return sorted({part.name for part in asked if version_of(part.name) is None})
