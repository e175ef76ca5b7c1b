"""Codes of errors: each error of a user's has one, and each code its entry on the site."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vlrl.cli import main
from vlrl.cli.help import find_code, find_code_of, read_errors
from vlrl.config import Config, make_as
from vlrl.types import UserError

ROOT = Path(__file__).parents[2]
PACKAGES = ("vlrl", "tasks", "rewards", "robot")
FILES = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py")) if "configs" not in file.parts]


def find_kinds(trees: dict[str, ast.Module]) -> set[str]:
    """UserError and all classes below it, by name."""
    kinds = {"UserError"}
    classes = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    for _ in range(3):  # levels
        kinds |= {node.name for node in classes if {ast.unparse(base) for base in node.bases} & kinds}
    return kinds


def find_raises(node: ast.AST, name: str, kinds: set[str]) -> Iterator[str]:
    """module.function of every statement that raises one of these errors."""
    for child in ast.iter_child_nodes(node):
        is_scope = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if isinstance(child, ast.Raise) and isinstance(child.exc, ast.Call) and ast.unparse(child.exc.func) in kinds:
            yield name
        yield from find_raises(child, f"{name}.{child.name}" if is_scope else name, kinds)


@pytest.fixture(scope="module")
def raises() -> list[str]:
    trees = {
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): ast.parse(file.read_text())
        for file in FILES
    }
    kinds = find_kinds(trees)
    return [place for module, tree in trees.items() for place in find_raises(tree, module, kinds)]


def test_every_error_has_a_code_and_every_prefix_an_error(raises):
    """A user would look up the code of plug-ins for an error of ours, or a function that was renamed lost its code."""
    prefixes = [prefix for entry in read_errors().values() for prefix in entry["from"]]
    assert len(prefixes) == len(set(prefixes)) and len(raises) > 900
    assert [place for place in raises if not any(f"{place}.".startswith(f"{prefix}.") for prefix in prefixes)] == []
    other = {"vlrl.registry.lacking"}  # of a missing module, which main() reports
    assert {p for p in prefixes if not any(f"{place}.".startswith(f"{p}.") for place in raises)} == other
    assert {find_code_of(place) for place in raises} == set(read_errors())


def test_the_site_has_an_entry_for_every_code_and_no_other():
    """A reader of the site would not find the code that the terminal shows; a link in an entry would lead nowhere."""
    sys.path.insert(0, str(ROOT / "docs" / "reference"))
    try:
        page = importlib.import_module("generate").pages()["reference/errors.md"]
    finally:
        sys.path.pop(0)
    assert re.findall(r"^## (VL\d+)$", page, re.MULTILINE) == list(read_errors())
    for entry in read_errors().values():
        for link in re.findall(r"\]\((.*?)\)", entry["means"] + entry["remedy"]):
            assert (ROOT / "docs" / link).is_file() or link.startswith("reference/methods/"), link


def test_every_command_that_an_entry_names_is_one(capsys):
    """The remedy would be a command that is refused."""
    texts = "\n".join(entry["means"] + entry["remedy"] for entry in read_errors().values())
    names = set(re.findall(r"`vlrl ([a-z][a-z-]*)", texts))
    assert len(names) > 10
    for name in names:
        with pytest.raises(SystemExit, match="0"):
            main([name, "--help"])
    keys = set(re.findall(r"`((?:data|train|policy)\.[a-z_]+)", texts))
    for key in keys:
        assert main(["list", "--search", key]) == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["trian"], "VL101"),
        (["train", "gui_grounding", "--speed"], "VL101"),
        (["train", "configs/none.yaml"], "VL102"),
        (["train", "gui_grounding", "train.lrr=1"], "VL103"),
        (["train", "gui_grounding", "train.lr=many"], "VL103"),
        (["train", "gui_grounding", "advantages=[none]"], "VL104"),
        (["train", "gui_grounding", "task.name=none.py:Task"], "VL106"),
        (["train", "gui_grounding", "train.group_size=1"], "VL107"),
        (["train", "gui_grounding", "data.train=none.jsonl"], "VL201"),
        (["train", "gui_grounding", "policy.model=none/"], "VL301"),
        (["train", "--resume", "none"], "VL403"),
        (["view", "none"], "VL410"),
        (["trial", "none.yaml"], "VL102"),
    ],
)
def test_the_code_of_a_mistake(arguments, code, tmp_path, monkeypatch, capsys):
    """The code behind the message would be another subject's."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):  # as argparse ends
        sys.exit(main(arguments))
    assert capsys.readouterr().err.splitlines()[-1].endswith(f" [{code}]")


def test_a_cause_counts_before_what_names_its_place():
    """`recipe a: train.lrr: unknown key` is of the key, not of the comparison."""
    with pytest.raises(UserError) as inner:
        make_as(Config, {"train": {"lrr": 1}}, [], "a.yaml")

    def compare() -> None:
        try:
            raise inner.value
        except UserError as error:
            raise UserError(f"compare.yaml: {error}") from None

    with pytest.raises(UserError) as outer:
        compare()
    assert find_code(outer.value) == find_code(inner.value) == "VL103"
    with pytest.raises(UserError) as own:
        exec("from vlrl.types import UserError\nraise UserError('mine')", {"__name__": "mine"})
    assert find_code(own.value) == "VL106"


def test_an_entry_is_explained(capsys):
    """Who types the code would be told less than the site says."""
    assert main(["explain", "vl303"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("VL303: memory ") and "vlrl plan" in said
    assert main(["explain"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(read_errors())
    assert main(["explain", "VL333"]) == 2
    assert "unknown code 'VL333'" in capsys.readouterr().err
    assert main(["explain", "VL109"]) == 0
    assert "coming from (docs/coming_from.md)" in capsys.readouterr().out
