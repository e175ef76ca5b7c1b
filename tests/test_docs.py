"""The documentation: every block of code in it."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import tasks
from vlrl.recipe_checks import load_config
from vlrl.types import UserError

ROOT = Path(__file__).parents[1]


def neighbour(name: str):
    """A module beside this one; `tests` is no package."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


documents, documented = neighbour("documents"), neighbour("documented")
PAGES = {str(page.relative_to(ROOT)): page for page in documents.PAGES}
NOT_RUN = {  # pages whose Python is compiled and its imports followed, no more
    "docs/methods.md": "tests/vlrl/test_method_docs.py runs it",
    "docs/robot.md": "tests/robot/test_docs.py runs it",
    "docs/emulator.md": "starts an emulated arm: tests/robot/emulator",
    "docs/motion.md": "moves a robot by a policy's actions: tests/robot/control",
    "docs/robosuite.md": "needs vlrl[sim] and 10 s: tests/robot/test_robosuite.py",
    "docs/serve.md": "asks a server for actions: tests/robot/serving",
    "docs/video.md": "reads a video of the reader's",
}


@pytest.fixture
def folder(request, tmp_path, monkeypatch) -> Iterator[Path]:
    """A newcomer's folder: the repository's configs, and the files that the page says to write."""
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    shutil.copytree(ROOT / "examples" / "environments", tmp_path / "examples" / "environments")
    (tmp_path / "tasks").mkdir()
    for block in documents.blocks(PAGES[request.node.callspec.params["page"]]):
        if block.file:
            (tmp_path / block.file).write_text(block.text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(tasks, "__path__", [*tasks.__path__, str(tmp_path / "tasks")])
    yield tmp_path
    for name in [n for n, m in sys.modules.items() if (getattr(m, "__file__", None) or "").startswith(str(tmp_path))]:
        del sys.modules[name]


def of_language(page: str, language: str) -> list:
    return [block for block in documents.blocks(PAGES[page]) if block.language == language]


def having(language: str) -> list[str]:
    return [page for page in PAGES if of_language(page, language)]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_what_it_is(page):
    """A block in an unknown language would be shown without colours, and checked by nobody."""
    assert {block.language for block in documents.blocks(PAGES[page])} <= documents.LANGUAGES


@pytest.mark.parametrize("page", having("bash"))
def test_commands_are_accepted(page, folder, capsys):
    """A reader who types a command would meet an unknown option, a missing file or a key that is gone."""
    for block in of_language(page, "bash"):
        for words in documents.commands(block):
            try:
                if (arguments := documents.asked_of_vlrl(words)) is not None:
                    documented.check_command(arguments)
                elif told := documents.problem(words):
                    raise UserError(told)
            except (UserError, SystemExit) as error:
                pytest.fail(f"{block.place}: {' '.join(words)}\n{error} {capsys.readouterr().err}", pytrace=False)


@pytest.mark.parametrize("page", having("yaml"))
def test_yaml_is_accepted(page, folder):
    """A reader who copies a config would be refused."""
    for block in of_language(page, "yaml"):
        keys = set(yaml.safe_load(block.text))
        try:
            documented.check_yaml(block.text, keys, folder)
        except UserError as error:
            pytest.fail(f"{block.place}: {error}", pytrace=False)


@pytest.mark.parametrize("name", ["gym", "reasoning_gym", "verifiers", "openenv", "envhub"])
def test_an_ecosystem_is_used_by_a_short_config(name, tmp_path):
    """A newcomer would take a stranger's environment for work of an afternoon."""
    block = of_language(f"docs/guides/{name}.md", "yaml")[0].text
    (file := tmp_path / "block.yaml").write_text(block, encoding="utf-8")
    config = load_config(file)
    assert len(block.splitlines()) <= 15 and config.policy.model
    assert name in (config.task.name, config.task.options.get("robot", {}).get("name"))


@pytest.mark.parametrize("page", having("python"))
def test_python_runs(page, folder):
    """A reader who copies a program would see it fail."""
    names: dict = {"__name__": "page"}
    for block in of_language(page, "python"):
        tree = ast.parse(block.text)
        if page not in NOT_RUN:
            exec(compile("\n" * block.line + block.text, str(PAGES[page]), "exec"), names)
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
        documented.check_imports(imports)


@pytest.mark.parametrize("page", having("json"))
def test_json_is_read(page):
    """A reader who copies a row into a file would be told that it is no JSON."""
    for block in of_language(page, "json"):
        assert all(json.loads(line) for line in block.text.splitlines())


def test_every_fault_names_tests_that_exist():
    """A row of the table of faults would promise what nothing holds any more."""
    page = (ROOT / "docs/reliability.md").read_text().split("## Mutation tests")[0]
    rows = re.findall(r"^\| (?!fault |---)(.*) \|$", page, re.MULTILINE)
    tests = "\n".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    known = set(re.findall(r"^def (test_\w+)\(", tests, re.MULTILINE))
    names = [re.findall(r"`(test_\w+)`", row.split(" | ")[-1]) for row in rows]
    assert len(rows) > 50 and all(names)
    assert {name for row in names for name in row} - known == set()
