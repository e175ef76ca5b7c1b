"""What detection rewards teach: the same start and budget under each, published and ours, and a figure.

    python bench/learn.py detection_study [--seeds 1] [--jobs 2] --figure docs/detection.png

Needs the start that configs/detection.yaml names. Every run is `vlrl train` in its own process with one thread; a run
that has finished is not repeated. Published rewards are as their code has them, faults included: train nothing on them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean

from rewards.boxes import average_precision
from rewards.detection import vision_r1_precision, vision_r1_recall
from rewards.parse import Object

ROOT = Path(__file__).parents[2]
Objects = Sequence[Object]
REFINED = "{0: [0.5, 0.75], 38: [0.75, 0.9]}"  # Vision-R1 refines its rules in the middle of the training
ARMS = {  # arm -> what it changes in configs/detection.yaml
    "AP, published": ("task.reward=bench.detection_study:ap",),
    "Vision-R1, published": ("task.reward=bench.detection_study:recall_precision", "task.thresholds=[0.5]"),
    "Vision-R1, published, progressive": (
        "task.reward=bench.detection_study:recall_precision", f"task.schedule={REFINED}",
    ),
    "odLength": ("task.reward=od_length",),
    "ours": (),
}  # fmt: skip
STEPS, EVERY = 75, 25  # of a run, and between evaluations
CURVES = {"f1": "F1 at IoU 0.5", "AP50": "AP at IoU 0.5", "boxes": "boxes a picture", "false_boxes": "false boxes"}


def ap(predicted: Objects, truths: Objects, thresholds: tuple[float, ...]) -> float:
    """VLM-R1's od_ap."""
    return average_precision(predicted, truths)


def recall_precision(predicted: Objects, truths: Objects, thresholds: tuple[float, ...]) -> float:
    """Vision-R1's: mean of recall and precision, the latter over matched pairs only; two thresholds are its bars.

    Where one list is empty the published code stops; here that is worth 0.
    """
    if not predicted or not truths:
        return float(not predicted and not truths)
    band = thresholds if len(thresholds) == 2 else None
    paired = vision_r1_precision(predicted, truths, band) * len(predicted) / min(len(predicted), len(truths))
    recall = vision_r1_recall(predicted, truths, thresholds[0], (0.5, 0.75) if band else None)
    return (recall + paired) / 2


def run(out: Path, arm: str, seed: int, more: Sequence[str]) -> list[dict]:
    """One training run -> its evaluations, in order."""
    folder = out / f"{arm.lower().replace(', ', '_').replace(' ', '_')}_{seed}"
    if not (folder / "summary.json").exists():
        budget = (f"train.steps={STEPS}", f"eval.every_steps={EVERY}", "eval.num_samples=256", "policy.max_tokens=96")
        changes = [*ARMS[arm], f"out={folder}", f"seed={seed}", *budget, "log.trackers=[]", *more]
        command = [sys.executable, "-m", "vlrl.cli", "train", "configs/detection.yaml", *changes]
        with (out / f"{folder.name}.log").open("w") as log:
            environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
            subprocess.run(command, cwd=ROOT, env=environment, stdout=log, stderr=log, check=True)
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [row for row in rows if "eval/f1" in row]


def draw(results: dict[str, list[list[dict]]], file: Path) -> None:
    """A panel for each of CURVES, a line for each arm (mean and range of its seeds)."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(1, len(CURVES), figsize=(11.5, 3.4), layout="constrained")
    styles = {arm: ("--" if "published" in arm else "-") for arm in ARMS}
    for axis, (key, title) in zip(axes, CURVES.items(), strict=True):
        for number, (arm, runs) in enumerate(results.items()):
            steps = [row["step"] for row in runs[0]]
            lines = [[row[f"eval/{key}"] for row in rows] for rows in runs]
            middle = [mean(values) for values in zip(*lines, strict=True)]
            axis.plot(steps, middle, styles[arm], color=f"C{number}", label=arm, linewidth=1.8)
            low, high = (list(map(pick, zip(*lines, strict=True))) for pick in (min, max))
            axis.fill_between(steps, low, high, color=f"C{number}", alpha=0.12, linewidth=0)
        axis.set_title(title, loc="left", weight="bold", fontsize=9.5)
        axis.set_xlabel("step")
        axis.grid(alpha=0.25)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(ARMS), frameon=False)
    figure.savefig(file, dpi=110, facecolor="white")
    plt.close(figure)


def table(results: dict[str, list[list[dict]]]) -> str:
    """A Markdown table of the last evaluations, means over the seeds, with the start above them."""
    keys = ("f1", "precision", "recall", "AP", "AP50", "boxes", "false_boxes")
    rows = [("start", [runs[0][:1][0] for runs in results.values()])]
    rows += [(arm, [evaluations[-1] for evaluations in runs]) for arm, runs in results.items()]
    head = f"| reward | {' | '.join(keys)} |\n| --- |{' --- |' * len(keys)}"
    lines = [
        f"| {name} | " + " | ".join(f"{mean(r[f'eval/{k}'] for r in r_):.3f}" for k in keys) + " |" for name, r_ in rows
    ]
    return "\n".join([head, *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one core each")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "detection_study")
    parser.add_argument("--figure", type=Path, help="where to draw the curves")
    parser.add_argument("changes", nargs="*", help="further key=value of every run")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(options.jobs) as pool:
        futures = {
            arm: [pool.submit(run, options.out, arm, seed, options.changes) for seed in range(options.seeds)]
            for arm in ARMS
        }
        results = {arm: [future.result() for future in listed] for arm, listed in futures.items()}
    print(table(results))
    if options.figure:
        draw(results, options.figure)


if __name__ == "__main__":
    main()
