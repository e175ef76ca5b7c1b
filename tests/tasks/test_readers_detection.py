"""Readers of detection, referring and classification data on files as they are published, and on broken ones."""

import json
import shutil
from dataclasses import replace

import pytest

from rewards.parse import Object
from rewards.text import multiple_choice
from tasks.classification import choose_shots, halves
from tasks.data import labelled, read_vlm_r1, records, referring, scenes
from tasks.data.images import open_image
from tasks.vlm_r1 import TEXTS
from vlrl.types import Data, UserError

PERSON, DOG = Object("person", (10.0, 10.0, 50.0, 40.0)), Object("dog", (100.0, 90.0, 120.0, 110.0))
MAN = (10.0, 10.0, 50.0, 40.0)


def rows_of(read, file, **options):
    found, bad = read(Data(test=str(file), **options))
    assert bad == () or options.get("on_bad_row") == "skip"
    return list(found["test"])


def test_coco_boxes_are_x_y_width_height(object_files):
    """Read as corners, every COCO box would be wrong; crowds and areas decide what counts and in which size."""
    street, empty = rows_of(scenes, object_files / "coco.json")
    assert [o.label for o in street.objects] == ["person", "person", "dog"]
    assert [o.box for o in street.objects][:2] == [MAN, (60.0, 20.0, 140.0, 80.0)]
    assert (street.crowd, street.areas) == ((False, True, False), (600.5, 3000.0, 400.0))
    assert street.single == (street.objects[0], street.objects[2])
    assert street.labels == ("person", "dog", "cat")  # absent ones are asked for, too
    assert (empty.id, empty.objects, empty.labels) == ("coco/285", (), street.labels)
    assert open_image(street.images[0]).size == (160, 120)


def test_lvis_asks_for_what_it_knows_of_an_image(object_files):
    """Of 1203 categories LVIS checks a few on each image; asking for others would punish right answers."""
    (row,) = rows_of(scenes, object_files / "lvis.json")
    assert row.labels == ("aerosol_can", "air_conditioner", "alarm_clock")
    assert row.unsure == ("air_conditioner",)
    assert row.images == (object_files / "train2017" / "street.png",)


def test_ovdeval_asks_for_text_and_neg_text(object_files):
    """The hard negatives are the benchmark; numbers start at 0 there."""
    first, second = rows_of(scenes, object_files / "ovdeval.json")
    assert first.labels == ("computer without screen on", "computer with screen on")
    assert (first.id, first.objects) == ("ovdeval/0", (Object("computer without screen on", MAN),))
    assert second.labels == ("computer with screen on",)


def test_odinw_is_a_folder(object_files):
    """Roboflow puts `_annotations.coco.json` beside the images, and a parent category before the real ones."""
    for file in (object_files / "odinw", object_files / "odinw" / "_annotations.coco.json"):
        (row,) = rows_of(scenes, file)
        assert (row.id, row.labels, row.objects) == ("odinw/0", ("fish", "shark"), (Object("fish", (2, 3, 32, 23)),))


def test_vlm_r1_detection(object_files):
    """The truth is what the answer lists; `None` is an image without any of it."""
    street, empty = rows_of(scenes, object_files / "vlm_r1_od.jsonl")
    assert (street.objects, street.labels, street.method) == ((PERSON, DOG), ("person", "dog"), "odLength")
    assert street.question == "Please carefully check the image and detect the following objects: ['person', 'dog']."
    assert (empty.objects, empty.answer) == ((), "None")


@pytest.mark.parametrize("name", ["vision_r1.json", "vision_r1.parquet"])
def test_vision_r1_columns(object_files, name):
    """JSON inside columns; all labels of the map are asked for."""
    (row,) = rows_of(scenes, object_files / name)
    assert row.objects == (Object("Person", MAN), DOG)
    assert row.labels == ("person", "dog", "cat")
    assert row.question.startswith("Locate every item from the category list")


REFERRING = {
    "shikra.jsonl": 1, "qwen_vl.jsonl": 1, "vlm_r1_rec.json": 1, "mdetr.json": 1, "refcoco_hf.json": 2,
    "refcoco_hf.parquet": 2, "refcoco_sentences.json": 2, "vlm_r1_rec.jsonl": 2, "phrases.jsonl": 1,
}  # fmt: skip


@pytest.mark.parametrize("name", REFERRING)
def test_every_form_of_refcoco_gives_one_box_a_phrase(object_files, name):
    """Corners here, widths there: each published form must give the same box."""
    rows = rows_of(referring, object_files / name)
    assert len(rows) == REFERRING[name] and len({row.id for row in rows}) == len(rows)
    for row in rows:
        assert [o.label for o in row.objects] == list(row.labels) and len(row.labels) == 1
    assert rows[0].labels[0].lower() in ("man on left", "the man on the left")
    assert rows[0].objects[0].box == MAN


