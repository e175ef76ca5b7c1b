"""Rows of a data set: fields, forms, large files, what several readers share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Protocol

from rewards import parse
from rewards.text import DIRECTIONS
from tasks.data import files
from tasks.data.files import BrokenLine, Lines, RowGroups, Videos
from tasks.data.files import tell as files_tell
from tasks.data.images import BadRowError, Images
from tasks.gui_formats import KINDS, GuiTruth, takes_text
from vlrl.types import BadRow, Data, Split, UserError, shallow

# Rows of a data file that is too large to be held: each is read and checked when it is drawn.

Stored = Lines | RowGroups
FIRST, FURTHER = 512, 512  # rows that are checked at the start: with pictures of some milliseconds, seconds


class Large[R: Named](Sequence[R]):
    """As many rows as the file has. In place of a bad one stands the next good one, after the last the first.

    So which row stands at an index hangs on the file alone, not on what was drawn before: a killed run resumes exactly.
    The FIRST rows and FURTHER ones from all over the file are checked at once. Ids are compared among those only.

    Args:
        stored: the rows as the file has them.
        judge: what becomes of a row; each asks one thing.
        bad: where bad rows are noted when they are met, each once.

    Raises:
        UserError: none of the rows that are checked at once is good; a bad one, now or when it is drawn, where those
            stop; the file was changed.
    """

    def __init__(self, stored: Stored, judge: RowCheck[R], bad: list[BadRow]):
        self.stored, self._judge, self._bad = stored, judge, bad
        self._aside: set[int] = set()  # places of the bad rows that were met
        if not self._check():
            raise UserError(
                f"{stored.file}: no usable row among {len(self._aside):,} from all over the file, the first: "
                f"{bad[-len(self._aside)].problem}; give data.train and data.test files with rows"
            )

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        begin = range(len(self))[index]
        places = chain(range(begin, len(self)), range(begin))
        return next(row for row in map(self._good, places) if row is not None)

    def every(self) -> Iterator[R]:
        """Each good row once, in the file's order."""
        return (row for row in map(self._good, range(len(self))) if row is not None)

    def checked(self) -> Iterator[R]:
        """The good ones of the rows that are checked at once; they are read anew, as they may hold pictures."""
        return (row for row in map(self._good, looked_at(self.stored)) if row is not None)

    def _check(self) -> bool:
        """Whether any of the rows that are checked at once is good."""
        ids: set[str] = set()
        for place in looked_at(self.stored):
            row = self._good(place)
            if row is not None and row.id in ids:
                self._set_aside(place, self._judge.taken(place + 1, row.id))
            elif row is not None:
                ids.add(row.id)
        return bool(ids)

    def _good(self, place: int) -> R | None:
        """The row at a place of the file, None for a bad one."""
        if place in self._aside:
            return None
        values = self._judge.rows(place + 1, self.stored[place])
        if isinstance(values, BadRow):
            return self._set_aside(place, values)
        return values[0]

    def _set_aside(self, place: int, why: BadRow) -> None:
        self._aside.add(place)
        self._bad.append(why)


def looked_at(stored: Stored) -> Sequence[int]:
    """The places that are checked at once: the first, and others from all over the file up to the last."""
    if len(stored) <= FIRST + FURTHER:
        return range(len(stored))
    return [*range(FIRST), *stored.spread(FIRST, FURTHER)]


def sampled(stored: Stored) -> Iterator[Any]:
    """Rows with all keys that are known of: in parquet every row has them."""
    places = [0] if isinstance(stored, RowGroups) else looked_at(stored)
    return (stored[place] for place in places)


def every_row[R: Named](rows: Sequence[R]) -> Iterable[R]:
    """Each good row once, for tasks that need all of them: a large file is then read whole."""
    return rows.every() if isinstance(rows, Large) else rows


def checked[R: Named](rows: Sequence[R]) -> Iterable[R]:
    """The rows that were looked at before the run: all of a small file."""
    return rows.checked() if isinstance(rows, Large) else rows


# Rows that are trained on and tested on: the accuracy that is called held out would be memory.

