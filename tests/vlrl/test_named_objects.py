"""Objects named as `module:name`: only those of the right shape are accepted, before any is called."""

from __future__ import annotations

import pytest

from vlrl.cli import main
from vlrl.plugins import SHAPES, load_plugin
from vlrl.registry import HOMES, find
from vlrl.types import UserError

OWN = """
from vlrl.methods import method

class Plain:
    def __init__(self, *, heat: float = 1.0):
        raise RuntimeError("made before it was checked")

def plain(*anything):
    raise RuntimeError("called before it was checked")

@method
def bare(now, batch):
    return -batch.advantage * now.logprobs

@method()
def empty(now, batch):
    return -batch.advantage * now.logprobs
"""
FOREIGN = ("os:system", "builtins:eval", "subprocess:run", "json:JSONDecoder", "sys:path")
OPTIONS = {
    "losses": "losses=[{}]", "advantages": "advantages=[{}]", "shaping": "shaping=[{}]", "weighing": "weighing={}",
    "sampler": "sampler={}", "rollouts": "rollouts={}", "process": "process=[{}]", "replay": "replay=[{}]",
    "hooks": "hooks=[{}]", "task": "task={}", "engine": "policy.engine={}",
    "robot": "task={{name: manipulation, robot: {}}}", "TRL reward": "process=[{{name: trl, rewards: [{}]}}]",
    "judges": "process=[{{name: grm, judge: {}}}]",
}  # fmt: skip


@pytest.fixture(autouse=True)
def own_module(tmp_path, monkeypatch):
    """A user's module on the Python path."""
    (tmp_path / "own_objects.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("name", ["os:system", "builtins:eval", "subprocess:run"])
def test_show_refuses_objects_of_python_itself(kind, name, capsys):
    """A config from the internet would run a command of its author's."""
    assert main(["show", "gui_grounding", OPTIONS[kind].format(f"'{name}'")]) != 0
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert name in line and "docs/" in line


@pytest.mark.parametrize("kind", [*HOMES, *SHAPES])
@pytest.mark.parametrize("name", [*FOREIGN, "own_objects:Plain", "own_objects:missing", "tasks.base:Split"])
def test_every_kind_refuses_another_shape(kind, name):
    """A run would fail with a traceback after minutes of loading, or call what must not be called."""
    with pytest.raises(UserError) as refused:
        find(kind, name)
    assert name in str(refused.value) and "\n" not in str(refused.value)


def test_a_method_of_another_kind_is_refused():
    """A task or an advantage named as a loss would fail at the first update."""
    for name in ("tasks.jigsaw:Jigsaw", "vlrl.advantages.mssr:BetaTracker", "own_objects:plain"):
        with pytest.raises(UserError, match=r"@vlrl\.methods\.method|not 'losses'"):
            find("losses", name)
    with pytest.raises(UserError, match="a class with the methods samples, score"):
        find("task", "own_objects:plain")


def test_the_decorator_is_written_bare_or_with_arguments():
    """A user's first method would be refused for want of a pair of brackets."""
    assert find("losses", "own_objects:bare") and find("losses", "own_objects:empty")


@pytest.mark.parametrize("command", [["check-task"], ["score"]])
def test_commands_refuse_them_too(command, tmp_path, capsys):
    """`vlrl score` would call what a file's author names with what the file says."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"inputs": {"command": "touch called"}}\n')
    assert main([*command, "os:system", *([str(rows)] if command == ["score"] else [])]) != 0
    assert "'os:system' is a builtin_function_or_method" in capsys.readouterr().err


def test_a_robot_of_another_shape_is_refused():
    """An arm would be opened by a class that cannot move it."""
    for kind in ("robot", "body"):
        with pytest.raises(UserError, match="needs a class with the methods"):
            load_plugin(kind, "own_objects:Plain", "robot")
