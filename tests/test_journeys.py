"""What README and docs promise to a newcomer, typed in an empty folder without a network, arrives."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow
_spec = importlib.util.spec_from_file_location("journeys", ROOT / "scripts" / "journeys.py")
journeys = sys.modules["journeys"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(journeys)


@pytest.mark.parametrize("name", journeys.JOURNEYS)
def test_a_journey_arrives(name):
    """A newcomer's first hour would end at a command that the documentation shows."""
    assert not journeys.take(journeys.JOURNEYS[name])


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"commands": ("vlrl teleport",)}, "does not show: vlrl teleport"),
        ({"commands": ("$ vlrl teleport",)}, "exit code 2"),
        ({"commands": ("$ true",), "leaves": ("report.html",)}, "misses"),
        ({"commands": ("$ vlrl --version",), "refused_s": 2.0}, "exit code 0"),
        ({"commands": ("$ printf 'grpo\\na traceback\\n' >&2; exit 2",), "refused_s": 2.0}, "a traceback"),
        ({"commands": ("$ echo grpo >&2; exit 2",), "refused_s": 0.0}, "s of 0.0, and said: grpo"),
    ],
)
def test_a_journey_that_does_not_arrive_says_why(change, problem):
    """A journey that cannot fail would show nothing."""
    assert problem in journeys.take(replace(journeys.JOURNEYS["install"], **change))
