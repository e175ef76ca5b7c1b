"""A realistic run folder, with every file that a run can hold."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'><!--<script>"


def finished_run(folder: Path) -> Path:
    """A finished run of 300 steps with every file that a run can hold."""
    run = folder / "point-grpo"
    (run / "rollouts" / "images").mkdir(parents=True)
    config = "seed: 3\ntask:\n  # finds a <shape>\n  name: pointing\n  data: {}\nsteps: 300\n"
    (run / "config.yaml").write_text(config)
    draw = random.Random(3)
    rows = [row for step in range(1, 301) for row in metric_rows(step, draw)]
    write_lines(run / "metrics.jsonl", rows)
    write_lines(run / "timings.jsonl", [timing(step, draw) for step in range(1, 301)])
    (run / "summary.json").write_text(json.dumps(summary()))
    for step in range(10, 301, 10):
        write_lines(run / "rollouts" / f"step_{step:06d}.jsonl", rollouts(run, step, draw))
    return run


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def summary() -> dict[str, Any]:
    return {
        "metric": "accuracy",
        "before": {"value": 0.11, "low": 0.085, "high": 0.14, "n": 512},
        "after": {"value": 0.83, "low": 0.795, "high": 0.86, "n": 512},
        "wall_s": 812.4,
        "cpu_s": 1504.0,
        "seed": 3,
        "rollouts": 19200,
        "updates": 300,
        "bad_rows": 2,
        "device": "cpu <2 cores>",
    }


def metric_rows(step: int, draw: random.Random) -> list[dict[str, Any]]:
    skill = 0.1 + 0.75 / (1 + math.exp(-(step - 120) / 35))
    hit = min(1.0, max(0.0, draw.gauss(skill, 0.08)))
    train = {
        "step": step,
        "reward": 0.2 + hit,
        "reward/hit": hit,
        "reward/format": min(1.0, 0.7 + step / 400 + draw.gauss(0, 0.02)),
        "accuracy": hit,
        "entropy": 2.2 * math.exp(-step / 200) + draw.gauss(0, 0.04),
        "kl": 0.0004 * step * abs(draw.gauss(1, 0.3)),
        "clip_fraction": abs(draw.gauss(0.03, 0.01)),
        "zero_advantage": min(1.0, abs(draw.gauss(0.25, 0.1))),
        "length": 8 + draw.gauss(0, 0.5),
        "cut": 0.0,
        "loss": draw.gauss(0, 0.02),
        "grad_norm": abs(draw.gauss(0.8, 0.2)) * (9 if step == 77 else 1),
        "lr": 3e-6 * (1 - step / 320),
        "logprob_gap": abs(draw.gauss(0, 2e-5)),
        "parse_fail/no_answer": max(0.0, 0.2 - step / 900),
        "parse_fail/not_a_number": max(0.0, 0.05 - step / 5000),
        "skipped": 0,
        "gpu/memory_gib": 11.5 + draw.random(),
    }
    if step == 40:
        train["kl"] = float("nan")
    if step % 25 and step != 1:
        return [train]
    accuracy = skill - 0.02
    held = {"eval/accuracy": accuracy, "eval/low": accuracy - 0.04, "eval/high": accuracy + 0.035, "eval/n": 512}
    return [train, {"step": step, **held, "eval/reward": accuracy + 0.25}]


def timing(step: int, draw: random.Random) -> dict[str, float]:
    rollout, update = 0.1 + 0.02 * draw.random(), 0.15 + 0.02 * draw.random()
    return {"step": step, "seconds": rollout + update + 0.01, "rollout": rollout, "reward": 0.01, "update": update}


def rollouts(run: Path, step: int, draw: random.Random) -> list[dict[str, Any]]:
    """Sixteen rollouts in groups of four, the last a jigsaw; pictures are half of image_size, as thumbnails are."""
    found = []
    for group in range(4):
        name = f"rollouts/images/{step % 50}_{group}.png"
        x, y = 40 + 90 * group, 60 + 4 * (step % 50)
        picture(run / name, x, y)
        for member in range(4):
            sample = {"step": step, "sample_id": f"shape-{step}-{group}", "group": group, "images": [name]}
            found.append({**sample, **rollout(x, y, step, member, draw), "image_size": [480, 320]})
    found[-1] |= jigsaw()
    found[9]["completion"] = HOSTILE
    return found


def picture(path: Path, x: int, y: int) -> None:
    image = Image.new("RGB", (240, 160), (226, 232, 240))
    pen = ImageDraw.Draw(image)
    pen.rectangle((150, 20, 220, 60), fill=(148, 163, 184))
    pen.ellipse([(x - 20) / 2, (y - 20) / 2, (x + 20) / 2, (y + 20) / 2], fill=(59, 130, 246))
    image.save(path)


def rollout(x: int, y: int, step: int, member: int, draw: random.Random) -> dict[str, Any]:
    spread = 120 * math.exp(-step / 90) + 6
    px, py = round(x + draw.gauss(0, spread), 1), round(y + draw.gauss(0, spread), 1)
    hit = float(max(abs(px - x), abs(py - y)) <= 20)
    failed = member == 2 and step < 150
    truth = {"role": "truth", "kind": "box", "xy": [x - 20, y - 20, x + 20, y + 20], "label": "blue disc"}
    guess = {"role": "prediction", "kind": "point", "xy": [px, py], "label": ""}
    return {
        "prompt": "Point at the blue disc.\nReply as <answer>x, y</answer>.",
        "completion": "I cannot see it." if failed else f"It is left of the grey box.\n<answer>{px}, {py}</answer>",
        "answer": None if failed else [px, py],
        "parts": {"hit": 0.0 if failed else hit, "format": 0.0 if failed else 1.0},
        "reward": 0.0 if failed else hit + 0.2,
        "correct": 0.0 if failed else hit,
        "reason": "no_answer" if failed else None,
        "advantage": draw.gauss(0, 0.7),
        "marks": [truth] if failed else [truth, guess],
        "split": "eval" if member == 3 else "train",
    }


def jigsaw() -> dict[str, Any]:
    truth = {"role": "truth", "kind": "text", "xy": [], "label": "2 0 3 1"}
    guess = {"role": "prediction", "kind": "text", "xy": [], "label": "2 3 0 1"}
    return {"completion": "<answer>2 3 0 1</answer>", "answer": [2, 3, 0, 1], "marks": [truth, guess], "reason": None}
