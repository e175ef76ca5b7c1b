"""What the bridge does on faults: runs tests/robot/faults and writes the table of docs/evidence/faults.md.

python bench/faults.py bridge_faults [--lerobot] [-k WORDS]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DOC = ROOT / "docs" / "evidence" / "faults.md"
KINDS = ("network", "server", "policy", "bus", "servo", "camera", "operator", "process", "disk", "clock", "two")


class Rows:
    """A plugin of pytest that keeps what tests tell by `scenario.tell`."""

    def __init__(self):
        self.rows: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            told = [json.loads(value) for name, value in report.user_properties if name == "fault"]
            self.rows += [row | {"passed": report.passed} for row in told]


def line(row: Mapping[str, Any]) -> str:
    """One row of the table."""
    held, still = row.get("held"), row.get("still")
    if held is not None:
        until = f"{held} ticks{f', at rest {still}' if still != held else ''}, {row['ms']:.0f} ms"
    else:
        until = f"{row['after']} ticks" if "after" in row else "never unsafe"
    limit = "" if row["limit"] is None or held is None else f" (limit {row['limit']})"
    did = row["did"] + (f": {row['why'].partition(':')[0]}" if row.get("why") else "")
    cells = row["kind"], row["name"], did, until + limit, "continues" if row["code"] is None else row["code"]
    return f"| {' | '.join(map(str, cells))} |" + ("" if row["passed"] else " FAILED")


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    ordered = sorted(rows, key=lambda row: KINDS.index(row["kind"]))
    head = [
        "| kind | fault | what the robot did | held after | exit code |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([*head, *map(line, ordered)])


def machine() -> str:
    """Where it was measured."""
    names = [
        each.split(":")[1].strip() for each in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in each
    ]
    return f"{len(names)} cores of {names[0] if names else platform.processor()}, {date.today().isoformat()}"


def put(text: str, marker: str) -> None:
    """Writes between two markers of docs/evidence/faults.md."""
    begin, end = f"<!-- {marker} -->", f"<!-- /{marker} -->"
    before, rest = DOC.read_text(encoding="utf-8").split(begin)
    DOC.write_text(f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}", encoding="utf-8")


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--lerobot", action="store_true", help="lerobot's own loop instead, some minutes")
    options.add_argument("-k", default="", help="only the faults whose names have these words; writes nothing")
    given = options.parse_args()
    if given.lerobot:
        from faults_lerobot import measured

        told, command = measured(given.k), "python bench/faults.py bridge_faults --lerobot"
    else:
        found = Rows()
        with contextlib.suppress(ExceptionGroup):  # of what tests that failed left open
            pytest.main(
                [str(ROOT / "tests" / "robot" / "faults"), "-q", "-p", "no:cacheprovider", "-k", given.k], [found]
            )
        told, command = table(found.rows), "python bench/faults.py bridge_faults"
    print(told)
    if not given.k:
        put(f"`{command}`, {machine()}:\n\n{told}", "lerobot" if given.lerobot else "ours")
    return 0


if __name__ == "__main__":
    sys.exit(main())
