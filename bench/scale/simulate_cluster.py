"""What 8, 64 and 1,024 GPUs would do: steps of a cluster, simulated from counted FLOPs and bytes.

    python bench/scale.py simulate_cluster --figure docs/scale_cluster.png         # a Markdown table for each job
    python bench/scale.py simulate_cluster --jobs robot --publish disk_each --steps 20
    python bench/scale.py simulate_cluster --jobs reasoning --lengths lengths.jsonl

Nothing here ran on such a cluster. docs/scale.md says what is counted, measured, published, and assumed.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import cluster_table
import numpy as np
from cluster_layout import WAYS, Asked, Layout, apart, asked, made, turns
from cluster_model import JOBS, PEAK, SIZES, Job, Rates, flops
from cluster_queue import Trace, simulate

STALENESS = (0, 1, 2, 4)
WARM = 5  # steps that are left out: weights do not limit them yet
LETTERS = 4  # of a token, where a row has only text (vlrl/tools/memory_planner.py)


@dataclass(frozen=True)
class Row:
    """One size on so many GPUs. A step's seconds: `turns`, all GPUs write and then learn; `steps`, by staleness, apart.

    lost: share of the time that goes without stragglers, publication, simulators: in turns, apart at a staleness of 1.
    """

    job: str
    size: str
    gpus: int
    batch: int
    trained: str
    writing: int
    learning: int
    turns: float
    steps: dict[int, float]
    busy: float
    peak: float
    lost: dict[str, tuple[float, float]]


def drawn(job: Job, shape: tuple[int, int], seed: int, given: np.ndarray | None = None) -> np.ndarray:
    """Lengths of episodes, of a mean of about 1: lognormal and cut at `job.most`, or drawn from given ones."""
    random = np.random.default_rng(seed)
    if given is not None:
        return random.choice(given / given.mean(), shape)
    return np.minimum(random.lognormal(-(job.spread**2) / 2, job.spread, shape), job.most)


def read(file: Path) -> np.ndarray:
    """Lengths: a number a line, or rows of a run's rollouts (`completion`, at 4 letters a token)."""
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    lengths = [len(row["completion"]) / LETTERS if isinstance(row, dict) else float(row) for row in rows]
    if not lengths or min(lengths) < 0 or not max(lengths):
        raise SystemExit(f"--lengths: {file} has no lengths: write a number a line, or name a file of rollouts")
    return np.array(lengths)


def row(what: Asked, name: str, lengths: np.ndarray, failures: float = 0.0) -> Row | None:
    """None where writing and learning do not fit beside each other."""
    sync, split = turns(what), apart(what)
    if split is None:
        return None
    steps = {s: played(split, s, lengths, failures=failures) for s in STALENESS}
    whole = played(sync, 0, lengths, failures=failures).step(WARM)
    pair = (without(sync, 0, lengths, whole), without(split, 1, lengths, steps[1].step(WARM)))
    return Row(
        name, what.size, what.gpus, what.batch, "LoRA" if what.lora else "all", split.writing, split.learning,
        whole, {s: trace.step(WARM) for s, trace in steps.items()},
        busy(split, steps[1]), of_peak(what, steps[1].step(WARM)),
        {cause: (pair[0][cause], pair[1][cause]) for cause in pair[0]},
    )  # fmt: skip


def played(layout: Layout, staleness: int, lengths: np.ndarray, **changes: float) -> Trace:
    return simulate(layout.setup(staleness, **changes), layout.played * lengths)


def without(layout: Layout, staleness: int, lengths: np.ndarray, whole: float) -> dict[str, float]:
    """Share of a step's seconds (`whole`) that would go if each cause of loss were gone, with the same split."""
    even, job = np.full_like(lengths, lengths.mean()), layout.asked.job
    left = {
        "stragglers": played(layout, staleness, even).step(WARM),
        "publication": played(layout, staleness, lengths, publish=0.0, pause=0.0).step(WARM),
        "simulators": whole,
    }
    if job.simulator:
        free = made(replace(layout.asked, job=replace(job, simulator=0.0)), layout.learning)
        left["simulators"] = played(free, staleness, lengths).step(WARM)
    return {cause: 1 - seconds / whole for cause, seconds in left.items()}


def busy(layout: Layout, trace: Trace) -> float:
    """Share of all GPUs' time in which they write or learn: a place that waits for its simulator does not write."""
    writing = float(trace.busy(WARM).sum()) * layout.writes / layout.played
    learning = layout.learn / trace.step(WARM)
    return (layout.writing * writing + layout.learning * learning) / layout.asked.gpus


def of_peak(what: Asked, seconds: float) -> float:
    """Share of all GPUs' peak, with what is scored anew and recomputed."""
    work = what.batch * sum(flops(what.size, what.job, what.lora))
    return work / (PEAK * what.gpus * seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=["reasoning", "robot"])
    parser.add_argument("--gpus", nargs="+", type=int, default=[8, 64, 1024])
    parser.add_argument("--publish", choices=WAYS, default="network", help="the way of weights when apart")
    parser.add_argument("--batch", type=int, default=8192, help="episodes of a step, at most")
    parser.add_argument("--cores", type=int, default=Rates.cores, help="simulators of a node, a core each")
    parser.add_argument("--mfu", type=float, default=Rates.mfu)
    parser.add_argument("--failures", type=float, default=0.0, help="of a node in an hour; 600 s until it is back")
    parser.add_argument("--lengths", type=Path, metavar="FILE", help="measured lengths of episodes")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--figure", type=Path, metavar="FILE")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.steps < WARM + max(STALENESS) + 1:
        parser.error(f"--steps: {options.steps} are too few: the first {WARM} are left out, the last {max(STALENESS)}")
    rates = Rates(cores=options.cores, mfu=options.mfu)
    given, rows = read(options.lengths) if options.lengths else None, []
    for name in options.jobs:
        for gpus in options.gpus:
            for size in SIZES:
                what = asked(size, JOBS[name], gpus, rates, options.publish, options.batch)
                lengths = drawn(what.job, (options.steps, what.batch), options.seed, given)
                if (found := row(what, name, lengths, options.failures / 3600)) is not None:
                    rows.append(found)
    print(cluster_table.text(rows))
    if options.figure:
        cluster_table.draw(rows, options.figure)
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in rows], indent=2) + "\n")


if __name__ == "__main__":
    main()
