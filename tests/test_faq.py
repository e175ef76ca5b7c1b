"""docs/faq.md: the tests that it names are there, and so are the messages that it quotes."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "faq.md").read_text(encoding="utf-8")
ENTRIES = dict(re.findall(r"^### (.+?)\n(.+?)(?=^##|\Z)", TEXT, re.MULTILINE | re.DOTALL))
MESSAGES = [line for block in re.findall(r"```text\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()]
PIECES = 5  # of which a message may be put together between two …
SHORT = 10  # characters, which the longest of them has at least


@functools.cache
def functions(file: str) -> set[str]:
    """The test functions of a file."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@functools.cache
def texts() -> str:
    """Every text in our sources, as the parser joins them."""
    files = [file for package in ("vlrl", "tasks", "robot") for file in (ROOT / package).rglob("*.py")]
    trees = (ast.parse(file.read_text(encoding="utf-8")) for file in files)
    return "\n".join(n.value for tree in trees for n in ast.walk(tree) if isinstance(n, ast.Constant) and _is_text(n))


def _is_text(node: ast.Constant) -> bool:
    return isinstance(node.value, str)


@pytest.mark.parametrize("symptom", ENTRIES)
def test_every_answer_is_held_by_tests_that_exist(symptom) -> None:
    """A page that promises what nothing holds is worse than none."""
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", ENTRIES[symptom])
    assert named
    assert [f"{file}::{name}" for file, name in named if name not in functions(file)] == []


@pytest.mark.parametrize("message", [line for line in MESSAGES if not line.startswith("warn ")])
def test_messages_are_those_that_users_see(message) -> None:
    """Who searches the page for what the terminal says would not find it."""
    between = message.replace("10 steps", "…").replace("…%", "…").split("…")
    for piece in filter(None, map(str.strip, between)):
        found = joined(piece)
        assert len(found) <= PIECES and max(map(len, found)) >= min(SHORT, len(piece)), found


def joined(text: str) -> list[str]:
    """The texts of our sources that a text may be put together of, each as long as can be."""
    found = []
    while text:
        most = max(range(len(text) + 1), key=lambda n: n * (text[:n] in texts()))
        found.append(text[: max(most, 1)])
        text = text[max(most, 1) :]
    return found


def test_every_failure_has_its_entry() -> None:
    """An entry whose heading is of another level would be held by nothing."""
    assert len(ENTRIES) >= 20
    assert all("Why:" in entry and "Here:" in entry for entry in ENTRIES.values())
