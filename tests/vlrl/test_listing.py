"""`vlrl list`: everything that can be named, one aligned line each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from vlrl import registry
from vlrl.config import described
from vlrl.policies import FAMILIES, arsq, discrete, encoded, flow, lerobot, residual, robot_common
from vlrl.policies.flow import STEERED_FAMILY
from vlrl.policies.processor import CODECS
from vlrl.tools.option_help import KINDS, listing, search
from vlrl.types import UserError

NAMES = {
    "tasks": lambda: [*registry.task_names(), *registry.NEED_OPTIONS],
    "rewards": registry.rewards,
    "methods": lambda: [name for home in registry.HOMES for name in registry.names(home)],
    "policies": lambda: FAMILIES,
    "robots": registry.robots,
    "configs": lambda: [name for name, _ in described()],
    "keys": lambda: KEYS,
}
KEYS = {"out", "train.lr", "policy.lora.rank", "eval.every_steps", "log.keep_checkpoints", "data.on_bad_row"}


@pytest.mark.parametrize("kind", KINDS)
def test_one_kind_has_a_title_and_a_line_for_each(kind):
    """A name that is not listed is not found by users."""
    title, *lines = listing(kind).splitlines()
    rows = [line for line in lines if line.startswith("  ")]
    assert title == f"{kind.upper()} ({len(rows)})"
    assert all(line.strip() and line == line.rstrip() for line in lines)
    expected = NAMES[kind]()
    assert len(rows) == len(expected) or kind == "keys"
    assert all(any(name in line for line in rows) for name in expected)


def test_the_bare_command_is_one_line_for_each_kind():
    """Five hundred lines are no answer to what there is."""
    lines = listing(width=80).splitlines()
    assert [line.split()[0] for line in lines[: len(KINDS)]] == list(KINDS)
    assert all(len(line) <= 80 for line in lines[: len(KINDS)]) and len(lines) == len(KINDS) + 2
    assert "advantages " in lines[2] and "gui" in lines[1]


def test_a_group_of_a_kind_is_listed_alone():
    """Who wants a loss reads through a hundred other methods."""
    title, group, *rows = listing("losses").splitlines()
    assert (title, group.strip()) == (f"METHODS ({len(rows)})", "losses")
    assert [row.split()[0] for row in rows] == list(registry.names("losses"))


def test_a_method_says_whether_it_is_its_papers():
    """Who compares with a paper would take a reconstruction for the published method."""
    rows = {row.split()[0]: row for row in listing("losses").splitlines()[2:]}
    assert "[published: SAPO" in rows["sapo"] and "[partly ours: GEPO" in rows["gepo"]
    assert rows["sft"].count("[published") == 1 and "ours: silent" not in listing("advantages")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("num_generations", "train.group_size"),  # TRL's
        ("clip-ratio high", "losses"),  # verl's, in another spelling
        ("rloo", "leave_one_out"),  # a paper's
        ("reinforce", "likelihood"),  # a synonym
        ("robosuite", "robosuite"),
        ("2402.03300", "recipes/grpo"),
        ("pages browser", "gui_agent"),
    ],
)
def test_a_search_finds_by_the_words_of_others(words, named):
    """Who comes from TRL, verl or a paper knows the thing and not our name of it."""
    lines = search(words).splitlines()
    assert any(line.split()[0].startswith(named) for line in lines if line.startswith("  "))
    assert len(lines) < 40


@pytest.mark.parametrize("words", ["gui_gruonding", "nothingatall"])
def test_a_search_without_a_hit_says_so(words):
    with pytest.raises(UserError, match="nothing has.*" + ("did you mean 'gui_grounding'" if "gui" in words else "")):
        search(words)


def test_columns_are_aligned():
    """Long lists could not be read."""
    for kind in ("tasks", "policies"):
        rows = listing(kind).splitlines()[1:]
        width = max(len(line.split("  ")[1]) for line in rows)
        assert all(line[2 + width : 4 + width] == "  " and line[4 + width] != " " for line in rows)


def test_methods_tell_kind_needs_and_source():
    """A user could not see why a recipe is refused, or which paper it follows."""
    line = next(line for line in listing("advantages").splitlines() if line.split()[0] == "grpo")
    assert line.split()[:3] == ["grpo", "needs", "group"] and "2402.03300" in line
    assert "needs reference" in next(line for line in listing("losses").splitlines() if line.split()[0] == "kl")


def test_an_unknown_kind_gets_the_nearest_right_one():
    """`vlrl list task` must lead on."""
    with pytest.raises(UserError, match="did you mean 'tasks'"):
        listing("task")
    with pytest.raises(UserError, match="did you mean 'losses'"):
        listing("losess")


def test_listed_families_are_those_that_can_be_loaded():
    """The list would promise a model that no codec knows."""
    own = (
        discrete.FAMILY,
        robot_common.FAMILY,
        arsq.FAMILY,
        residual.FAMILY,
        flow.FAMILY,
        residual.CORRECTED_FAMILY,
        STEERED_FAMILY,
        flow.GUIDED_FAMILY,
        encoded.FAMILY,
    )
    assert set(FAMILIES) == {*CODECS, *own, "lerobot", "any other"}
    named = FAMILIES["lerobot"].lower().replace("pi0.5", "pi05")
    assert all(kind in named for kind in lerobot.TYPES)


def test_listing_loads_no_torch():
    """A list would take seconds to appear."""
    code = (
        "import sys; from vlrl.cli import main; main(['list', 'tasks']); print('torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert (done.returncode, done.stderr, done.stdout) == (0, "False\n", listing("tasks") + "\n")
