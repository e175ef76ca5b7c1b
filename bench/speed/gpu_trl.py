"""The arm of TRL in `gpu`: its GRPOTrainer on the same model, rows and precision, in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

from gpu_arms import SkippedError

ROOT, WORKER = Path(__file__).parents[2], Path(__file__).with_name("gpu_trl_worker.py")


@contextlib.contextmanager
def importable(given: Path) -> Iterator[Path]:
    """The folder from which TRL can be imported: as given, or with its wheels (one or a folder of them) unpacked."""
    wheels = [given] if given.suffix == ".whl" else sorted(given.glob("*.whl"))
    with tempfile.TemporaryDirectory() as folder:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as packed:
                packed.extractall(folder)
        yield Path(folder) if wheels else given


def measure(work: dict, trl: Path, until: float) -> dict:
    """Medians of TRL's counted steps.

    Args:
        work: what the worker reads (`gpu_trl_worker.py`).
        until: seconds of `time.monotonic` at which it is ended.

    Raises:
        SkippedError: it died, or did not come to an end.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "work.json").write_text(json.dumps(work))
        quiet = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "cache")}
        paths = os.pathsep.join(filter(None, (str(trl), str(ROOT), os.environ.get("PYTHONPATH"))))
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, str(WORKER), name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                text=True, env=os.environ | quiet | {"PYTHONPATH": paths},
            )  # fmt: skip
        try:
            told = _told(process, work["warm_up"] + work["steps"], until)
        finally:
            process.kill()
            process.communicate()
        if isinstance(told, str):
            last = (folder / "log").read_text().strip().splitlines()[-1:] or ["no output"]
            raise SkippedError(f"TRL {told}: {last[0]}")
    counted = told[work["warm_up"] :]
    return {
        "step": statistics.median(one["step"] for one in counted), "all": [one["step"] for one in counted],
        "peak_gb": max(one["peak_gb"] for one in counted), "tokens": counted[-1]["tokens"],
    }  # fmt: skip


def _told(process: subprocess.Popen, count: int, until: float) -> list[dict] | str:
    """What it told of its steps, or why it did not. Its pipe is read apart, so that the time can run out."""
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=lambda: [lines.put(line) for line in [*process.stdout, ""]], daemon=True).start()
    told: list[dict] = []
    while len(told) < count:
        try:
            line = lines.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            return f"had made {len(told)} of {count} steps when the time was up"
        if not line:
            return f"died after {len(told)} of {count} steps"
        told.append(json.loads(line))
    return told