def test_what_a_row_of_refcoco_is_called(object_files):
    """Phrases of one box are rows of their own; a row without the usual sentence is asked as it stands."""
    assert [r.id for r in rows_of(referring, object_files / "refcoco_hf.json")] == [
        "refcoco_hf/0/1",
        "refcoco_hf/0/2",
    ]
    second = rows_of(referring, object_files / "vlm_r1_rec.jsonl")[1]
    assert (second.labels, second.objects[0].box) == (("Where is the dog?",), (100.5, 90.0, 120.0, 110.0))
    assert rows_of(referring, object_files / "shikra.jsonl")[0].tags == {"dataset_name": "refcoco"}


def test_boxes_in_shares_are_never_guessed(object_files):
    """A box of [0.1, 0.1, 0.5, 0.5] is valid in pixels; training on it would teach nothing, silently."""
    with pytest.raises(UserError, match=r"row 1: bbox: .* lies in the first pixel; is it in shares of the image\?"):
        referring(Data(test=str(object_files / "shikra_rel1.jsonl")))
    (row,) = rows_of(referring, object_files / "shikra_rel1.jsonl", format="shikra_rel1")
    assert row.objects[0].box == (10.0, 15.0, 80.0, 60.0)


def test_pickles_are_not_opened(object_files, tmp_path):
    """RefCOCO's own file is a pickle, and opening one runs what is in it."""
    (tmp_path / "refs(unc).p").write_bytes(b"cos\nsystem\n(S'touch ran'\ntR.")
    with pytest.raises(UserError, match=r"refs\(unc\)\.p: a pickle runs code .*; use the data set's JSON"):
        referring(Data(test=str(tmp_path / "refs(unc).p")))
    assert not list(tmp_path.glob("**/ran"))


def test_classes_are_those_of_both_splits(object_files):
    """A class that only the test split has can still be answered."""
    found, _ = labelled(Data(train=str(object_files / "classes.jsonl"), test=str(object_files / "cls_rl.json")))
    names = ("707-320", "Boeing 747", "sea", "street")
    assert {row.labels for rows in found.values() for row in rows} == {names}
    assert [(row.id, row.answer, row.question) for row in found["train"]] == [
        ("classes/1", "street", ""),
        ("classes/s", "sea", "Where?"),
    ]
    assert [row.answer for row in found["test"]] == ["Boeing 747", "707-320"]
    assert found["test"][0].question.startswith("This is an image containing an aircraft.")
    assert rows_of(labelled, object_files / "cls_rl.parquet")[0].answer == "Boeing 747"


def test_a_folder_per_class(object_files, tmp_path):
    """The usual layout of classification data; images in folders of folders belong to the upper one."""
    rows = rows_of(labelled, object_files / "classes")
    assert [(row.id, row.answer) for row in rows] == [
        ("classes/cat/sea.jpg", "cat"),
        ("classes/dog/small/sea.jpg", "dog"),
    ]
    shutil.copytree(object_files / "classes", tmp_path / "more")
    shutil.copy(object_files / "sea.jpg", tmp_path / "more" / "lost.jpg")
    with pytest.raises(UserError, match=r"more, row 3: label: must be a text"):
        labelled(Data(train=str(tmp_path / "more")))
    assert len(rows_of(labelled, tmp_path / "more", on_bad_row="skip")) == 2
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"empty: no usable row"):
        labelled(Data(train=str(tmp_path / "empty"), format="folder"))
    with pytest.raises(UserError, match=r"more: cannot be read \(it is a folder\)"):
        scenes(Data(train=str(tmp_path / "more")))


def test_vlm_r1_rows_of_every_method(object_files, tmp_path):
    """One file mixes rewards; several images keep their order, and a number is as good as a text."""
    data = Data(train=str(object_files / "vlm_r1_mixed.jsonl"))
    found, _ = read_vlm_r1(data, "default", ("weighted_sum",), TEXTS)
    two, yes, choice, count, boxes = found["train"]
    assert [image.name for image in two.images] == ["before.png", "after.png"]
    assert (two.question, two.answer) == ("\nDid the click work?", "Operation No Response")  # the line break is theirs
    assert [row.answer for row in (yes, choice, count)] == ["yes", "A", "1"]
    assert (count.method, boxes.method, boxes.objects) == ("default", "weighted_sum", (PERSON, DOG))
    with pytest.raises(UserError, match=r"row 1: accu_reward_method: 'all_match': must be one of weighted_sum, mcq"):
        read_vlm_r1(data, "mcq", ("weighted_sum",), {"mcq": multiple_choice})
    file = changed(object_files / "vlm_r1_mixed.jsonl", {"accu_reward_method": "yes_no"}, tmp_path)
    with pytest.raises(UserError, match=r"row 1: answer: 'Operation No Response': accu_reward_method yes_no does not"):
        read_vlm_r1(Data(train=str(file), images=str(object_files)), "default", (), TEXTS)


