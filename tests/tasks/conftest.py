"""Small files in the formats of published data sets, with their images."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

DATA = Path(__file__).with_name("data")
SCREENS = {"phone.png": (100, 200), "wide.png": (200, 100), "android.png": (1080, 2400)}
PICTURES = {"street.png": (160, 120), "empty.png": (100, 80), "before.png": (64, 64), "after.png": (64, 64)}
SCREENS |= {f"{episode:04d}_{step}.png": (108, 240) for episode in (1, 2, 3) for step in range(3)}


@pytest.fixture(scope="session")
def gui_files(tmp_path_factory) -> Path:
    """A folder with tests/tasks/data, the screens, and GUI-R1's and Hugging Face's parquet files. Only to be read."""
    from pyarrow import Table, parquet

    folder = tmp_path_factory.mktemp("gui")
    for file in DATA.glob("*.json*"):
        shutil.copy(file, folder)
    for name, size in SCREENS.items():
        Image.effect_noise((9, 9), 50).resize(size).convert("RGB").save(folder / name)
    rows = json.loads((DATA / "gui_r1.json").read_text())
    encoded = [{**row, "image": {"bytes": (folder / row["image"]).read_bytes(), "path": None}} for row in rows]
    parquet.write_table(Table.from_pylist(encoded), folder / "gui_r1.parquet")
    rows = json.loads((DATA / "screenspot_mobile.json").read_text())
    hugging = [_hugging_face(row, (folder / row["img_filename"]).read_bytes()) for row in rows]
    parquet.write_table(Table.from_pylist(hugging), folder / "screenspot_hf.parquet")
    return folder


def _hugging_face(row: dict, image: bytes) -> dict:
    """The row as rootsautomation/ScreenSpot has it: corners in shares of the image."""
    (x, y, w, h), (width, height) = row["bbox"], SCREENS[row["img_filename"]]
    box = [x / width, y / height, (x + w) / width, (y + h) / height]
    kept = {key: row[key] for key in ("instruction", "data_type", "data_source")}
    return {"file_name": row["img_filename"], "bbox": box, "image": {"bytes": image, "path": None}, **kept}


@pytest.fixture(scope="session")
def object_files(tmp_path_factory) -> Path:
    """A folder with tests/tasks/data/objects, its pictures, parquet files and a folder per class. Only to be read."""
    from pyarrow import Table, parquet

    folder = tmp_path_factory.mktemp("objects")
    shutil.copytree(DATA / "objects", folder, dirs_exist_ok=True)
    for name, size in PICTURES.items():
        Image.effect_noise((9, 9), 50).resize(size).convert("RGB").save(folder / name)
    sea = Image.effect_noise((9, 9), 50).resize((90, 60)).convert("RGB")
    for place in (".", "odinw", "train2017", "classes/cat", "classes/dog/small"):
        (folder / place).mkdir(parents=True, exist_ok=True)
        sea.save(folder / place / "sea.jpg")
    shutil.copy(folder / "street.png", folder / "train2017")
    for name in ("refcoco_hf", "vision_r1", "cls_rl"):
        rows = json.loads((folder / f"{name}.json").read_text())
        rows = [{**row, "image": {"bytes": (folder / row["image"]).read_bytes(), "path": None}} for row in rows]
        parquet.write_table(Table.from_pylist(rows), folder / f"{name}.parquet")
    return folder
