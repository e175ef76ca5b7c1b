"""Objects named as `module:name`: only those of the right shape are accepted, before any is called."""

from __future__ import annotations

import sys

import pytest

from robot.registry import robots
from robot.types import Robot
from vlrl.cli import main
from vlrl.methods import BASES, CALLS, contract_problem
from vlrl.plugins import SHAPES, base_problem, load_object, load_plugin
from vlrl.registry import HOMES, find, names
from vlrl.types import BaseTask, UserError

OWN = """
from vlrl.methods import method

class Plain:
    def __init__(self, *, heat: float = 1.0):
        raise RuntimeError("made before it was checked")

class Cart:
    def reset(self, seed): ...
    def get_observation(self): ...
    def send_action(self, control): ...
    def status(self): ...
    def close(self): ...
    def exprt(self): ...

def plain(*anything):
    raise RuntimeError("called before it was checked")

@method
def bare(now, batch):
    return -batch.advantage * now.logprobs

@method()
def empty(now, batch):
    return -batch.advantage * now.logprobs
"""
KINDS = """
from vlrl.methods import Callback, Estimator, Sampler, method

@method
def estimator(rollouts, advantage, *, scale: float = 1.0): ...
@method
def renamed(new, rows): ...
@method
def anything(*values): ...
@method
def too_few(now): ...
@method
def too_many(now, batch, mask): ...
@method
def rewarded(episodes, step): ...

@method
class Remembers(Estimator):
    def __init__(self, *, decay: float = 0.9): ...
    def __call__(self, rollouts, advantage): ...

@method
class Draws(Sampler):
    def __init__(self, n, seed): ...
    positions = ()
    def draw(self, count): ...

@method
class DrawsNothing(Sampler):
    positions = ()

@method
class Watches(Sampler):
    positions = ()
    def draw(self, count): ...
    def observes(self, episodes): ...

@method
class Alone:
    positions = ()
    def draw(self, count): ...
    def load_state(self, state): ...

@method
class Ends(Callback):
    def on_step_ends(self, step, row): ...
"""
FOREIGN = ("os:system", "builtins:eval", "subprocess:run", "json:JSONDecoder", "sys:path")
OPTIONS = {
    "losses": "losses=[{}]", "advantages": "advantages=[{}]", "reward_shaping": "reward_shaping=[{}]",
    "loss_aggregation": "loss_aggregation={}",
    "sampler": "sampler={}", "rollout_strategy": "rollout_strategy={}", "process_rewards": "process_rewards=[{}]",
    "replay_mixing": "replay_mixing=[{}]",
    "callbacks": "callbacks=[{}]", "task": "task={}", "engine": "policy.engine={}",
    "robot": "task={{name: manipulation, robot: {}}}", "TRL reward": "process_rewards=[{{name: trl, rewards: [{}]}}]",
    "judges": "process_rewards=[{{name: grm, judge: {}}}]",
}  # fmt: skip


@pytest.fixture(autouse=True)
def own_module(tmp_path, monkeypatch):
    """A user's module on the Python path."""
    (tmp_path / "own_objects.py").write_text(OWN)
    (tmp_path / "own_kinds.py").write_text(KINDS)
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
    for name in ("tasks.jigsaw:Jigsaw", "vlrl.algorithms.single_rollout:BetaTracker", "own_objects:plain"):
        with pytest.raises(UserError, match=r"@vlrl\.methods\.method|not 'losses'"):
            find("losses", name)
    with pytest.raises(UserError, match="a class with the methods samples, score"):
        find("task", "own_objects:plain")


