"""Which of a run's processes this is, and what they say to each other. Imports torch where there are several."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vlrl.parallel import link as links
from vlrl.parallel.link import patience
from vlrl.types import Decision

if TYPE_CHECKING:
    from torch import Tensor

# set by torchrun and accelerate, or by an MPI; the same that accelerate reads
SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
RANKS = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")


@dataclass(frozen=True)
class World:
    """The processes of a run. What is not a plain question must be called by all of them, in the same order.

    Threads that talk at the same time have a link each (`beside`): what they call asks `here()` and need not know.
    """

    rank: int = 0
    size: int = 1
    link: Any = None  # a process group of torch; None: the run's own

    @property
    def main(self) -> bool:
        """Whether this process writes what the run leaves behind."""
        return self.rank == 0

    def part(self, count: int) -> range:
        """Which of `count` things are this process's own: as many as another's, or one more."""
        return range(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def owner(self, decision: Decision, number: int) -> int:
        """The rank of the process that evaluates a decision: that made it, or by its number where all can."""
        return number % self.size if self.size == 1 or decision.home is None else decision.home

    def keeps(self, decision: Decision, number: int) -> bool:
        """Whether a decision is this process's to evaluate."""
        return self.size == 1 or self.owner(decision, number) == self.rank

    @links.told
    def gather(self, value: Any) -> list[Any]:
        """Every process's value (`vlrl.parallel.wire`), in the order of their ranks."""
        if self.size == 1:
            return [value]
        from vlrl.parallel import wire

        return [wire.unpacked(data) for data in links.gathered(wire.packed(value), self.size, self.link)]

    @links.told
    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes, in place; bit by bit the same in all of them."""
        if self.size > 1:
            from torch import distributed

            there = links.device(self.link)
            given = values if str(values.device) == there or values.is_cuda else values.to(there)
            distributed.all_reduce(given, group=self.link)
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

    def beside(self) -> World:
        """The same processes over a link of their own, between CPUs: for bytes, while the run's own is in use."""
        if self.size == 1:
            return self
        self.wait()  # tells of a lost process, whom a new link would wait for
        return replace(self, link=links.told(links.made)())

    def call[**P, R](self, function: Callable[P, R], *given: P.args, **named: P.kwargs) -> R:
        """Calls a function; `here()` is this meanwhile, in this thread."""
        token = _TALKING.set(self)
        try:
            return function(*given, **named)
        finally:
            _TALKING.reset(token)

    def cut(self) -> None:
        """Ends a link that `beside` made: who waits in any thread, here or elsewhere, is told that nobody answers."""
        if self.link is not None:
            links.cut(self.link)


_TALKING: ContextVar[World | None] = ContextVar("talking", default=None)


def here() -> World:
    """The processes that this one belongs to, as its launcher says, over the link that this thread talks by."""
    size = _number(SIZES, 1)
    return _TALKING.get() or (World() if size == 1 else World(_number(RANKS, 0), size))


def by_main[**P](write: Callable[P, object]) -> Callable[P, None]:
    """A function that writes: called in the main process, and passed over in the others."""

    @functools.wraps(write)
    def once(*given: P.args, **named: P.kwargs) -> None:
        if here().main:
            write(*given, **named)

    return once


def on_cpu() -> bool:
    import torch

    return not torch.cuda.is_available()


def _number(names: tuple[str, ...], otherwise: int) -> int:
    return next((int(os.environ[name]) for name in names if os.environ.get(name)), otherwise)
