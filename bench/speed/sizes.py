"""What one GRPO step costs as its size grows: visual tokens, group, completion, model; shared prefix and naive.

The step is `step`'s, on one prompt. Each panel varies one size and keeps the others at: tiny model, 256 visual
tokens, G = 8, C = 32. Points are medians of CPU seconds on one thread, arms alternating in one process. Dashed lines
are the cost model (`vlrl/performance/profiling.py`, attention included) at one rate for the whole figure, that of a
plain float32 matrix product measured in the same run: what the step would take if it did nothing else at full rate.

    python bench/speed.py sizes --figure docs/scale.png --json FILE    # some minutes
    python bench/speed.py sizes --only visual                          # one panel; see --help
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}  # the first is read when torch is imported

import torch
from speed_rows import machine, measured
from step import ARMS, SIZES, episodes_of, policy_of, step

from vlrl.performance import profiling as vlrl_flops
from vlrl.performance.profiling import Group, Update, from_config

FAMILY = "qwen2_5_vl"
MODES = {"naive": "naive", "shared": "kept"}  # of the cost model
PLAIN = {"model": "tiny", "visual": 256, "group": 8, "tokens": 32}
PANELS = {
    "visual": [16, 64, 256, 1024], "group": [2, 4, 8, 16, 32], "tokens": [8, 32, 128, 512], "model": list(SIZES),
}  # fmt: skip


def measure(name: str, repeats: int) -> dict:
    """Arm -> median CPU seconds of a step and the cost model's FLOPs. The first step of each arm is not counted."""
    size, *numbers = name.split("/")
    visual, group, tokens = map(int, numbers)
    policies = {arm: policy_of(FAMILY, tokens, shared, size) for arm, shared in ARMS.items()}
    optimizers = {arm: torch.optim.AdamW(p.model.parameters(), lr=1e-6) for arm, p in policies.items()}
    told: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for key in range(repeats + 1):
        for arm in sorted(ARMS, reverse=bool(key % 2)):
            episodes = episodes_of(visual, FAMILY, 1, group, key)
            told[arm].append(step(policies[arm], optimizers[arm], episodes)["step"])
            prompt = len(episodes[0].turns[0].decision.inputs.prompt.ids)
    model = policies["shared"].model
    geometry, asked = from_config(model.config.to_dict()), Group(prompt, visual, tokens, group)
    return {
        "parameters": sum(p.numel() for p in model.parameters()), "prompt": prompt,
        "cpu": {arm: statistics.median(times[1:]) for arm, times in told.items()},
        "flops": {arm: vlrl_flops.step(geometry, asked, Update(MODES[arm])).all.total for arm in ARMS},
    }  # fmt: skip


def rate() -> float:
    """FLOP a CPU second of a float32 product of matrices as large as a step's, median of 20."""
    left, right = torch.randn(2048, 512), torch.randn(512, 1024)
    took = []
    for _ in range(21):
        start = time.process_time()
        left @ right
        took.append(time.process_time() - start)
    return 2 * left.numel() * right.shape[1] / statistics.median(took[1:])


def names_of(panel: str) -> list[str]:
    """A panel's workloads: model/visual tokens/group/completion tokens."""
    return ["/".join(str((PLAIN | {panel: size})[key]) for key in PLAIN) for size in PANELS[panel]]


def table(rows: dict[str, dict]) -> str:
    """Rows of `measure` as Markdown."""
    lines = [
        "| model | visual | G | C | naive, CPU s | shared, CPU s | ratio | of the FLOPs |", "|" + "---|" * 8,
    ]  # fmt: skip
    for name, row in rows.items():
        cpu, flops = row["cpu"], row["flops"]
        model, *sizes = name.split("/")
        lines.append(
            f"| {row['parameters'] / 1e6:.1f} M ({model}) | {' | '.join(sizes)} | {cpu['naive']:.2f} "
            f"| {cpu['shared']:.3f} | **{cpu['naive'] / cpu['shared']:.1f}x** "
            f"| {flops['naive'] / flops['shared']:.1f}x |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=list(PANELS), default=list(PANELS), help="these panels")
    parser.add_argument("--repeats", type=int, default=5, help="steps per arm that count")
    parser.add_argument("--figure", type=Path, metavar="PNG")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--resume", action="store_true", help="keep the rows that FILE holds")
    options = parser.parse_args()
    torch.set_num_threads(1)
    about = machine() | {"repeats": options.repeats}
    names = list(dict.fromkeys(name for panel in options.only for name in names_of(panel)))
    rows = measured(names, lambda name: measure(name, options.repeats), options.json, options.resume, about)
    full = rate()
    print(", ".join(f"{key} {value}" for key, value in about.items()) + f", {full / 1e9:.0f} GFLOP/s", end="\n\n")
    print(table(rows))
    if options.figure:
        from sizes_figure import draw

        draw({panel: [rows[name] for name in names_of(panel)] for panel in options.only}, PANELS, full, options.figure)


if __name__ == "__main__":
    main()
