"""One run in one process and in several: what a step takes, and how far their metrics are apart.

Each arm is `vlrl train` on the same configuration, the several by torchrun on this machine, every process with one
thread. Wall seconds are medians over the steps after the first, of the main process; CPU seconds are of all processes,
their start included. Metrics are compared row by row, numbers relative to 1 or to their size, whichever is larger.

    python bench/scale.py processes # a table of 1, and of 2 plain, with weights, sequences or the optimizer in parts
    python bench/scale.py processes --processes 1 8 --config CONFIG --steps 20 --json scale_out.json
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HEAD = "| processes | s a step | rollout | update | CPU s in all | faster | largest difference |\n|" + "---|" * 7


PARTS = {  # what accelerate tells the processes that it starts
    "": {},
    ", in parts": {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"},
    ", sequences in slices": {"PARALLELISM_CONFIG_SP_SIZE": "2"},
    ", optimizer in parts": {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "1"},
}


def run(size: int, parts: str, config: str, steps: int, changes: list[str], out: Path) -> dict[str, Any]:
    """A run's medians, its processes' CPU seconds, and its rows of metrics. parts: a key of `PARTS`."""
    here = [f"train.steps={steps}", f"out={out}", "log.trackers=[]", *changes]
    start = [sys.executable, *(["-m", "torch.distributed.run", "--nproc-per-node", str(size)] if size > 1 else [])]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [*start, "-m", "vlrl.cli", "train", config, *here], check=True, stdout=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"} | PARTS[parts], cwd=ROOT,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    timings = [row for row in lines(out / "timings.jsonl") if "seconds" in row][1:]
    medians = {name: statistics.median(row[name] for row in timings) for name in ("seconds", "rollout", "update")}
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"processes": f"{size}{parts}", **medians, "cpu": cpu, "rows": lines(out / "metrics.jsonl")}


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def apart(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> tuple[float, str]:
    """The largest difference of two runs' metrics, and which it is of."""
    found = (
        (abs(a[name] - b[name]) / max(1.0, abs(a[name])), f"{name}, step {a['step']}")
        for a, b in zip(one, other, strict=True)
        for name in a
        if isinstance(a[name], int | float)
    )
    return max(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default=str(ROOT / "configs" / "gui_grounding.yaml"))
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("changes", nargs="*", default=["eval.num_samples=32", "train.lr=1.0e-6"], help="to the config")
    options = parser.parse_args()
    arms = []
    if not importlib.util.find_spec("deepspeed"):
        del PARTS[", optimizer in parts"]
        print("no DeepSpeed here: without the optimizer in parts", file=sys.stderr)
    print(HEAD)
    with tempfile.TemporaryDirectory() as folder:
        for size, parts in [(n, parts) for n in options.processes for parts in PARTS if n > 1 or not parts]:
            place = Path(folder) / f"run_{len(arms)}"
            arm = run(size, parts, options.config, options.steps, options.changes, place)
            arms.append(arm)
            gap, where = apart(arms[0]["rows"], arm["rows"])
            told = f"{gap:.1e} ({where})" if len(arms) > 1 else "-"
            print(
                f"| {arm['processes']} | {arm['seconds']:.2f} | {arm['rollout']:.2f} | {arm['update']:.2f} "
                f"| {arm['cpu']:.0f} | {arms[0]['seconds'] / arm['seconds']:.2f}x | {told} |", flush=True,
            )  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps([arm | {"rows": len(arm["rows"])} for arm in arms], indent=2) + "\n")


if __name__ == "__main__":
    main()
