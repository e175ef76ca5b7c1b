"""What a data file is taken for, and its held-out part."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tasks.data.guess import guess_task, write_split
from vlrl.types import UserError

DATA = Path(__file__).with_name("data")
SIZE = (200, 100)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    for i in range(4):
        Image.new("RGB", SIZE, (60 * i, 9, 9)).save(folder / f"{i}.png")
    return folder


def file_of(folder: Path, rows: Sequence[dict]) -> str:
    (folder / "my.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / "my.jsonl")


def boxes(key: str, *values: Sequence[float], text: str = "instruction", image: str = "image") -> list[dict]:
    return [{image: f"{i % 4}.png", text: f"do {i}", key: list(box)} for i, box in enumerate(values)]


@pytest.mark.parametrize(
    ("rows", "task"),
    [
        ([{"image": "0.png", "question": "How many?", "answer": "4"}], "visual_reasoning"),
        ([{"image": "0.png", "question": "What?", "answers": ["a cat", "cat"]}], "open_answer"),
        ([{"image": "0.png", "label": "cat"}], "classification"),
        ([{"image": "0.png", "objects": [{"label": "a", "box": [1, 2, 50, 60]}]}], "detection"),
        ([{"image": "0.png", "phrase": "the red one", "box": [1, 2, 50, 60]}], "referring"),
        ([{"image": "0.png", "instruction": "Open", "box": [1, 2, 50, 60]}], "gui_grounding"),
        ([{"image": "0.png", "latex": r"\\begin{tabular}{c}1\\end{tabular}"}], "table_to_latex"),
        ([{"image": "0.png", "question": "?", "answers": ["a", "b"], "better": 1}], "judge_training"),
    ],
)
def test_plain_lines_are_told_apart(rows, task, folder):
    """Who has data and no idea of our tasks would have to read a table of twenty formats."""
    assert guess_task(file_of(folder, rows)).task == task


@pytest.mark.parametrize(
    ("name", "task", "form"),
    [
        ("gui_r1.json", "gui_actions", "gui_r1"),
        ("ui_r1.json", "gui_actions", "ui_r1"),
        ("gui_odyssey.json", "gui_actions", "gui_odyssey"),
        ("screenspot_pro.json", "gui_grounding", "screenspot_pro"),
        ("screenspot_mobile.json", "gui_grounding", "screenspot"),
    ],
)
def test_published_files_are_recognised(name, task, form):
    """A data set that is read as it is would be taken for something else."""
    guess = guess_task(str(DATA / name))
    assert (guess.task, guess.form) == (task, form)


@pytest.mark.parametrize(
    ("rows", "box", "said"),
    [
        (boxes("bbox", (150, 60, 30, 20), (120, 50, 40, 40)), [150, 60, 180, 80], "[x, y, width, height] in pixels"),
        (boxes("bbox", (120, 10, 180, 50), (20, 60, 90, 95)), [120, 10, 180, 50], "[x1, y1, x2, y2] in pixels"),
        (boxes("box", (0.1, 0.2, 0.3, 0.4)), [20, 20, 60, 40], "[x1, y1, x2, y2] in shares"),
        (boxes("bbox_2d", (500, 10, 800, 900), text="query"), [100, 1, 160, 90], "in thousandths"),
        (boxes("box", (10, 10, 50, 50), text="prompt", image="img"), [10, 10, 50, 50], "img is the image"),
    ],
)
def test_what_boxes_mean_is_found_from_their_images(rows, box, said, folder):
    """A box in another unit or order earns nothing, and nobody sees why."""
    guess = guess_task(file_of(folder, rows))
    assert (guess.task, guess.rows[0]["box"]) == ("gui_grounding", box)
    assert any(said in fact for fact in guess.facts)


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        (boxes("bbox", (10, 10, 50, 50)), "every box fits as corners and as [x, y, width, height]"),
        (boxes("bbox", (10, 10, 500, 5000)), "fit their images neither as corners nor as"),
        (boxes("bbox", (10, 10)), "no usable row, the first: row 1: bbox: [10, 10]: must be a list of four numbers"),
        ([{"foo": 1}], "the keys foo fit no task"),
    ],
)
def test_what_is_open_is_asked_and_not_guessed(rows, named, folder):
    """A coin toss would train on wrong targets without a word."""
    with pytest.raises(UserError) as refusal:
        guess_task(file_of(folder, rows))
    assert named in str(refusal.value)


def test_bad_rows_are_counted(folder):
    guess = guess_task(file_of(folder, [*boxes("bbox", (120, 10, 180, 50)), {"image": "9.png", "bbox": [1, 2, 3, 4],
                                                                             "instruction": "x"}]))  # fmt: skip
    assert len(guess.rows) == 1 and any(
        fact.startswith("1 bad rows are left out, the first: row 2") for fact in guess.facts
    )


def test_folders_are_classes_or_puzzles(tmp_path):
    """A folder of photographs is data too."""
    for name in ("cat", "dog"):
        (tmp_path / "classes" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "classes" / name / "1.png")
    assert guess_task(str(tmp_path / "classes")).task == "classification"
    assert guess_task(str(tmp_path / "classes" / "cat")).task == "jigsaw"


@settings(max_examples=30, deadline=None)
@given(images=st.lists(st.integers(0, 9), min_size=2, max_size=60), seed=st.integers(0, 3))
def test_the_split_is_disjoint_whole_and_repeatable(images, seed, tmp_path_factory):
    """An accuracy on pictures that were trained on is memory; another split at every call is no measure."""
    rows = [{"image": f"{image}.png", "id": i} for i, image in enumerate(images)]
    folder = tmp_path_factory.mktemp("split")
    train, test, fact = write_split(rows, folder, seed)
    parts = [[json.loads(line) for line in file.read_text().splitlines()] for file in (train, test)]
    assert all(parts) and sorted(row["id"] for part in parts for row in part) == list(range(len(rows)))
    shared = {row["image"] for row in parts[0]} & {row["image"] for row in parts[1]}
    assert not shared or (len(set(images)) == 1 and "one image" in fact)
    before = test.read_bytes()
    assert write_split(rows, folder, seed)[1].read_bytes() == before


def test_one_row_is_not_split(tmp_path):
    with pytest.raises(UserError, match="one row"):
        write_split([{"image": "0.png"}], tmp_path)
