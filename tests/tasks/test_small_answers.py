"""Referring, counting and classification: one box, one number, one name."""

import json

import pytest
from PIL import Image

from tasks.base import answer_markup
from tasks.classification import Classification
from tasks.counting import Counting
from tasks.referring import Referring
from vlrl.types import Data, Decision, Episode, Frame, Observation, Sample, Step, Turn, UserError

SIZE = (100, 80)
FRAME = Frame("original_px", SIZE, SIZE)


def scored(task, completion, truth):
    prompt = Observation(("?",))
    decision = Decision(completion, logprobs=None, entropy=None, truncated=False, frames=(FRAME,))
    return task.score(Episode(Sample("1", prompt, truth), 0, [Turn(prompt, decision, Step(prompt, terminated=True))]))


@pytest.mark.parametrize(
    ("said", "iou", "reason"),
    [
        ("[10, 10, 30, 30]", 1, None),
        ('{"bbox_2d": [10, 10, 30, 30]}', 1, None),
        ('```json\n[{"bbox_2d": [10, 10, 30, 30], "label": "it"}]\n```', 1, None),
        ("[10, 10, 30, 20]", 0.5, None),
        ("[40, 40, 60, 60]", 0, None),
        ("[-900, -900, 900, 900]", 400 / 8000, None),  # a box is cut off at the picture
        ("[30, 30, 10, 10]", 0, "empty_box"),
        ("[10, 10, 30, NaN]", 0, "not_finite"),
        ("[[10, 10, 30, 30], [10, 10, 30, 30]]", 0, "not_a_box"),
    ],
)
def test_referring_pays_the_overlap_of_the_one_box(said, iou, reason):
    """Every notation that models write is read; several boxes, or none, are nothing."""
    score = scored(Referring(), f"<answer>{said}</answer>", (10.0, 10.0, 30.0, 30.0))
    assert score.parts["iou"] == pytest.approx(iou)
    assert (score.correct, score.reason) == (float(iou >= 0.5), reason)


def test_scenes_of_referring_ask_by_look_and_by_place():
    """A task that only ever asks for colours would teach nothing about places."""
    asked = [Referring(places_share=share).samples("test")[:60] for share in (0.0, 1.0)]
    kinds = [sum(sample.tags["kind"] == "place" for sample in samples) for samples in asked]
    assert kinds[0] < 12 < 20 < kinds[1]


@pytest.mark.parametrize(
    ("said", "exact", "closeness"),
    [("3", 1, 1), (" 3 ", 1, 1), ("2", 0, 2 / 3), ("6", 0, 0), ("3.0", 0, 0), ("three", 0, 0), ("3 or 4", 0, 0)],
)
def test_counting_takes_one_whole_number(said, exact, closeness):
    """A list of guesses, or words, must not be searched for the right number."""
    score = scored(Counting(), f"<answer>{said}</answer>", 3)
    assert (score.parts["exact"], score.correct) == (exact, exact)
    assert score.parts["closeness"] == pytest.approx(closeness)


