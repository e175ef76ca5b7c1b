"""Held-out accuracy before and after RL: tasks x methods x seeds at equal rollouts, as the README's table.

    python bench/learn.py tables [--tasks gui_grounding detection ...] [--methods GRPO MSSR] [--seeds 3] [--jobs 2]
                                 [--figure curves.png]

The commands in the head of a task's config are run first where their output is missing: screenshots, starting models,
and before these what the heads of their own configs name.
Every run is `vlrl train` in its own process with one thread; a run that has finished is not repeated. The column
`constant` is the accuracy of the one answer that is right most often on the evaluation's samples.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean

import yaml

from tasks.check import SPACES, play, spread
from vlrl import registry
from vlrl.config import config_file
from vlrl.io import is_unfinished
from vlrl.recipe_checks import load_config

ROOT = Path(__file__).parents[2]
TASKS = {  # the config's name -> what the table calls it; the head of each config says what must be made first
    "gui_grounding": "GUI grounding",
    "gui_pages": "Colours on web pages",
    "jigsaw": "Jigsaw 3x1, unseen photographs",
    "jigsaw_2x1": "Jigsaw 2x1, unseen photographs",
    "jigsaw_2x2": "Jigsaw 2x2, landscapes",
    "temporal_grounding": "Temporal grounding in new words, R1@0.5",
    "video_qa": "Video questions in new words",
    "detection": "Detection under new names, F1",
    "referring": "Referring by place and size",
    "counting": "Counting",
    "classification": "Handwritten digits",
    "classification_thinking": "Handwritten digits, with thoughts",
    "visual_charts": "Charts: bars, lines, pies",
    "visual_tables": "Tables",
    "visual_angles": "Angles: acute, right, obtuse",
    "visual_search": "Visual search with the tool",
    "visual_search_blind": "Visual search without it",
    "dialogue": "What is gone, both pictures shown",
    "dialogue_last_image": "What is gone, the last picture shown",
    "manipulation": "Robot pushes a cube, from the state",
    "manipulation_lift": "robosuite Lift, from the state",
    "manipulation_vla": "Touching what is named, from pixels, in action tokens",
}
METHODS = ("GRPO", "MSSR")
CONSTANTS = 64  # held-out gold answers that are tried as the constant
POOLS = {"manipulation": 256, "manipulation_lift": 256, "manipulation_vla": 256}
POOL = 2048  # prompts of the single-rollout recipe, each answered once before the first step; scenes are dearer


def changes(task: str, method: str) -> list[str]:
    """What turns the task's config (group-normalised advantages) into the method, at equal rollouts and updates."""
    if method == "GRPO":
        return []
    train = load_config(config_file(task)).train
    rollouts = train.prompts_per_step * train.group_size
    pool = POOLS.get(task, POOL)
    sizes = {"train.prompts_per_step": rollouts, "train.steps": train.steps - pool // rollouts, "sampler.limit": pool}
    return ["configs/recipes/mssr.yaml", *(f"{key}={value}" for key, value in sizes.items())]


def run(folder: Path, task: str, changed: Sequence[str], seed: int) -> dict:
    """One training run of a task's config, with changes, into a folder -> its summary."""
    summary = folder / "summary.json"
    if not summary.exists():
        command = ["train", task, *changed, f"out={folder}", f"seed={seed}"]
        run_vlrl(command, folder.with_suffix(".log"))
    return json.loads(summary.read_text())


def run_vlrl(arguments: Sequence[str], log: Path) -> None:
    """A `vlrl` command in a process of its own with one thread, its output in a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with log.open("w") as file:
        command = [sys.executable, "-m", "vlrl.cli", *arguments]
        if subprocess.run(command, cwd=ROOT, env=environment, stdout=file, stderr=file).returncode:
            sys.exit(f"vlrl {shlex.join(arguments)} failed; its last lines ({log}):\n{log.read_text()[-2000:]}")


def head_commands(config: Path) -> Iterator[list[str]]:
    """The `vlrl` commands in the first comment of a config and of its bases, innermost base first."""
    text = config.read_text()
    if base := yaml.safe_load(text).get("base"):
        yield from head_commands(config.parent / base)
    lines = [line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#")]
    for command in re.findall(r"vlrl (?:capture|warmstart|record)[^(`\n]*", "\n".join(lines).replace("\\\n", "")):
        yield shlex.split(command)[1:]


def prepare(task: str, logs: Path) -> None:
    """Runs those commands in the head of a task's config whose output the config names and nobody has made."""
    config = load_config(config_file(task))
    needed = [str(path) for path in (config.policy.model, config.data.train, config.data.test)]
    for arguments in head_commands(config_file(task)):
        if any(path.startswith(output(arguments)) for path in needed):
            make(arguments, logs)


def make(arguments: Sequence[str], logs: Path) -> None:
    """Runs a command of a head whose output is missing, or resumes a warm start that was stopped.

    Before a warm start comes what its own config's head names.
    """
    folder = ROOT / output(arguments)
    if is_unfinished(folder):
        return run_vlrl([arguments[0], "--resume", output(arguments)], logs / f"{folder.name}.log")
    if folder.exists():
        return
    for before in head_commands(ROOT / arguments[1]) if arguments[0] == "warmstart" else ():
        if before != arguments:
            make(before, logs)
    print(f"vlrl {shlex.join(arguments)}", file=sys.stderr)
    run_vlrl(arguments, logs / f"{folder.name}.log")


def output(arguments: Sequence[str]) -> str:
    """The folder that a command of a head writes."""
    return arguments[arguments.index("--out") + 1] if "--out" in arguments else f"runs/{Path(arguments[1]).stem}"


def constant_accuracy(task: str) -> str:
    """The held-out accuracy of the constant answer that is right most often; empty where actions are numbers."""
    config = load_config(config_file(task))
    loaded = registry.make_task(config)
    held_out = loaded.samples("test")
    samples = [held_out[i] for i in range(min(config.eval.num_samples or len(held_out), len(held_out)))]
    golds = [play(loaded, sample, None, SPACES[0])[1] for sample in spread(samples, CONSTANTS)]
    if not all(isinstance(gold, str) for gold in golds):
        return ""
    best = max(mean(play(loaded, sample, gold, SPACES[0])[0].correct for sample in samples) for gold in set(golds))
    return f"{best:.3f}"


def format_interval(measured: dict) -> str:
    return f"{measured['value']:.3f} [{measured['low']:.3f}, {measured['high']:.3f}]"


def draw(folders: dict[str, list[Path]], file: Path) -> None:
    """Held-out accuracy, and where tools are called the share of episodes that call one, against steps."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    rows = {
        name: [list(map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())) for folder in runs]
        for name, runs in folders.items()
    }
    curves = {"eval/accuracy": "held-out accuracy", "eval/called_tools": "share of episodes that call a tool"}
    known = {key for runs in rows.values() for row in runs[0] for key in row}
    curves = {key: title for key, title in curves.items() if key in known}
    size = (4.5 * len(curves), 3.2)
    figure, (axes,) = plt.subplots(1, len(curves), figsize=size, layout="constrained", sharey=True, squeeze=False)
    for axis, (key, title) in zip(axes, curves.items(), strict=True):
        for number, (name, runs) in enumerate(rows.items()):
            for i, run in enumerate(runs):
                points = [(row["step"], row[key]) for row in run if key in row]
                axis.plot(*zip(*points, strict=True), color=f"C{number}", label=None if i else name, linewidth=1.6)
        axis.set(title=title, xlabel="step", ylim=(0, 1.02))
        axis.grid(alpha=0.25)
    axes[0].legend(frameon=False)
    figure.savefig(file, dpi=110, facecolor="white")
    plt.close(figure)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    arguments.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    arguments.add_argument("--seeds", type=int, default=3)
    arguments.add_argument("--jobs", type=int, default=2, help="runs at a time, one core each")
    arguments.add_argument("--out", type=Path, default=ROOT / "runs" / "learn")
    arguments.add_argument("--figure", type=Path, help="where to draw the first method's runs")
    options = arguments.parse_args()
    for task in options.tasks:
        prepare(task, options.out)
    with ThreadPoolExecutor(options.jobs) as pool:
        runs = {
            (task, method): [
                pool.submit(run, options.out / f"{task}_{method.lower()}_{seed}", task, changes(task, method), seed)
                for seed in range(options.seeds)
            ]
            for task in options.tasks
            for method in options.methods
        }
    print("| task | constant | method | before | after, by seed | mean gain | rollouts | updates | CPU-s a run |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    constants = {task: constant_accuracy(task) for task in options.tasks}
    for (task, method), futures in runs.items():
        done = [future.result() for future in futures]
        gain = mean(s["after"]["value"] - s["before"]["value"] for s in done)
        after = "<br>".join(format_interval(s["after"]) for s in done)
        sizes = f"{done[0]['rollouts']:,} | {done[0]['updates']:,} | {mean(s['cpu_s'] for s in done):.0f}"
        cells = (TASKS[task], constants[task], method, format_interval(done[0]["before"]), after)
        print(f"| {' | '.join(cells)} | {100 * gain:+.0f} points | {sizes} |")
    if options.figure:
        method = options.methods[0].lower()
        drawn = {TASKS[t]: [options.out / f"{t}_{method}_{i}" for i in range(options.seeds)] for t in options.tasks}
        draw(drawn, options.figure)


if __name__ == "__main__":
    main()
