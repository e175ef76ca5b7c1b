"""Which of a run's processes this is, and what they say to each other. Imports torch where there are several."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vlrl.types import Decision, UserError

if TYPE_CHECKING:
    from torch import Tensor

# set by torchrun and accelerate, or by an MPI; the same that accelerate reads
SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
RANKS = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")
HOURS = 12  # that processes wait for each other: an episode of a robot may take long, and a launcher ends all with one


def _told[T](method: Callable[..., T]) -> Callable[..., T]:
    """A lost process is told of in one line: its own says why it ended."""

    @functools.wraps(method)
    def tried(*given: Any) -> T:
        try:
            return method(*given)
        except RuntimeError as error:
            reason = (str(error).strip().splitlines() or [""])[0]
            raise UserError(f"another process of this run does not answer, see its own message ({reason})") from None

    return tried


@dataclass(frozen=True)
class World:
    """The processes of a run. What is not a plain question must be called by all of them, in the same order."""

    rank: int = 0
    size: int = 1

    @property
    def main(self) -> bool:
        """Whether this process writes what the run leaves behind."""
        return self.rank == 0

    def part(self, count: int) -> range:
        """Which of `count` things are this process's own: as many as another's, or one more."""
        return range(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def keeps(self, decision: Decision, number: int) -> bool:
        """Whether a decision is this process's to evaluate: that it made, or by its number what all can evaluate."""
        return self.size == 1 or (number % self.size if decision.home is None else decision.home) == self.rank

    @_told
    def gather(self, value: Any) -> list[Any]:
        """Every process's value (`vlrl.parallel.wire`), in the order of their ranks."""
        if self.size == 1:
            return [value]
        from vlrl.parallel import wire

        return [wire.unpacked(data) for data in _gathered(wire.packed(value), self.size)]

    @_told
    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes, in place; bit by bit the same in all of them."""
        if self.size > 1:
            from torch import distributed

            given = values if str(values.device) == _device() or values.is_cuda else values.to(_device())
            distributed.all_reduce(given)
            values.copy_(given)
        return values

    def any(self, here: bool) -> bool:
        """Whether it is true in any process."""
        if self.size == 1:
            return here
        import torch

        return bool(self.sum(torch.tensor([float(here)])) > 0)

    def wait(self) -> None:
        """Until all have come this far."""
        self.any(False)

    def join(self) -> None:
        """Meets the others, where `accelerate.Accelerator` has not yet done so."""
        if self.size > 1:
            from accelerate import PartialState

            PartialState(cpu=on_cpu(), timeout=patience())


def here() -> World:
    """The processes that this one belongs to, as its launcher says."""
    size = _number(SIZES, 1)
    return World() if size == 1 else World(_number(RANKS, 0), size)


def by_main[**P](write: Callable[P, None]) -> Callable[P, None]:
    """A function that writes: called in the main process, and passed over in the others."""

    @functools.wraps(write)
    def once(*given: P.args, **named: P.kwargs) -> None:
        if here().main:
            write(*given, **named)

    return once


def on_cpu() -> bool:
    import torch

    return not torch.cuda.is_available()


def patience() -> Any:
    from datetime import timedelta

    return timedelta(hours=HOURS)


def _number(names: tuple[str, ...], otherwise: int) -> int:
    return next((int(os.environ[name]) for name in names if os.environ.get(name)), otherwise)


def _device() -> str:
    """Where the processes' link reads and writes."""
    from torch import distributed

    return "cuda" if "nccl" in distributed.get_backend() else "cpu"


def _gathered(data: bytes, size: int) -> list[bytes]:
    """Every process's bytes; all are padded to the longest on their way."""
    import torch
    from torch import distributed

    lengths = [torch.zeros(1, dtype=torch.int64, device=_device()) for _ in range(size)]
    distributed.all_gather(lengths, torch.tensor([len(data)], device=_device()))
    longest = max(int(length) for length in lengths)
    own = torch.zeros(longest, dtype=torch.uint8, device=_device())
    own[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    found = [torch.empty_like(own) for _ in range(size)]
    distributed.all_gather(found, own)
    pairs = zip(found, lengths, strict=True)
    return [each[: int(length)].cpu().numpy().tobytes() for each, length in pairs]
