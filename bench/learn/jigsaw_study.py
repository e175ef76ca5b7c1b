"""What RL teaches a tiny model about jigsaw puzzles: the questions of Jigsaw-R1 in miniature (docs/jigsaw.md).

    python bench/learn.py jigsaw_study [--arms "RL 2x1" ...] [--dry-run] [--figure docs/jigsaw.png]

Every run is `vlrl warmstart` or `vlrl train` in a process of its own with one thread, one after another; then its model
is asked what ASKED names for it with `vlrl eval`. What has finished is not repeated. `--dry-run` prints the commands.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
STEPS, IMAGES = 100, 64  # of the 2x1 arms: as many puzzles for RL as for SFT
LESSON = (
    "{name: jigsaw, rows: 2, columns: 1, drawn: 0.5, recolour: true}"  # what configs/studies/jigsaw_2x1.yaml trains on
)


def _sft(steps: int) -> tuple[str, ...]:
    return (f"lessons=[{{task: {LESSON}}}]", f"steps={steps}", f"images={IMAGES}", "lr=1.0e-3")


@dataclass(frozen=True)
class Arm:
    """Runs of one configuration, by seed. `start`: the arm whose seed 0 it goes on from, none for the embedded model.

    `asked`: PUZZLES that every seed's model is asked; `once`: those that seed 0's is asked as well.
    """

    config: str
    changes: tuple[str, ...] = ()
    start: str = ""
    seeds: int = 1
    asked: tuple[str, ...] = ()
    once: tuple[str, ...] = ()


PUZZLES = {  # what models are asked beside what they are trained on: 512 puzzles each, none of them of a training
    "2x1 photographs": ("configs/studies/jigsaw_2x1.yaml",),
    "2x1 landscapes": ("configs/studies/jigsaw_2x1.yaml", "task.source=landscapes"),
    "1x2 landscapes": ("configs/studies/jigsaw_2x1.yaml", "task.source=landscapes", "task.rows=1", "task.columns=2"),
    "3x1 landscapes": ("configs/studies/jigsaw_2x1.yaml", "task.source=landscapes", "task.rows=3"),
    "2x2 landscapes": ("configs/studies/jigsaw_2x2.yaml",),
    "2x2 photographs": ("configs/studies/jigsaw_2x2.yaml", "task.source=photos"),
    "clicks": ("configs/gui_grounding.yaml",),
}
MASK, NOISE = "task.mask=0.45", "task.source=noise"
THINKING = (  # with the entropy bonus of the config, four times the tokens drift into noise
    *("task.thinking=true", "policy.max_tokens=40"),
    "losses=[{name: ppo_clip, low: 0.2, high: 0.2}, {name: entropy, coef: 0.01}]",
)
SIZES = ("2x1 landscapes", "1x2 landscapes", "3x1 landscapes", "2x2 photographs")
SMALL = ("2x1 photographs", "2x1 landscapes")
ARMS = {
    "start 2x1": Arm("models/embedded_jigsaw_2x1", once=(*SMALL, "1x2 landscapes")),
    "start 2x2": Arm("models/embedded_jigsaw_2x2", once=SIZES),
    "RL 2x2": Arm("studies/jigsaw_2x2", start="start 2x2", seeds=3, once=SIZES),
    "RL 2x1": Arm("studies/jigsaw_2x1", start="start 2x1", seeds=3, once=("2x1 landscapes", "1x2 landscapes")),
    "noise": Arm("studies/jigsaw_2x1", (NOISE,), "start 2x1"),
    "noise, masked": Arm("studies/jigsaw_2x1", (NOISE, MASK), "start 2x1"),
    "masked": Arm("studies/jigsaw_2x1", (MASK,), "start 2x1"),
    "SFT 2x1": Arm("models/embedded_jigsaw_2x1", _sft(STEPS), "start 2x1", seeds=3, asked=SMALL[:1], once=SMALL[1:]),
    "SFT first": Arm("models/embedded_jigsaw_2x1", _sft(STEPS // 4), "start 2x1", asked=SMALL[:1]),
    "SFT, then RL": Arm("studies/jigsaw_2x1", (f"train.steps={STEPS - STEPS // 4}",), "SFT first"),
    "SFT 2x2": Arm(
        "models/embedded_jigsaw_2x2",
        ("steps=120", f"images={IMAGES}", "lr=1.0e-3"),
        "start 2x2",
        asked=("2x2 landscapes",),
    ),
    "SFT 2x2, then RL": Arm("studies/jigsaw_2x2", (), "SFT 2x2"),
    "RL 2x2, photographs": Arm(
        "studies/jigsaw_2x2",
        ("task.source=photos", "task.drawn=0.5", "task.recolour=true", "train.steps=200"),
        "start 2x2",
    ),
    "RL 3x1": Arm("jigsaw", ("task.reward=permutation",), seeds=3, once=("clicks",)),
    "RL 2x1, thinking": Arm("studies/jigsaw_2x1", THINKING, "start 2x1"),
}


def trains(arm: Arm) -> bool:
    """Whether it is RL and not a supervised start."""
    return not arm.config.startswith("models/")


def folder(out: Path, name: str, seed: int = 0) -> Path:
    return out / f"{name.replace(',', '').replace(' ', '_')}_{seed}"


def command(out: Path, name: str, seed: int) -> list[str]:
    """The run's command line."""
    arm = ARMS[name]
    train = trains(arm)
    start = str(folder(out, arm.start)) if arm.start else "embedded"
    own = [f"policy.model={start}", "log.trackers=[]"] if train else [f"start={start}"]
    given = [f"out={folder(out, name, seed)}", f"seed={seed}", *own, *arm.changes]
    return ["train" if train else "warmstart", f"configs/{arm.config}.yaml", *given]


