"""`vlrl doctor`: what this machine has, what is missing or wrong, and how to mend it. Runs on a broken set-up too."""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
import platform
import shutil
import sys
import tomllib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from packaging.requirements import Requirement


# One line of the doctor's report, and what its subjects share.

ROOT = Path(__file__).resolve().parents[2]
GIB = 2**30
CHECKOUT = (ROOT / "pyproject.toml").is_file()
SETUP = "run `make setup`" if CHECKOUT else "pip install --force-reinstall vlrl"


@dataclass(frozen=True)
class Finding:
    """One line of the report. `missing` is an optional part that is not there; only `error` stops vlrl from working."""

    name: str
    status: Literal["ok", "warn", "missing", "error"]
    value: str
    fix: str = ""


def optional(name: str, found: str | None, fix: str) -> Finding:
    return Finding(name, "ok", found) if found else Finding(name, "missing", "not found", fix)


def install(extra: str) -> str:
    """The command that brings an extra of ours."""
    return f"pip install -e '.[{extra}]' --constraint requirements.lock" if CHECKOUT else f"pip install 'vlrl[{extra}]'"


def program(*names: str) -> str | None:
    """The path of the first program of these names that is installed."""
    return next(filter(None, map(shutil.which, names)), None)


def finding_read(path: str) -> str:
    """A file's text, '' where it cannot be read."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


# The machine: Python, processors, memory, disk.

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
    with warnings.catch_warnings(record=True) as notes:  # a driver that is too old for torch is only warned of
        warnings.simplefilter("always")
        usable = torch.cuda.is_available()
    fix = f"a driver for CUDA {torch.version.cuda}, or a torch for the driver's" if torch.version.cuda else (
        "this torch is built without CUDA: install one that is built with it"
    )  # fmt: skip
    if not usable and there:
        why = str(notes[0].message).splitlines()[0] if notes else "torch cannot use the GPU that is there"
        yield Finding("cuda", "warn", why, fix)
    elif not usable:
        yield Finding("cuda", "missing", "no GPU that torch can use", f"if there is one: {fix}")
    for i in range(torch.cuda.device_count() if usable else 0):
        card = torch.cuda.get_device_properties(i)
        bf16 = "bf16" if card.major >= 8 else "no bf16: set policy.dtype=float32"
        yield Finding(f"cuda:{i}", "ok", f"{card.name}, {card.total_memory / GIB:.0f} GiB, {bf16}")


def _cpu_bf16() -> str:
    flags = finding_read("/proc/cpuinfo")
    return "bf16" if "avx512_bf16" in flags or "amx_bf16" in flags else "no bf16 in hardware: use float32"


def memory_size() -> int:
    """Bytes of the machine's memory, or of the container's."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = finding_read("/sys/fs/cgroup/memory.max").strip()
    return min(memory, int(limit)) if limit.isdigit() else memory


def room() -> Iterator[Finding]:
    """Memory of the machine or of the container, and disk where runs are written."""
    memory = memory_size() / GIB
    yield _enough("memory", memory, 4, f"{memory:.1f} GiB")
    disk = shutil.disk_usage(Path.cwd())
    yield _enough("disk", disk.free / GIB, 10, f"{disk.free / GIB:.0f} of {disk.total / GIB:.0f} GiB free")


def _enough(name: str, amount: float, least: int, value: str) -> Finding:
    short = amount < least
    return Finding(name, "warn" if short else "ok", value, f"{least} GiB are comfortable" if short else "")


# Packages: what vlrl asks for, and whether what is installed fits together.

REASONS = {"transformers": "older ones count the time positions of Qwen2.5-VL's videos wrongly"}


def version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def packages() -> Iterator[Finding]:
    """Each package that vlrl or one of its extras names, once."""
    try:
        from packaging.requirements import Requirement
    except ImportError:
        yield Finding("packages", "error", "not installed", SETUP)
        return
    requirements = {}
    for requirement in map(Requirement, _requirements()):
        if requirement.name != "vlrl":  # our own extras, whose parts are listed themselves
            requirements.setdefault((requirement.name, requirement.specifier), requirement)
    yield from map(_package, requirements.values())


def conflicts() -> Iterator[Finding]:
    """What a package that vlrl uses needs in another version than is there, as after an installation of something else.

    Such a package may import and fail later: `numpy.dtype size changed`, `operator torchvision::nms does not exist`.
    """
    try:
        from packaging.requirements import Requirement
        from packaging.utils import canonicalize_name
    except ImportError:
        return
    waiting = [Requirement(line).name for line in _requirements()]
    visited: set[str] = {"vlrl"}
    wrong = []
    while waiting:
        name = canonicalize_name(waiting.pop())
        version = version_of(name)
        if name in visited or version is None:
            continue
        visited.add(name)
        for needed in _needs(name):
            waiting.append(needed.name)
            installed = version_of(needed.name)
            if installed is not None and not needed.specifier.contains(installed, prereleases=True):
                wrong.append(
                    (f"{name} {version} needs {needed.name}{needed.specifier}, and {installed} is there", needed)
                )
    for value, needed in sorted(wrong, key=lambda each: each[0]):
        locked = " --constraint requirements.lock" if CHECKOUT else ""
        yield Finding("versions", "warn", value, f"pip install '{needed.name}{needed.specifier}'{locked}")
    if not wrong:
        yield Finding("versions", "ok", f"the {len(visited)} packages in use fit together")


