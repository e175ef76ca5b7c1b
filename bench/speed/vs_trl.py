"""A GRPO step of vlrl beside one of TRL's GRPOTrainer: CPU seconds, memory and floating-point operations.

Both train the same randomly initialised Qwen2.5-VL (weights, processor and images saved once and read by both) on the
same prompts, without a reference, one update per rollout, AdamW, float32, one thread, nothing recomputed and no
gradient clipping. No completion may stop early, so both write and score the same number of tokens, which is checked.
TRL runs as it is, in an environment of its own that this script makes: TRL is installed there with pip; torch,
transformers and all else that vlrl has is seen from vlrl's own environment, so that both run the same versions.

TRL's step is everything between the ends of two optimizer steps in `train()`; its rewards are constants, so that their
functions cost nothing. Ours is `step`'s: reading the images, `act(keep=True)`, `evaluate`, loss, backward,
AdamW, as the trainer runs them on-policy; it leaves out advantages and logging, which cost a millisecond.

Each arm is a process; they take turns step by step. CPU seconds are the process' own, medians of `--steps` after
`--warm-up`. Memory is the peak above the size before the first step. Operations are counted in one more step by torch's
FlopCounterMode: linear layers and convolutions, as the cost model (`vlrl/performance/profiling.py`) counts them;
attention is left out on both sides, since torch does not count a CPU's kernel for it.

    python bench/speed.py vs_trl --json FILE              # all rows
    python bench/speed.py vs_trl --only tiny/64           # those whose name begins so
    python bench/speed.py vs_trl --rows mid/64/8/128/1    # others: model/visual tokens/group/completion tokens/prompts
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}  # the first is read when torch is imported

from speed_rows import machine, measured
from step import TEXT, model_of
from vs_trl_arms import FAMILY, TRL, Row, arms, row_of, write_work

from vlrl.performance import profiling
from vlrl.performance.profiling import Group, Update, from_config

ROWS = (  # from the cheapest on
    "tiny/64/8/32/2", "tiny/64/4/32/2", "tiny/64/16/32/2", "tiny/64/8/128/2", "tiny/256/8/16/2", "tiny/256/8/32/2",
    "tiny/256/4/16/2", "tiny/256/16/16/2", "tiny/1024/8/16/2", "mid/64/8/32/1", "mid/256/8/16/1", "mid/64/8/128/1",
)  # fmt: skip
LINEAR = ("aten.mm", "aten.addmm", "aten.convolution", "aten.convolution_backward")


def measure(name: str, options: argparse.Namespace) -> dict:
    """Both arms of a row, the operations of our step that cannot be spared, and how long it all took."""
    row, began = row_of(name), time.monotonic()
    told = in_turns(row, options.warm_up + options.steps)
    tokens = {arm: {one["tokens"] for one in each} for arm, each in told.items()}
    if len(set.union(*tokens.values())) > 1:
        raise SystemExit(f"the arms did not do the same work, in tokens a step: {tokens}")
    prompt = told["vlrl"][0]["tokens"] // (row.prompts * row.group) - row.tokens
    model, _ = model_of(FAMILY, row.model)
    group = Group(prompt, row.visual, row.tokens, row.group)
    least = row.prompts * profiling.step(from_config(model.config.to_dict()), group, Update("kept")).all.linear
    found = {arm: summary(each, options.warm_up) for arm, each in told.items()}
    return {**found, "prompt": prompt, "limit": least, "seconds": time.monotonic() - began}


def in_turns(row: Row, steps: int) -> dict[str, list[dict]]:
    """What each arm told of its steps, and of one more, whose operations are counted."""
    told: dict[str, list[dict]] = {}
    with tempfile.TemporaryDirectory() as folder:
        write_work(row, steps + 1, Path(folder))
        with arms(Path(folder)) as both:
            if len({tuple(arm.about.items()) for arm in both.values()}) > 1:
                raise SystemExit(f"the arms run different versions: {[arm.about for arm in both.values()]}")
            for k in range(steps + 1):
                for name in sorted(both, reverse=bool(k % 2)):
                    told.setdefault(name, []).append(both[name].turn("count" if k == steps else "step"))
    return told


def summary(steps: list[dict], warm_up: int) -> dict:
    """Steps as told by a worker, the last of them counted -> what a row keeps."""
    *timed, counted = steps
    return {
        "cpu": statistics.median(one["cpu"] for one in timed[warm_up:]), "all": [one["cpu"] for one in timed],
        "mib": timed[-1]["mib"], "flops": sum(counted["flops"].get(op, 0) for op in LINEAR),
        "other_flops": sum(n for op, n in counted["flops"].items() if op not in LINEAR),
    }  # fmt: skip


def table(rows: dict[str, dict]) -> str:
    """Rows of `measure` as Markdown."""
    lines = [
        "| model | visual | prompt | G | C | prompts | TRL, CPU s | vlrl, CPU s | ratio | memory above the start, MiB "
        "| ratio | GFLOP | ratio | of the limit |",
        "|" + "---|" * 14,
    ]
    for name, found in rows.items():
        row, trl, own = row_of(name), found["trl"], found["vlrl"]
        lines.append(
            f"| {row.model} | {row.visual} | {found['prompt']} | {row.group} | {row.tokens} | {row.prompts} "
            f"| {trl['cpu']:.2f} | {own['cpu']:.3f} | **{trl['cpu'] / own['cpu']:.1f}x** "
            f"| {trl['mib']:.0f} -> {own['mib']:.0f} | {own['mib'] / trl['mib']:.2f} "
            f"| {trl['flops'] / 1e9:.1f} -> {own['flops'] / 1e9:.1f} | {trl['flops'] / own['flops']:.1f}x "
            f"| {own['flops'] / found['limit']:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="BEGINNING", default="", help="rows whose name begins so")
    parser.add_argument("--rows", nargs="+", metavar="ROW", default=ROWS, help="instead of the usual ones")
    parser.add_argument("--steps", type=int, default=5, help="that count")
    parser.add_argument("--warm-up", type=int, default=2, help="steps before them")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--resume", action="store_true", help="keep the rows that FILE holds")
    options = parser.parse_args()
    about = machine() | {"trl": TRL, "steps": options.steps, "warm_up": options.warm_up, "text": TEXT}
    names = [name for name in options.rows if name.startswith(options.only)]
    rows = measured(names, lambda name: measure(name, options), options.json, options.resume, about)
    print(", ".join(f"{key} {value}" for key, value in about.items() if key != "text"), end="\n\n")
    print(table(rows))


if __name__ == "__main__":
    main()
