"""Reads and checks data sets of GUI actions, of objects and classes, and of videos (docs/*_data.md).

Every row is checked before anything runs, of a large file (large.py) before it is shown: its images decode, its boxes
and points lie in them, its action is known; its video is whole, its spans lie in it, its answer is one of its options.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from tasks.data import detection, gui, questions, records, video_qa
from tasks.data.detection import COCO_REFERRING, COCO_SCENES, VISION_R1_SCENES
from tasks.data.gui import GUI_G1_FORMS, GUI_ODYSSEY_FORMS, GUI_R1_FORMS, OS_ATLAS_FORMS, SCREENSPOT_FORMS, GuiRow
from tasks.data.images import BadRowError, checked_size, open_image
from tasks.data.records import Clip, LabelledScene
from tasks.data.rows import Form, checked, every_row, read
from tasks.data.video_qa import (
    ACTIVITYNET_SPANS,
    CHARADES_SPANS,
    SEED_BENCH_VIDEO_QA,
    TEMPORAL_R1_SPANS,
    VIDEO_R1_VIDEO_QA,
)
from tasks.gui_formats import KINDS, takes_text
from vlrl.types import BadRow, Data, Split

__all__ = [
    "ACTIONS", "GROUNDED", "GROUNDING", "LABELLED", "REFERRING", "SCENES", "SPANS", "VIDEO_QA", "BadRowError", "Clip",
    "Row", "Scene", "actions", "asked", "checked", "checked_size", "every", "grounded", "labelled", "open_image",
    "referring", "scenes", "spans", "targets", "video_questions",
]  # fmt: skip

GROUNDING: dict[str, Form[GuiRow]] = {**SCREENSPOT_FORMS, **gui.CLICKS, **GUI_G1_FORMS}
ACTIONS: dict[str, Form[GuiRow]] = {
    **GROUNDING,
    **gui.UI_R1_FORMS,
    **GUI_R1_FORMS,
    **OS_ATLAS_FORMS,
    **GUI_ODYSSEY_FORMS,
}
SCENES: dict[str, Form[LabelledScene]] = {
    **records.SCENES,
    **COCO_SCENES,
    **detection.VLM_R1_SCENES,
    **VISION_R1_SCENES,
}
REFERRING: dict[str, Form[LabelledScene]] = {
    **records.REFERRING,
    **detection.FORMS,
    **detection.VLM_R1_REFERRING,
    **COCO_REFERRING,
}
LABELLED: dict[str, Form[LabelledScene]] = {**records.LABELLED, **detection.LABELLED}
SPANS: dict[str, Form[Clip]] = {**records.SPANS, **CHARADES_SPANS, **ACTIVITYNET_SPANS, **TEMPORAL_R1_SPANS}
VIDEO_QA: dict[str, Form[Clip]] = {
    **records.VIDEO_QA, **video_qa.NEXTGQA_VIDEO_QA, **SEED_BENCH_VIDEO_QA, **VIDEO_R1_VIDEO_QA, **questions.VIDEO_QA
}  # fmt: skip
GROUNDED: dict[str, Form[Clip]] = {**records.GROUNDED, **video_qa.GROUNDED}
Found = tuple[dict[Split, Sequence[GuiRow]], Sequence[BadRow]]
Pays = Callable[[str, str], float]
Seen = tuple[dict[Split, Sequence[LabelledScene]], Sequence[BadRow]]
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

    def check(row: GuiRow) -> None:
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
    good, bad = read(data, LABELLED)
    whole = {split: list(every_row(rows)) for split, rows in good.items()}
    classes = tuple(sorted({row.answer for rows in whole.values() for row in rows}))
    return {split: [replace(row, labels=classes) for row in rows] for split, rows in whole.items()}, bad


def read_vlm_r1(data: Data, method: str, lists: Collection[str], texts: Mapping[str, Pays]) -> Seen:
    """VLM-R1's rows as they stand, as `targets`; `method` is theirs where they name none.

    The truth of a method of `lists` is read as objects; `texts` are rewards of a text for another. A row with another
    method is bad, and so is one for whose truth its own method does not pay: nothing could.
    """

    def check(row: LabelledScene) -> None:
        if row.method not in (*lists, *texts):
            raise BadRowError(f"accu_reward_method: {row.method!r}: must be one of {', '.join((*lists, *texts))}")
        if row.method in texts and texts[row.method](row.answer, row.answer) < 1:
            raise BadRowError(f"answer: {row.answer!r}: accu_reward_method {row.method} does not pay even for this")

    return read(data, detection.make_vlm_r1_forms(method, lists), check)


def spans(data: Data) -> Watched:
    """Videos with a sentence and when it is seen to happen, one span or several, as `targets`."""
    return read(data, SPANS)


def video_questions(data: Data) -> Watched:
    """Videos or images with a question and its answer, mostly one of several options, as `targets`."""
    return read(data, VIDEO_QA)


def grounded(data: Data) -> Watched:
    """Videos with a question, its answer, and the spans in which the answer is seen, as `targets`."""
    return read(data, GROUNDED)
