"""Rows that are trained on and tested on: the accuracy that is called held out would be memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from tasks.readers.large import Large
from tasks.readers.lines import Lines
from tasks.readers.told import tell as said
from vlrl.types import Data

ASIDE = ("id", "tags", "weight")  # what two rows may differ in and still ask the same


def tell(found: Mapping[str, Sequence[Any]], data: Data) -> None:
    """Says on stderr how many rows of `test` stand in `train` too: the same images, question and truth.

    A large training file of JSON lines is only searched for lines of a small test file as they stand, one of parquet
    is not searched.
    """
    if len(found) < 2:
        return
    both = _lines(found, Path(data.test)) if isinstance(found["train"], Large) else _rows(found)
    if both:
        said(
            f"{len(both)} of the {len(found['test'])} rows of data.test are in data.train too, the first is "
            f"{both[0]}: what is called held out is memory; take them out of one of the files"
        )


def _rows(found: Mapping[str, Sequence[Any]]) -> list[str]:
    trained = {content(row) for row in found["train"]}
    return [row.id for row in found["test"] if content(row) in trained]


def _lines(found: Mapping[str, Sequence[Any]], test: Path) -> list[str]:
    trained = found["train"].stored
    if isinstance(found["test"], Large) or test.suffix != ".jsonl" or not isinstance(trained, Lines):
        return []
    asked = [line.strip() for line in test.read_bytes().splitlines()]
    copies = trained.copies(set(asked) - {b""})
    return [f"line {number}" for number, line in enumerate(asked, start=1) if line in copies]


def content(row: Any) -> tuple:
    """What a row asks; encoded images by their hash."""
    return tuple(_plain(getattr(row, field.name)) for field in fields(row) if field.name not in ASIDE)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return hash(value)
    return tuple(map(_plain, value)) if isinstance(value, tuple | list) else repr(value)
