"""ScreenSpot (2401.10935), ScreenSpot-v2, ScreenSpot-Pro (2504.07981), and plain JSON lines.

Sources: github.com/njucckevin/SeeClick, agent_tasks/screenspot_test.py; github.com/likaixin2000/ScreenSpot-Pro-GUI-
Grounding, eval_screenspot_pro.py; the data set rootsautomation/ScreenSpot of Hugging Face.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.gui.gui_steps import Truth
from tasks.readers import fields
from tasks.readers.rows import BadRowError, Form, Place
from tasks.readers.step import Row

PLATFORMS = {
    "mobile": ("ios", "android"),
    "desktop": ("windows", "macos"),
    "web": ("tool", "shop", "gitlab", "forum"),
}
TYPES = ("text", "icon")


def _screenspot(values: Mapping[str, Any], place: Place) -> Row:
    """`bbox` [x, y, width, height] in pixels."""
    image, size = fields.image(values, "img_filename", place)
    box = fields.box(fields.corners(values.get("bbox")), "bbox", size, order=fields.XYWH)
    return _row(values, place, image, box)


def _hugging_face(values: Mapping[str, Any], place: Place) -> Row:
    """`bbox` corners in shares of the image; the image's bytes are in the row."""
    image, size = fields.image(values, "image", place)
    return _row(values, place, image, fields.box(values.get("bbox"), "bbox", size, fields.per(size, 1)))


def _row(values: Mapping[str, Any], place: Place, image: Any, box: tuple[float, ...]) -> Row:
    named = {"platform": platform(values.get("data_source"), place.file.stem)}
    named |= {"type": fields.one_of(values, "data_type", TYPES), **fields.tags(values, "data_source")}
    named = {name: value for name, value in named.items() if value}
    instruction = fields.text(values, "instruction")
    return Row(fields.row_id(values, place), image, instruction, Truth("click", box), tags=named)


def platform(source: Any, stem: str) -> str:
    """mobile, desktop or web, by the row's source, else by the file's name, which SeeClick has one of per platform."""
    for name, sources in PLATFORMS.items():
        if source in sources:
            return name
    return next((name for name in PLATFORMS if name in stem.lower()), "")


def _pro(values: Mapping[str, Any], place: Place) -> Row:
    """`bbox` corners in pixels, `img_size` to check the image by."""
    instruction = fields.text(values, "instruction")
    image, size = fields.image(values, "img_filename", place)
    if values.get("img_size") != list(size):
        raise BadRowError(f"img_size: {values.get('img_size')}, but {values['img_filename']} has {list(size)}")
    if values.get("gt_type", "positive") != "positive":
        raise BadRowError(f"gt_type: {values['gt_type']!r}: only targets that are there can be clicked")
    box = fields.box(values.get("bbox"), "bbox", size)
    named = {**fields.tags(values, "group", "application", "platform")}
    ui_type = fields.one_of(values, "ui_type", TYPES)
    named |= {"ui_type": ui_type} if ui_type else {}
    return Row(fields.row_id(values, place), image, instruction, Truth("click", box), tags=named)


def _plain(values: Mapping[str, Any], place: Place) -> Row:
    """`image`, `instruction`, `box` corners in pixels, perhaps `id`; other texts are kept as tags."""
    instruction = fields.text(values, "instruction")
    image, size = fields.image(values, "image", place)
    box = fields.box(values.get("box"), "box", size)
    named = fields.tags(values, *(key for key in values if key not in ("id", "image", "instruction")))
    return Row(fields.row_id(values, place), image, instruction, Truth("click", box), tags=named)


FORMS = {
    "jsonl": Form(frozenset({"image", "box"}), _plain),
    "screenspot_pro": Form(frozenset({"img_filename", "img_size"}), _pro),
    "screenspot": Form(frozenset({"img_filename", "data_type"}), _screenspot, lacks=frozenset({"img_size"})),
    "screenspot_hf": Form(frozenset({"image", "bbox", "data_source"}), _hugging_face),
}
