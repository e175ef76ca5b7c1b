"""Reads and checks GUI data: grounding benchmarks, and data sets of single actions. See docs/gui_data.md.

Every row is checked before anything runs: its image decodes, its box or point lies in it, its action is known.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tasks.gui_steps import KINDS, takes_text
from tasks.readers import gui_g1, gui_odyssey, gui_r1, os_atlas, screenspot, ui_r1
from tasks.readers.rows import BadRowError, Form, Row, checked_size, open_image, read
from vlrl.types import BadRow, Data, Split

__all__ = ["ACTIONS", "GROUNDING", "BadRowError", "Row", "actions", "checked_size", "open_image", "targets"]

GROUNDING: dict[str, Form] = {**screenspot.FORMS, **ui_r1.CLICKS, **gui_g1.FORMS}
ACTIONS: dict[str, Form] = {**GROUNDING, **ui_r1.FORMS, **gui_r1.FORMS, **os_atlas.FORMS, **gui_odyssey.FORMS}
Found = tuple[dict[Split, Sequence[Row]], tuple[BadRow, ...]]


def targets(data: Data) -> Found:
    """Rows that ask for a click into a box: for each split that `data` names a file for, and those set aside.

    Raises UserError naming file, row (from 1) and problem: a bad row (`on_bad: stop`), no such file, no good row, an
    unknown format.
    """
    return actions(data, kinds=("click",), boxes=True, forms=GROUNDING)


def actions(
    data: Data,
    kinds: Collection[str] = KINDS,
    texts: bool = True,
    boxes: bool = False,
    forms: Mapping[str, Form] = ACTIONS,
) -> Found:
    """Rows that ask for one action, as `targets`; a row whose action is none of `kinds` is bad.

    `texts`: typed words and directions are judged, so they must be there. `boxes`: so must the box of what is clicked.
    """

    def check(row: Row) -> None:
        truth = row.truth
        if truth.kind not in kinds:
            raise BadRowError(f"action: {truth.kind!r} is not asked for here, but {', '.join(kinds)}")
        if texts and takes_text(truth.kind) and not truth.text:
            raise BadRowError(f"action: {truth.kind!r} without its text, which is judged here")
        if boxes and not truth.box:
            raise BadRowError(f"action: {truth.kind!r} without a box, which is judged here")

    return read(data, forms, check)
