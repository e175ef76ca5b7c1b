"""lmms-eval for the tests, in a folder of its own: it asks for older releases of what vlrl pins."""

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
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vlrl" / "tests"
    folder = cache / f"{NAMES[0]}-{sys.version_info.major}.{sys.version_info.minor}"
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as made:
            command = [
                sys.executable,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--no-deps",
                "--target",
                f"{made}/all",
                *NAMES,
            ]
            if subprocess.run([*command, *NAMES], check=False).returncode:
                pytest.skip("lmms-eval cannot be fetched", allow_module_level=True)
            if not folder.is_dir():
                os.rename(f"{made}/all", folder)
    sys.path.append(str(folder))
    return str(folder)
