"""Modules that other distributions may stand in the way of."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from vlrl.doctor.finding import ROOT, SETUP, Finding
from vlrl.doctor.packages import version_of


def opencv() -> Iterator[Finding]:
    """All variants of OpenCV write into the same `cv2` folder, so two versions leave a mixture."""
    variants = ("opencv-python", "opencv-python-headless", "opencv-contrib-python", "opencv-contrib-python-headless")
    found = {name: version for name in variants if (version := version_of(name))}
    if len(set(found.values())) > 1:
        value = ", ".join(f"{name} {version}" for name, version in found.items())
        yield Finding("cv2", "error", value, f"pip install --force-reinstall {' '.join(found)} -c requirements.lock")


def modules() -> Iterator[Finding]:
    """Other distributions install top-level modules of the same names (Robot Framework: `robot`)."""
    owners = metadata.packages_distributions()
    for name in ("vlrl", "tasks", "rewards", "robot"):
        spec = importlib.util.find_spec(name)
        places = list(spec.submodule_search_locations or [spec.origin or "?"]) if spec else []
        others = sorted({owner for owner in owners.get(name, ()) if owner != "vlrl"})
        fix = f"pip uninstall {' '.join(others)}" if others else "look for a folder of that name on PYTHONPATH"
        if not spec:
            yield Finding(f"module {name}", "error", "not found", SETUP)
        elif Path(places[0]).resolve() != ROOT / name:
            yield Finding(f"module {name}", "error", f"not ours: {places[0]}", fix)
        elif others:
            yield Finding(f"module {name}", "warn", f"ours, but {', '.join(others)} brings one too", fix)
        else:
            yield Finding(f"module {name}", "ok", "ours")
