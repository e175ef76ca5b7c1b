"""GUI-G1's training data (2505.15810; github.com/Yuqi-Zhou/GUI-G1)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tasks.gui.gui_steps import Truth
from tasks.readers import fields
from tasks.readers.rows import BadRowError, Form, Place
from tasks.readers.step import Row


def _row(values: Mapping[str, Any], place: Place) -> Row:
    """`{image, problem, solution, rate}`: corners in pixels of the original image; `rate` is how much it counts."""
    instruction = fields.text(values, "problem")
    image, size = fields.image(values, "image", place)
    box = fields.box(values.get("solution"), "solution", size)
    return Row(fields.row_id(values, place), image, instruction, Truth("click", box), weight=_rate(values))


def _rate(values: Mapping[str, Any]) -> float:
    rate = values.get("rate", 1.0)
    number = isinstance(rate, int | float) and not isinstance(rate, bool)
    if not number or not math.isfinite(rate) or rate < 0:
        raise BadRowError(f"rate: {rate!r}: must be a number of at least 0")
    return float(rate)


FORMS = {"gui_g1": Form(frozenset({"image", "problem", "solution"}), _row)}
