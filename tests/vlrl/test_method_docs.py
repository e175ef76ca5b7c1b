"""docs/methods.md: up to date, true of the tests, and its method runs."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from vlrl import registry
from vlrl.config import load
from vlrl.method_checks import GOLDEN, LEARNED, exemptions
from vlrl.method_docs import PAGE, page
from vlrl.trainer import Trainer

ROOT = Path(__file__).parents[2]
TESTS = {file.name: file.read_text(encoding="utf-8") for file in (ROOT / "tests" / "vlrl").rglob("test_*.py")}
NAMES = {name: target for kind in registry.HOMES for name, target in registry.names(kind).items()}
SMALL = ("train.steps=2", "train.prompts=2", "train.group_size=2", "eval.samples=2", "log.trackers=[]")


def test_the_page_is_up_to_date():
    """Users would read of methods that are gone, and not of new ones. Anew with: python -m vlrl.method_docs"""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_worked_example_is_told_and_tested():
    """The page would claim numbers that nobody checks."""
    examples = json.loads((ROOT / "tests" / "golden" / "algorithms.json").read_text(encoding="utf-8"))
    assert set(GOLDEN) == set(examples)
    for number, names in GOLDEN.items():
        files = [text for file, text in TESTS.items() if f'"{number}"' in text and file != "test_method_docs.py"]
        for name in names:
            called = {name, getattr(NAMES[name], "__name__", name)}
            assert any(re.search(rf"\b{word}\b", text) for text in files for word in called), (number, name)


def test_what_is_said_to_have_learned_is_shown():
    """A link would lead to a page that knows nothing of a run."""
    for name, file in LEARNED.items():
        assert name in NAMES and (ROOT / "docs" / file).is_file()


def test_every_method_and_exemption_is_on_the_page():
    """A method could be exempt from a law without telling."""
    text = page()
    assert all(f"\n### {name}\n" in text for name in NAMES)
    assert all(reason in text for reasons in exemptions().values() for reason in reasons.values())


def test_the_pages_method_trains_as_it_is_shown(tmp_path, monkeypatch):
    """A newcomer's first method, typed from the page, must run with its option and be refused where it does not fit."""
    text = PAGE.read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(# my_methods\.py\n.*?)```", text, re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    (tmp_path / "my_methods.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    (command,) = re.findall(r"^vlrl train (.*my_methods:bounded.*)$", text, re.MULTILINE)
    config, change = shlex.split(command)
    try:
        summary = Trainer(load(ROOT / config, [change, f"out={tmp_path / 'run'}", *SMALL])).run()
        with pytest.raises(registry.UserError, match=r"my_methods:bounded\) needs several completions"):
            load(ROOT / config, [change, "train.group_size=1"])
    finally:
        sys.modules.pop("my_methods", None)
    assert (summary["steps"], summary["updates"]) == (2, 2)
