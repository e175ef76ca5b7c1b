"""docs/papers.md says of every paper what is here, and no more than that."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from vlrl import registry
from vlrl.cli import parser

ROOT = Path(__file__).parents[1]
pytest.importorskip("mkdocs", reason="needs pip install 'vlrl[docs]'")
_spec = importlib.util.spec_from_file_location("method_reference", ROOT / "docs" / "reference" / "generate.py")
reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)
PAGE = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
WORDS = ("golden", "recorded", "runs", "learned", "compared", "tested", "reconstruction", "not covered")
RECIPES = {file.stem for file in (ROOT / "configs" / "recipes").glob("*.yaml")}
STAGES = {file.stem for file in (ROOT / "configs" / "stages").glob("*.yaml")} - {"any_type"}  # which is no paper's
METHODS = {name for kind in registry.HOMES for name in registry.names(kind)}
ROWS = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if re.search(r"\d{4}\.\d{5}", line)]
FOUR = [row for row in ROWS if len(row) == 4]


def named(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_paper_has_a_number_and_a_verdict():
    """A reader could not look a paper up, or would take silence for a claim."""
    assert len(ROWS) > 120
    for _, number, *rest in ROWS:
        assert re.fullmatch(r"\d{4}\.\d{5}(, \d{4}\.\d{5})*", number) and rest[-1].strip()
    assert [row[0] for row in FOUR if not any(word in row[3] for word in WORDS)] == []


def test_every_name_exists():
    """A reader would be told of a recipe, a method, a task or a command that is gone."""
    commands = parser()._subparsers._group_actions[0].choices
    known = RECIPES | STAGES | METHODS | set(registry.task_names()) | set(registry.NEED_OPTIONS)
    names = [name for row in ROWS for cell in row[2:] for name in named(cell)]
    files = [name for name in names if name.startswith("configs/")]
    called = [name.split()[1] for name in names if name.startswith("vlrl ")]
    keys = {"pass_at", "task.thinking"}
    assert [name for name in files if not (ROOT / name).is_file()] == []
    assert [name for name in called if name not in commands] == []
    assert [name for name in names if name not in {*known, *files, *keys} and not name.startswith("vlrl ")] == []


def test_golden_and_runs_are_claimed_of_what_has_them():
    """The page would claim numbers that nobody checks, or a recipe that no test trains."""
    golden = {name for names in reference.GOLDEN.values() for name in names}
    for paper, _, here, checked in FOUR:
        names = set(named(here))
        assert "golden" not in checked or names & golden, paper
        assert "runs" not in checked or names & RECIPES, paper


def test_every_recipe_and_stages_file_has_its_paper():
    """Who looks for the source of a recipe would not find it."""
    names = {name for row in ROWS for cell in row[2:] for name in named(cell)}
    assert sorted((RECIPES | STAGES) - names) == []
