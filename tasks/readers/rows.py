"""Rows of a data file, one by one: decoded, read by a format, checked; bad ones are named with file and row."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from PIL import Image

from tasks.readers import files
from tasks.readers.videos import Videos
from vlrl.types import BadRow, Data, Split, UserError

HINTS = {  # keys that more than one format has
    frozenset({"img_filename", "bbox"}): "are its boxes [x, y, width, height] (screenspot) or corners (ui_r1)?",
    frozenset({"image", "bbox"}): "are its boxes [x, y, width, height] or corners?",
}
ODINW = "_annotations.coco.json"  # beside the images, in every folder of ODinW (2204.08790) and of Roboflow


class Named(Protocol):
    """What every kind of row has."""

    @property
    def id(self) -> str: ...


class BadRowError(ValueError):
    """A row that cannot be used; the message is the problem."""


@dataclass(frozen=True)
class Place:
    """Where a row stands, and how its images and videos are found."""

    file: Path
    number: int  # from 1
    images: Images
    videos: Videos

    @property
    def name(self) -> str:
        """The file's, without its ending; ODinW's files all have one name, so the folder's."""
        return self.file.parent.name if self.file.name == ODINW else self.file.stem

    @property
    def id(self) -> str:
        return f"{self.name}/{self.number}"


@dataclass(frozen=True)
class Form[R: Named]:
    """A format: `keys` that all its files have (`a|b`: one of them), `lacks` that none has, and how one row is read.

    `rows` makes rows of a file that is one JSON object. `join` adds to the rows what a file beside theirs holds. `each`
    is what a row asks, each as a row of its own.
    """

    keys: frozenset[str]
    read: Callable[[Mapping[str, Any], Place], R]
    lacks: frozenset[str] = frozenset()
    rows: Callable[[Mapping[str, Any]], list[Any]] | None = None
    join: Callable[[list[Any], Path], list[Any]] | None = None
    each: Callable[[Mapping[str, Any]], Sequence[Mapping[str, Any]]] | None = None

    def fits(self, keys: frozenset[str]) -> bool:
        return all(keys.intersection(key.split("|")) for key in self.keys) and not self.lacks & keys


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


def read[R: Named](
    data: Data, forms: Mapping[str, Form[R]], check: Callable[[R], None] | None = None
) -> tuple[dict[Split, Sequence[R]], tuple[BadRow, ...]]:
    """The rows of each split that `data` names a file for, and those set aside (`on_bad: skip`)."""
    if data.format not in (*forms, "auto"):
        raise UserError(f"data.format: {data.format!r}: must be one of auto, {', '.join(forms)}")
    found: dict[Split, Sequence[R]] = {}
    bad: list[BadRow] = []
    for split, name in (("train", data.train), ("test", data.test)):
        if name is not None:
            found[split], set_aside = _file(Path(name), data, forms, check)
            bad += set_aside
    return found, tuple(bad)


def _file[R: Named](
    file: Path, data: Data, forms: Mapping[str, Form[R]], check: Callable[[R], None] | None
) -> tuple[list[R], list[BadRow]]:
    file, decoded, form = _opened(file, data, forms)
    folder = Path(data.images) if data.images else file if file.is_dir() else file.parent
    images, videos = Images(folder), Videos(folder)
    good: dict[str, R] = {}
    bad: list[BadRow] = []
    for number, values in enumerate(decoded, start=1):
        try:
            rows = {row.id: row for row in _asked(values, form, Place(file, number, images, videos), check)}
            if taken := good.keys() & rows.keys():
                raise BadRowError(f"id: {min(taken)!r} is taken by an earlier row")
            good |= rows
        except BadRowError as problem:
            bad.append(BadRow(str(file), number, str(problem)))
            if data.on_bad == "stop":
                raise UserError(f"{file}, row {number}: {problem}; mend the row or set data.on_bad: skip") from problem
    if not good:
        first = f", the first: {bad[0].problem}" if bad else ""
        raise UserError(f"{file}: no usable row ({len(bad)} bad{first}); give data.train and data.test files with rows")
    return list(good.values()), bad


def _asked[R: Named](values: Any, form: Form[R], place: Place, check: Callable[[R], None] | None) -> list[R]:
    """What one row of the file asks."""
    if not isinstance(values, Mapping):
        raise BadRowError("not a JSON object")
    rows = [form.read(each, place) for each in (form.each(values) if form.each else (values,))]
    for row in rows if check else ():
        check(row)
    return rows


def _opened[R: Named](file: Path, data: Data, forms: Mapping[str, Form[R]]) -> tuple[Path, list[Any], Form[R]]:
    """The file that is meant, its rows, their format."""
    if file.is_dir() and (file / ODINW).is_file():
        file = file / ODINW
    elif file.is_dir() and "folder" not in forms:
        raise UserError(f"{file}: cannot be read (it is a folder); name a file in data.train and data.test")
    decoded = files.decoded(file)
    if data.format != "auto":
        form = forms[data.format]
    else:
        form = forms["folder"] if file.is_dir() else _form(file, decoded, forms)
    if isinstance(decoded, list) != (form.rows is None):
        held = "a list of rows" if isinstance(decoded, list) else "one object, no list of rows"
        raise UserError(f"{file}: holds {held}, which data.format: {data.format} does not read; check data.format")
    try:
        rows = decoded if form.rows is None else form.rows(decoded)
        return file, rows if form.join is None else form.join(rows, file), form
    except BadRowError as problem:
        raise UserError(f"{file}: {problem}") from problem


def _form[R: Named](file: Path, decoded: Any, forms: Mapping[str, Form[R]]) -> Form[R]:
    """The format that the file's keys tell. UserError where they fit none: what a box means is never guessed."""
    one = isinstance(decoded, Mapping)
    forms = {name: form for name, form in forms.items() if (form.rows is not None) == one}
    if not forms:
        raise UserError(f"{file}: holds one object, no list of rows; use a JSON list or .jsonl")
    rows = [decoded] if one else [values for values in decoded if isinstance(values, Mapping)]
    keys = frozenset(key for values in rows for key in values)
    for form in forms.values():
        if form.fits(keys):
            return form
    if not keys and not one:
        return next(iter(forms.values()))  # no row of it is an object: each is named as bad
    hint = next((f"; {hint}" for ambiguous, hint in HINTS.items() if ambiguous <= keys), "")
    raise UserError(
        f"{file}: the keys {', '.join(sorted(map(str, keys)))} fit no format{hint}; "
        f"set data.format to one of {', '.join(forms)}"
    )


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
