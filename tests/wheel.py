"""A wheel of this checkout by way of its sdist, and a clean environment with what a `pip install` of it would bring."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PACKAGES = ("vlrl", "tasks", "rewards", "robot")
FILES = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "NOTICE.md", "CHANGELOG.md", "CITATION.cff")
BUILD = "import sys, setuptools.build_meta as b; print('built ' + getattr(b, sys.argv[1])(sys.argv[2]))"


def built(folder: Path) -> Path:
    """An sdist of a copy of the sources, and a wheel built from what that sdist holds. -> the wheel."""
    copy = folder / "copy"
    copy.mkdir()
    for name in (*PACKAGES, "configs"):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, copy / name)
    with tarfile.open(_hook("build_sdist", copy, folder)) as sdist:
        sdist.extractall(folder / "sdist", filter="data")
    (unpacked,) = (folder / "sdist").iterdir()
    return _hook("build_wheel", unpacked, folder)


def _hook(name: str, source: Path, folder: Path) -> Path:
    """One of the build backend's own functions, as pip calls it, but with the setuptools that is here."""
    done = subprocess.run([sys.executable, "-c", BUILD, name, folder], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / done.stdout.splitlines()[-1].removeprefix("built ")


def environment(folder: Path, wheel: Path, watch: str) -> Path:
    """A virtual environment with the wheel alone, and `watch` as its sitecustomize. -> its Python."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "sitecustomize.py").write_text(watch)
    install = ["install", "--quiet", "--no-deps", "--no-index", "--no-compile", wheel]
    subprocess.run([sys.executable, "-m", "pip", "--python", python, *install], check=True, stdout=sys.stderr)
    return python


def bring(python: Path, extras: frozenset[str] = frozenset()) -> None:
    """Link what vlrl with these extras requires, and what that requires, into an environment, from this one."""
    site = next(python.parents[1].glob("lib/python*/site-packages"))
    (mine,) = metadata.distributions(name="vlrl", path=[str(site)])
    for distribution in _required(mine, extras, set()):
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists() and not top.endswith(".pth"):
                os.symlink(str(distribution.locate_file(top)), site / top)


def _required(by: metadata.Distribution, extras: frozenset[str], seen: set) -> Iterator[metadata.Distribution]:
    for requirement in map(Requirement, by.requires or ()):
        if requirement.marker and not any(requirement.marker.evaluate({"extra": e}) for e in extras | {""}):
            continue
        name, inner = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, inner) in seen:
            continue
        seen.add((name, inner))
        found = by if name == "vlrl" else metadata.distribution(name)
        if found is not by:
            yield found
        yield from _required(found, inner, seen)
