"""Packages for the tests in folders of their own: lmms-eval asks for older releases of what vlrl pins."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

NAMES = (
    "lmms-eval==0.7.3", "chardet==7.7.0", "colorama==0.4.6", "dataproperty==1.1.1", "evaluate==0.4.6",
    "mbstrdecoder==1.1.5", "pathvalidate==3.3.1", "portalocker==4.4.2", "pytablewriter==1.2.1", "sacrebleu==2.6.0",
    "tabledata==1.3.5", "tabulate==0.10.0", "tcolorpy==0.1.7", "typepy==2.0.0",
)  # fmt: skip


def add_lmms_eval() -> str:
    """Puts it behind what is installed, made once, and returns its place for PYTHONPATH.

    The module is skipped where it cannot be fetched.
    """
    if spec := importlib.util.find_spec("lmms_eval"):
        return str(Path(spec.origin).parents[1])
    folder = fetch(*NAMES)
    sys.path.append(folder)
    return folder


def fetch(*names: str) -> str:
    """A folder of packages without what they need, made once; the test or module is skipped where there is none."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vlrl" / "tests"
    folder = cache / f"{names[0]}-{sys.version_info.major}.{sys.version_info.minor}"
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as made:
            options = ["--quiet", "--no-deps", "--target", f"{made}/all"]
            if subprocess.run([sys.executable, "-m", "pip", "install", *options, *names], check=False).returncode:
                pytest.skip(f"{names[0]} cannot be fetched", allow_module_level=True)
            if not folder.is_dir():
                os.rename(f"{made}/all", folder)
    return str(folder)
