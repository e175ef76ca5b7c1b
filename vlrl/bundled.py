"""The configs that come with vlrl. A checkout has them as `configs/`; who installed a wheel has them here alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vlrl.spelling import meant

CONFIGS = Path(__file__).parent / "configs"
if not CONFIGS.is_dir():  # a checkout on a file system without links has a file there
    CONFIGS = Path(__file__).parents[1] / "configs"


def config_file(name: str | Path) -> Path:
    """A file's path as given if it is there, else that of the bundled config which it names, else as given.

    `configs/recipes/mssr.yaml`, `recipes/mssr.yaml` and `recipes/mssr` name the same bundled config.
    """
    path = Path(name)
    if path.is_absolute() or ".." in path.parts or (path.exists() and not path.is_dir()):
        return path
    inner = CONFIGS.joinpath(*_parts(path))
    return next((file for file in (inner, inner.with_name(f"{inner.name}.yaml")) if file.is_file()), path)


def nearest(name: str | Path) -> str:
    """'; did you mean X? (...)' for a config that is neither a file nor one of the bundled ones."""
    wanted = "/".join(_parts(Path(name).with_suffix("")))
    return f"{meant(wanted, [known for known, _ in described()])} (`vlrl list configs` names those that come with vlrl)"


def _parts(path: Path) -> tuple[str, ...]:
    """Of a path in `configs/`, which may lead it."""
    return path.parts[path.parts[:1] == ("configs",) :]


def maker(folder: str) -> str:
    """'; `vlrl warmstart ...` makes it' for a model folder that a bundled supervised start writes; else ''."""
    for name, _ in described():
        text = (CONFIGS / f"{name}.yaml").read_text(encoding="utf-8")
        if "\nlessons:" in text and f"\nout: {folder.rstrip('/')}\n" in text:
            return f"; `vlrl warmstart configs/{name}.yaml` makes it"
    return ""


def described() -> Iterator[tuple[str, str]]:
    """Each bundled config as one names it, and the first comment in it."""
    for file in sorted(set(CONFIGS.rglob("*.yaml")) - set(CONFIGS.glob("accelerate/*"))):  # those are accelerate's own
        first = file.read_text(encoding="utf-8").partition("\n")[0]
        yield file.relative_to(CONFIGS).with_suffix("").as_posix(), first.removeprefix("#").strip()
