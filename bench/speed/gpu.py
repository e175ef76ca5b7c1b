"""A GRPO step of vlrl on one NVIDIA GPU: seconds by part, tokens a second, MFU and memory, shared prefix on and off.

The model has the sizes of a published Qwen2.5-VL and random weights, made on the GPU: nothing is downloaded. `lora`
trains adapters beside a frozen tower and language model in bfloat16; `full` trains all of it, weights in float32 under
autocast, layers checkpointed. A step is a rollout and one update on it, some prompts with G completions of C tokens,
none of which may stop early; images are noise, new in every step. The naive arm forwards a prompt once per completion,
in the update one group at a time, as more of its activations do not fit.

Seconds are medians of wall seconds, the device awaited, after the warm-up. The MFU counts, in both arms, the FLOPs
that a step cannot do without: each prompt once forward and once back, recomputing not counted. What does not fit into
`--minutes` or the memory is named below the table.

The arm `graphs` is the shared one with `policy.cuda_graphs`: a token's operations are recorded and replayed.

First come checks that the fast paths compute there what the plain ones do (`gpu_check.py`). It needs torch,
transformers and what that asks for Qwen's processors (torchvision, numpy, pillow); rows that train adapters need peft.

    python bench/speed.py gpu --json gpu.json --figure gpu.png    # under 8 minutes
    python bench/speed.py gpu --check                             # the checks alone
    python bench/speed.py gpu --only lora/shared lora/trl --trl FOLDER # beside TRL, from wheels or a folder
    python bench/speed.py gpu --tiny --device cpu                 # all of it on a toy, to see that it runs
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

BEGAN = time.monotonic()
os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(1, str(Path(__file__).parents[2]))  # vlrl needs no installing

try:
    import gpu_check
    import gpu_recorder
    import gpu_table
    import torch
    from gpu_arms import empty
    from gpu_jobs import GEOMETRIES, Bench, jobs_of, rows_of, same_work
except ImportError as error:
    raise SystemExit(f"bench/speed.py gpu: {error}; it needs that package beside those that are here") from None


def main() -> None:
    options = parsed()
    if options.device == "cpu":
        gpu_recorder.use()
    try:
        bench = Bench(options, BEGAN)
    except ImportError as error:  # transformers' processors ask for packages when they are made
        raise SystemExit(f"bench/speed.py gpu: {' '.join(str(error).split())}") from None
    told = {"about": bench.about(), "checks": {}, "parameters": bench.parameters, "rows": {}}
    if not options.no_check:
        told["checks"] = gpu_check.run(bench.device)
        empty(bench.device)
    for name in [] if options.check else jobs_of(rows_of(options), bool(options.trl)):
        if name.startswith(tuple(options.only)):
            told["rows"][name] = row = bench.job(name)
            same_work(name, row, told["rows"])
            print(f"{time.monotonic() - BEGAN:4.0f} s  {name}: {row.get('skipped') or said(row)}", flush=True)
            keep(told, options.json)  # whatever comes later
    keep(told, options.json)
    about = ", ".join(f"{key} {value}" for key, value in told["about"].items())
    print(f"\n{about}\n\n{gpu_table.table(told['rows'])}" if told["rows"] else f"\n{about}")
    if options.figure and told["rows"]:
        gpu_table.draw(told["rows"], about, options.figure)
    if not all(check["passed"] for check in told["checks"].values()) or any("died" in r for r in told["rows"].values()):
        raise SystemExit("a check failed, or a row died")


def said(row: dict) -> str:
    return f"{row['step']:.2f} s a step, {row['peak_gb']:.1f} GB"


def keep(told: dict, file: Path | None) -> None:
    if file:
        file.write_text(json.dumps(told, indent=1) + "\n")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", default="Qwen2.5-VL-3B", choices=[n for n in GEOMETRIES if "Qwen3" not in n])
    parser.add_argument("--tiny", action="store_true", help="a toy of a model, and rows for it")
    parser.add_argument("--prompts", type=int, help="of a step; default: 4, of the long row 2")
    parser.add_argument("--steps", type=int, help="that count; default: 5, tiny: 2")
    parser.add_argument("--warm-up", type=int, help="steps before them; default: 2, tiny: 1")
    parser.add_argument("--minutes", type=float, default=7, help="no step begins that would end later")
    parser.add_argument("--only", nargs="+", metavar="BEGINNING", default=[""], help="jobs: training/arm/row")
    parser.add_argument("--check", action="store_true", help="the checks alone")
    parser.add_argument("--no-check", action="store_true", help="without them")
    parser.add_argument("--trl", type=Path, metavar="WHEEL_OR_FOLDER", help="from where TRL can be imported")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--figure", type=Path, metavar="PNG")
    options = parser.parse_args()
    if options.tiny:
        options.model = "tiny"
    options.steps = options.steps or (2 if options.tiny else 5)
    options.warm_up = options.warm_up or (1 if options.tiny else 2)
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        parser.exit(
            2, "bench/speed.py gpu: torch sees no NVIDIA GPU here; --tiny --device cpu shows that the script runs\n"
        )
    if options.trl and not options.trl.exists():
        parser.exit(2, f"bench/speed.py gpu: --trl: there is no {options.trl}\n")
    return options


if __name__ == "__main__":
    main()
