"""What a run over several tasks teaches each of them: a Markdown table and a figure of its evaluations.

python bench/learn.py mixture runs/mixture --figure docs/mixture.png      # after `vlrl train configs/mixture.yaml`
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

Points = list[tuple[int, float, float, float]]  # step, held-out accuracy, its 95 % interval
HEAD = "| task | before | after | mean of training rewards, first and last quarter |\n|" + "---|" * 4


def evaluated(rows: list[dict], task: str) -> Points:
    found = f"eval/task/{task}"
    rows = [row for row in rows if f"{found}/accuracy" in row]
    return [(row["step"], *(row[f"{found}/{name}"] for name in ("accuracy", "low", "high"))) for row in rows]


def rewards(rows: list[dict], task: str) -> tuple[float, float]:
    """Means over the steps that played the task, of the first and the last quarter."""
    played = [row[f"task/{task}/reward"] for row in rows if f"task/{task}/reward" in row]
    quarter = max(1, len(played) // 4)
    return sum(played[:quarter]) / quarter, sum(played[-quarter:]) / quarter


def draw(curves: dict[str, Points], file: Path) -> None:
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
    for task, points in curves.items():
        steps, value, low, high = zip(*points, strict=True)
        (line,) = axes.plot(steps, value, "o-", markersize=3, label=task)
        axes.fill_between(steps, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    axes.set(xlabel="step", ylabel="held-out accuracy", ylim=(0, 1))
    figure.legend(loc="outside right center", frameon=False)
    figure.savefig(file, dpi=140)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--figure", type=Path, metavar="FILE")
    options = parser.parse_args()
    rows = [json.loads(line) for line in (options.run / "metrics.jsonl").read_text().splitlines()]
    tasks = sorted({name.split("/")[2] for row in rows for name in row if name.startswith("eval/task/")})
    curves = {task: evaluated(rows, task) for task in tasks}
    print(HEAD)
    for task, points in curves.items():
        before, after = (f"{value:.3f} [{low:.3f}, {high:.3f}]" for _, value, low, high in (points[0], points[-1]))
        print(f"| {task} | {before} | {after} | {' -> '.join(f'{each:.2f}' for each in rewards(rows, task))} |")
    if options.figure:
        draw(curves, options.figure)


if __name__ == "__main__":
    main()