def _needs(package: str) -> Iterator[Requirement]:
    """What an installed package asks for on this machine, its own extras left out."""
    from packaging.requirements import Requirement

    for requirement in map(Requirement, metadata.requires(package) or ()):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement


def _requirements() -> list[str]:
    """What vlrl asks for: from its installed metadata, or from the checkout when it is run uninstalled."""
    try:
        return metadata.requires("vlrl") or []
    except metadata.PackageNotFoundError:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].items()
    return project["dependencies"] + [f"{line}; extra == '{extra}'" for extra, lines in extras for line in lines]


def _package(requirement: Requirement) -> Finding:
    extra = str(requirement.marker).partition("extra == ")[2].strip("\"'")
    fix = install(extra) if extra else SETUP
    wrong = "error" if extra in ("", "train") else "warn"  # what trains must be right where it is
    version = version_of(requirement.name)
    if version is None:
        return Finding(requirement.name, "missing" if extra else "error", "not installed", fix)
    if not requirement.specifier.contains(version, prereleases=True):
        why = REASONS.get(requirement.name)
        need = f"needs {requirement.specifier}{f': {why}' if why else ''}; {fix}"
        return Finding(requirement.name, wrong, version, need)
    if lacking := _lacking(requirement):
        return Finding(requirement.name, wrong, f"{version} without {', '.join(lacking)}", fix)
    return Finding(requirement.name, "ok", version)


def _lacking(requirement: Requirement) -> list[str]:
    """What its own extras bring and is not there: a bare lerobot can read no demonstrations."""
    from packaging.requirements import Requirement

    parts = [Requirement(line) for line in metadata.requires(requirement.name) or ()]
    marked = [p for p in parts if p.marker and any(p.marker.evaluate({"extra": e}) for e in requirement.extras)]
    return sorted({part.name for part in marked if version_of(part.name) is None})


# Modules that other distributions may stand in the way of.


def opencv() -> Iterator[Finding]:
    """All variants of OpenCV write into the same `cv2` folder, so two versions leave a mixture."""
    variants = ("opencv-python", "opencv-python-headless", "opencv-contrib-python", "opencv-contrib-python-headless")
    versions = {name: version for name in variants if (version := version_of(name))}
    if len(set(versions.values())) > 1:
        value = ", ".join(f"{name} {version}" for name, version in versions.items())
        yield Finding("cv2", "error", value, f"pip install --force-reinstall {' '.join(versions)} -c requirements.lock")


def modules() -> Iterator[Finding]:
    """Other distributions install top-level modules of the same names (Robot Framework: `robot`)."""
    owners = metadata.packages_distributions()
    for name in ("vlrl", "tasks", "rewards", "robot"):
        spec = importlib.util.find_spec(name)
        places = list(spec.submodule_search_locations or [spec.origin or "?"]) if spec else []
        others = sorted({owner for owner in owners.get(name, ()) if owner != "vlrl"})
        fix = f"pip uninstall {' '.join(others)}" if others else "look for a folder of that name on PYTHONPATH"
        if not spec:
            yield Finding(f"module {name}", "error", "not found", SETUP)
        elif Path(places[0]).resolve() != ROOT / name:
            yield Finding(f"module {name}", "error", f"not ours: {places[0]}", fix)
        elif others:
            yield Finding(f"module {name}", "warn", f"ours, but {', '.join(others)} brings one too", fix)
        else:
            yield Finding(f"module {name}", "ok", "ours")


# Parts of the system that some tasks and robots use, and the model that comes with vlrl.

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


PARTS = (python, packages, conflicts, opencv, modules, devices, room, renderers, decoders, browser, robots, embedded)


def report() -> list[Finding]:
    """Everything that was looked at, in the order of the table."""
    return [finding for part in PARTS for finding in part()]


def main(json: bool = False, tell: Callable[[str], None] = print) -> int:
    """Tells the report as a table or as JSON; 1 if anything is an error, else 0."""
    findings = report()
    tell(dumps([asdict(f) for f in findings], indent=2) if json else table(findings))
    return int(any(f.status == "error" for f in findings))


def table(findings: list[Finding]) -> str:
    """Aligned columns: status, name, value, and after an arrow what to do."""
    name, value = max(len(f.name) for f in findings), max(len(f.value) for f in findings)
    rows = (f"{f.status:<7}  {f.name:<{name}}  {f.value:<{value}}{f'  -> {f.fix}' if f.fix else ''}" for f in findings)
    return "\n".join(row.rstrip() for row in rows)
