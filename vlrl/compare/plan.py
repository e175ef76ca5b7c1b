"""What a comparison would run, said before anything does. Loads no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vlrl.compare import table
from vlrl.compare.arms import Arm, arms_of
from vlrl.compare.config import Comparison, load


@dataclass(frozen=True)
class Plan:
    """lines: what is equal and what is not, see `table.facts`."""

    comparison: Comparison
    arms: list[Arm]
    lines: list[dict[str, Any]]

    def text(self) -> str:
        """The lines, and how many runs there will be."""
        seeds = self.comparison.seeds
        runs = len(self.arms) * seeds.each
        more = f", up to {runs * seeds.looks} while differences are open" if seeds.looks > 1 else ""
        pairs = len(self.comparison.compared)
        return f"{table.text(self.lines)}\n{runs} runs of {len(self.arms)} recipes{more}; {pairs} pairs are tested"


def plan(path: str, changes: Sequence[str] = ()) -> Plan:
    """The plan of a comparison's file.

    Raises:
        UserError: a mistake in a file, or what cannot be made equal.
    """
    comparison = load(path, changes)
    arms = arms_of(comparison)
    return Plan(comparison, arms, table.facts(arms, comparison.budget.passes is not None))
