"""RL methods for robot policies at equal environment ticks: a table, and their learning curves as a figure.

    python bench/learn.py vla --tasks push --figures docs [--methods grpo rlpd ...] [--seeds 3] [--jobs 2] [--dry-run]

Every run is the command line in its own process with one thread and one simulator. A finished run is not repeated, one
that was killed goes on. Runs of `vlrl train` are stopped at the first evaluation behind the budget. GRPO is the task's
own config: group-normalised advantages, no KL. Steps have 128 episodes as in the recipes (ResiP 96), on lift 32.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from vla_figure import draw, read
from vla_jobs import METHODS, OPTIONAL, ROOT, SCENES, TASKS, Job, job, made
from vla_table import table

from vlrl.metrics import write_text

NOTE = """
**{title}**, {budget:,} ticks, {n} held-out scenes. The clone that most start from: {value:.2f} [{low:.2f}, {high:.2f}].
Success at the budget is linear between the evaluations around it. CPU-s of training are those up to the budget without
evaluations; all of a run has both, and what was played behind the budget. Clones and residuals are not counted.

"""
VLRL = (sys.executable, "-m", "vlrl.cli")
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def passed(job: Job) -> bool:
    """Whether an evaluation stands at or behind the tick where the run is to stop."""
    if job.stop is None or not (job.folder / "config.yaml").exists():
        return False
    ticks = read(job.folder, job.chunk).ticks
    return bool(len(ticks)) and ticks[-1] >= job.stop


def over(job: Job) -> bool:
    return any((job.folder / name).exists() for name in ("summary.json", "config.json")) or passed(job)


def run(job: Job) -> bool:
    """Runs to the end, or goes on with what was killed -> whether that went well."""
    if over(job):
        return True
    begun, told, stopped = (job.folder / "config.yaml").exists(), job.folder.with_name(f"{job.folder.name}.log"), False
    command = (job.command[0], "--resume", str(job.folder)) if begun else job.command
    told.parent.mkdir(parents=True, exist_ok=True)
    with told.open("a") as file:
        process = subprocess.Popen([*VLRL, *command], cwd=ROOT, stdout=file, stderr=file, env=ENVIRONMENT)
    while process.poll() is None:
        if not stopped and passed(job):
            process.terminate()  # it ends its step and saves
            stopped = True
        time.sleep(1)
    if not over(job):
        print(f"{job.folder.name} failed: {told}", file=sys.stderr)
    return over(job)


def start_of(task: str, out: Path) -> dict[str, float]:
    """Held-out success of the policy that most methods start from."""
    file = out / f"{task}_start.json"
    if not file.exists():
        command = (
            "eval",
            f"configs/{TASKS[task].config}.yaml",
            "task.workers=1",
            f"eval.num_samples={SCENES}",
            "--json",
        )
        write_text(file, subprocess.check_output([*VLRL, *command], cwd=ROOT, env=ENVIRONMENT, text=True))
    return json.loads(file.read_text())


def tell(task: str, done: Mapping[str, Sequence[Job]], budget: int, out: Path, figures: Path | None) -> None:
    """Prints the table and draws the figure of a task."""
    text, runs = table(task, done, budget)
    start = start_of(task, out)
    print(NOTE.format(title=TASKS[task].title, budget=budget, **start) + text)
    if figures and runs:
        named = {METHODS[method]: courses for method, courses in runs.items()}
        draw(named, budget, TASKS[task].title, figures / f"vla_rl_{task}.png")


def options_of() -> argparse.Namespace:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    arguments.add_argument("--methods", nargs="+", choices=METHODS, default=[m for m in METHODS if m not in OPTIONAL])
    arguments.add_argument("--seeds", type=int, default=3)
    arguments.add_argument("--ticks", type=int, help="budget of each run; default: push 160000, lift 24000")
    arguments.add_argument("--jobs", type=int, default=2, help="runs at a time")
    arguments.add_argument("--out", type=Path, default=ROOT / "runs" / "vla")
    arguments.add_argument("--figures", type=Path, metavar="DIR", help="for vla_rl_TASK.png")
    arguments.add_argument("--dry-run", action="store_true", help="only print the commands")
    return arguments.parse_args()


def main() -> None:
    options = options_of()
    options.out = options.out.resolve()
    budgets = {task: options.ticks or TASKS[task].ticks for task in options.tasks}
    starts = [j for task in options.tasks for method in options.methods if (j := made(task, method, options.out))]
    jobs = {
        task: {m: [job(task, m, seed, budget, options.out) for seed in range(options.seeds)] for m in options.methods}
        for task, budget in budgets.items()
    }
    if options.dry_run:
        every = [*starts, *(j for methods in jobs.values() for each in methods.values() for j in each)]
        print("\n".join(f"vlrl {' '.join(map(_quoted, each.command))}" for each in every))
        return
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(run, starts))
        every = {j: pool.submit(run, j) for methods in jobs.values() for each in methods.values() for j in each}
    for task, methods in jobs.items():
        done = {method: [j for j in each if every[j].result()] for method, each in methods.items()}
        tell(task, done, budgets[task], options.out, options.figures)


def _quoted(argument: str) -> str:
    return f"'{argument}'" if " " in argument else argument


if __name__ == "__main__":
    main()