def changed(file, change, folder):
    """A copy of a fixture whose first row (of COCO's files: first image and first annotation) is changed."""
    text = file.read_text()
    if file.suffix == ".jsonl":
        rows = [json.loads(line) for line in text.splitlines()]
        rows[0] |= change
        text = "\n".join(map(json.dumps, rows))
    else:
        document = json.loads(text)
        listed = [document] if isinstance(document, list) else [document["images"], document["annotations"]]
        for rows, part in zip(listed, change if len(listed) > 1 else [change], strict=True):
            rows[0] |= part
        text = json.dumps(document)
    (folder / file.name).write_text(text)
    return folder / file.name


def answer(text):
    return {"conversations": [{"from": "human", "value": "<image>Find."}, {"from": "gpt", "value": text}]}


ONE_ROW = (*("lvis.json", "mdetr.json", "shikra.jsonl", "refcoco_hf.json", "refcoco_sentences.json", "vision_r1.json"),)
BROKEN = [
    (scenes, "coco.json", [{}, {"bbox": [10, 10, 400, 30]}], "annotation 1: bbox: .*outside the image"),
    (scenes, "coco.json", [{}, {"bbox": [10, 10, 0, 30]}], "annotation 1: bbox: empty box"),
    (scenes, "coco.json", [{}, {"bbox": [10, float("nan"), 5, 30]}], "annotation 1: bbox: not finite"),
    (scenes, "coco.json", [{}, {"category_id": 99}], "annotation 1: category_id: 99 is not among categories"),
    (scenes, "coco.json", [{}, {"area": "big"}], "annotation 1: area 'big'"),
    (scenes, "coco.json", [{"width": 320}, {}], "width, height: .*the image has .*; was it resized since"),
    (scenes, "coco.json", [{"file_name": "none.png"}, {}], "no such image"),
    (scenes, "vlm_r1_od.jsonl", {"id": 2}, "id: 'vlm_r1_od/2' is taken", 2),
    (scenes, "coco.json", [{}, {"image_id": 4}], "image_id: 4 has annotations, but is not among", 3),
    (scenes, "lvis.json", [{"neg_category_ids": [77]}, {}], "neg_category_ids: 77 is not among categories"),
    (scenes, "lvis.json", [{"neg_category_ids": [[1]]}, {}], r"neg_category_ids: \[1\] is not among"),
    (scenes, "lvis.json", [{"neg_category_ids": 1}, {}], "neg_category_ids: must be a list of ids"),
    (scenes, "coco.json", [{}, {"category_id": []}], r"category_id: \[\] is not among categories"),
    (scenes, "coco.json", [{}, {"bbox": [10**400, 1, 2, 3]}], "annotation 1: bbox: not finite"),
    (scenes, "coco.json", [{}, {"area": 10**400}], "annotation 1: area"),
    (scenes, "ovdeval.json", [{"text": [], "neg_text": []}, {"image_id": 1}], "nothing is asked for"),
    (scenes, "ovdeval.json", [{"neg_text": [3]}, {}], "neg_text: must be a list of texts"),
    (scenes, "scenes.jsonl", {"objects": [{"label": "dog", "box": [1, 2, 3, 4]}]}, "labels: lacks dog"),
    (scenes, "scenes.jsonl", {"objects": [{"box": [1, 2, 3, 4]}]}, "an object needs a label"),
    (scenes, "scenes.jsonl", {"objects": None}, "objects: must be a list"),
    (scenes, "scenes.jsonl", {"objects": [], "labels": None}, "labels: without objects"),
    (scenes, "vlm_r1_od.jsonl", answer("[{]"), "answer: not literal; must be a ```json list"),
    (scenes, "vlm_r1_od.jsonl", answer('[{"bbox_2d": [0, 0, 999, 9], "label": "x"}]'), "outside the image"),
    (scenes, "vlm_r1_od.jsonl", {"conversations": []}, "conversations: must be two turns"),
    (scenes, "vlm_r1_od.jsonl", answer(" "), "must not be empty"),
    (scenes, "vlm_r1_od.jsonl", {"image": ["street.png"] * 2}, "2 images; boxes need exactly one"),
    (scenes, "vlm_r1_od.jsonl", {"image": []}, "image: must name an image"),
    (scenes, "vision_r1.json", {"num_instances": 3}, "num_instances: 3, but solution has 2"),
    (scenes, "vision_r1.json", {"solution": "[[1]]"}, "solution: must be a list"),
    (scenes, "vision_r1.json", {"target_id_maps": '{"dog": 1}'}, "target_id_maps: lacks Person"),
    (scenes, "vision_r1.json", {"target_id_maps": "no"}, "target_id_maps: must be an object"),
    (referring, "shikra.jsonl", {"bbox": [50, 10, 10, 40]}, "bbox: empty box"),
    (referring, "shikra.jsonl", {"expression": ""}, "expression: must be a text"),
    (referring, "refcoco_hf.json", {"answer": []}, "a row needs its name"),
    (referring, "refcoco_hf.json", {"bbox": [100, 10, 100, 40]}, r"outside the image.*\[x, y, width, height\]"),
    (referring, "refcoco_sentences.json", {"sentences": ["man"]}, "sentences: must be a list of"),
    (referring, "mdetr.json", [{}, {"image_id": 5}], "0 of one phrase"),
    (referring, "vlm_r1_rec.jsonl", answer("somewhere"), "answer: not a box"),
    (labelled, "classes.jsonl", {"label": 3}, "label: must be a text"),
    (labelled, "cls_rl.json", {"solution": "<answer> </answer>"}, "solution: must name a class"),
]


