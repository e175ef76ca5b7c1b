"""What a data file is for: the task whose rows it has, what its boxes mean, and a held-out part of it."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.data import GROUNDED, GROUNDING, LABELLED, REFERRING, SCENES, SPANS, VIDEO_QA, files, gui, questions
from tasks.data.dialogues import DIALOGUES
from tasks.data.images import BadRowError, Images
from tasks.data.rows import XYWH, Form, Place, Stored, corners, find_keys
from vlrl.io import write_atomic
from vlrl.types import UserError

# Tasks and their formats in the order in which they are tried: what asks for more keys comes first, as a question about
# a video with spans also has all that one without them has.
ASKS: Sequence[tuple[str, Mapping[str, Form]]] = (
    ("judge_training", questions.COMPARED),
    ("grounded_video_qa", GROUNDED), ("video_qa", VIDEO_QA), ("temporal_grounding", SPANS),
    ("table_to_latex", questions.TABLES), ("detection", SCENES), ("referring", REFERRING),
    ("gui_actions", {**gui.UI_R1_FORMS, **gui.GUI_R1_FORMS, **gui.GUI_ODYSSEY_FORMS}), ("gui_grounding", GROUNDING),
    ("classification", LABELLED), ("visual_reasoning", questions.QUESTIONS), ("visual_search", questions.SEARCH),
    ("open_answer", questions.OPEN), ("gui_actions", gui.OS_ATLAS_FORMS), ("dialogue", DIALOGUES),
)  # fmt: skip
# What people call the columns of an image, a text and a box -> ours, where no published format has their keys.
COLUMNS = {
    "image": ("image", "img", "image_path", "img_path", "img_filename", "file_name", "filename", "screenshot", "path"),
    "instruction": ("instruction", "prompt", "query", "command", "text", "question"),
    "phrase": ("phrase", "expression", "caption", "sentence", "description", "ref"),
    "box": ("box", "bbox", "bbox_2d", "bounding_box", "rect"),
}
TRIED = 16  # rows that a format has to read one of
HELD_OUT, MOST = 0.2, 512  # share of the rows, and how many are enough
Rows = list[Mapping[str, Any]]


@dataclass(frozen=True)
class Guess:
    """What a file is taken for. form: its name for `data.format`; facts: what was found, in clauses, for the user."""

    task: str
    form: str
    facts: tuple[str, ...]
    rows: Rows | None = None  # None: the file is no list of objects that could be written as JSON lines


def guess_task(name: str, task: str | None = None) -> Guess:
    """The task that a file or folder is for, by its keys and by which format reads its first rows.

    Args:
        task: the only one that comes into question.

    Raises:
        UserError: no such file; no format has its keys; its boxes may mean two things.
    """
    file, decoded = Path(name), _decode(name)
    if file.is_dir():
        return _guess_folder(name, decoded, task)
    keys, one = find_keys(decoded), not isinstance(decoded, Stored | list)
    candidates = [(each, form, how) for each, forms in ASKS if task in (None, each) for form, how in forms.items()
              if how.keys and how.fits(keys) and (how.rows is not None) == one]  # fmt: skip
    rows = None if one or isinstance(decoded, Stored) else [row for row in decoded if isinstance(row, Mapping)]
    fitting = [each for each in candidates if one or _reads(each[2], file, rows or list(decoded[:TRIED]))] or candidates
    plain = not fitting or fitting[0][:2] in (("gui_grounding", "jsonl"), ("referring", "jsonl"))
    if plain and rows and task in (None, "gui_grounding", "referring") and (renamed := _find_columns(keys)):
        return _make_boxes(rows, renamed, file)
    if not fitting:
        raise UserError(
            f"{name}: the keys {', '.join(sorted(map(str, keys))) or '(none)'} fit no task"
            f"{f' called {task}' if task else ''}; docs/guides/own_data.md has the keys of each"
        )
    task_name, form, how = fitting[0]
    others = sorted({each for each, _, _ in fitting} - {task_name})
    facts = [f"{len(decoded):,} rows" if not one else "one object", f"with {', '.join(sorted(map(str, keys))[:8])}"]
    facts += [f"{' and '.join(others)} could read it too (task=NAME)"] if others else []
    is_text = rows is not None and how.join is None and not any(map(_holds_bytes, rows[:TRIED]))
    return Guess(task_name, form, tuple(facts), rows if is_text else None)


def _decode(name: str) -> Any:
    """What `files.decoded` says; of a data set of the hub the first rows."""
    if not files.named(name):
        return files.decoded(Path(name))
    return files.hub_rows(files.source(name if "[" in name else f"{name}[:{TRIED}]", "train"))


def _guess_folder(name: str, rows: Rows, task: str | None) -> Guess:
    """Pictures in folders of their classes, or without any."""
    if not rows:
        raise UserError(f"{name}: a folder without images; name a file of rows, or a folder of pictures")
    labels = {row["label"] for row in rows}
    if labels == {""} or task == "jigsaw":
        return Guess("jigsaw", "auto", (f"{len(rows)} pictures without labels",))
    return Guess("classification", "folder", (f"{len(rows)} images in {len(labels)} folders, which are classes",), rows)


def _reads(form: Form, file: Path, rows: Sequence[Any]) -> bool:
    """Whether the format reads any of the first rows."""
    place = Place(file, 1, Images(file.parent), files.Videos(file.parent))
    for values in rows[:TRIED]:
        try:
            for each in form.each(values) if form.each else (values,):
                form.read(each, place)
            return True
        except (BadRowError, KeyError, TypeError, AttributeError):
            continue
    return False


def _holds_bytes(row: Mapping[str, Any]) -> bool:
    return any(isinstance(value, bytes) or (isinstance(value, Mapping) and "bytes" in value) for value in row.values())


# Boxes whose meaning no format says: corners or width and height, in pixels, shares or thousandths.


def _find_columns(keys: frozenset[str]) -> dict[str, str] | None:
    """Our name -> the file's for image, box and text; None where one of them is missing."""
    column_of = {ours: next((name for name in names if name in keys), None) for ours, names in COLUMNS.items()}
    text = "phrase" if column_of["phrase"] else "instruction"
    columns = {ours: column_of[ours] for ours in ("image", text, "box")}
    return {ours: name for ours, name in columns.items() if name} if all(columns.values()) else None


