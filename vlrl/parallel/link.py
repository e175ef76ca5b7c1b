"""What carries bytes between the processes of a run: the group that they were launched as, or one of its own."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from vlrl.types import UserError

HOURS = 12  # that processes wait for each other: an episode of a robot may take long, and a launcher ends all with one
WAIT = "VLRL_WAIT_S"  # the environment variable that says otherwise, in seconds
DEVICES = "GLOO_SOCKET_IFNAME"  # read by torch: the network devices that a link takes turns with


def told[T](method: Callable[..., T]) -> Callable[..., T]:
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


def made() -> Any:
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
