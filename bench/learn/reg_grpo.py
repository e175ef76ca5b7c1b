"""Reg-GRPO beside GRPO: temporal grounding from one start, at equal rollouts, updates and learning rate, five seeds.

    python bench/learn.py reg_grpo [--seeds 5] [--jobs 2] [--arms 0 1 2]

Needs the start that configs/temporal_grounding.yaml names. Every run is `vlrl train` in a process with one thread; what
has finished is not repeated.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean, stdev

from tables import ROOT, format_interval, run

# Two passes over each step's rollouts: with one update a step Reg-GRPO is GRPO with another step size.
SAME = (
    "train.steps=150",
    "train.update_epochs=2",
    "train.lr_end=0.0",
    "loss_aggregation=sequence_mean",
    "eval.every_steps=50",
)
EXPLORE = "{name: entropy, coef: 0.02}"
GRPO = f"losses=[{{name: ppo_clip, low: 0.2, high: 0.2}}, {EXPLORE}]"
REGRESSED = f"losses=[{{name: reg_grpo, eps: 0.1, scale: 1.0}}, {EXPLORE}]"
ARMS = {
    "GRPO": (GRPO,),
    "Reg-GRPO, eps 0.1, scale 1": (REGRESSED,),
    "Reg-GRPO, eps 0.1, scale 2": (REGRESSED.replace("scale: 1.0", "scale: 2.0"),),
    "Reg-GRPO with augmentation": (REGRESSED, "rollout_strategy={name: augment}"),
    "GRPO with temporal contrast": (GRPO, "rollout_strategy={name: temporal_contrast, accuracy: iou}"),
}
POINTS = ("eval/miou", "eval/accuracy")  # of each evaluation


def evaluations(folder: Path) -> list[dict]:
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [row for row in rows if POINTS[0] in row]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seeds", type=int, default=5)
    arguments.add_argument("--jobs", type=int, default=2, help="runs at a time, one core each")
    arguments.add_argument("--out", type=Path, default=ROOT / "runs" / "reg_grpo")
    told = "; ".join(f"{i} {arm}" for i, arm in enumerate(ARMS))
    arguments.add_argument("--arms", type=int, nargs="+", choices=range(len(ARMS)), default=[0, 1, 2], help=told)
    options = arguments.parse_args()
    chosen = [list(ARMS)[i] for i in options.arms]
    folders = {
        arm: [options.out / f"arm{i}_{seed}" for seed in range(options.seeds)]
        for i, arm in zip(options.arms, chosen, strict=True)
    }
    with ThreadPoolExecutor(options.jobs) as pool:
        runs = {
            arm: [
                pool.submit(run, each, "temporal_grounding", (*SAME, *ARMS[arm]), seed) for seed, each in enumerate(of)
            ]
            for arm, of in folders.items()
        }
    print(
        "| loss | mIoU before | mIoU at steps 50, 100, 150 (mean of seeds) | mIoU after, by seed | mean +- sd | CPU-s |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    for arm, of in folders.items():
        summaries = [future.result() for future in runs[arm]]
        curves = [[row["eval/miou"] for row in evaluations(each)] for each in of]
        after = [curve[-1] for curve in curves]
        middle = " / ".join(f"{mean(values):.3f}" for values in list(zip(*curves, strict=True))[1:])
        spread = f"{mean(after):.3f} +- {stdev(after) if len(after) > 1 else 0:.3f}"
        listed, spent = ", ".join(f"{each:.3f}" for each in after), mean(each["cpu_s"] for each in summaries)
        print(f"| {arm} | {curves[0][0]:.3f} | {middle} | {listed} | {spread} | {spent:.0f} |")
        accuracy = "; ".join(format_interval(each["after"]) for each in summaries)
        print(f"  R1@0.5: {format_interval(summaries[0]['before'])} -> {accuracy}")


if __name__ == "__main__":
    main()
