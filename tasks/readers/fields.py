"""What a row's fields must be: texts, images, boxes and points, in whatever coordinates the format has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rewards import parse
from rewards.text import DIRECTIONS
from tasks.gui.gui_steps import KINDS, Truth, takes_text
from tasks.readers.rows import BadRowError, Place

MARGIN = 1.0  # pixels by which a box may leave its image: annotation tools round
FAR = 1e9  # pixels that no box reaches
CORNERS = "[x1, y1, x2, y2] with x1 < x2, y1 < y2"
XYWH = "[x, y, width, height]"
Size = tuple[int, int]


def text(values: Mapping[str, Any], key: str) -> str:
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
    found = [image({key: each}, key, place) for each in listed]
    return tuple(each for each, _ in found), found[0][1]


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
    told = values.get("width"), values.get("height")
    if None not in told and told != size:
        raise BadRowError(f"width, height: {list(told)}, but the image has {list(size)}; was it resized since?")


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


def said(kind: str, words: Any, key: str) -> Truth:
    """The truth of an action without a place: what it says, where its kind says something."""
    if not takes_text(kind):
        return Truth(kind, text=words.strip() if isinstance(words, str) else "")
    if not isinstance(words, str) or not words.strip():
        raise BadRowError(f"{key}: {kind!r} needs a text")
    words = words.strip()
    if kind == "scroll" and words.lower() not in DIRECTIONS:
        raise BadRowError(f"{key}: {words!r}: must be one of {', '.join(DIRECTIONS)}")
    return Truth(kind, text=words.lower() if kind == "scroll" else words)