ASIDE = ("id", "tags", "weight")  # what two rows may differ in and still ask the same


def tell(found: Mapping[str, Sequence[Any]], data: Data) -> None:
    """Says on stderr how many rows of `test` stand in `train` too: the same images, question and truth.

    A large training file of JSON lines is only searched for lines of a small test file as they stand, one of parquet
    is not searched.
    """
    if len(found) < 2:
        return
    both = _lines(found, Path(data.test)) if isinstance(found["train"], Large) else _shared_rows(found)
    if both:
        files_tell(
            f"{len(both)} of the {len(found['test'])} rows of data.test are in data.train too, the first is "
            f"{both[0]}: what is called held out is memory; take them out of one of the files"
        )


def _shared_rows(found: Mapping[str, Sequence[Any]]) -> list[str]:
    trained = {content(row) for row in found["train"]}
    return [row.id for row in found["test"] if content(row) in trained]


def _lines(found: Mapping[str, Sequence[Any]], test: Path) -> list[str]:
    trained = found["train"].stored
    if isinstance(found["test"], Large) or test.suffix != ".jsonl" or not isinstance(trained, Lines):
        return []
    names = [line.strip() for line in test.read_bytes().splitlines()]
    copies = trained.copies(set(names) - {b""})
    return [f"line {number}" for number, line in enumerate(names, start=1) if line in copies]


def content(row: Any) -> tuple:
    """What a row asks; encoded images by their hash."""
    return tuple(_plain(value) for name, value in shallow(row).items() if name not in ASIDE)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return hash(value)
    return tuple(map(_plain, value)) if isinstance(value, tuple | list) else repr(value)


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
class RowCheck[R: Named]:
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
            return _read_row(values, self.form, place, self.check)
        except BadRowError as problem:
            return self.bad(number, str(problem))

    def taken(self, number: int, name: str) -> BadRow:
        """The same of a row whose id an earlier one has."""
        return self.bad(number, f"id: {name!r} is taken by an earlier row")

    def bad(self, number: int, problem: str) -> BadRow:
        if self.on_bad == "stop":
            raise UserError(f"{self.file}, row {number}: {problem}; mend the row or set data.on_bad_row: skip")
        return BadRow(str(self.file), number, problem)


def read[R: Named](
    data: Data, forms: Mapping[str, Form[R]], check: Callable[[R], None] | None = None
) -> tuple[dict[Split, Sequence[R]], Sequence[BadRow]]:
    """The rows of each split that `data` names a file for, and those set aside (`on_bad: skip`).

    Rows of a large file (`files.decoded`) are each read when they are drawn; bad ones join the list when they are met.
    """
    for key, form in (("format", data.format), ("test_format", data.test_format or "auto")):
        if form not in (*forms, "auto"):
            raise UserError(f"data.{key}: {form!r}: must be one of auto, {', '.join(forms)}")
    splits: dict[Split, Sequence[R]] = {}
    bad: list[BadRow] = []
    for split, name in (("train", data.train), ("test", data.test)):
        if name is not None:
            form = (data.test_format if split == "test" else None) or data.format
            splits[split] = _file(name, split, replace(data, format=form), forms, check, bad)
    tell(splits, data)
    return splits, bad if any(isinstance(rows, Large) for rows in splits.values()) else tuple(bad)


def _file[R: Named](
    name: str,
    split: Split,
    data: Data,
    forms: Mapping[str, Form[R]],
    check: Callable[[R], None] | None,
    bad: list[BadRow],
) -> Sequence[R]:
    """The good rows of a file; the others join `bad`."""
    if "://" in name and not files.named(name):  # which may hold a password, and is not repeated
        raise UserError(f"data.{split}: a URL is not read: fetch the file, or name a data set of the hub, hf://...")
    opened = _of_hub(files.source(name, split), data, forms) if files.named(name) else _opened(Path(name), data, forms)
    file, decoded, form, first = opened
    folder = Path(data.images) if data.images else file if file.is_dir() else file.parent
    large = isinstance(decoded, Stored)
    images = Images(folder, remembered=REMEMBERED if large else None, max_pixels=data.max_pixels)
    judge = RowCheck(file, form, images, Videos(folder), check, data.on_bad_row)
    return Large(decoded, judge, bad) if large else _good(decoded, first, judge, bad)


