"""The rollouts a report shows: what each card holds, and the images embedded once however many cards share one."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from vlrl.media import MediaError, load_image, read_image_header
from vlrl.report.frame import script_json
from vlrl.report.read import Row

MAX_FILE = 24_000  # bytes: a larger file is embedded as a WebP thumbnail
MAX_SIDE = 448  # pixels of that thumbnail's longer side
MAX_IMAGES = 7_000_000  # characters of all data URIs; once reached, older steps' cards say that their image is left out
MAX_TEXTS = (6_000, 1_000)  # characters of a prompt, completion or answer; the second where a card is still too large
MAX_CARD = 40_000  # bytes of a card in the page

MIME = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp", "GIF": "image/gif"}
COPIED = ("step", "sample_id", "group", "why", "parts", "reward", "correct", "reason", "advantage", "split")
NUMBERS_OF = {"point": 2, "box": 4, "span": 2, "text": 0}  # xy of each kind of mark


@dataclass
class Album:
    """Images by their place in `items`: {src: data URI, size: [w, h]}."""

    folder: Path
    items: list[dict[str, Any]] = field(default_factory=list)
    places: dict[str, int | None] = field(default_factory=dict)  # path -> place; None: missing, broken or no room
    characters: int = 0

    def place(self, name: str) -> int | None:
        """Where the image at `name` (relative to the run folder) lies, embedding it the first time."""
        if name not in self.places:
            item = embed(self.folder, name) if self.characters < MAX_IMAGES else None
            self.places[name] = len(self.items) if item else None
            if item:
                self.items.append(item)
                self.characters += len(item["src"])
        return self.places[name]


def gallery(folder: Path, rows: Iterable[Row]) -> dict[str, list]:
    """{cards, images} with the newest step first; a card's `images` are places in `images`, None for one not shown."""
    album = Album(folder)
    newest = sorted(rows, key=lambda row: row["step"] if is_number(row.get("step")) else -1, reverse=True)
    return {"cards": [card(row, album) for row in newest], "images": album.items}


def card(row: Row, album: Album) -> dict[str, Any]:
    """One rollout as the page draws it, with shorter texts where it would take too much of the page."""
    made = _card(row, album, MAX_TEXTS[0])
    large = len(script_json(made).encode("utf-8", errors="replace")) > MAX_CARD
    return _card(row, album, MAX_TEXTS[1]) if large else made


def _card(row: Row, album: Album, most: int) -> dict[str, Any]:
    images = row.get("images")
    places = [album.place(name) for name in images if isinstance(name, str)] if isinstance(images, list) else []
    size = row.get("image_size")
    if not is_size(size):
        size = album.items[places[0]]["size"] if places and places[0] is not None else None
    answer = row.get("answer")
    marks = row.get("marks")
    return {
        **{key: row.get(key) for key in COPIED},
        "step": row["step"] if is_number(row.get("step")) else None,
        "parts": row["parts"] if isinstance(row.get("parts"), dict) else {},
        "images": places,
        "image_size": size,
        "image_sizes": sizes(row.get("image_sizes"), len(places)),
        "strips": strips(row.get("strips"), len(places)),
        "prompt": shorten(row.get("prompt"), most),
        "completion": shorten(row.get("completion"), most),
        "answer": None if answer is None else shorten(answer if isinstance(answer, str) else json.dumps(answer), most),
        "marks": [mark for mark in marks if is_mark(mark)] if isinstance(marks, list) else [],
    }


def sizes(listed: Any, images: int) -> list[Any]:
    """The images' own sizes, in whose pixels marks are; None for one that is not known."""
    known = listed if isinstance(listed, list) else []
    return [size if is_size(size) else None for size in (*known[:images], *[None] * (images - len(known)))]


def strips(listed: Any, images: int) -> list[Any]:
    """The videos' strips {image, grid, times, axis} (see vlrl.strips); None for one that cannot be drawn."""
    return [one if is_strip(one, images) else None for one in listed] if isinstance(listed, list) else []


def is_strip(one: Any, images: int) -> bool:
    if not isinstance(one, dict) or one.get("image") not in range(images) or not is_size(one.get("grid")):
        return False
    times, axis = one.get("times"), one.get("axis")
    known = isinstance(times, list) and isinstance(axis, list) and len(axis) == 2
    return known and all(map(is_number, (*times, *axis))) and axis[0] < axis[1]


def is_size(size: Any) -> bool:
    return isinstance(size, list) and len(size) == 2 and all(is_number(side) and side > 0 for side in size)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def is_mark(mark: Any) -> bool:
    """Whether a mark can be drawn: infinities that a model wrote were read as None and cannot."""
    if not isinstance(mark, dict) or mark.get("kind") not in NUMBERS_OF:
        return False
    if mark["kind"] == "text":
        return isinstance(mark.get("label"), str)
    xy = mark.get("xy")
    return isinstance(xy, list) and len(xy) == NUMBERS_OF[mark["kind"]] and all(is_number(value) for value in xy)


def shorten(text: Any, most: int) -> str:
    text = "" if text is None else str(text)
    return text if len(text) <= most else f"{text[:most]}\n… {len(text) - most:,} more characters"


def embed(folder: Path, name: str) -> dict[str, Any] | None:
    """An image file as {src, size of the file in pixels}; None where it is missing, broken or outside the folder."""
    path = (folder / name).resolve()
    if not path.is_relative_to(folder) or not path.is_file():
        return None
    content = path.read_bytes()
    try:
        header = read_image_header(content)
        mime = MIME.get(header.format)
        if len(content) > MAX_FILE or mime is None:
            content, mime = thumbnail(load_image(content)), "image/webp"
    except MediaError:  # broken or half-written
        return None
    return {"src": f"data:{mime};base64,{base64.b64encode(content).decode()}", "size": list(header.size)}


def thumbnail(image: Image.Image) -> bytes:
    small = image.convert("RGBA" if "A" in image.getbands() else "RGB")
    small.thumbnail((MAX_SIDE, MAX_SIDE))
    out = BytesIO()
    small.save(out, "WEBP", quality=80, method=2)  # faster than the default for some 3 % more bytes
    return out.getvalue()
