"""Rows of a data file, one by one: decoded, read by a format, checked; bad ones are named with file and row."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from tasks.gui_steps import Truth
from vlrl.types import BadRow, Data, Split, UserError


@dataclass(frozen=True)
class Row:
    """One question: what is right to do on `image`, a file or encoded bytes."""

    id: str
    image: Path | bytes
    instruction: str
    truth: Truth
    history: str = "None"  # what was done before
    level: str = ""  # high or low, where the source says how much the instruction covers
    weight: float = 1.0  # how much it counts
    tags: Mapping[str, str] = field(default_factory=dict)  # platform, type, group, ...: what results are broken down by


class BadRowError(ValueError):
    """A row that cannot be used; the message is the problem."""


@dataclass(frozen=True)
class Place:
    """Where a row stands, and how its images are found."""

    file: Path
    number: int  # from 1
    images: Images

    @property
    def id(self) -> str:
        return f"{self.file.stem}/{self.number}"


@dataclass(frozen=True)
class Form:
    """A format: `keys` that all its files have and `lacks` that none has, and how one row is read."""

    keys: frozenset[str]
    read: Callable[[Mapping[str, Any], Place], Row]
    lacks: frozenset[str] = frozenset()

    def fits(self, keys: frozenset[str]) -> bool:
        return self.keys <= keys and not self.lacks & keys


class Images:
    """The images of one file's rows. Each is decoded once, however many rows it serves."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._sizes: dict[Path, tuple[int, int]] = {}

    def size(self, image: Path | bytes) -> tuple[int, int]:
        """Width and height of an image that decodes completely, else BadRowError."""
        if isinstance(image, bytes):
            return checked_size(image)
        if image not in self._sizes:
            self._sizes[image] = checked_size(image)
        return self._sizes[image]


def read(
    data: Data, forms: Mapping[str, Form], check: Callable[[Row], None] | None = None
) -> tuple[dict[Split, Sequence[Row]], tuple[BadRow, ...]]:
    """The rows of each split that `data` names a file for, and those set aside (`on_bad: skip`)."""
    if data.format not in (*forms, "auto"):
        raise UserError(f"data.format: {data.format!r}: must be one of auto, {', '.join(forms)}")
    found: dict[Split, Sequence[Row]] = {}
    bad: list[BadRow] = []
    for split, name in (("train", data.train), ("test", data.test)):
        if name is not None:
            found[split], set_aside = _file(Path(name), data, forms, check)
            bad += set_aside
    return found, tuple(bad)


def _file(
    file: Path, data: Data, forms: Mapping[str, Form], check: Callable[[Row], None] | None
) -> tuple[list[Row], list[BadRow]]:
    decoded = _decoded(file)
    form = _form(file, decoded, forms) if data.format == "auto" else forms[data.format]
    images = Images(Path(data.images) if data.images else file.parent)
    good: dict[str, Row] = {}
    bad: list[BadRow] = []
    for number, values in enumerate(decoded, start=1):
        try:
            if not isinstance(values, Mapping):
                raise BadRowError("not a JSON object")
            row = form.read(values, Place(file, number, images))
            if check:
                check(row)
            if row.id in good:
                raise BadRowError(f"id: {row.id!r} is taken by an earlier row")
            good[row.id] = row
        except BadRowError as problem:
            bad.append(BadRow(str(file), number, str(problem)))
            if data.on_bad == "stop":
                raise UserError(f"{file}, row {number}: {problem}; mend the row or set data.on_bad: skip") from problem
    if not good:
        first = f", the first: {bad[0].problem}" if bad else ""
        raise UserError(f"{file}: no usable row ({len(bad)} bad{first}); give data.train and data.test files with rows")
    return list(good.values()), bad


def _form(file: Path, decoded: Sequence[Any], forms: Mapping[str, Form]) -> Form:
    """The format that the file's keys tell. UserError where they fit none: what a box means is never guessed."""
    keys = frozenset(key for values in decoded if isinstance(values, Mapping) for key in values)
    for form in forms.values():
        if form.fits(keys):
            return form
    if not keys:
        return next(iter(forms.values()))  # no row of it is an object: each is named as bad
    hint = ""
    if {"img_filename", "bbox"} <= keys:
        hint = "; are its boxes [x, y, width, height] (screenspot) or corners (ui_r1)?"
    raise UserError(
        f"{file}: the keys {', '.join(sorted(map(str, keys)))} fit no format{hint}; "
        f"set data.format to one of {', '.join(forms)}"
    )


def _decoded(file: Path) -> list[Any]:
    """All rows; None for a line of JSON lines that is not JSON."""
    if file.suffix == ".parquet":
        return _parquet(file)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: cannot be read ({error}); check data.train and data.test") from error
    if file.suffix == ".jsonl":
        return [_line(line) for line in text.rstrip().split("\n")] if text.strip() else []
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: not JSON ({error}); use .jsonl for one object a line") from error
    if not isinstance(rows, list):
        raise UserError(f"{file}: holds no list of rows; use a JSON list or .jsonl")
    return rows


def _line(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _parquet(file: Path) -> list[dict[str, Any]]:
    """All rows of a parquet file; images stay encoded, in memory."""
    from pyarrow import ArrowException, parquet

    try:
        with parquet.ParquetFile(file) as opened:
            return [row for batch in opened.iter_batches(batch_size=64) for row in batch.to_pylist()]
    except (OSError, ArrowException) as error:
        raise UserError(f"{file}: cannot be read ({error}); check data.train and data.test") from error


def checked_size(image: Path | bytes) -> tuple[int, int]:
    """Width and height of an image that decodes completely, else BadRowError."""
    name = "its bytes" if isinstance(image, bytes) else str(image)
    try:
        with Image.open(io.BytesIO(image) if isinstance(image, bytes) else image) as opened:
            opened.load()
            return opened.size
    except FileNotFoundError:
        raise BadRowError(f"no such image {name}") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:  # SyntaxError: a broken PNG
        raise BadRowError(f"image {name} is broken or cut short ({error})") from error


def open_image(image: Path | bytes) -> Image.Image:
    with Image.open(io.BytesIO(image) if isinstance(image, bytes) else image) as opened:
        return opened.convert("RGB")