def _good[R: Named](decoded: list[Any], first: int, judge: RowCheck[R], bad: list[BadRow]) -> list[R]:
    """All good rows, the first of which has the number `first`; the others join `bad`."""
    good: dict[str, R] = {}
    aside: list[BadRow] = []
    for number, values in enumerate(_drained(decoded), start=first):
        judged = judge.rows(number, values)
        rows = {} if isinstance(judged, BadRow) else {row.id: row for row in judged}
        if taken := good.keys() & rows.keys():
            judged = judge.taken(number, min(taken))
        if isinstance(judged, BadRow):
            aside.append(judged)
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


def _read_row[R: Named](values: Any, form: Form[R], place: Place, check: Callable[[R], None] | None) -> list[R]:
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
    source: files.RowRange, data: Data, forms: Mapping[str, Form[R]]
) -> tuple[Path, list[Any], Form[R], int]:
    """The same of a data set of the hub, whose name stands for the file."""
    decoded = files.hub_rows(source)
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


def find_keys(decoded: Any) -> frozenset[str]:
    """Those that any row of a file has, or the one object that it holds."""
    rows = [decoded] if isinstance(decoded, Mapping) else sampled(decoded) if isinstance(decoded, Stored) else decoded
    return frozenset(key for values in rows if isinstance(values, Mapping) for key in values)


def _form[R: Named](file: Path, decoded: Any, forms: Mapping[str, Form[R]]) -> Form[R]:
    """The format that the file's keys tell. UserError where they fit none: what a box means is never guessed."""
    one = isinstance(decoded, Mapping)
    forms = {name: form for name, form in forms.items() if (form.rows is not None) == one}
    if not forms:
        raise UserError(f"{file}: holds one object, no list of rows; use a JSON list or .jsonl")
    keys = find_keys(decoded)
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


# What a row's fields must be: texts, images, boxes and points, in whatever coordinates the format has.

MARGIN = 1.0  # pixels by which a box may leave its image: annotation tools round
FAR = 1e9  # pixels that no box reaches
CORNERS = "[x1, y1, x2, y2] with x1 < x2, y1 < y2"
XYWH = "[x, y, width, height]"
Size = tuple[int, int]


def text_field(values: Mapping[str, Any], key: str) -> str:
    """A text that is not empty, stripped."""
    value = values.get(key)
    if not isinstance(value, str) or not value.strip():
        raise BadRowError(f"{key}: must be a text that is not empty")
    return value.strip()


def tags(values: Mapping[str, Any], *keys: str) -> dict[str, str]:
    """Those of the keys that hold a text."""
    return {key: values[key] for key in keys if isinstance(values.get(key), str) and values[key]}


def one_of(values: Mapping[str, Any], key: str, known: tuple[str, ...]) -> str:
    """The value, one of the known ones; '' where the row has no such key."""
    value = values.get(key)
    if value is not None and value not in known:
        raise BadRowError(f"{key}: {value!r}: must be one of {', '.join(known)}")
    return value or ""


def row_id(values: Mapping[str, Any], place: Place) -> str:
    """The row's `id`, else its file and number."""
    return str(values["id"]) if values.get("id") is not None else place.id


def image(values: Mapping[str, Any], key: str, place: Place) -> tuple[Path | bytes, Size]:
    """The image and its size: a file's name, bytes, or what a parquet file of Hugging Face has, {bytes, path}."""
    value = values.get(key)
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, str) and value:
        value = place.images.path(value)
    elif not (isinstance(value, bytes) and value):
        raise BadRowError(f"{key}: must be a file name")
    return value, place.images.size(value)