@pytest.mark.parametrize(
    ("key", "name", "problem"),
    [
        ("losses.0", "estimator", "it takes (rollouts, advantage), as a method of advantages; losses calls it with"),
        ("losses.0", "rewarded", "it takes (episodes, step), as a method of process_rewards"),
        ("losses.0", "too_few", "it takes (now); losses calls it with (now, batch)"),
        ("losses.0", "too_many", "it takes (now, batch, mask); losses"),
        ("losses.0", "Remembers", "as a method of advantages"),
        ("losses.0", "Draws", "losses needs a function or a class with __call__(now, batch)"),
        ("advantages.0", "renamed", None),
        ("advantages.0", "anything", None),
        ("advantages.0", "Remembers", None),
        ("advantages.0", "rewarded", "it takes (episodes, step), as a method of process_rewards"),
        ("replay_mixing.0", "rewarded", "as a method of process_rewards"),
        ("loss_aggregation", "estimator", "loss_aggregation calls it with (mask)"),
        ("sampler", "Draws", None),
        ("sampler", "Remembers", "must extend vlrl.methods.Sampler"),
        ("sampler", "DrawsNothing", "lacks draw of vlrl.methods.Sampler"),
        ("sampler", "Watches", "'observes' looks like 'observe', a hook of vlrl.methods.Sampler: rename it"),
        ("sampler", "Alone", "must extend vlrl.methods.Sampler ('load_state' looks like 'load_state_dict', one of its"),
        ("callbacks.0", "estimator", "callbacks needs a class that extends vlrl.methods.Callback"),
        ("callbacks.0", "Draws", "must extend vlrl.methods.Callback"),
        ("callbacks.0", "Ends", "'on_step_ends' looks like 'on_step_end', a hook of vlrl.methods.Callback"),
    ],
)  # fmt: skip
def test_show_refuses_a_users_method_of_another_kind(key, name, problem, capsys):
    """An estimator named as a loss passed `vlrl show`, and failed with a traceback once the model was loaded."""
    kind, _, index = key.partition(".")
    change = f"{kind}=[own_kinds:{name}]" if index else f"{kind}=own_kinds:{name}"
    code, said = main(["show", "gui_grounding", change]), capsys.readouterr().err.strip()
    if problem is None:
        assert (code, said) == (0, "")
    else:
        assert code != 0 and "\n" not in said
        assert f"{key}.name: 'own_kinds:{name}': " in said and problem in said


@pytest.mark.parametrize("kind", HOMES)
def test_the_built_in_methods_keep_their_contract(kind):
    assert kind in {*CALLS, *BASES, "judge"}
    problems = {name: contract_problem(kind, target) for name, target in names(kind).items()}
    assert {name: problem for name, problem in problems.items() if problem} == {}


def test_the_built_in_classes_misspell_no_hook():
    """A bundled task would be refused by the check that is meant for users' own."""
    for name, task in names("task").items():
        assert (name, base_problem(task, BaseTask)) == (name, None)
    for entry in robots().values():
        if "libero" not in entry.target.lower():
            assert (entry.target, base_problem(load_object(entry.target, "robot"), Robot)) == (entry.target, None)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("class Mine:\n    def samples(self, split): ...\n    def score(self, episode): ...\n",
         "must extend vlrl.types.BaseTask"),
        ("class Mine(Task):\n    def samples(self, split): ...\n    def score(self, e): ...\n"
         "    def metric(self, episodes): ...\n", "'metric' looks like 'metrics', a hook of vlrl.types.BaseTask"),
        ("class Mine(Task):\n    def samples(self, split): ...\n", "lacks score of vlrl.types.BaseTask"),
    ],
)  # fmt: skip
def test_a_users_task_extends_the_base_and_spells_its_hooks(body, problem, tmp_path, capsys):
    """Its metrics would be missing from the report, and nobody would say why."""
    (tmp_path / "own_task.py").write_text(f"from tasks.base import Task\n\n{body}")
    sys.modules.pop("own_task", None)
    assert main(["show", "gui_grounding", "task=own_task:Mine"]) != 0
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "task.name: 'own_task:Mine': " in line and problem in line and "docs/guides/own_task.md" in line


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
    with pytest.raises(UserError, match=r"must extend robot\.types\.Robot \('exprt' looks like 'expert', one of its"):
        load_plugin("robot", "own_objects:Cart", "robot")