def _make_boxes(rows: Rows, columns: Mapping[str, str], file: Path) -> Guess:
    """Rows under our names, with boxes as corners in pixels."""
    images, good, bad = Images(file.parent), [], []
    for number, row in enumerate(rows, start=1):
        try:
            size = images.size(images.path(str(row.get(columns["image"]))))
            good.append((row, _read_numbers(row.get(columns["box"]), columns["box"]), size))
        except BadRowError as problem:
            bad.append(f"row {number}: {problem}")
    if not good:
        raise UserError(f"{file}: no usable row, the first: {bad[0]}")
    rows, boxes, sizes = map(list, zip(*good, strict=True))
    unit, order = _find_convention(boxes, sizes, columns["box"], file)
    box_rows: Rows = []
    for row, box, size in zip(rows, boxes, sizes, strict=True):
        scale = {"pixels": (1, 1), "shares": size, "thousandths": (size[0] / 1000, size[1] / 1000)}[unit]
        placed = corners(list(box)) if order == XYWH else box
        rest = {key: value for key, value in row.items() if key not in columns.values()}
        ours = {name: row.get(theirs) for name, theirs in columns.items()}
        box_rows.append(rest | ours | {"box": [round(number * scale[i % 2], 3) for i, number in enumerate(placed)]})
    text = "phrase" if "phrase" in columns else "instruction"
    renamed = [f"{theirs} is the {ours}" for ours, theirs in columns.items() if ours != theirs]
    left_out = [f"{len(bad)} bad rows are left out, the first: {bad[0]}"] if bad else []
    convention = f"boxes are {'[x, y, width, height]' if order == XYWH else '[x1, y1, x2, y2]'} in {unit}"
    facts = (f"{len(box_rows):,} rows of an image, {text} and box", *renamed, convention, *left_out)
    return Guess("referring" if text == "phrase" else "gui_grounding", "jsonl", facts, box_rows)


