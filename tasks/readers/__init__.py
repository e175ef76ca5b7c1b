"""Reads and checks data sets of GUI actions, of objects and classes, and of videos (docs/*_data.md).

Every row is checked before anything runs, of a large file (large.py) before it is shown: its images decode, its boxes
and points lie in them, its action is known; its video is whole, its spans lie in it, its answer is one of its options.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from tasks.gui.gui_steps import KINDS, takes_text
from tasks.readers import (
    activitynet,
    charades,
    choices,
    clip,
    cls_rl,
    coco,
    gui_g1,
    gui_odyssey,
    gui_r1,
    nextgqa,
    os_atlas,
    refcoco,
    scene,
    screenspot,
    seed_bench,
    temporal_r1,
    ui_r1,
    video_r1,
    vision_r1,
    vlm_r1,
)
from tasks.readers.clip import Clip
from tasks.readers.large import checked, every
from tasks.readers.pictures import BadRowError, checked_size, open_image
from tasks.readers.rows import Form, read
from tasks.readers.scene import Scene
from tasks.readers.step import Row
from vlrl.types import BadRow, Data, Split

__all__ = [
    "ACTIONS", "GROUNDED", "GROUNDING", "LABELLED", "REFERRING", "SCENES", "SPANS", "VIDEO_QA", "BadRowError", "Clip",
    "Row", "Scene", "actions", "asked", "checked", "checked_size", "every", "grounded", "labelled", "open_image",
    "referring", "scenes", "spans", "targets", "video_questions",
]  # fmt: skip

GROUNDING: dict[str, Form[Row]] = {**screenspot.FORMS, **ui_r1.CLICKS, **gui_g1.FORMS}
ACTIONS: dict[str, Form[Row]] = {**GROUNDING, **ui_r1.FORMS, **gui_r1.FORMS, **os_atlas.FORMS, **gui_odyssey.FORMS}
SCENES: dict[str, Form[Scene]] = {**scene.SCENES, **coco.SCENES, **vlm_r1.SCENES, **vision_r1.SCENES}
REFERRING: dict[str, Form[Scene]] = {**scene.REFERRING, **refcoco.FORMS, **vlm_r1.REFERRING, **coco.REFERRING}
LABELLED: dict[str, Form[Scene]] = {**scene.LABELLED, **cls_rl.LABELLED}
SPANS: dict[str, Form[Clip]] = {**clip.SPANS, **charades.SPANS, **activitynet.SPANS, **temporal_r1.SPANS}
VIDEO_QA: dict[str, Form[Clip]] = {
    **clip.VIDEO_QA, **nextgqa.VIDEO_QA, **seed_bench.VIDEO_QA, **video_r1.VIDEO_QA, **choices.VIDEO_QA
}  # fmt: skip
GROUNDED: dict[str, Form[Clip]] = {**clip.GROUNDED, **nextgqa.GROUNDED}
Found = tuple[dict[Split, Sequence[Row]], Sequence[BadRow]]
Pays = Callable[[str, str], float]
Seen = tuple[dict[Split, Sequence[Scene]], Sequence[BadRow]]
Watched = tuple[dict[Split, Sequence[Clip]], Sequence[BadRow]]


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


def scenes(data: Data) -> Seen:
    """Images and the objects on them, for each split that `data` names a file for, as `targets`."""
    return read(data, SCENES)


def referring(data: Data) -> Seen:
    """Images with one phrase, the only label, and the one box that it refers to, as `targets`."""
    return read(data, REFERRING)


def labelled(data: Data) -> Seen:
    """Images with the class that they show as `answer`, as `targets`; `labels` are all splits' classes, sorted."""
    found, bad = read(data, LABELLED)
    whole = {split: list(every(rows)) for split, rows in found.items()}
    classes = tuple(sorted({row.answer for rows in whole.values() for row in rows}))
    return {split: [replace(row, labels=classes) for row in rows] for split, rows in whole.items()}, bad


def asked(data: Data, method: str, lists: Collection[str], texts: Mapping[str, Pays]) -> Seen:
    """VLM-R1's rows as they stand, as `targets`; `method` is theirs where they name none.

    The truth of a method of `lists` is read as objects; `texts` are rewards of a text for another. A row with another
    method is bad, and so is one for whose truth its own method does not pay: nothing could.
    """

    def check(row: Scene) -> None:
        if row.method not in (*lists, *texts):
            raise BadRowError(f"accu_reward_method: {row.method!r}: must be one of {', '.join((*lists, *texts))}")
        if row.method in texts and texts[row.method](row.answer, row.answer) < 1:
            raise BadRowError(f"answer: {row.answer!r}: accu_reward_method {row.method} does not pay even for this")

    return read(data, vlm_r1.asked(method, lists), check)


def spans(data: Data) -> Watched:
    """Videos with a sentence and when it is seen to happen, one span or several, as `targets`."""
    return read(data, SPANS)


def video_questions(data: Data) -> Watched:
    """Videos or images with a question and its answer, mostly one of several options, as `targets`."""
    return read(data, VIDEO_QA)


def grounded(data: Data) -> Watched:
    """Videos with a question, its answer, and the spans in which the answer is seen, as `targets`."""
    return read(data, GROUNDED)
