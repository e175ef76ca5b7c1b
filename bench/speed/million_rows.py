"""What it takes to start with a large data file: seconds and memory until a task has its samples.

    python bench/speed.py million_rows [ROWS ...] [--format jsonl|parquet] [--group ROWS]

Rows are of GUI grounding (docs/gui_data.md) and share one image, so that the rows are measured and not the pictures.
Each count in a process of its own; seconds are the processor's. More than `tasks.data.files.LARGE` rows are read
when they are drawn. `--group`: rows of a row group of parquet; 1,000 are what data sets of the hub have.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROWS = (10_000, 200_000, 1_000_000)


def written(folder: Path, rows: int, group: int | None) -> Path:
    """A file of so many rows: parquet in such row groups, None: JSON lines."""
    from PIL import Image

    Image.new("RGB", (640, 480), "white").save(folder / "screen.png")
    if group is not None:
        return _parquet(folder / "rows.parquet", rows, group)
    file = folder / "rows.jsonl"
    with file.open("w") as out:
        out.writelines(json.dumps(row) + "\n" for row in _rows(0, rows))
    return file


def _rows(begin: int, end: int) -> Iterator[dict[str, Any]]:
    for i in range(begin, end):
        x, y = i % 600, i % 440
        row = {"image": "screen.png", "instruction": f"Click button {i}", "box": [x, y, x + 30, y + 20]}
        yield row | {"id": f"row-{i:07d}"}


def _parquet(file: Path, rows: int, group: int) -> Path:
    from pyarrow import Table, parquet

    with parquet.ParquetWriter(file, Table.from_pylist(list(_rows(0, 1))).schema) as out:
        for begin in range(0, rows, group):
            out.write_table(Table.from_pylist(list(_rows(begin, min(begin + group, rows)))), row_group_size=group)
    return file


def measured(file: Path) -> dict[str, float]:
    """In this process: seconds and megabytes that reading the rows takes, and that a look at 1,000 of them takes."""
    from tasks.gui_grounding import GuiGrounding
    from vlrl.types import Data

    before, begun = _memory(), time.process_time()
    samples = GuiGrounding(data=Data(train=str(file))).samples("train")
    started = time.process_time()
    for i in range(0, len(samples), max(1, len(samples) // 1000)):
        samples[i]
    return {
        "rows": len(samples), "file_mb": file.stat().st_size / 1e6, "start_s": started - begun,
        "start_mb": _memory() - before, "sample_ms": (time.process_time() - started) / min(1000, len(samples)) * 1e3,
    }  # fmt: skip


def _memory() -> float:
    """The most memory that was in use so far, MB. (`getrusage` begins with what the process that forks had.)"""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def main(counts: list[int], group: int | None) -> None:
    print("| rows | file, MB | start, CPU-s | memory, MB | a sample, ms |\n|---|---|---|---|---|")
    for rows in counts:
        with tempfile.TemporaryDirectory() as folder:
            file = written(Path(folder), rows, group)
            done = subprocess.run([sys.executable, __file__, "--one", str(file)], capture_output=True, text=True)
            if done.returncode:
                sys.exit(done.stderr)
            told = json.loads(done.stdout)
        print(
            f"| {rows:,} | {told['file_mb']:.0f} | {told['start_s']:.1f} | {told['start_mb']:.0f} | "
            f"{told['sample_ms']:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", type=int, default=ROWS)
    parser.add_argument("--format", choices=["jsonl", "parquet"], default="jsonl")
    parser.add_argument("--group", type=int, default=1000)
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measured(asked.one)))
    else:
        main(asked.rows, asked.group if asked.format == "parquet" else None)
