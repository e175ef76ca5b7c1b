"""Held-out accuracy before and after RL: tasks x methods x seeds at equal rollouts, as the README's table.

    python bench/learn.py [--tasks gui_grounding detection ...] [--methods GRPO MSSR] [--seeds 3] [--jobs 2]

Every run is `vlrl train` in its own process with one thread; a run that has finished is not repeated.
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

from vlrl.config import load

ROOT = Path(__file__).parents[1]
TASKS = {  # the config's name -> what the table calls it; the head of each config says what must be made first
    "gui_grounding": "GUI grounding",
    "gui_pages": "Colours on web pages",
    "jigsaw": "Jigsaw, unseen photographs",
    "jigsaw_2x1": "Jigsaw 2x1, unseen photographs",
    "jigsaw_2x2": "Jigsaw 2x2",
    "temporal_grounding": "Temporal grounding in new words (R1@0.5)",
    "video_qa": "Video questions in new words",
    "detection": "Detection (F1)",
    "referring": "Referring expressions",
    "counting": "Counting",
    "classification": "Handwritten digits",
    "classification_thinking": "Handwritten digits, with thoughts",
    "visual_charts": "Questions about charts",
    "visual_tables": "Questions about tables",
    "visual_angles": "Kinds of angles",
    "manipulation": "Pushing a cube, from the state",
    "manipulation_lift": "robosuite Lift, from the state",
    "manipulation_vla": "Touching what is named, from pixels, in action tokens",
}
METHODS = ("GRPO", "MSSR")
POOLS = {"manipulation": 256, "manipulation_lift": 256, "manipulation_vla": 256}
POOL = 2048  # prompts of the single-rollout recipe, each answered once before the first step; scenes are dearer


def changes(task: str, method: str) -> list[str]:
    """What turns the task's config (group-normalised advantages) into the method, at equal rollouts and updates."""
    if method == "GRPO":
        return []
    train = load(ROOT / "configs" / f"{task}.yaml").train
    rollouts = train.prompts * train.group_size
    pool = POOLS.get(task, POOL)
    sizes = {"train.prompts": rollouts, "train.steps": train.steps - pool // rollouts, "sampler.limit": pool}
    return ["configs/recipes/mssr.yaml", *(f"{key}={value}" for key, value in sizes.items())]


def run(folder: Path, task: str, changed: Sequence[str], seed: int) -> dict:
    """One training run of a task's config, with changes, into a folder -> its summary."""
    summary = folder / "summary.json"
    if not summary.exists():
        command = [sys.executable, "-m", "vlrl.cli", "train", f"configs/{task}.yaml", *changed]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_suffix(".log").open("w") as file:
            subprocess.run(
                [*command, f"out={folder}", f"seed={seed}"], cwd=ROOT, env=environment, stdout=file, stderr=file,
                check=True,
            )  # fmt: skip
    return json.loads(summary.read_text())


def shown(measured: dict) -> str:
    return f"{measured['value']:.3f} [{measured['low']:.3f}, {measured['high']:.3f}]"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    arguments.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    arguments.add_argument("--seeds", type=int, default=3)
    arguments.add_argument("--jobs", type=int, default=2, help="runs at a time, one core each")
    arguments.add_argument("--out", type=Path, default=ROOT / "runs" / "learn")
    options = arguments.parse_args()
    with ThreadPoolExecutor(options.jobs) as pool:
        runs = {
            (task, method): [
                pool.submit(run, options.out / f"{task}_{method.lower()}_{seed}", task, changes(task, method), seed)
                for seed in range(options.seeds)
            ]
            for task in options.tasks
            for method in options.methods
        }
    print("| task | method | before | after, by seed | mean gain | rollouts | updates | CPU-s a run |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for (task, method), futures in runs.items():
        done = [future.result() for future in futures]
        gain = mean(s["after"]["value"] - s["before"]["value"] for s in done)
        after = "<br>".join(shown(s["after"]) for s in done)
        print(
            f"| {TASKS[task]} | {method} | {shown(done[0]['before'])} | {after} | {100 * gain:+.0f} points "
            f"| {done[0]['rollouts']:,} | {done[0]['updates']:,} | {mean(s['cpu_s'] for s in done):.0f} |"
        )


if __name__ == "__main__":
    main()