@pytest.mark.parametrize(("read", "name", "change", "problem", "row"), [(*case, 1)[:5] for case in BROKEN])
def test_bad_rows_stop_with_their_number_or_are_set_aside(object_files, tmp_path, read, name, change, problem, row):
    """A user mends a file by row; training on the rest is a choice, and counted."""
    file = changed(object_files / name, change, tmp_path)
    data = Data(test=str(file), images=str(object_files))
    with pytest.raises(UserError, match=rf"{name}, row {row}: .*{problem}"):
        read(data)
    if name in ONE_ROW:
        with pytest.raises(UserError, match=rf"no usable row \(.*{problem}"):
            read(replace(data, on_bad_row="skip"))
        return
    found, bad = read(replace(data, on_bad_row="skip"))
    assert [(entry.row, entry.file) for entry in bad] == [(row, str(file))]
    assert len(found["test"]) == len(rows_of(read, object_files / name)) - (row < 3)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("e.json", "{}", "fit no format"),
        ("e.json", '{"images": [], "annotations": [], "categories": []}', "no usable row"),
        ("e.json", '{"images": {}, "annotations": [], "categories": []}', "images: must be a list of objects"),
        ("e.json", '{"images": [], "annotations": [], "categories": [{"id": 1}]}', "needs an id of its own and a name"),
        ("e.json", "3", "holds no list of rows"),
        ("e.jsonl", '{"image": "street.png", "bbox": [1, 2, 3, 4]}', r"fit no format; are its boxes \[x, y, width"),
    ],
)
def test_files_that_are_none_of_these_stop(tmp_path, name, text, problem):
    """An empty or foreign file is a mistake, not a run of zero questions; what a box means is never guessed."""
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=rf"{name}: .*{problem}"):
        scenes(Data(train=str(tmp_path / name), on_bad_row="skip"))


def test_a_declared_format_must_hold_what_the_file_holds(object_files):
    """`data.format: coco` on JSON lines would otherwise call each row bad."""
    for name, declared, held in (("coco.json", "jsonl", "one object"), ("scenes.jsonl", "coco", "a list of rows")):
        with pytest.raises(UserError, match=rf"{name}: holds {held}.*data\.format: {declared}"):
            scenes(Data(train=str(object_files / name), format=declared))


def pictures(classes=("b", "a", "c"), each=9):
    return [records.LabelledScene(f"{name}/{i}", (), answer=name) for i in range(each) for name in classes]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_shots_are_k_of_each_class_whatever_the_order(seed):
    """Few-shot numbers can be compared only where everybody draws the same pictures."""
    rows = pictures()
    drawn = choose_shots(rows, 4, seed)
    assert {name: sum(row.answer == name for row in drawn) for name in "abc"} == {"a": 4, "b": 4, "c": 4}
    assert drawn == [row for row in rows if row in drawn]
    assert {row.id for row in choose_shots(rows[::-1], 4, seed)} == {row.id for row in drawn}
    more = {row.id for row in choose_shots([*rows, records.LabelledScene("a/new", (), answer="a")], 4, seed)}
    assert len({row.id for row in drawn} - more) <= 1
    assert len({frozenset(row.id for row in choose_shots(rows, 4, other)) for other in range(8)}) == 8
    assert choose_shots(rows, 9, seed) == rows
    with pytest.raises(UserError, match=r"task\.shots: 10: more than there are of a \(9\), b \(9\), c \(9\)"):
        choose_shots(rows, 10, seed)


def test_base_and_new_classes_are_coops_halves():
    """Another split of the classes gives other numbers than the papers'."""
    assert halves(["c", "a", "b", "e", "d", "a"]) == (("a", "b", "c"), ("d", "e"))
    assert halves(["x"]) == (("x",), ())
