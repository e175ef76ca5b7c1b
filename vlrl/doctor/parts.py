"""Parts of the system that some tasks and robots use, and the model that comes with vlrl."""

from __future__ import annotations

import ctypes.util
import os
from collections.abc import Iterator
from pathlib import Path

from vlrl.doctor.finding import ROOT, Finding, optional, program
from vlrl.doctor.packages import version_of

TINY = ROOT / "vlrl" / "assets" / "tiny"


def renderers() -> Iterator[Finding]:
    """Either of the two lets simulators render without a screen."""
    for library, package in (("EGL", "libegl1"), ("OSMesa", "libosmesa6")):
        yield optional(library, ctypes.util.find_library(library), f"run `make system` or install {package}")


def decoders() -> Iterator[Finding]:
    for name in ("av", "torchcodec"):
        yield optional(name, version_of(name), f"pip install {name}")
    yield optional("ffmpeg", program("ffmpeg"), "run `make system` or install ffmpeg")


def browser() -> Iterator[Finding]:
    chromium = program("chromium", "chromium-browser", "google-chrome")
    yield optional("chromium", chromium, "run `make system` or install chromium")
    yield optional("chromedriver", program("chromedriver"), "run `make system` or install chromium-driver")


def robots() -> Iterator[Finding]:
    """Serial ports, where arms are, and whether this user may open them; cameras."""
    ports = sorted(str(port) for pattern in ("ttyACM*", "ttyUSB*") for port in Path("/dev").glob(pattern))
    shut = [port for port in ports if not os.access(port, os.R_OK | os.W_OK)]
    if shut:
        value = f"{', '.join(shut)}: not yours to open"
        yield Finding("serial ports", "warn", value, "sudo usermod -a -G dialout $USER")
    else:
        yield optional("serial ports", ", ".join(ports), "plug in an arm, or `vlrl emulate so101`")
    cameras = sorted(str(camera) for camera in Path("/dev").glob("video*"))
    yield optional("cameras", ", ".join(cameras), "plug one in")


def embedded() -> Iterator[Finding]:
    """The tiny model that runs without a download."""
    size = sum(file.stat().st_size for file in TINY.rglob("*") if file.is_file()) if TINY.is_dir() else 0
    if size:
        yield Finding("embedded model", "ok", f"{size / 2**20:.1f} MiB")
    else:
        yield Finding("embedded model", "error", "vlrl/assets/tiny is not there", "check out or install vlrl again")
