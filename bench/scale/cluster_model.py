"""Bytes and seconds of one training step on a cluster of H100s, by the cost and memory models of `vlrl plan`.

What is no data sheet's and not measured is an assumption, and stands as a default of `Rates` (docs/scale.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from vlrl.performance import memory
from vlrl.performance.memory import MODELS, MemoryInputs, adapters
from vlrl.performance.profiling import Geometry, Group, Update, factors, named, parameters, step
from vlrl.tools.memory_planner import ROOM

GPU = named("NVIDIA H100")
MEMORY, PEAK, BANDWIDTH = GPU.memory * 1e9, GPU.tflops * 1e12, GPU.bandwidth * 1e12
NODE = 8  # GPUs
SIZES = {size: MODELS[f"Qwen2.5-VL-{size}"] for size in ("3B", "7B", "72B")}


@dataclass(frozen=True)
class Rates:
    """Bytes a second and shares of peaks. nvlink, network: of a GPU, one direction; files: of one node, of all."""

    mfu: float = 0.4
    reading: float = 0.7  # share of the memory's bandwidth that decoding reaches
    nvlink: float = 450e9
    network: float = 50e9
    write: float = 2e9  # to the shared file system
    read: float = 4e9
    files: float = 40e9
    exchange: float = 20e-6  # seconds of an exchange within a tensor-parallel engine, two a layer
    places: int = 256  # sequences that an engine writes at once, at most
    cores: int = 112  # of a node, each for one simulator


@dataclass(frozen=True)
class Job:
    """An episode. prompt, visual, tokens: of one decision; spread: of the log of an episode's length."""

    prompt: float
    visual: float
    tokens: float
    spread: float
    turns: int = 1
    simulator: float = 0.0  # CPU seconds of an episode
    most: float = 8.0  # times the mean length that an episode is cut at
    members: int = 8  # of a group

    @property
    def group(self) -> Group:
        """What is forwarded together: a group's one prompt, or one of an episode's many."""
        return Group(self.prompt, self.visual, self.tokens, self.members if self.turns == 1 else 1)

    @property
    def units(self) -> int:
        """Groups of one pass with gradient: one, or as many single decisions as make 8,000 tokens."""
        return 1 if self.turns == 1 else int(8000 // (self.prompt + self.tokens))


JOBS = {
    "grounding": Job(prompt=1500, visual=1400, tokens=50, spread=0.3),
    "reasoning": Job(prompt=600, visual=500, tokens=1000, spread=0.8),
    # 50 ticks of robosuite's Lift with a picture of 64 x 64, 60 ticks/s and 0.16 s to begin (docs/simulators.md)
    "robot": Job(prompt=124, visual=64, tokens=28, spread=0.3, turns=10, simulator=1.0, most=2.0),
}


def run_of(size: str, job: Job, *, lora: bool, shards: int = 1, adam: float = 2.0) -> MemoryInputs:
    """What one GPU trains, a pass at a time, checkpointed. adam: numbers that the optimizer keeps of a parameter."""
    geometry = SIZES[size]
    added = sum(adapters(geometry, 16, "all-linear").values())
    learns = parameters(geometry).all if not lora else added
    learning = {"vision": 1, "projector": 1, "language": 1}
    update = Update("shared", passes=1, checkpointed=True, chunked=True, **factors(learning, lora))
    return MemoryInputs(
        geometry, job.group, update, prompts=job.units, micro=job.units, trained=learns,
        adapters=added if lora else 0, width=2, states=adam, shards=shards,
    )  # fmt: skip


def needed(run: MemoryInputs) -> float:
    """Bytes of one GPU in an update. Sharded weights are gathered two layers at a time and not kept for products."""
    parts = memory.held(run) | memory.update(run)
    if run.shards > 1:
        parts["weights for products"] = 2 * run.width * run.geometry.language.block_matrices
    return sum(parts.values())


def fits(run: MemoryInputs) -> bool:
    return needed(run) <= ROOM * MEMORY


def flops(size: str, job: Job, lora: bool) -> tuple[float, float, float]:
    """Of one episode: prefill with the tower, decoding, learning (scored anew, forward, backward, recomputed)."""
    run = run_of(size, job, lora=lora)
    parts = step(run.geometry, run.group, run.update)
    episodes = run.group.members / job.turns
    tower = parts.tower.total / 3  # it looks when writing, when scoring, and in the update
    learned = sum(getattr(parts, part).total for part in ("reference", "forward", "backward", "recompute"))
    return (parts.prefill.total + tower) / episodes, parts.decode.total / episodes, (learned + 2 * tower) / episodes


def speed(rates: Rates) -> float:
    """FLOPs a second of one GPU."""
    return rates.mfu * PEAK


@dataclass(frozen=True)
class Engine:
    """A copy of the model that writes: on so many GPUs, with room for the keys and values of so many episodes."""

    gpus: int
    room: int


def engine(size: str, job: Job, rates: Rates) -> Engine:
    """On the fewest GPUs that leave room for 32 episodes."""
    geometry, gpus = SIZES[size], 1
    while True:
        left = ROOM * MEMORY * gpus - 2 * parameters(geometry).all - 4e9
        room = int(left / _cache(geometry, job))
        if room >= 32:
            return Engine(gpus, min(room, rates.places))
        gpus *= 2


def _cache(geometry: Geometry, job: Job) -> float:
    """Bytes of an episode's keys and values, at the end of a mean answer."""
    return 2 * geometry.language.cached * (job.prompt / job.group.members + job.tokens)


def token(size: str, job: Job, rates: Rates, gpus: int, rows: float) -> float:
    """Seconds for the next token of so many episodes: all weights are read, and their keys and values half full."""
    language = SIZES[size].language
    weights = 2 * (language.layers * language.block_matrices + language.vocabulary * language.hidden)
    half = replace(job, tokens=job.tokens / 2)
    reading = (weights + rows * _cache(SIZES[size], half)) / (gpus * BANDWIDTH * rates.reading)
    work = rows * flops(size, job, False)[1] / (job.tokens * job.turns) / (gpus * speed(rates))
    return max(reading, work) + (2 * language.layers * rates.exchange if gpus > 1 else 0)
