"""Detection rewards per second, and how all IoUs of two lists of boxes compare with a loop and with torchvision.

`ious` and `f1` are those of rewards/boxes.py: N predicted boxes against N true ones, of one label, most of them near
misses, so that every pair is weighed. `read` is the parser on the text of such a list, where it is short enough. The
loop is two nested `for` over plain Python numbers, torchvision's `box_iou` gets its tensors made from the same lists.

Times are medians of process CPU seconds on one thread, all arms alternating within one process.

    python bench/speed.py detection_rewards                  # a Markdown table
    python bench/speed.py detection_rewards --json detection.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported

import torch
from torchvision.ops import box_iou

from rewards import boxes, parse
from rewards.boxes import Box
from rewards.parse import Object

SECONDS = 0.05  # of CPU time that one measurement takes at least


def loop(first: list[Box], second: list[Box]) -> list[list[float]]:
    """IoUs as one writes them down at first."""
    table = []
    for a in first:
        row = []
        for b in second:
            width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
            shared = max(width, 0.0) * max(height, 0.0)
            union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared
            row.append(shared / union)
        table.append(row)
    return table


def lists(count: int) -> tuple[list[Object], list[Object]]:
    """Predicted and true objects: each prediction is a truth whose sides are up to 9 pixels off."""
    rng = random.Random(count)
    corners = [(rng.uniform(0, 1000), rng.uniform(0, 1000)) for _ in range(count)]
    truths = [Object("cat", (x, y, x + rng.uniform(40, 120), y + rng.uniform(40, 120))) for x, y in corners]
    predicted = [Object("cat", tuple(side + rng.uniform(-9, 9) for side in truth.box)) for truth in truths]
    return predicted, truths


def arms(count: int) -> dict[str, Callable[[], object]]:
    """What is timed for so many boxes: name -> call."""
    predicted, truths = lists(count)
    first, second = ([each.box for each in objects] for objects in (predicted, truths))
    rows = [{"bbox_2d": [round(side) for side in each.box], "label": each.label} for each in predicted]
    made = {
        "ious": lambda: boxes.ious(first, second),
        "loop": lambda: loop(first, second),
        "torchvision": lambda: box_iou(torch.tensor(first), torch.tensor(second)),
        "f1": lambda: boxes.f1(predicted, truths),
    }
    text = json.dumps(rows)
    return made | ({"read": lambda: parse.objects(text)} if parse.objects(text).reason is None else {})


def times(count: int, repeats: int) -> dict[str, float]:
    """Arm -> median CPU seconds of one call."""
    calls = arms(count)
    numbers = {name: max(1, int(SECONDS / max(_timed(call, 1), 1e-7))) for name, call in calls.items()}
    rounds = [{name: _timed(call, numbers[name]) for name, call in calls.items()} for _ in range(repeats)]
    return {name: statistics.median(row[name] for row in rounds) for name in calls}


def _timed(call: Callable[[], object], number: int) -> float:
    start = time.process_time()
    for _ in range(number):
        call()
    return (time.process_time() - start) / number


def machine() -> dict[str, str | int]:
    """The kind of machine; nothing that names it."""
    info = Path("/proc/cpuinfo")
    models = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.machine(), "cores": os.cpu_count() or 0, "threads": 1,
        "torch": torch.__version__, "date": datetime.now(UTC).date().isoformat(),
    }  # fmt: skip


def table(rows: dict[int, dict[str, float]]) -> str:
    """Counts and their times as Markdown."""
    lines = [
        "| boxes | f1, per second | read, per second | ious, us | loop / ious | torchvision / ious |",
        "|---|---|---|---|---|---|",
    ]
    for count, row in rows.items():
        read = f"{1 / row['read']:,.0f}" if "read" in row else "refused"
        lines.append(
            f"| {count:,} | {1 / row['f1']:,.0f} | {read} | {row['ious'] * 1e6:,.0f} "
            f"| {row['loop'] / row['ious']:.1f}x | {row['torchvision'] / row['ious']:.1f}x |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--boxes", nargs="+", type=int, default=[1, 2, 3, 5, 10, 100, 1000])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    arms(2)["f1"]()  # loads what loads late
    rows = {count: times(count, options.repeats) for count in options.boxes}
    about = machine() | {"repeats": options.repeats}
    print(", ".join(f"{name} {value}" for name, value in about.items()), end="\n\n")
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps({"machine": about, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
