"""Rows of a data file, one by one: decoded, read by a format, checked; bad ones are named with file and row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from tasks.readers import files, hub, shared
from tasks.readers.large import Large, Stored, sampled
from tasks.readers.lines import BrokenLine
from tasks.readers.pictures import BadRowError, Images
from tasks.readers.videos import Videos
from vlrl.types import BadRow, Data, Split, UserError

HINTS = {  # keys that more than one format has
    frozenset({"img_filename", "bbox"}): "are its boxes [x, y, width, height] (screenspot) or corners (ui_r1)?",
    frozenset({"image", "bbox"}): "are its boxes [x, y, width, height] or corners?",
}
REMEMBERED = 10_000  # images of a large file whose sizes are kept
ODINW = "_annotations.coco.json"  # beside the images, in every folder of ODinW (2204.08790) and of Roboflow


class Named(Protocol):
    """What every kind of row has."""

    @property
    def id(self) -> str: ...


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


@dataclass(frozen=True)
class Judge[R: Named]:
    """What becomes of the rows of one file."""

    file: Path
    form: Form[R]
    images: Images
    videos: Videos
    check: Callable[[R], None] | None
    on_bad: Literal["stop", "skip"]

    def rows(self, number: int, values: Any) -> list[R] | BadRow:
        """What the row of that number (from 1) asks, or why nothing; UserError for a bad row where those stop."""
        place = Place(self.file, number, self.images, self.videos)
        try:
            return _asked(values, self.form, place, self.check)
        except BadRowError as problem:
            return self.bad(number, str(problem))

    def taken(self, number: int, name: str) -> BadRow:
        """The same of a row whose id an earlier one has."""
        return self.bad(number, f"id: {name!r} is taken by an earlier row")

    def bad(self, number: int, problem: str) -> BadRow:
        if self.on_bad == "stop":
            raise UserError(f"{self.file}, row {number}: {problem}; mend the row or set data.on_bad: skip")
        return BadRow(str(self.file), number, problem)


def read[R: Named](
    data: Data, forms: Mapping[str, Form[R]], check: Callable[[R], None] | None = None
) -> tuple[dict[Split, Sequence[R]], Sequence[BadRow]]:
    """The rows of each split that `data` names a file for, and those set aside (`on_bad: skip`).

    Rows of a large file (`files.decoded`) are each read when they are drawn; bad ones join the list when they are met.
    """
    if data.format not in (*forms, "auto"):
        raise UserError(f"data.format: {data.format!r}: must be one of auto, {', '.join(forms)}")
    found: dict[Split, Sequence[R]] = {}
    bad: list[BadRow] = []
    for split, name in (("train", data.train), ("test", data.test)):
        if name is not None:
            found[split] = _file(name, split, data, forms, check, bad)
    shared.tell(found, data)
    return found, bad if any(isinstance(rows, Large) for rows in found.values()) else tuple(bad)


def _file[R: Named](
    name: str,
    split: Split,
    data: Data,
    forms: Mapping[str, Form[R]],
    check: Callable[[R], None] | None,
    bad: list[BadRow],
) -> Sequence[R]:
    """The good rows of a file; the others join `bad`."""
    if "://" in name and not hub.named(name):  # which may hold a password, and is not repeated
        raise UserError(f"data.{split}: a URL is not read: fetch the file, or name a data set of the hub, hf://...")
    opened = _of_hub(hub.source(name, split), data, forms) if hub.named(name) else _opened(Path(name), data, forms)
    file, decoded, form, first = opened
    folder = Path(data.images) if data.images else file if file.is_dir() else file.parent
    large = isinstance(decoded, Stored)
    images = Images(folder, remembered=REMEMBERED if large else None, max_pixels=data.max_pixels)
    judge = Judge(file, form, images, Videos(folder), check, data.on_bad)
    return Large(decoded, judge, bad) if large else _good(decoded, first, judge, bad)


def _good[R: Named](decoded: list[Any], first: int, judge: Judge[R], bad: list[BadRow]) -> list[R]:
    """All good rows, the first of which has the number `first`; the others join `bad`."""
    good: dict[str, R] = {}
    aside: list[BadRow] = []
    for number, values in enumerate(_drained(decoded), start=first):
        found = judge.rows(number, values)
        rows = {} if isinstance(found, BadRow) else {row.id: row for row in found}
        if taken := good.keys() & rows.keys():
            found = judge.taken(number, min(taken))
        if isinstance(found, BadRow):
            aside.append(found)
        else:
            good |= rows
    if not good:
        count = f"{len(aside)} bad, the first: {aside[0].problem}" if aside else "0 bad"
        raise UserError(f"{judge.file}: no usable row ({count}); give data.train and data.test files with rows")
    bad += aside
    return list(good.values())


def _drained(decoded: list[Any]) -> Iterator[Any]:
    """The rows, each of which the list lets go of: a million are not to be held twice."""
    for i, values in enumerate(decoded):
        decoded[i] = None
        yield values


def _asked[R: Named](values: Any, form: Form[R], place: Place, check: Callable[[R], None] | None) -> list[R]:
    """What one row of the file asks."""
    if isinstance(values, BrokenLine):
        raise BadRowError(f"not a JSON object: {values.reason}")
    if not isinstance(values, Mapping):
        raise BadRowError("not a JSON object")
    rows = [form.read(each, place) for each in (form.each(values) if form.each else (values,))]
    for row in rows if check else ():
        check(row)
    return rows


def _opened[R: Named](
    file: Path, data: Data, forms: Mapping[str, Form[R]]
) -> tuple[Path, list[Any] | Stored, Form[R], int]:
    """The file that is meant, its rows, their format, the first one's number."""
    if file.is_dir() and (file / ODINW).is_file():
        file = file / ODINW
    elif file.is_dir() and "folder" not in forms:
        raise UserError(f"{file}: cannot be read (it is a folder); name a file in data.train and data.test")
    decoded = files.decoded(file)
    if data.format != "auto":
        form = forms[data.format]
    else:
        form = forms["folder"] if file.is_dir() else _form(file, decoded, forms)
    return *_rows(file, decoded, form, data), 1


def _of_hub[R: Named](
    source: hub.Source, data: Data, forms: Mapping[str, Form[R]]
) -> tuple[Path, list[Any], Form[R], int]:
    """The same of a data set of the hub, whose name stands for the file."""
    decoded = hub.rows(source)
    form = forms[data.format] if data.format != "auto" else _form(source.file, decoded, forms)
    return *_rows(source.file, decoded, form, data), source.start + 1


def _rows[R: Named](file: Path, decoded: Any, form: Form[R], data: Data) -> tuple[Path, list[Any] | Stored, Form[R]]:
    if isinstance(decoded, Mapping) == (form.rows is None):
        held = "one object, no list of rows" if isinstance(decoded, Mapping) else "a list of rows"
        raise UserError(f"{file}: holds {held}, which data.format: {data.format} does not read; check data.format")
    if isinstance(decoded, Stored) and (form.join or form.each):
        decoded = list(decoded)  # what they make of a row is known when all are read
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
    rows = [decoded] if one else sampled(decoded) if isinstance(decoded, Stored) else decoded
    keys = frozenset(key for values in rows if isinstance(values, Mapping) for key in values)
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
