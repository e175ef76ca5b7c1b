"""What `result.json` holds of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vlrl import __version__
from vlrl.compare.adastop import AdaStop
from vlrl.compare.arms import Arm
from vlrl.compare.config import Comparison
from vlrl.compare.curves import Curves
from vlrl.compare.sampled import pass_at
from vlrl.compare.summary import arm_summary, courses, over_seeds, reached, targets
from vlrl.compare.table import spent
from vlrl.log import commit


def result_of(
    comparison: Comparison, arms: Sequence[Arm], lines: Sequence[Mapping[str, Any]], test: AdaStop,
    runs: Mapping[str, Sequence[Curves]], start: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """Everything, as JSON can hold it.

    Args:
        lines: of `table.facts`.
        runs: arm -> its finished seeds.
        start: answers of the untrained policy, see `sampled`.
    """
    ks = comparison.pass_at.k
    measured = {arm.name: arm_summary(runs[arm.name], ks) for arm in arms}
    return {
        "task": arms[0].config.task.name, "arms": [
            {"name": arm.name, "as_released": arm.recipe.as_released, **measured[arm.name]} for arm in arms
        ],
        "start": {str(k): {**over_seeds([pass_at(start["correct"], start["n"], k)])} for k in ks}
        | {"entropy": start["entropy"]},
        "equal": list(lines),
        "test": {"method": "AdaStop", "level": test.level, "looks": test.done, "most_looks": test.looks,
                 "each": test.each, "undecided": test.arms != [], "decisions": decisions(test)},
        "courses": {arm.name: courses(runs[arm.name]) for arm in arms},
        "reach": [
            {"label": label, "accuracy": value, "arms": {arm.name: reached(runs[arm.name], value) for arm in arms}}
            for label, value in targets(comparison.reach, measured)
        ],
        "notes": notes(arms, measured), "cpu_s": sum(run.summary["cpu_s"] + run.answers["cpu_s"]
                                                     for each in runs.values() for run in each),
        "versions": {"vlrl": __version__, "commit": commit()}, "config": comparison.model_dump(mode="json"),
    }  # fmt: skip


def decisions(test: AdaStop) -> list[dict[str, Any]]:
    """One line for each pair."""
    found = [test.decisions[pair] for pair in test.pairs if pair in test.decisions]
    return [{"a": d.pair[0], "b": d.pair[1], "verdict": d.verdict, "difference": d.difference, "p": d.p,
             "look": d.look} for d in found]  # fmt: skip


def notes(arms: Sequence[Arm], measured: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Where runs did not spend what was planned."""
    said = []
    for arm in arms:
        planned, counted = spent(arm), measured[arm.name]["counted"]["value"]
        if round(counted) != planned:
            said.append(f"{arm.name}: {counted:,.0f} rollouts were played, {planned:,} planned")
        skipped = measured[arm.name]["skipped"]["value"]
        if skipped:
            said.append(f"{arm.name}: {skipped:g} updates a run were skipped because they were not finite")
    return said