def images(values: Mapping[str, Any], key: str, place: Place) -> tuple[tuple[Path | bytes, ...], Size]:
    """One image or a list of them, and the first one's size."""
    value = values.get(key)
    listed = value if isinstance(value, list) else [value]
    if not listed:
        raise BadRowError(f"{key}: must name an image")
    pictures = [image({key: each}, key, place) for each in listed]
    return tuple(each for each, _ in pictures), pictures[0][1]


def box(value: Any, key: str, size: Size, scale: tuple[float, float] = (1.0, 1.0), order: str = CORNERS):
    """Corners inside the image, in its pixels. `scale` is pixels per unit of the row (x, y)."""
    parsed = parse.box(value)
    unit = "pixels" if scale == (1.0, 1.0) else f"shares of {1 / scale[0] * size[0]:g} x {1 / scale[1] * size[1]:g}"
    if parsed.reason:
        raise BadRowError(f"{key}: {parsed.reason.replace('_', ' ')}; need finite {order} in {unit}")
    x1, y1, x2, y2 = (number * scale[i % 2] for i, number in enumerate(parsed.value))
    if x1 < -MARGIN or y1 < -MARGIN or x2 > size[0] + MARGIN or y2 > size[1] + MARGIN:
        raise BadRowError(
            f"{key}: {list(parsed.value)} is outside the image of {list(size)} pixels; is it {order} in {unit}?"
        )
    return x1, y1, x2, y2


def corners(value: Any) -> Any:
    """[x, y, width, height] as corners; anything else as it is, for the check of boxes to refuse."""
    numbers = isinstance(value, list) and len(value) == 4 and all(type(number) in (int, float) for number in value)
    if not numbers or not all(abs(number) < FAR for number in value):
        return value
    return [value[0], value[1], value[0] + value[2], value[1] + value[3]]


def texts(value: Any, key: str) -> tuple[str, ...]:
    """A text, or a list of texts, none of them empty."""
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(word, str) and word.strip() for word in listed):
        raise BadRowError(f"{key}: must be a list of texts that are not empty")
    return tuple(word.strip() for word in listed)


def same_size(values: Mapping[str, Any], size: Size) -> None:
    """BadRowError where the row says that its image has another size: its boxes would be off."""
    declared = values.get("width"), values.get("height")
    if None not in declared and declared != size:
        raise BadRowError(f"width, height: {list(declared)}, but the image has {list(size)}; was it resized since?")


def point(value: Any, key: str, size: Size, scale: tuple[float, float] = (1.0, 1.0)) -> tuple[float, float]:
    """A point on the image, in its pixels."""
    parsed = parse.point(value)
    if parsed.reason:
        raise BadRowError(f"{key}: {parsed.reason.replace('_', ' ')}; need finite [x, y]")
    x, y = parsed.value[0] * scale[0], parsed.value[1] * scale[1]
    if not (0 <= x <= size[0] and 0 <= y <= size[1]):
        raise BadRowError(f"{key}: {list(parsed.value)} is outside the image of {list(size)} pixels")
    return x, y


def per(size: Size, units: float) -> tuple[float, float]:
    """Pixels per unit, for coordinates that count so many units over each side."""
    return size[0] / units, size[1] / units


def kind(value: Any, key: str, ours: Mapping[str, str]) -> str:
    """A known kind of action under our name."""
    name = value.strip().lower() if isinstance(value, str) else ""
    name = ours.get(name, name)
    if name not in KINDS:
        raise BadRowError(f"{key}: unknown action {value!r}; known: {', '.join(sorted({*KINDS, *ours}))}")
    return name


def make_text_truth(kind: str, words: Any, key: str) -> GuiTruth:
    """The truth of an action without a place: what it says, where its kind says something."""
    if not takes_text(kind):
        return GuiTruth(kind, text=words.strip() if isinstance(words, str) else "")
    if not isinstance(words, str) or not words.strip():
        raise BadRowError(f"{key}: {kind!r} needs a text")
    words = words.strip()
    if kind == "scroll" and words.lower() not in DIRECTIONS:
        raise BadRowError(f"{key}: {words!r}: must be one of {', '.join(DIRECTIONS)}")
    return GuiTruth(kind, text=words.lower() if kind == "scroll" else words)
