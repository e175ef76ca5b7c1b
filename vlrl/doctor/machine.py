"""The machine: Python, processors, memory, disk."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vlrl.doctor.finding import GIB, SETUP, Finding, install, read

CARD = Path("/dev/nvidia0")


def python() -> Iterator[Finding]:
    yield Finding("python", "ok", f"{platform.python_version()} ({sys.executable})")


def devices() -> Iterator[Finding]:
    """The CPU, and every GPU that torch can use."""
    try:
        import torch
    except ModuleNotFoundError:
        yield Finding("device", "missing", "torch is not installed: no training here", install("train"))
        return
    except (ImportError, OSError) as error:  # OSError: a shared library of CUDA's is not there
        yield Finding("device", "error", f"torch does not import: {error}".splitlines()[0], SETUP)
        return
    yield Finding("cpu", "ok", f"{os.cpu_count()} cores, {torch.get_num_threads()} threads, {_cpu_bf16()}")
    yield from cards(torch, CARD.exists())


def cards(torch: Any, there: bool) -> Iterator[Finding]:
    """Args: there: whether the machine has a card, whatever torch says of it."""
    with warnings.catch_warnings(record=True) as said:  # a driver that is too old for torch is only warned of
        warnings.simplefilter("always")
        usable = torch.cuda.is_available()
    fix = f"a driver for CUDA {torch.version.cuda}, or a torch for the driver's" if torch.version.cuda else (
        "this torch is built without CUDA: install one that is built with it"
    )  # fmt: skip
    if not usable and there:
        why = str(said[0].message).splitlines()[0] if said else "torch cannot use the GPU that is there"
        yield Finding("cuda", "warn", why, fix)
    elif not usable:
        yield Finding("cuda", "missing", "no GPU that torch can use", f"if there is one: {fix}")
    for i in range(torch.cuda.device_count() if usable else 0):
        card = torch.cuda.get_device_properties(i)
        bf16 = "bf16" if card.major >= 8 else "no bf16: set policy.dtype=float32"
        yield Finding(f"cuda:{i}", "ok", f"{card.name}, {card.total_memory / GIB:.0f} GiB, {bf16}")


def _cpu_bf16() -> str:
    flags = read("/proc/cpuinfo")
    return "bf16" if "avx512_bf16" in flags or "amx_bf16" in flags else "no bf16 in hardware: use float32"


def room() -> Iterator[Finding]:
    """Memory of the machine or of the container, and disk where runs are written."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = read("/sys/fs/cgroup/memory.max").strip()
    memory = min(memory, int(limit)) if limit.isdigit() else memory
    yield _enough("memory", memory / GIB, 4, f"{memory / GIB:.1f} GiB")
    disk = shutil.disk_usage(Path.cwd())
    yield _enough("disk", disk.free / GIB, 10, f"{disk.free / GIB:.0f} of {disk.total / GIB:.0f} GiB free")


def _enough(name: str, amount: float, least: int, value: str) -> Finding:
    short = amount < least
    return Finding(name, "warn" if short else "ok", value, f"{least} GiB are comfortable" if short else "")
