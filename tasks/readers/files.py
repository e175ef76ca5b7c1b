"""Files as they are stored: JSON lists and objects, JSON lines, parquet, csv, text, folders of images.

Nothing is judged here.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from tasks.readers import lines
from tasks.readers.row_groups import RowGroups
from tasks.readers.told import tell
from vlrl.decoders import parse_json
from vlrl.types import UserError

LARGE = 100_000  # rows that are held in memory; of more JSON lines or parquet rows each is read as it is drawn
HEAVY = 1 << 30  # bytes of a parquet file, not compressed, that are; mostly pictures
LONG = 100_000_000  # bytes of a file that is read whole, from which on its user is told of JSON lines
ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp")  # of images
PICKLES = (".p", ".pkl", ".pickle")


def decoded(file: Path) -> list[Any] | lines.Lines | RowGroups | Mapping[str, Any]:
    """All rows, a BrokenLine for a line of JSON lines that is not JSON; or the one object that a JSON file holds.

    More than LARGE JSON lines or parquet rows, or parquet of more than HEAVY bytes, are only counted.
    A csv file has a row of texts for each line, a text file a row {line}. A folder has a row {image, label} for each
    image of its folders, which are the classes. UserError: nothing of that name, broken, a pickle.
    """
    if file.is_dir():
        return _classes(file)
    if file.suffix == ".parquet":
        return _parquet(file)
    if file.suffix in PICKLES:
        raise UserError(
            f"{file}: a pickle runs code when it is opened, so it is not; use the data set's JSON or parquet form "
            "(docs/detection_data.md names them)"
        )
    try:
        if file.suffix == ".jsonl" and len(counted := lines.Lines(file)) > LARGE:
            return counted
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: cannot be read ({error}); check data.train and data.test") from error
    if file.suffix != ".jsonl" and not text[:64].lstrip().startswith("{"):  # one object cannot be lines
        _tell_of_lines(file)
    if file.suffix == ".csv":
        return _table(file, text)
    if file.suffix == ".txt":
        return [{"line": line} for line in text.rstrip().split("\n")] if text.strip() else []
    if file.suffix == ".jsonl":
        return [lines.decoded(line) for line in text.rstrip().split("\n")] if text.strip() else []
    try:
        rows = parse_json(text, finite=False)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: not JSON ({error}); use .jsonl for one object a line") from error
    if not isinstance(rows, list | dict):
        raise UserError(f"{file}: holds no list of rows; use a JSON list or .jsonl")
    return rows


def _tell_of_lines(file: Path) -> None:
    """Says of a long file that there is a better form of it."""
    if (size := file.stat().st_size) > LONG:
        tell(
            f"{file}: {size / 1e6:,.0f} MB are read whole and stay in memory: write large data as JSON lines (.jsonl) "
            "or parquet, whose rows are read as they are drawn"
        )


def leads_out(folder: Path, name: str) -> bool:
    """Whether a name in a row leads out of the folder: rows come from strangers. Links are followed, as the user's."""
    parts = PurePath(name)
    if not parts.is_absolute() and ".." not in parts.parts:
        return False
    return not PurePath(os.path.abspath(folder / name)).is_relative_to(os.path.abspath(folder))


def _table(file: Path, text: str) -> list[Any]:
    """The lines below the names of the columns, those without a value left out; None for a line of other length."""
    try:
        names, *lines = csv.reader(text.removeprefix("\ufeff").splitlines(keepends=True), strict=True)
    except (ValueError, csv.Error) as error:
        raise UserError(f"{file}: not csv ({error}); its first line must name the columns") from error
    return [dict(zip(names, line, strict=True)) if len(line) == len(names) else None for line in lines]


def _parquet(file: Path) -> list[dict[str, Any]] | RowGroups:
    """All rows of a parquet file; images stay encoded, in memory."""
    from pyarrow import ArrowException, parquet

    try:
        counted = RowGroups(file)
        if len(counted) > LARGE or counted.bytes > HEAVY:
            counted.warn()
            return counted
        with parquet.ParquetFile(file) as opened:
            return [row for batch in opened.iter_batches(batch_size=64) for row in batch.to_pylist()]
    except (OSError, ArrowException) as error:
        raise UserError(f"{file}: cannot be read ({error}); check data.train and data.test") from error


def _classes(folder: Path) -> list[dict[str, str]]:
    """The images under each folder of the folder, sorted; images beside those folders have no class."""
    images = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.suffix.lower() in ENDINGS)
    return [{"image": path.as_posix(), "label": path.parts[0] if len(path.parts) > 1 else ""} for path in images]
