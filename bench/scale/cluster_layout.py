"""How a cluster's GPUs are shared between writing and learning, and the queue that this makes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cluster_model import NODE, SIZES, Job, Rates, engine, fits, flops, run_of, speed, token
from cluster_queue import Setup

from vlrl.performance.profiling import parameters

WAYS = ("network", "disk", "disk_each")  # weights take, see `publishing`


@dataclass(frozen=True)
class Asked:
    """What is to be laid out. batch: episodes of a step; way: of weights; lora: what is trained."""

    size: str
    job: Job
    gpus: int
    batch: int
    way: str
    rates: Rates
    lora: bool


@dataclass(frozen=True)
class Layout:
    """writing, learning: GPUs; both are all of them where the two take turns. places: episodes at once.

    writes: seconds that a mean episode holds its place, its simulator aside; learn: of an update; publish, pause: until
    engines have its weights, and of that, while they stand still.
    """

    asked: Asked
    writing: int
    learning: int
    places: int
    writes: float
    learn: float
    publish: float
    pause: float

    @property
    def together(self) -> bool:
        return self.writing == self.asked.gpus

    @property
    def played(self) -> float:
        """Seconds that a mean episode holds its place."""
        return self.writes + self.asked.job.simulator

    @property
    def guess(self) -> float:
        """Seconds of a step without stragglers: the parts one after the other, or the longer one."""
        rollout = self.asked.batch * self.played / self.places + self.publish
        return rollout + self.learn if self.together else max(rollout, self.learn)

    def setup(self, staleness: int, **changes: float) -> Setup:
        nodes = max(1, self.writing // NODE)
        made = Setup(self.places, self.learn, nodes, staleness, self.publish, self.pause)
        return replace(made, **changes)


def asked(size: str, job: Job, gpus: int, rates: Rates, way: str, most: int = 8192) -> Asked:
    """32 episodes a GPU, `most` at most; all is trained where it fits on half of the GPUs, sharded, else adapters."""
    half = run_of(size, job, lora=False, shards=max(1, gpus // 2))
    return Asked(size, job, gpus, min(32 * gpus, most), way, rates, lora=not fits(half))


def turns(what: Asked) -> Layout:
    """All GPUs write, then all learn: weights change hands by the network."""
    return made(replace(what, way="network"), what.gpus)


def apart(what: Asked) -> Layout | None:
    """Some write while others learn, split for the shortest step; None where they do not fit beside each other."""
    unit = NODE if what.gpus > NODE else engine(what.size, what.job, what.rates).gpus
    shares = range(unit, what.gpus, max(unit, what.gpus // 32))
    enough = [n for n in shares if fits(run_of(what.size, what.job, lora=what.lora, shards=n))]
    return min((made(what, learning) for learning in enough), key=lambda each: each.guess, default=None)


def made(what: Asked, learning: int) -> Layout:
    writing = what.gpus if learning == what.gpus else what.gpus - learning
    places, writes = _writing(what, writing)
    written, read = publishing(what, writing, learning)
    return Layout(what, writing, learning, places, writes, learns(what, learning), written + read, read)


def _writing(what: Asked, gpus: int) -> tuple[int, float]:
    """Places, and seconds of a mean episode in one, its simulator aside: that of others' prefill passes included."""
    size, job, rates = what.size, what.job, what.rates
    copy = engine(size, job, rates)
    engines = gpus // copy.gpus
    places = min(copy.room, -(-what.batch // engines))
    if job.simulator:
        places = min(places, rates.cores * copy.gpus // NODE)
    prefill = flops(size, job, what.lora)[0] / (copy.gpus * speed(rates))
    rows, writes = float(places), 0.0
    for _ in range(50):  # rows: those of the places that wait for no simulator
        writes = job.tokens * job.turns * token(size, job, rates, copy.gpus, rows) + rows * prefill
        rows = (rows + places * writes / (writes + job.simulator)) / 2
    return engines * places, writes


def learns(what: Asked, gpus: int) -> float:
    """Seconds of an update: FLOPs, and gradients that are exchanged.

    Replicated weights sum gradients once, in float32, after the last pass. Sharded ones are gathered twice a pass and
    their gradients sent, which takes its time beside the FLOPs. The GPU with the most groups counts.
    """
    job, whole = what.job, parameters(SIZES[what.size]).all
    units = what.batch * job.turns if job.turns > 1 else what.batch / job.members
    most = -(-units // gpus)
    compute = most * flops(what.size, job, what.lora)[2] * what.batch / units / speed(what.rates)
    wire = what.rates.nvlink if gpus <= NODE else what.rates.network
    run = run_of(what.size, job, lora=what.lora)
    if fits(run):
        return compute + (2 * 4 * run.trained / wire if gpus > 1 else 0)
    return max(compute, -(-most // job.units) * (2 * 2 * whole + 4 * run.trained) / wire)


def publishing(what: Asked, writing: int, learning: int) -> tuple[float, float]:
    """Seconds until new weights lie ready, and until all engines have taken them.

    `network`: gathered, then broadcast in bfloat16, GPU to GPU. `disk`: written once to a shared file system as the
    trainer holds them, read by each node. `disk_each`: written by each process that trains.
    """
    rates, whole = what.rates, parameters(SIZES[what.size]).all
    if what.way == "network":
        once = 2 * whole / (rates.network if what.gpus > NODE else rates.nvlink)
        return once, once
    stored, readers = whole * (2 if what.lora else 4), -(-writing // NODE)
    copies, writers = (learning, -(-learning // NODE)) if what.way == "disk_each" else (1, 1)
    written = copies * stored / min(rates.write * writers, rates.files)
    return written, readers * stored / min(rates.read * readers, rates.files)
