"""What docs/scale.md computes without a queue: memory of a GPU, seconds of a step by part, weights, simulators.

python bench/scale.py cluster_parts       # four Markdown tables
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace

from cluster_layout import WAYS, apart, asked, learns, publishing, turns
from cluster_model import JOBS, SIZES, Rates, engine, flops, needed, run_of, speed

from vlrl.performance.profiling import parameters

RATES = Rates()
# CPU seconds of an episode and where they were measured
SIMULATORS = {
    "tabletop, state, 160 ticks (9,452 ticks/s)": 160 / 9452,
    "browser page, 2 turns (9.9 CPU-min / 5,760, the model's included)": 9.9 * 60 / 5760,
    "Lift, state, 50 ticks (99 ticks/s + 0.16 s)": 50 / 99 + 0.164,
    "Lift, pictures, 50 ticks (60 ticks/s + 0.16 s)": 50 / 60 + 0.164,
    "Meta-World pick-place, pictures, 100 ticks (33 ticks/s)": 100 / 33 + 0.021,
    "gym-hil, two pictures, 100 ticks (6 ticks/s)": 100 / 6,
}


def memory() -> Iterator[list[str]]:
    """Of an update of `reasoning`, GB; and of an engine."""
    yield ["policy", "all, AdamW", "all, 8 bit", "LoRA", "all / 8", "all / 64", "LoRA / 8", "engine: GPUs", "room"]
    job = JOBS["reasoning"]
    for size in SIZES:
        runs = [(False, 1, 2.0), (False, 1, 0.512), (True, 1, 2.0), (False, 8, 2.0), (False, 64, 2.0), (True, 8, 2.0)]
        sizes = [needed(run_of(size, job, lora=lora, shards=n, adam=adam)) / 1e9 for lora, n, adam in runs]
        copy = engine(size, job, RATES)
        yield [size, *(f"{each:,.0f}" for each in sizes), str(copy.gpus), str(copy.room)]


def parts() -> Iterator[list[str]]:
    """Of 64 GPUs in turns: seconds without stragglers and simulators."""
    yield ["job", "policy", "prefill", "decode", "learn", "of it exchange", "weights", "together", "episodes/s",
           "tokens/s"]  # fmt: skip
    for name, job in JOBS.items():
        job = replace(job, simulator=0.0)
        for size in SIZES:
            what = asked(size, job, 64, RATES, "network")
            layout = turns(what)
            rollout = what.batch * layout.writes / layout.places
            prefill = what.batch * flops(size, job, what.lora)[0] / (64 * speed(RATES))
            alone = learns(replace(what, rates=replace(RATES, network=1e30)), 64)
            rate = what.batch / layout.guess
            seconds = (prefill, rollout - prefill, layout.learn, layout.learn - alone, layout.publish, layout.guess)
            yield [name, size, *(f"{each:.2f}" for each in seconds), f"{rate:,.0f}",
                   f"{rate * job.tokens * job.turns:,.0f}"]  # fmt: skip


def weights() -> Iterator[list[str]]:
    """Seconds until engines have new weights, apart, `reasoning`."""
    yield ["policy", "GB, bfloat16", *(f"{way}, {gpus:,} GPUs" for way in WAYS for gpus in (8, 64, 1024))]
    for size, geometry in SIZES.items():
        row = []
        for way in WAYS:
            for gpus in (8, 64, 1024):
                layout = apart(asked(size, JOBS["reasoning"], gpus, RATES, "network"))
                what = replace(layout.asked, way=way)
                row.append(f"{sum(publishing(what, layout.writing, layout.learning)):,.1f}")
        yield [size, f"{2 * parameters(geometry).all / 1e9:.1f}", *row]


def simulators() -> Iterator[list[str]]:
    """Cores that a node of 8 GPUs needs so that no GPU waits, of 112: `robot`, in turns, 64 GPUs."""
    rates = {}
    for size in SIZES:
        what = asked(size, replace(JOBS["robot"], simulator=0.0), 64, RATES, "network")
        rates[size] = what.batch / turns(what).guess / 8
    yield ["simulator", "CPU-s an episode", "episodes/s of a node", *(f"cores, {size}" for size in SIZES)]
    for name, seconds in SIMULATORS.items():
        needs = (f"{rate * seconds:,.0f}" for rate in rates.values())
        yield [name, f"{seconds:.2f}", f"{RATES.cores / seconds:,.0f}", *needs]


def telling() -> str:
    """Bytes of an episode of 1,000 tokens as processes tell it to each other, and CPU seconds to read it."""
    import torch

    from vlrl import decoders
    from vlrl.types import Decision, Score, Step

    made = Decision("word " * 1000, torch.rand(1000), torch.rand(1000), truncated=False)
    turn = [None, made, list(range(1000)), Step(None), 0.0]
    row = {"turns": [turn], "score": Score({"accuracy": 1.0}, 1.0), "reward": 1.0, "faults": 0, "stream": None}
    data, begin = decoders.pack_value([row] * 32), time.process_time()
    for _ in range(64):
        decoders.unpack_value(data)
    return f"{len(data) / 32:,.0f} bytes, {1e3 * (time.process_time() - begin) / (32 * 64):.2f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--telling", action="store_true", help="measure what an episode costs that is told")
    if parser.parse_args().telling:
        print(telling())
        return
    for table in (memory, parts, weights, simulators):
        rows = list(table())
        print(f"**{table.__doc__}**\n", f"| {' | '.join(rows[0])} |", "|" + "---|" * len(rows[0]), sep="\n")
        print("\n".join(f"| {' | '.join(row)} |" for row in rows[1:]), "\n")


if __name__ == "__main__":
    main()
