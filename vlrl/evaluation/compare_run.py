"""`vlrl compare`: train, test, and go on while a difference is open."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from vlrl.config import dump
from vlrl.decoders import load_json
from vlrl.evaluation import compare_report
from vlrl.evaluation.compare import ComparisonPlan
from vlrl.evaluation.compare_report import curves_read, result_of, text_text
from vlrl.evaluation.compare_runs import Crew, run_of, sampled
from vlrl.evaluation.processes import Processes
from vlrl.evaluation.stats import AdaStop
from vlrl.io import hold_folder
from vlrl.metrics import write_text


def compare(plan: ComparisonPlan) -> dict[str, Any]:
    """Carries a plan out and returns the result of the last look; what is already trained is not trained again.

    After every look `out` holds result.json, report.html and curves.png.

    Raises:
        UserError: a run failed, earlier runs in `out` were made with other settings, or another comparison is there.
    """
    with hold_folder(Path(plan.comparison.out)) as held:
        return _compare(plan, Processes([held]))


def _compare(plan: ComparisonPlan, processes: Processes) -> dict[str, Any]:
    seeds = plan.comparison.seeds
    test = AdaStop(plan.comparison.compared, seeds.each, seeds.looks, seeds.level)
    counts, result = {arm.name: 0 for arm in plan.arms}, {}
    wanted = list(counts)
    while wanted:
        counts |= {name: counts[name] + seeds.each for name in wanted}
        result = _look(plan, processes, test, counts)
        wanted = test.arms
    print(f"\n{text_text(result)}\n\n{Path(plan.comparison.out) / 'report.html'}")
    return result


def _look(plan: ComparisonPlan, processes: Processes, test: AdaStop, counts: dict[str, int]) -> dict[str, Any]:
    """Trains so many seeds of each arm as `counts` says, looks at them, reports."""
    out = Path(plan.comparison.out)
    crew = Crew(plan.comparison.jobs, plan.comparison.pass_at.samples, processes, _tell)
    runs = [run_of(arm, seed, out) for seed in range(max(counts.values())) for arm in plan.arms
            if seed < counts[arm.name]]  # fmt: skip
    crew.finish(runs)
    start = _start(crew, plan, out)
    read = {arm.name: [curves_read(run) for run in runs if run.arm is arm] for arm in plan.arms}
    test.look({name: [run.summary["after"]["value"] for run in of] for name, of in read.items()})
    result = result_of(plan.comparison, plan.arms, plan.lines, test, read, start)
    missing = compare_report.draw(result, out / "curves.png")
    result["notes"] += [missing] if missing else []
    write_text(out / "result.json", json.dumps(result, indent=1, allow_nan=False) + "\n")
    write_text(out / "report.html", compare_report.page(result))
    return result


def _start(crew: Crew, plan: ComparisonPlan, out: Path) -> dict[str, Any]:
    """Answers of the policy before any training, several to each held-out sample."""
    file, config, first = out / "start.json", out / "start.yaml", plan.arms[0].config
    if not sampled(file, crew.samples):
        write_text(config, dump(first.model_copy(update={"out": str(out / "start")})))
        crew.sample(config, first.policy.model, 0, file, out / "start.log")
    return load_json(file, finite=False)


def _tell(said: str) -> None:
    print(said, file=sys.stderr, flush=True)