@pytest.mark.parametrize(("thoughts", "form"), [("listed", "{0}"), ("checked", "{0}; check: {0}")])
def test_counting_thinks_of_what_stands_there(tmp_path, thoughts, form):
    """From left to right, by the boxes of a file that says where they are; the answer counts one label of them."""
    Image.new("RGB", (64, 64)).save(tmp_path / "a.png")
    boxes = [("ring", [40, 0, 50, 9]), ("bar", [30, 5, 39, 9]), ("ring", [2, 50, 9, 60])]
    row = {"image": "a.png", "objects": [{"label": label, "box": box} for label, box in boxes]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    task = Counting(data=Data(test=str(tmp_path / "rows.jsonl")), thinking=True, thoughts=thoughts)
    golden = [task.gold(sample, [FRAME]) for sample in task.samples("test")]
    thought = form.format("ring bar ring")
    assert sorted(golden) == [f"<think>{thought}</think>\n<answer>{count}</answer>" for count in (1, 2)]
    assert all(scored(task, text, int(text[-10])).correct == 1.0 for text in golden)


def test_thoughts_leave_crowds_out_as_the_count_does(tmp_path):
    """The thoughts would name three rings, and the answer say two."""
    Image.new("RGB", (64, 64)).save(tmp_path / "a.png")
    marks = [([2, 2, 9, 9], 0), ([20, 2, 9, 9], 0), ([40, 2, 20, 20], 1)]
    coco = {
        "images": [{"id": 1, "file_name": "a.png", "width": 64, "height": 64}],
        "categories": [{"id": 1, "name": "ring"}],
        "annotations": [
            {"id": i, "image_id": 1, "category_id": 1, "bbox": box, "iscrowd": crowd, "area": box[2] * box[3]}
            for i, (box, crowd) in enumerate(marks)
        ],
    }
    (tmp_path / "coco.json").write_text(json.dumps(coco))
    task = Counting(data=Data(test=str(tmp_path / "coco.json")), thinking=True, thoughts="listed")
    (sample,) = task.samples("test")
    assert task.gold(sample, [FRAME]) == "<think>ring ring</think>\n<answer>2</answer>"


def test_thoughts_need_thinking():
    with pytest.raises(UserError, match=r"fixed without task\.thinking"):
        Counting(thoughts="listed")


def test_counting_asks_about_nothing_as_well():
    """Where there is always one, one is a safe guess."""
    counts = [sample.answer for sample in Counting().samples("test")[:200]]
    assert {0, 1, 2, 3} <= set(counts)
    assert max(counts.count(n) for n in set(counts)) < 100


@pytest.mark.parametrize(
    ("said", "right"), [("tabby_cat", 1), ("Tabby cat.", 1), ("cat", 0), ("tabby cat, dog", 0), ("not tabby cat", 0)]
)
def test_classification_takes_one_name_and_no_part_of_one(said, right, tmp_path):
    """A name inside a longer text is a guess among many."""
    task = Classification(data=_folder(tmp_path))
    assert scored(task, f"<answer>{said}</answer>", "tabby_cat").correct == right


def test_no_thinking_cls_rl_wants_the_bare_name_and_cls_rl_the_tags():
    """The two prompts ask for different forms."""
    bare, tagged = (Classification(template="cls_rl", thinking=thinking) for thinking in (False, True))
    assert scored(bare, "7", "7").correct == 1
    assert scored(bare, "<answer>7</answer>", "7").correct == 0
    assert scored(tagged, "<think>A seven.</think> <answer>7</answer>", "7").correct == 1
    assert scored(tagged, "7", "7").reason == "no_answer"
    assert bare.samples("train")[0].prompt.text == "Which digit is this?\n Please directly output the answer."


def test_few_shots_and_base_to_new_choose_as_cls_rl_does():
    """A new class that was trained on, or a fifth shot, would make the comparison unfair."""
    few = Classification(shots=4)
    labels = [few.samples("train")[i].answer for i in range(len(few.samples("train")))]
    assert sorted(labels) == sorted(4 * list("0123456789"))
    assert len(few.samples("test")) == len(Classification().samples("test"))
    new = Classification(classes="new")
    seen, asked = ({new.samples(split)[i].answer for i in range(200)} for split in ("train", "test"))
    assert (seen, asked) == (set("01234"), set("56789"))
    other = Classification(shots=4, seed=1)
    assert {s.id for s in other.samples("train")[:40]} != {s.id for s in few.samples("train")[:40]}


def _folder(folder):
    from PIL import Image

    from vlrl.types import Data

    for split in ("train", "test"):
        for number, name in enumerate(("tabby_cat", "dog")):
            (folder / split / name).mkdir(parents=True)
            Image.new("RGB", (32, 32), (90 * number, 9, 9)).save(folder / split / name / f"{split}.png")
    return Data(train=str(folder / "train"), test=str(folder / "test"))


def test_answers_of_the_gold_are_json_that_qwen_writes():
    """VLM-R1's prompt asks for JSON: its gold must be what the base model would say."""
    task = Referring(template="vlm_r1", thinking=True)
    sample = task.samples("test")[0]
    gold = task.gold(sample, (Frame("rel1000", (64, 64), (64, 64)),))
    inside = gold.partition("<answer>")[2].removesuffix("</answer>")
    assert gold == answer_markup(inside, True)
    assert list(json.loads(inside)) == ["bbox_2d"]
