"""Data sets by `hf://`: read as the hub lays them out, from a folder, so that no test asks the network."""

from __future__ import annotations

import json
import zipfile

import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

from tasks.classification import Classification
from tasks.data import files, labelled, targets
from tasks.data.images import open_image
from vlrl.types import Data, UserError

datasets = pytest.importorskip("datasets")
ROWS = 6


def picture(i: int) -> Image.Image:
    return Image.new("RGB", (40 + i, 20), (i, 0, 0))


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A repository of the hub as a folder: parquet files with encoded images, a class and a box in shares."""
    datasets.disable_progress_bars()
    folder = tmp_path_factory.mktemp("ScreenSpot")
    columns = {
        "image": [picture(i) for i in range(ROWS)], "instruction": [f"Open {i}" for i in range(ROWS)],
        "bbox": [[0.0, 0.0, 0.5, 0.5]] * ROWS, "data_type": ["icon"] * ROWS, "data_source": ["ios"] * ROWS,
    }  # fmt: skip
    made = datasets.Dataset.from_dict(columns).cast_column("image", datasets.Image())
    made.to_parquet(folder / "data" / "train-00000-of-00001.parquet")
    made.select(range(2)).to_parquet(folder / "data" / "test-00000-of-00001.parquet")
    return folder


def test_the_key_that_names_files_names_data_sets(repository):
    """Whoever has the data on the hub would have to save it as files first."""
    found, bad = targets(Data(train=f"hf://{repository}", test=f"hf://{repository}:test"))
    assert (len(found["train"]), len(found["test"]), bad) == (ROWS, 2, ())
    row = found["train"][3]
    assert (row.instruction, row.truth.box) == ("Open 3", (0.0, 0.0, 21.5, 10.0))
    assert open_image(row.image).size == (43, 20)


def test_a_range_is_a_part_with_the_ids_of_the_whole(repository):
    """Two parts of one split, to train and to test on, would share names, and baselines hang on these."""
    found, _ = targets(Data(train=f"hf://{repository}:train[:2]", test=f"hf://{repository}:train[2:4]"))
    whole, _ = targets(Data(train=f"hf://{repository}:train"))
    ids = [row.id for split in ("train", "test") for row in found[split]]
    assert ids == [row.id for row in whole["train"][:4]]
    assert len(set(ids)) == 4


def test_no_more_is_read_than_asked_for(repository, monkeypatch):
    """A glance at a data set of a terabyte would fetch all of it, or fill the memory."""
    monkeypatch.setattr(files, "MOST", ROWS - 1)
    assert len(files.hub_rows(files.source(f"hf://{repository}:train[:2]", "train"))) == 2
    assert len(files.hub_rows(files.source(f"hf://{repository}:train[:6]", "train"))) == ROWS
    with pytest.raises(UserError, match=rf"more than 5 rows.*say how many, as hf://{repository}:train\[:5\]"):
        files.hub_rows(files.source(f"hf://{repository}", "train"))


def test_classes_have_names(tmp_path, monkeypatch):
    """A model would be asked for class 1 of a data set whose classes are cats and dogs."""
    for i, name in enumerate(("cat", "dog", "dog")):
        (tmp_path / "train" / name).mkdir(parents=True, exist_ok=True)
        picture(i).save(tmp_path / "train" / name / f"{i}.png")
    task = Classification(data=Data(train=f"hf://{tmp_path}", test=f"hf://{tmp_path}:train[:1]"))
    samples = task.samples("train")
    monkeypatch.chdir(tmp_path.parent)
    near, _ = labelled(Data(train=f"hf://./{tmp_path.name}"))
    assert len(near["train"]) == 3
    assert sorted(str(sample.answer) for sample in samples) == ["cat", "dog", "dog"]
    assert {sample.prompt.images[0].size for sample in samples} == {(40, 20), (41, 20), (42, 20)}


def test_pictures_in_archives_are_read(tmp_path):
    """Data sets that keep their pictures in zip files would name pictures that are not there."""
    rows = [{"file_name": f"{i}.png", "instruction": f"Open {i}", "box": [0, 0, 5, 5]} for i in range(2)]
    with zipfile.ZipFile(tmp_path / "train.zip", "w") as archive:
        for i in range(2):
            picture(i).save(tmp_path / "one.bmp", "PNG")
            archive.write(tmp_path / "one.bmp", f"{i}.png")
        archive.writestr("metadata.jsonl", "\n".join(map(json.dumps, rows)))
    (tmp_path / "one.bmp").unlink()
    found, _ = targets(Data(train=f"hf://{tmp_path}"))
    assert [open_image(row.image).size for row in found["train"]] == [(40, 20), (41, 20)]


def test_rows_name_no_files_outside_of_their_data_set(tmp_path):
    """A stranger's rows would have pictures of the reader's own trained on, and shown in reports."""
    picture(0).save(tmp_path / "private.png")
    row = {"image": {"bytes": None, "path": str(tmp_path / "private.png")}, "instruction": "Open", "box": [0, 0, 5, 5]}
    kind = datasets.Features(
        {
            "image": datasets.Image(),
            "instruction": datasets.Value("string"),
            "box": datasets.List(datasets.Value("int64")),
        }
    )
    table = pyarrow.Table.from_pylist([row], schema=kind.arrow_schema)
    (tmp_path / "stranger").mkdir()
    parquet.write_table(table, tmp_path / "stranger" / "train.parquet")
    with pytest.raises(UserError, match=r"private\.png"):
        targets(Data(train=f"hf://{tmp_path}/stranger"))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("hf://owner", "must be hf://OWNER/NAME"),
        ("hf:/owner/name", "must be hf://OWNER/NAME"),
        ("hf://owner/name:train[10%]", "must be hf://OWNER/NAME"),
        ("hf://./nowhere", "there is no folder"),
        ("hf://{}:train[3:3]", "holds no row"),
        ("hf://{}:nope", r":nope: Bad split: nope. Available splits: \['train', 'test'\]"),
        ("hf://{}:other/train", "'other' not found. Available: "),
        ("hf://owner/name:train", "owner/name: .*, and rows are streamed: check the network"),
    ],
)
def test_what_cannot_be_read_is_told_in_a_line(repository, name, told):
    """A mistyped name would end in a traceback through three libraries."""
    with pytest.raises(UserError, match=told) as error:
        targets(Data(train=name.format(repository)))
    assert "\n" not in str(error.value)


def test_a_folder_does_not_pass_for_a_data_set_of_the_hub(tmp_path, monkeypatch):
    """`datasets` prefers a folder of the name: a run would train on something else than its configuration says."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "name").mkdir(parents=True)
    with pytest.raises(UserError, match=r"there is a folder owner/name here; write hf://\./owner/name"):
        targets(Data(train="hf://owner/name:train"))


def test_names_say_what_is_meant():
    """The version, the config and the split of a published result could not be asked for."""
    found = files.source("hf://owner/some.name@1a2b:all/val[5:]", "test")
    assert found == files.RowRange("owner/some.name", "val", "all", "1a2b", 5, None)
    assert files.source("hf://datasets/owner/name", "test") == files.RowRange("owner/name", "test")
