"""Which pages `vlrl capture` opens: the user's files, folders and addresses, or those that come with vlrl."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vlrl.types import UserError

BUNDLED = Path(__file__).with_name("pages")


@dataclass(frozen=True)
class Page:
    """An address to open and the name that rows carry; `local` pages are seeded and kept off the network."""

    name: str
    url: str
    local: bool


def pages(names: Sequence[str]) -> tuple[Page, ...]:
    """Pages of files, folders (all .html below), addresses (http, https, file) and names of bundled pages.

    Raises UserError for a name that is none of these and for a folder without pages.
    """
    found = [page for name in names or [str(BUNDLED)] for page in _pages(name)]
    return tuple(dict.fromkeys(found))


def _pages(name: str) -> list[Page]:
    path, bundled = Path(name), BUNDLED / f"{name}.html"
    if re.match(r"(https?|file)://", name):
        return [Page(name, name, name.startswith("file:"))]
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in (".html", ".htm"))
        if not files:
            raise UserError(f"{path}: holds no .html file; name a page, a folder of pages or an address")
        return [_file(file, file.relative_to(path).with_suffix("").as_posix()) for file in files]
    if not path.is_file() and bundled.is_file():
        path = bundled
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in BUNDLED.glob("*.html")))
        raise UserError(f"{name}: no such page; name a file, a folder, an address or one of {known}")
    return [_file(path, path.stem)]


def _file(path: Path, name: str) -> Page:
    return Page(name, path.resolve().as_uri(), local=True)
