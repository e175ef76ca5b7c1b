"""The programs of bench/: what a reader of bench/README.md types."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench" / "faults"))  # scripts, not a package

from mutants_table import MUTANTS  # noqa: E402

PROGRAMS = sorted(path.stem for path in (ROOT / "bench").glob("*.py") if path.stem != "programs")


def run(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True)


def test_six_programs_name_every_subcommand():
    """A benchmark that no program lists cannot be found, and a listed one that is gone cannot be run."""
    assert PROGRAMS == ["bridge", "faults", "hacks", "learn", "scale", "speed"]
    for program in PROGRAMS:
        done = run(f"bench/{program}.py")
        listed = {line.split()[0] for line in done.stdout.splitlines()[2:] if line.strip()}
        assert done.returncode == 0 and listed, done.stderr
        assert listed <= {path.stem for path in (ROOT / "bench" / program).glob("*.py")}


def test_an_unknown_subcommand_lists_the_known_ones():
    done = run("bench/speed.py", "vs_tlr")
    assert done.returncode == 2 and "no subcommand 'vs_tlr'" in done.stderr and "vs_trl" in done.stderr


def test_every_mutant_finds_its_line_and_its_tests():
    """A line that was renamed would no longer be broken, and nobody would know whether a test notices."""
    for mutant in MUTANTS:
        assert (ROOT / mutant.file).read_text().count(mutant.line) == 1, (mutant.file, mutant.line)
        assert all((ROOT / test).is_file() for test in mutant.tests), mutant.tests


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_every_subcommand_has_help(program):
    """Imports of neighbours break when files move."""
    names = [line.split()[0] for line in run(f"bench/{program}.py").stdout.splitlines()[2:] if line.strip()]
    for name in names:
        done = run(f"bench/{program}.py", name, "--help")
        assert done.returncode == 0 and "usage" in done.stdout, (name, done.stdout, done.stderr)