def _read_numbers(value: Any, key: str) -> tuple[float, ...]:
    numbers = value if isinstance(value, list) else []
    if len(numbers) != 4 or not all(isinstance(number, int | float) for number in numbers):
        raise BadRowError(f"{key}: {value!r}: must be a list of four numbers")
    return tuple(map(float, numbers))


def _find_convention(
    boxes: Sequence[tuple[float, ...]], sizes: Sequence[tuple[int, int]], key: str, file: Path
) -> tuple[str, str]:
    """The unit and the order that every box fits; our own key `box` is what its format says where two orders fit."""
    shares, most = all(max(box) <= 1 for box in boxes), max(max(box) for box in boxes)
    units = ("shares",) if shares else ("pixels", "thousandths") if most <= 1000 else ("pixels",)
    for unit in units:
        limits = [{"shares": (1, 1), "thousandths": (1000, 1000)}.get(unit, size) for size in sizes]
        orders = [order for order in ("corners", XYWH) if _all_inside(boxes, limits, order)]
        if len(orders) == 2 and key != "box":
            raise UserError(
                f"{file}: {key}: every box fits as corners and as {XYWH}: call the key `box` where it holds corners, "
                "else write corners"
            )
        if orders:
            return unit, orders[0]
    raise UserError(
        f"{file}: {key}: the boxes fit their images neither as corners nor as {XYWH}, in pixels, shares or thousandths"
    )


def _all_inside(boxes: Sequence[tuple[float, ...]], limits: Sequence[tuple[float, float]], order: str) -> bool:
    placed = [box if order == "corners" else corners(list(box)) for box in boxes]
    return all(
        0 <= x1 < x2 <= width + 1 and 0 <= y1 < y2 <= height + 1
        for (x1, y1, x2, y2), (width, height) in zip(placed, limits, strict=True)
    )


# A part that training never shows: by images and videos, as two questions about one picture are no two samples.


def write_split(rows: Rows, folder: Path, seed: int = 0) -> tuple[Path, Path, str]:
    """`train.jsonl` and `test.jsonl` in a folder, and how the rows were parted.

    Raises:
        UserError: fewer than two rows.
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(_find_medium(row), []).append(row)
    if by_row := len(groups) < 2:
        groups = {str(i): [row] for i, row in enumerate(rows)}
    if len(groups) < 2:
        raise UserError("one row cannot be both trained on and tested on: give more rows")
    names, count = sorted(groups), min(MOST, max(1, round(HELD_OUT * len(rows))))
    random.Random(seed).shuffle(names)
    test: list[Mapping[str, Any]] = []
    while names[1:] and len(test) < count:
        test += groups[names.pop()]
    train = [row for name in sorted(names) for row in groups[name]]
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in (("train.jsonl", train), ("test.jsonl", test)):
        write_atomic(folder / name, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in part))
    fact = "all show one image, as those trained on do" if by_row else "none shares its image or video with training"
    return folder / "train.jsonl", folder / "test.jsonl", f"{len(test)} of {len(rows)} rows are held out; {fact}"


def _find_medium(row: Mapping[str, Any]) -> str:
    """What two rows share that show the same."""
    keys = ("image", "images", "img_filename", "img_path", "image_path", "video", "videoID", "video_path", "line")
    medium = next((row[key] for key in keys if row.get(key)), row)
    return json.dumps(
        medium.split()[0] if isinstance(medium, str) and medium == row.get("line") else medium, default=str
    )
