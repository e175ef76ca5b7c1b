"""What a run forwards and where its seconds go, gathered between two looks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from vlrl.plan import devices

if TYPE_CHECKING:
    import torch

# Counts, each of all that was forwarded (a backward pass is no forward), beside what a step cannot do without.
COUNTS = (
    "patches",  # of images and video frames through the tower
    "patches_distinct",  # of them, the different ones: each prompt's once
    "tokens",  # through the language model
    "tokens_distinct",  # each prompt's and each completion's once
    "tower_calls",
    "processor_calls",
    "flops",  # of the step without repetition (vlrl/cost.py): what an MFU counts
)
PARTS = ("media", "prefill", "decode", "logprob", "forward", "backward", "optimizer", "reward", "environment")


class Work:
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

    def absorb(self, other: Work) -> None:
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

    known = devices.named(torch.cuda.get_device_name(device))
    return flops / seconds / (known.tflops * 1e12) if known and seconds > 0 else None


def _known(name: str, names: tuple[str, ...]) -> str:
    if name not in names:
        raise KeyError(f"{name!r} is none of {', '.join(names)}")
    return name