def question(out: Path, name: str, seed: int, puzzles: str) -> list[str]:
    config, *changes = PUZZLES[puzzles]
    return ["eval", config, "--json", "--model", str(folder(out, name, seed)), *changes]


def vlrl(arguments: Sequence[str], log: Path) -> tuple[str, float]:
    """Standard output of the command line and its CPU seconds, loading included. Raises where it fails."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with log.open("w") as errors:
        done = subprocess.run(
            [sys.executable, "-m", "vlrl.cli", *arguments], cwd=ROOT, env=environment, stdout=subprocess.PIPE,
            stderr=errors, text=True, check=True,
        )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def kept(file: Path, arguments: Sequence[str]) -> dict:
    """The last line of a command's output as JSON if it is, with its CPU seconds; from `file` where that exists."""
    if not file.exists():
        output, seconds = vlrl(arguments, file.with_suffix(".log"))
        last = output.strip().splitlines()[-1] if output.strip() else ""
        found = json.loads(last) if last.startswith("{") else {}
        file.write_text(json.dumps(found | {"cpu_s": seconds}))
    return json.loads(file.read_text())


def rows(out: Path, names: Sequence[str]) -> Iterator[str]:
    """Runs and asks; a row of a Markdown table for each arm and kind of puzzles."""
    for name in names:
        arm, seeds = ARMS[name], range(ARMS[name].seeds)
        runs = [kept(folder(out, name, seed).with_suffix(".json"), command(out, name, seed)) for seed in seeds]
        cpu = "<br>".join(f"{run['cpu_s']:.0f}" for run in runs)
        if trains(arm):
            done = [json.loads((folder(out, name, seed) / "summary.json").read_text()) for seed in seeds]
            before, after = shown([done[0]["before"]]), shown([each["after"] for each in done])
            yield f"| {name} | its own | {before} | {after} | {cpu} |"
            cpu = ""
        for puzzles in (*arm.asked, *arm.once):
            some = seeds if puzzles in arm.asked else seeds[:1]
            files = [folder(out, f"{name} {puzzles} asked", seed).with_suffix(".json") for seed in some]
            found = [kept(file, question(out, name, seed, puzzles)) for seed, file in enumerate(files)]
            yield f"| {name} | {puzzles} | | {shown(found)} | {cpu} |"


def shown(measured: Sequence[dict]) -> str:
    return "<br>".join(f"{each['value']:.3f} [{each['low']:.3f}, {each['high']:.3f}]" for each in measured)


def curve(run: Path) -> tuple[list[int], list[float]]:
    """Steps and held-out accuracies of a training run."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return tuple(zip(*[(row["step"], row["eval/accuracy"]) for row in lines if "eval/accuracy" in row], strict=True))


def draw(out: Path, file: Path) -> None:
    """Held-out accuracy over training steps: what is learned, and what cannot be."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained", sharey=True)
    small = ["RL 2x1", "SFT, then RL", "RL 2x1, thinking", "noise"]
    panels = [("2x2, landscapes", 1 / 24, ["RL 2x2"]), ("2x1, unseen photographs (or noise)", 1 / 2, small)]
    for axis, (title, chance, names) in zip(axes, panels, strict=True):
        for number, name in enumerate(names):
            for seed in range(ARMS[name].seeds):
                label = None if seed else name
                axis.plot(*curve(folder(out, name, seed)), color=f"C{number}", label=label, linewidth=1.6)
        axis.axhline(chance, color="0.5", linestyle=":", linewidth=1, label="chance")
        axis.set(title=title, xlabel="step", ylim=(0, 1))
        axis.legend(frameon=False, fontsize=8)
    axes[0].set_ylabel("held-out accuracy")
    figure.savefig(file, dpi=110, facecolor="white")
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "jigsaw_study")
    parser.add_argument("--figure", type=Path, help="where to draw the curves")
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    if options.dry_run:
        for name in options.arms:
            for seed in range(ARMS[name].seeds):
                listed = (*ARMS[name].asked, *(ARMS[name].once if seed == 0 else ()))
                asked = [question(options.out, name, seed, puzzles) for puzzles in listed]
                print(*(shlex.join(["vlrl", *line]) for line in (command(options.out, name, seed), *asked)), sep="\n")
        return
    options.out.mkdir(parents=True, exist_ok=True)
    print("| run | puzzles | before | after, by seed | CPU-s |\n| --- | --- | --- | --- | --- |")
    for row in rows(options.out, options.arms):
        print(row, flush=True)
    if options.figure:
        draw(options.out, options.figure)


if __name__ == "__main__":
    main()
