"""`vlrl list`: everything that can be named, one aligned line each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from vlrl import registry
from vlrl.config import described
from vlrl.policies import FAMILIES, arsq, discrete, flow, lerobot, residual, robot_common
from vlrl.policies.flow import STEERED_FAMILY
from vlrl.policies.processor import CODECS
from vlrl.tools.listing import KINDS, listing
from vlrl.types import UserError


@pytest.mark.parametrize("kind", KINDS)
def test_one_kind_has_a_title_and_a_line_for_each(kind):
    """A name that is not listed is not found by users."""
    title, *lines = listing(kind).splitlines()
    assert title == kind.upper()
    assert lines and all(line.startswith("  ") and line.strip() and line == line.rstrip() for line in lines)
    expected = {
        "tasks": [*registry.task_names(), *registry.MIXTURES],
        "rewards": registry.rewards(),
        "methods": [name for home in registry.HOMES for name in registry.names(home)],
        "policies": FAMILIES,
        "robots": registry.robots(),
        "configs": [name for name, _ in described()],
    }[kind]
    assert len(lines) == len(expected)
    assert all(any(name in line for line in lines) for name in expected)


def test_columns_are_aligned():
    """Long lists could not be read."""
    names = [*registry.task_names(), *FAMILIES]
    for kind in ("tasks", "policies"):
        lines = [line for line in listing(kind).splitlines() if any(line.strip().startswith(name) for name in names)]
        width = max(len(line.split("  ")[1]) for line in lines)
        assert all(line[2 + width : 4 + width] == "  " and line[4 + width] != " " for line in lines)


def test_methods_tell_kind_needs_and_source():
    """A user could not see why a recipe is refused, or which paper it follows."""
    text = listing("methods")
    line = next(line for line in text.splitlines() if line.split()[:2] == ["advantages", "grpo"])
    assert line.split()[:4] == ["advantages", "grpo", "needs", "group"]
    assert "2402.03300" in line
    assert "needs reference" in next(line for line in text.splitlines() if line.split()[:2] == ["losses", "kl"])


def test_all_kinds_are_listed_by_default():
    """The bare command is what people try first."""
    assert listing() == "\n\n".join(map(listing, KINDS))


def test_an_unknown_kind_gets_the_nearest_right_one():
    """`vlrl list task` must lead on."""
    with pytest.raises(UserError, match="did you mean 'tasks'"):
        listing("task")


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
    )
    assert set(FAMILIES) == {*CODECS, *own, "lerobot", "any other"}
    named = FAMILIES["lerobot"].lower().replace("pi0.5", "pi05")
    assert all(kind in named for kind in lerobot.TYPES)


def test_listing_loads_no_torch():
    """A list would take seconds to appear."""
    code = "import sys; from vlrl.cli import main; main(['list']); print('torch' in sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert (done.returncode, done.stderr, done.stdout) == (0, "False\n", listing() + "\n")
