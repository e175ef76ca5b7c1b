"""Reads and checks rows of GUI grounding data: ScreenSpot, ScreenSpot-Pro and plain JSONL."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from rewards import parse
from vlrl.types import BadRow, Data, Split, UserError

FORMATS = ("screenspot", "screenspot_pro", "jsonl")
MARGIN = 1.0  # pixels by which a box may leave its image: annotation tools round


@dataclass(frozen=True)
class Target:
    """One row: click inside `box` (x1, y1, x2, y2), pixels of `image`."""

    id: str
    image: Path
    instruction: str
    box: tuple[float, ...]


class BadRowError(ValueError):
    """A row that cannot be used; the message is the problem."""


def targets(data: Data) -> tuple[dict[Split, Sequence[Target]], tuple[BadRow, ...]]:
    """The rows of each split that `data` names a file for, and those set aside (`on_bad: skip`).

    Raises UserError naming file, row (from 1) and problem: a bad row (`on_bad: stop`), no such file, no good row.
    """
    found: dict[Split, Sequence[Target]] = {}
    bad: list[BadRow] = []
    for split, name in (("train", data.train), ("test", data.test)):
        if name is not None:
            found[split], set_aside = _read(Path(name), data)
            bad += set_aside
    return found, tuple(bad)


def _read(file: Path, data: Data) -> tuple[list[Target], list[BadRow]]:
    if data.format not in (*FORMATS, "auto"):
        raise UserError(f"data.format: {data.format!r}: must be one of auto, {', '.join(FORMATS)}")
    good: dict[str, Target] = {}
    bad: list[BadRow] = []
    folder = Path(data.images) if data.images else file.parent
    for number, row in enumerate(_rows(file), start=1):
        try:
            target = _target(row, number, file, folder, data.format)
            if target.id in good:
                raise BadRowError(f"id: {target.id!r} is taken by an earlier row")
            good[target.id] = target
        except BadRowError as problem:
            bad.append(BadRow(str(file), number, str(problem)))
            if data.on_bad == "stop":
                raise UserError(f"{file}, row {number}: {problem}; mend the row or set data.on_bad: skip") from problem
    if not good:
        raise UserError(f"{file}: no usable row ({len(bad)} bad); give data.train and data.test files with rows")
    return list(good.values()), bad


def _rows(file: Path) -> Iterator[Any]:
    """Decoded rows; None for a JSONL line that is not JSON."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: cannot be read ({error}); check data.train and data.test") from error
    if file.suffix == ".jsonl":
        return map(_decoded, text.rstrip().split("\n") if text.strip() else ())
    try:
        rows = json.loads(text)
    except ValueError as error:
        raise UserError(f"{file}: not JSON ({error}); use .jsonl for one object a line") from error
    if not isinstance(rows, list):
        raise UserError(f"{file}: holds no list of rows; use a JSON list or .jsonl")
    return iter(rows)


def _decoded(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _target(row: Any, number: int, file: Path, folder: Path, form: str) -> Target:
    if not isinstance(row, Mapping):
        raise BadRowError("not a JSON object")
    form = _format(row, file) if form == "auto" else form
    image_key, box_key = ("image", "box") if form == "jsonl" else ("img_filename", "bbox")
    instruction = row.get("instruction")
    if not isinstance(instruction, str) or not instruction.strip():
        raise BadRowError("instruction: must be a text that is not empty")
    if not isinstance(row.get(image_key), str):
        raise BadRowError(f"{image_key}: must be a file name")
    image = folder / row[image_key]
    size = checked_size(image)
    if form == "screenspot_pro" and row.get("img_size") != list(size):
        raise BadRowError(f"img_size: {row.get('img_size')}, but {image} has {list(size)}")
    box = _box(row.get(box_key), box_key, form, size)
    return Target(str(row.get("id", f"{file.stem}/{number}")), image, instruction.strip(), box)


def _format(row: Mapping, file: Path) -> str:
    if file.suffix == ".jsonl":
        return "jsonl"
    return "screenspot_pro" if "img_size" in row else "screenspot"


def _box(value: Any, key: str, form: str, size: tuple[int, int]) -> tuple[float, ...]:
    """(x1, y1, x2, y2) inside the image, from [x, y, w, h] (screenspot) or [x1, y1, x2, y2]."""
    if form == "screenspot" and isinstance(value, list) and len(value) == 4:
        value = _from_xywh(value)
    parsed = parse.box(value)
    order = "[x, y, width, height]" if form == "screenspot" else "[x1, y1, x2, y2] with x1 < x2, y1 < y2"
    if parsed.reason:
        raise BadRowError(f"{key}: {parsed.reason.replace('_', ' ')}; need finite {order} in pixels")
    x1, y1, x2, y2 = parsed.value
    if x1 < -MARGIN or y1 < -MARGIN or x2 > size[0] + MARGIN or y2 > size[1] + MARGIN:
        raise BadRowError(f"{key}: {list(parsed.value)} is outside the image of {list(size)} pixels; is it {order}?")
    return parsed.value


def _from_xywh(value: list) -> Any:
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in value)
    return [value[0], value[1], value[0] + value[2], value[1] + value[3]] if numbers else None


def checked_size(file: Path) -> tuple[int, int]:
    """Width and height of an image that decodes completely, else BadRowError."""
    try:
        with Image.open(file) as image:
            image.load()
            return image.size
    except FileNotFoundError:
        raise BadRowError(f"no such image {file}") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:  # SyntaxError: a broken PNG
        raise BadRowError(f"image {file} is broken or cut short ({error})") from error


def open_image(file: Path) -> Image.Image:
    with Image.open(file) as image:
        return image.convert("RGB")
