"""Which of a run's processes this is, and what they say to each other. Imports torch where there are several."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlrl.io import HeldError, hold_folder
from vlrl.types import Decision, UserError

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch import Tensor


# What carries bytes between the processes of a run: the group that they were launched as, or one of its own.

HOURS = 12  # that processes wait for each other: an episode of a robot may take long, and a launcher ends all with one
WAIT = "VLRL_WAIT_S"  # the environment variable that says otherwise, in seconds
DEVICES = "GLOO_SOCKET_IFNAME"  # read by torch: the network devices that a link takes turns with


def report_lost_process[T](method: Callable[..., T]) -> Callable[..., T]:
    """A lost process is told of in one line: its own says why it ended."""

    @functools.wraps(method)
    def tried(*given: Any) -> T:
        try:
            return method(*given)
        except RuntimeError as error:
            reason = (str(error).strip().splitlines() or [""])[0]
            raise UserError(f"another process of this run does not answer, see its own message ({reason})") from None

    return tried


def patience() -> timedelta:
    """How long processes wait for each other: what hangs is told from what takes long by this alone."""
    given = os.environ.get(WAIT)
    try:
        seconds = float(given) if given else HOURS * 3600.0
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 1e8:
        raise UserError(f"{WAIT}: {given!r}: must be seconds, at least 1")
    return timedelta(seconds=seconds)


def device(link: Any) -> str:
    """Where a link (a process group of torch; None: the run's own) reads and writes."""
    from torch import distributed

    return "cuda" if "nccl" in distributed.get_backend(link) else "cpu"


def make_link() -> Any:
    """A link of its own, between CPUs. All processes make it, in the same order."""
    from torch import distributed

    return distributed.new_group(backend="gloo", timeout=patience())


def cut(link: Any) -> None:
    """Ends a link: what waits in any thread, of this process or of its neighbours, fails with a RuntimeError.

    Of gloo, `abort` does nothing, but where one wait took too long it closes all that the link consists of.
    """
    import torch

    for other in set(range(link.size())) - {link.rank()}:
        for number in range(1 + os.environ.get(DEVICES, "").count(",")):
            with suppress(RuntimeError):
                link.recv([torch.zeros(1)], other, number).wait(timedelta(milliseconds=1))


def gathered(data: bytes, size: int, link: Any) -> list[bytes]:
    """Every process's bytes; all are padded to the longest on their way."""
    import torch
    from torch import distributed

    there = device(link)
    lengths = [torch.zeros(1, dtype=torch.int64, device=there) for _ in range(size)]
    distributed.all_gather(lengths, torch.tensor([len(data)], device=there), link)
    longest = max(int(length) for length in lengths)
    own = torch.zeros(longest, dtype=torch.uint8, device=there)
    own[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    found = [torch.empty_like(own) for _ in range(size)]
    distributed.all_gather(found, own, link)
    pairs = zip(found, lengths, strict=True)
    return [each[: int(length)].cpu().numpy().tobytes() for each, length in pairs]


# set by torchrun and accelerate, or by an MPI; the same that accelerate reads
SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
RANKS = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")


@dataclass(frozen=True)
class World:
    """The processes of a run. What is not a plain question must be called by all of them, in the same order.

    Threads that talk at the same time have a link each (`on_own_link`): what they call asks `here()` and need not know.
    """

    rank: int = 0
    size: int = 1
    link: Any = None  # a process group of torch; None: the run's own

    @property
    def is_rank_zero(self) -> bool:
        """Whether this process writes what the run leaves behind."""
        return self.rank == 0

    def part(self, count: int) -> range:
        """Which of `count` things are this process's own: as many as another's, or one more."""
        return range(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def owner(self, decision: Decision, number: int) -> int:
        """The rank of the process that evaluates a decision: that made it, or by its number where all can."""
        return number % self.size if self.size == 1 or decision.owner_rank is None else decision.owner_rank

    def keeps(self, decision: Decision, number: int) -> bool:
        """Whether a decision is this process's to evaluate."""
        return self.size == 1 or self.owner(decision, number) == self.rank

    @report_lost_process
    def gather(self, value: Any) -> list[Any]:
        """Every process's value (`vlrl.distributed.wire`), in the order of their ranks."""
        if self.size == 1:
            return [value]
        from vlrl.distributed import wire

        return [wire.unpacked(data) for data in gathered(wire.packed(value), self.size, self.link)]

    @report_lost_process
    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes, in place; bit by bit the same in all of them."""
        if self.size > 1:
            from torch import distributed

            there = device(self.link)
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

    def on_own_link(self) -> World:
        """The same processes over a link of their own, between CPUs: for bytes, while the run's own is in use."""
        if self.size == 1:
            return self
        self.wait()  # tells of a lost process, whom a new link would wait for
        return replace(self, link=report_lost_process(make_link)())

    def call[**P, R](self, function: Callable[P, R], *given: P.args, **named: P.kwargs) -> R:
        """Calls a function; `here()` is this meanwhile, in this thread."""
        token = _TALKING.set(self)
        try:
            return function(*given, **named)
        finally:
            _TALKING.reset(token)

    def cut(self) -> None:
        """Ends a link that `on_own_link` made: whoever waits in any thread, here or elsewhere, fails."""
        if self.link is not None:
            cut(self.link)


_TALKING: ContextVar[World | None] = ContextVar("talking", default=None)


def get_world() -> World:
    """The processes that this one belongs to, as its launcher says, over the link that this thread talks by."""
    size = _number(SIZES, 1)
    return _TALKING.get() or (World() if size == 1 else World(_number(RANKS, 0), size))


def by_main[**P](write: Callable[P, object]) -> Callable[P, None]:
    """A function that writes: called in the main process, and passed over in the others."""

    @functools.wraps(write)
    def once(*given: P.args, **named: P.kwargs) -> None:
        if get_world().is_rank_zero:
            write(*given, **named)

    return once


def on_cpu() -> bool:
    import torch

    return not torch.cuda.is_available()


def _number(names: tuple[str, ...], otherwise: int) -> int:
    return next((int(os.environ[name]) for name in names if os.environ.get(name)), otherwise)


# Meeting the other processes, as the launcher wants it.


def is_engine_requested(engine: str) -> bool:
    """Whether the launcher asks for an engine of accelerate's, as `FSDP`."""
    return os.environ.get(f"ACCELERATE_USE_{engine}", "").lower() == "true"


def in_parts() -> bool:
    """Whether the launcher asks for weights in parts (FSDP2), for more than one process."""
    return get_world().size > 1 and is_engine_requested("FSDP")


def optimizer_in_parts() -> bool:
    """Whether the launcher asks for the optimizer in parts (DeepSpeed's ZeRO 1), for more than one process."""
    return get_world().size > 1 and is_engine_requested("DEEPSPEED")


def launched(out: Path, trackers: Sequence[str]) -> Accelerator:
    """The run's place among others and its trackers. A GPU of its own becomes the process's device."""
    from accelerate import Accelerator
    from accelerate.utils import InitProcessGroupKwargs, ProjectConfiguration

    if in_parts():  # else transformers loads weights in the first process alone, for accelerate to spread
        os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"
    place = ProjectConfiguration(project_dir=str(out), logging_dir=str(out / "tensorboard"))
    several: list[Any] | None = [InitProcessGroupKwargs(timeout=patience())] if get_world().size > 1 else None
    with _without_deepspeed():
        return Accelerator(cpu=on_cpu(), log_with=list(trackers) or None, project_config=place, kwargs_handlers=several)


@contextmanager
def hold_run(out: Path) -> Iterator[None]:
    """The first process holds the run folder (`vlrl.io`) for all.

    Raises:
        HeldError: in every process, where somebody else holds it.
    """
    world, problem = get_world(), None
    if world.size > 1:
        with _without_deepspeed():
            world.join()
    with ExitStack() as held:
        if world.is_rank_zero:
            try:
                held.enter_context(hold_folder(out))
            except UserError as error:
                problem = str(error)
        if problem := world.gather(problem)[0]:
            raise HeldError(problem)
        yield


@contextmanager
def _without_deepspeed() -> Iterator[None]:
    """Keeps accelerate from wrapping the model in DeepSpeed, where the launcher asks for that."""
    if on_cpu():  # accelerate imports DeepSpeed where it is installed, which else warns that there is no GPU
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    asked_for = os.environ.pop("ACCELERATE_USE_DEEPSPEED", None)
    try:
        yield
    finally:
        if asked_for:
            os.environ["ACCELERATE_USE_DEEPSPEED"] = asked_for


# What the command line makes of a run's many processes. Imports no torch.

SEVERAL = ("train", "eval", "show")  # commands that know of other processes


def check_command(command: str) -> None:
    """UserError for a command that would be carried out once in every process."""
    if get_world().size > 1 and command not in SEVERAL:
        raise UserError(f"{command}: runs in one process: start it without accelerate launch or torchrun")


def to_tell(error: UserError) -> str:
    """What a process says of an error; nothing of one that the main process has met as well."""
    world = get_world()
    if world.is_rank_zero:
        return str(error)
    alike = error.exit_code is not None or not _met()  # the end of a run, or of reading its configuration
    return "" if alike else f"process {world.rank}: {error}"


def _met() -> bool:
    """Whether the processes have found each other."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()
