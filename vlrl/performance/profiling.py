"""Seconds, work and memory of a step on a device."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vlrl.types import UserError, suggest

if TYPE_CHECKING:
    import torch


# NVIDIA GPUs by name: peak, memory and bandwidth as their data sheets give them.


@dataclass(frozen=True)
class Device:
    """What a plan and an MFU ask of a device. None: not known."""

    name: str
    tflops: float | None  # dense bfloat16 with float32 accumulation, 1e12 FLOPs a second
    memory: float  # GB, 1e9 bytes
    bandwidth: float | None  # of the memory, TB a second

    @property
    def short(self) -> str:
        """As a command line names it: h100, a100-80, 4090."""
        return self.name.lower().removeprefix("rtx ").replace("gb", "").replace(" ", "-")


# Data sheets, without sparsity. Where a card has several forms, the longer name comes before the shorter.
GPUS = (
    Device("B200", 2250, 180, 7.7),
    Device("GH200", 989, 96, 4.0),
    Device("H200", 989, 141, 4.8),
    Device("H100 PCIe", 756, 80, 2.0),
    Device("H100 NVL", 835, 94, 3.9),
    Device("H100", 989, 80, 3.35),
    Device("H800", 989, 80, 3.35),
    Device("H20", 148, 96, 4.0),
    Device("A100 80GB", 312, 80, 2.0),
    Device("A100 40GB", 312, 40, 1.55),
    Device("A800", 312, 80, 2.0),
    Device("L40S", 362, 48, 0.864),
    Device("L40", 181, 48, 0.864),
    Device("L4", 121, 24, 0.3),
    Device("A10G", 70, 24, 0.6),
    Device("A10", 125, 24, 0.6),
    Device("RTX 6000 Ada", 364, 48, 0.96),
    Device("RTX A6000", 155, 48, 0.768),
    Device("RTX 5090", 209, 32, 1.79),
    Device("RTX 4090", 165, 24, 1.01),
    Device("RTX 3090", 71, 24, 0.936),
)


def named(name: str) -> Device | None:
    """The GPU that torch.cuda.get_device_name calls `name`, for example "NVIDIA A100-SXM4-80GB"; None: not known."""
    words = _words(name)
    if {"laptop", "mig"} & words:  # another chip, a part of one
        return None
    return next((gpu for gpu in GPUS if _words(gpu.name) <= words), None)


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", name.lower()))


def find_device(name: str, tflops: float | None = None, memory: float | None = None) -> Device:
    """The device that a command line names: `h100`, `a100-80`, `24GB` (of a card not listed), `cpu`.

    Args:
        tflops, memory: where told, they take precedence.

    Raises:
        UserError: an unknown name; a CPU whose memory is not told.
    """
    short, size = name.lower(), re.fullmatch(r"(\d+(?:\.\d+)?)gb", name.lower())
    if size:
        found = Device(name, None, float(size[1]), None)
    elif short == "cpu":
        if memory is None:
            raise UserError("--gpu cpu: give --memory, its GB, and --tflops, its peak, where seconds are wanted")
        found = Device("cpu", None, memory, None)
    else:
        known = {gpu.short: gpu for gpu in GPUS}
        if short not in known:
            raise UserError(f"--gpu: unknown {name!r}{suggest(short, list(known))}; or its memory, for example 24GB")
        found = known[short]
    return replace(found, tflops=tflops or found.tflops, memory=memory or found.memory)


# What a run forwards and where its seconds go, gathered between two looks.

# Counts, each of all that was forwarded (a backward pass is no forward), beside what a step cannot do without.
COUNTS = (
    "patches",  # of images and video frames through the tower
    "patches_distinct",  # of them, the different ones: each prompt's once
    "tokens",  # through the language model
    "tokens_distinct",  # each prompt's and each completion's once
    "conversation_tokens",  # of conversations' prompts
    "cached_tokens",  # of them, those whose keys and values were kept from the turn before
    "tower_calls",
    "processor_calls",
    "flops",  # of the step without repetition (vlrl/performance/flops.py): what an MFU counts
)
PARTS = ("media", "prefill", "decode", "logprob", "forward", "backward", "optimizer", "reward", "environment")


class StepProfiler:
    """Counts that add up and seconds by part. Belongs to one thread.

    Args:
        device: on CUDA, a part's work is awaited before its time is read.
        clock: seconds that only grow.
    """

    def __init__(self, device: torch.device | str = "cpu", clock: Callable[[], float] = time.perf_counter):
        self.device, self._clock = str(device), clock
        self._counts: dict[str, float] = {}
        self._seconds: dict[str, float] = {}
        self._open: list[str] = []  # parts under way, the innermost last
        self._since = 0.0  # up to here, time has gone to its part

    def add(self, **counts: float) -> None:
        """Adds to counts; names are those of COUNTS.

        Raises:
            KeyError: another name.
        """
        for name, count in counts.items():
            self._counts[_known(name, COUNTS)] = self._counts.get(name, 0) + count

    @contextlib.contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Adds the seconds inside to a part of PARTS. Seconds of a block within go to that block's part alone.

        Raises:
            KeyError: another name.
        """
        _known(part, PARTS)
        self._charge()
        self._open.append(part)
        try:
            yield
        finally:
            self._charge()
            self._open.pop()

    def absorb(self, other: StepProfiler) -> None:
        """Adds what another has gathered, which forgets it."""
        other._charge()
        for mine, theirs in ((self._counts, other._counts), (self._seconds, other._seconds)):
            for name, value in theirs.items():
                mine[name] = mine.get(name, 0) + value
        other._counts, other._seconds = {}, {}

    def taken(self) -> dict[str, float]:
        """What has gathered since the last call, and forgets it: counts by name, seconds as `<part>_s`."""
        self._charge()  # of a part under way, what has passed so far
        row = self._counts | {f"{part}_s": seconds for part, seconds in self._seconds.items()}
        self._counts, self._seconds = {}, {}
        return row

    def _charge(self) -> None:
        """The time since the last call goes to the innermost part under way."""
        if self.device.startswith("cuda"):
            import torch

            torch.cuda.synchronize(self.device)
        now = self._clock()
        if self._open:
            self._seconds[self._open[-1]] = self._seconds.get(self._open[-1], 0.0) + now - self._since
        self._since = now


def timed(policy: object, part: str) -> contextlib.AbstractContextManager[None]:
    """`Work.timed` of a policy that keeps one (`work`)."""
    work = getattr(policy, "work", None)
    return work.timed(part) if work else contextlib.nullcontext()


def mfu(flops: float, seconds: float, device: torch.device | str) -> float | None:
    """The share of a GPU's dense bfloat16 peak that `flops` in `seconds` make; None where the peak is not known.

    Float32 runs are measured by the same peak.
    """
    if not str(device).startswith("cuda"):
        return None
    import torch

    known = named(torch.cuda.get_device_name(device))
    return flops / seconds / (known.tflops * 1e12) if known and seconds > 0 else None


def _known(name: str, names: tuple[str, ...]) -> str:
    if name not in names:
        raise KeyError(f"{name!r} is none of {', '.join(names)}")
    return name
