"""Breaks forty lines on which runs and robots depend, one at a time, and says which of them no test notices.

    python bench/faults.py mutants [--only losses safety ...] [--jobs 2] [--json FILE]

Each mutant is one changed line in a copy of the tracked files; the tests that are named beside it run there until the
first failure. A mutant that survives is a line that could break unseen: the exit code is 1 unless its reason is known.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from mutants_table import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
Outcome = Literal["killed", "survived", "broken"]


@dataclass(frozen=True)
class Result:
    group: str
    file: str
    line: str
    becomes: str
    outcome: Outcome
    detail: str  # the test that failed; why a survivor is known; what is wrong with a broken entry


def one_line(text: str) -> str:
    """For a cell of the table."""
    return " ".join(text.split())


def copy_tree(target: Path) -> None:
    """Every tracked or new file of the checkout."""
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    for name in filter(None, names.split("\0")):
        source = ROOT / name
        if source.is_file() or source.is_symlink():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name, follow_symlinks=False)


def run_tests(tree: Path, tests: Sequence[str]) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", *tests]
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=1800)


def try_mutant(mutant: Mutant) -> Result:
    """The outcome of one changed line, in a copy of its own."""

    def result(outcome: Outcome, detail: str) -> Result:
        return Result(mutant.group, mutant.file, mutant.line, mutant.becomes, outcome, detail)

    with tempfile.TemporaryDirectory(prefix="mutant.") as folder:
        tree = Path(folder)
        copy_tree(tree)
        source = tree / mutant.file
        text = source.read_text() if source.is_file() else ""
        if text.count(mutant.line) != 1:
            return result("broken", f"the line occurs {text.count(mutant.line)} times")
        source.write_text(text.replace(mutant.line, mutant.becomes))
        tests = run_tests(tree, mutant.tests)
    if tests.returncode == 0:
        return result("survived", mutant.known)
    failed = [line.split(" - ")[0] for line in tests.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if tests.returncode == 1 and failed:
        return result("killed", failed[0].split(" ", 1)[1])
    return result("broken", (tests.stdout + tests.stderr)[-300:])


def check_baseline(mutants: Sequence[Mutant]) -> None:
    """The named tests pass without any change: otherwise every mutant would look killed."""
    with tempfile.TemporaryDirectory(prefix="mutant.") as folder:
        copy_tree(Path(folder))
        tests = run_tests(Path(folder), sorted({test for mutant in mutants for test in mutant.tests}))
    if tests.returncode:
        sys.exit(f"the tests fail without a mutant:\n{tests.stdout[-3000:]}")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--only", nargs="+", choices=sorted({mutant.group for mutant in MUTANTS}))
    arguments.add_argument("--jobs", type=int, default=2, help="mutants at a time, one core each")
    arguments.add_argument("--json", type=Path)
    options = arguments.parse_args()
    mutants = [mutant for mutant in MUTANTS if not options.only or mutant.group in options.only]
    check_baseline(mutants)
    print("| group | line | becomes | outcome | test |\n| --- | --- | --- | --- | --- |")
    with ThreadPoolExecutor(options.jobs) as pool:
        results = []
        for result in pool.map(try_mutant, mutants):
            results.append(result)
            print(
                f"| {result.group} | `{result.file}`: `{one_line(result.line)}` | `{one_line(result.becomes)}` "
                f"| {result.outcome} | {result.detail} |",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1))
    killed = sum(result.outcome == "killed" for result in results)
    print(f"\n{killed} of {len(results)} killed", file=sys.stderr)
    sys.exit(any(r.outcome == "broken" or (r.outcome == "survived" and not r.detail) for r in results))


if __name__ == "__main__":
    main()
