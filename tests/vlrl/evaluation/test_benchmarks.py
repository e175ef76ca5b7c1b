"""`vlrl eval --benchmark`: lmms-eval's own tasks, on rows of their columns that the tests write.

lmms-eval is in no extra of the tests: it does not go beside `math`. Without it these tests are left out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.lmms_folder import add_lmms_eval
from vlrl.cli import main
from vlrl.types import Decision, Episode, Observation, Policy

add_lmms_eval()
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of lmms-eval's own code
LETTERS = ["A", "B", "C", "D"]


class ScriptedPolicy(Policy):
    """Gives the answers of a list, in the order of the questions, and keeps what it was shown."""

    writes_text = True

    def __init__(self, answers: Sequence[str]):
        self.answers, self.prompts = list(answers), []
        self.model = torch.nn.Module()
        self.model.config = type("Config", (), {"model_type": "scripted"})

    def act(
        self, episodes: Sequence[Episode], observations: Sequence[Observation], *args: Any, **options: Any
    ) -> list[Decision]:
        texts = [self.answers[len(self.prompts) + i] for i in range(len(observations))]
        self.prompts += observations
        return [Decision(text, torch.zeros(1), torch.zeros(1), truncated=False) for text in texts]


def picture(i: int, size: tuple[int, int] = (200, 100)) -> Image.Image:
    return Image.fromarray(np.full((size[1], size[0], 3), 20 * i, np.uint8))


def write(file: Path, columns: dict[str, list], images: Sequence[str] = ("image",)) -> Path:
    """Rows as a parquet file, in which `images` are encoded as the hub's files have them."""
    import datasets

    rows = datasets.Dataset.from_dict({name: values for name, values in columns.items() if name not in images})
    for name in images:
        rows = rows.add_column(name, [None] * len(rows)) if name not in columns else rows
    pictures = {name: columns[name] for name in images}
    features = datasets.Features({**rows.features, **{name: datasets.Image() for name in pictures}})
    rows = datasets.Dataset.from_dict({**rows.to_dict(), **pictures}, features=features)
    file.parent.mkdir(parents=True, exist_ok=True)
    rows.to_parquet(str(file))
    return file.parent


def write_video(file: Path) -> None:
    """10 s of 64 x 48 pixels."""
    import av

    file.parent.mkdir()
    with av.open(str(file), "w") as container:
        stream = container.add_stream("mpeg4", rate=5)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for i in range(50):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 5 * i, np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


@pytest.fixture
def run(monkeypatch, capsys, tmp_path) -> Callable[..., dict[str, Any]]:
    """`run("mmstar", folder, answers)` -> the JSON that the command prints; `run.policy` was shown the questions."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))

    def evaluate(name: str, data: Path, answers: Sequence[str], *options: str) -> dict[str, Any]:
        policy = ScriptedPolicy(answers)
        monkeypatch.setattr("vlrl.evaluation.benchmarks.load_policy", lambda section: policy)
        evaluate.policy = policy
        capsys.readouterr()
        code = main(["eval", "embedded", "--benchmark", name, "--data", str(data), "--json", *options])
        output, error = capsys.readouterr()
        assert code == 0, error
        return json.loads(output)

    return evaluate


def screens(folder: Path, boxes: Sequence[Sequence[float]]) -> Path:
    n = len(boxes)
    columns = {
        "image": [picture(i) for i in range(n)], "instruction": [f"open {i}" for i in range(n)], "bbox": list(boxes),
        "data_type": ["text", "icon"] * n, "data_source": ["web"] * n, "file_name": ["x.png"] * n,
    }  # fmt: skip
    return write(folder / "test.parquet", {name: values[:n] for name, values in columns.items()})


def test_screenspot_v2_agrees_with_our_click(run, tmp_path):
    """Hits, misses and answers without a point would count otherwise than in lmms-eval, under its name."""
    data = screens(tmp_path, [[0.1, 0.2, 0.5, 0.6]] * 4)
    answers = ["[0.3, 0.4]", "[0.1, 0.2]", "[0.6, 0.4]", "nowhere"]
    result = run("screenspot_v2", data, [f"<answer>{text}</answer>" for text in answers])
    assert (result["metric"], result["value"], result["n"]) == ("screenspot_v2_action_acc", 0.5, 4)
    assert (result["low"], result["high"]) == pytest.approx((0.150, 0.850), abs=1e-3)  # Wilson's of 2 in 4
    assert result["metrics"]["screenspot_v2_text_acc"]["value"] == 0.5
    assert (result["strict"]["task"], result["strict"]["value"], result["strict"]["agreement"]) == (
        "gui_grounding",
        0.5,
        1,
    )
    assert result["strict"]["parse_fail"] == {"not_literal": 0.25}
    shown = run.policy.prompts[0]
    assert shown.images[0].size == (200, 100) and "Instruction: open 0" in shown.text  # lmms-eval's own words


def test_screenspot_v2_differs_by_rule(run, tmp_path):
    """What lmms-eval forgives and our parser does not is a difference of rules, each of which the guide names."""
    data = screens(tmp_path, [[0.1, 0.2, 0.5, 0.6]] * 4)
    answers = [
        "[0.3, 0.4]",  # no tags
        "<answer>[0.3, 0.4] or [0.9, 0.9]</answer>",  # several points: lmms-eval takes the first
        "<answer>x=0.3, y=0.4</answer>",  # another notation
        "<answer>[0.3, 0.4]</answer><answer>[0.9, 0.9]</answer>",  # several answers
    ]
    result = run("screenspot_v2", data, answers)
    assert (result["value"], result["strict"]["value"], result["strict"]["agreement"]) == (1.0, 0.0, 0.0)
    assert result["strict"]["parse_fail"] == {"many_answers": 0.25, "no_answer": 0.25, "not_literal": 0.5}


def test_screenspot_pro_reads_pixels(run, tmp_path):
    """Boxes in pixels, as ScreenSpot-Pro has them, would never be hit."""
    data = screens(tmp_path, [[20, 20, 100, 60]] * 2)
    import datasets

    rows = datasets.Dataset.from_parquet(str(data / "test.parquet")).add_column("img_size", [[200, 100]] * 2)
    rows.add_column("ui_type", ["text", "icon"]).to_parquet(str(data / "test.parquet"))
    result = run("screenspot_pro", data, ["<answer>[0.3, 0.4]</answer>", "<answer>[0.7, 0.4]</answer>"])
    assert (result["value"], result["strict"]["value"], result["strict"]["agreement"]) == (0.5, 0.5, 1.0)
    assert result["metrics"]["screenspot_pro_icon_acc"] == {"value": 0.0, "n": 2}  # of 1 icon, which is not known


def test_refcoco_agrees_with_our_boxes(run, tmp_path):
    """Its rows are exploded by phrases: answers would be scored with another row's box."""
    columns = {
        "image": [picture(1), picture(2)], "question_id": ["1", "2"], "bbox": [[20.0, 20.0, 80.0, 40.0]] * 2,
        "answer": [["the left cup", "a cup"], ["a dog"]],
    }  # fmt: skip
    data = write(tmp_path / "data" / "val-00000-of-00001.parquet", columns)
    answers = ["[0.1, 0.2, 0.5, 0.6]", "[0.1, 0.2, 0.5, 0.5]", "[0.4, 0.2, 0.8, 0.6]"]
    result = run("refcoco", data.parent, [f"<answer>{text}</answer>" for text in answers])
    assert (result["benchmark"], result["metric"], result["n"]) == ("refcoco_bbox_rec_val", "refcoco_ACC@0.5", 3)
    assert result["value"] == pytest.approx(2 / 3) == result["strict"]["value"]
    assert result["strict"]["agreement"] == 1.0
    assert result["metrics"]["refcoco_IoU"]["value"] == pytest.approx((1 + 0.75 + 1 / 7) / 3)
    assert [prompt.text.rpartition(": ")[2] for prompt in run.policy.prompts] == ["the left cup", "a cup", "a dog"]


def test_refcoco_differs_by_rule(run, tmp_path):
    """lmms-eval takes the first list of four numbers, wherever it stands; ours reads one box, in tags."""
    columns = {"image": [picture(1)] * 3, "question_id": ["1"] * 3, "bbox": [[20.0, 20.0, 80.0, 40.0]] * 3,
               "answer": [["a cup"]] * 3}  # fmt: skip
    box = "[0.1, 0.2, 0.5, 0.6]"
    answers = [box, f"<answer>{box} or [0, 0, 1, 1]</answer>", f"It is <answer>{box}</answer>"]
    result = run("refcoco", write(tmp_path / "val.parquet", columns), answers)
    assert (result["value"], result["strict"]["value"], result["strict"]["agreement"]) == (1.0, 0.0, 0.0)
    assert result["strict"]["parse_fail"].keys() == {"no_answer", "not_literal", "outside_tags"}


def test_charades_finds_videos_beside_the_rows(run, tmp_path):
    """lmms-eval looks for videos in its cache alone; a percentage would have an interval of shares."""
    write_video(tmp_path / "Charades_v1_480" / "a.mp4")
    captions = [f"person {i} sits" for i in range(4)]
    columns = {"video": ["a.mp4"] * 4, "caption": captions, "timestamp": [[2.0, 6.0]] * 4}
    lines = [json.dumps(dict(zip(columns, values, strict=True))) for values in zip(*columns.values(), strict=True)]
    (tmp_path / "test.jsonl").write_text("\n".join(lines))
    answers = [
        "<answer>2 to 6</answer>", "<answer>4 to 6</answer>", "<answer>5.9 to 9</answer>",
        "<answer>6 to 2</answer>",  # lmms-eval turns it round; ours: an empty interval
    ]  # fmt: skip
    result = run("charades", tmp_path, answers)
    assert (result["metric"], result["value"], result["n"]) == ("charades_sta_IOU@5", 75.0, 4)
    assert (result["low"], result["high"]) == pytest.approx((30.06, 95.44), abs=0.01)
    assert (result["strict"]["value"], result["strict"]["agreement"]) == (0.5, 0.75)
    assert result["strict"]["parse_fail"] == {"empty_interval": 0.25}
    video = run.policy.prompts[0].videos[0]
    assert video.size == (64, 48) and video.duration == pytest.approx(10)


ROOM = (  # a question's type, the truth, what is answered, lmms-eval's score of it, ours
    ("object_rel_direction_easy", "A", "A", 1.0, 1.0),
    ("object_rel_direction_medium", "B", "A", 0.0, 0.0),
    ("object_rel_direction_hard", "C", "C", 1.0, 1.0),
    ("object_rel_distance", "D", "D", 1.0, 1.0),
    ("route_planning", "A", "B", 0.0, 0.0),
    ("obj_appearance_order", "B", "B", 1.0, 1.0),
    ("object_counting", "4", "4", 1.0, 1.0),
    ("object_counting", "4", "5", 0.6, 0.5),  # an error of 25 %: lmms-eval counts a threshold that is just met
    ("object_abs_distance", "10", "8.9", 0.8, 0.8),  # 11 %: below 8 thresholds
    ("object_size_estimation", "100", "250", 0.0, 0.0),
    ("room_size_estimation", "20.5", "two", 0.0, 0.0),
)


def test_vsi_bench_agrees_with_our_answers(run, tmp_path, capsys):
    """Its aggregation takes no single answer: without a score of each it was refused as one of a server."""
    write_video(tmp_path / "scannet" / "scene.mp4")
    rows = [
        {"dataset": "scannet", "scene_name": "scene", "question": "Where?", "question_type": kind,
         "ground_truth": truth, "options": ["A. left", "B. right", "C. back", "D. front"] if truth.isalpha() else None}
        for kind, truth, *_ in ROOM
    ]  # fmt: skip
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    answers = [f"<answer>{answer}</answer>" for _, _, answer, *_ in ROOM]
    result = run("vsi_bench", tmp_path, answers, "--strip-tags")
    # of the categories' means, the three directions one of them
    expected = np.mean([2 / 3, 1, 0, 1, 0.8, 0.8, 0, 0])
    assert (result["benchmark"], result["metric"], result["n"]) == ("vsibench", "vsibench_overall", len(ROOM))
    assert result["value"] == pytest.approx(expected, abs=1e-6) and result["low"] < expected < result["high"]
    assert result["metrics"]["object_counting_mra"]["value"] == pytest.approx(0.8)
    strict = result["strict"]
    assert strict["value"] == pytest.approx(np.mean([ours for *_, ours in ROOM])) and strict["task"] == "video_qa"
    assert (strict["agreement"], strict["unscored"], strict["parse_fail"]) == (pytest.approx(10 / 11), 0, {})
    shown = run.policy.prompts[0]
    assert shown.videos[0].size == (64, 48) and "Options:\nA. left\nB. right" in shown.text
    command = ["eval", "embedded", "--benchmark", "vsi_bench", "--data", str(tmp_path), "eval.num_samples=2"]
    run.policy.prompts.clear()
    assert main(command) == 2
    assert "no 'object_rel_direction_hard_accuracy' in these rows (eval.num_samples is 2)" in capsys.readouterr().err


def exams(folder: Path) -> Path:
    columns = {
        "id": ["validation_Art_1", "validation_Art_2", "validation_Math_1", "validation_Math_2"],
        "question": ["Whose is <image 1>?", "Which <image 1>?", "Sum of <image 1>?", "Root of <image 1>?"],
        "options": ["['Monet', 'Manet']", "['red', 'blue', 'green']", "[]", "[]"],
        "answer": ["B", "A", "12", "['3', 'three']"],
        "question_type": ["multiple-choice", "multiple-choice", "open", "open"],
        "image_1": [picture(i) for i in range(4)],
    }
    return write(folder / "validation.parquet", columns, images=("image_1",))


def test_mmmu_scores_what_stands_in_tags_when_asked(run, tmp_path):
    """lmms-eval's MMMU finds no letter in `<answer>B</answer>`, and draws one by chance."""
    data, answers = exams(tmp_path), ["B", "C", "12", "three"]
    tagged = [f"<answer>{text}</answer>" for text in answers]
    result = run("mmmu", data, tagged, "--strip-tags")
    assert (result["benchmark"], result["metric"]) == ("mmmu_val", "mmmu_acc")
    # of several right answers written as a list lmms-eval takes the list itself for the answer
    assert (result["value"], result["strict"]["value"], result["strict"]["agreement"]) == (0.5, 0.75, 0.75)
    assert result["strict"]["task"] == "visual_reasoning"
    first = run.policy.prompts[0]
    assert [type(part) is str for part in first.content] == [True, False, True]  # the picture stands in the question
    plain = run("mmmu", data, answers)
    assert (plain["value"], plain["strict"]["value"]) == (0.5, 0.0)
    assert plain["strict"]["parse_fail"] == {"no_answer": 1.0}


def test_mmstar_weighs_categories(run, tmp_path):
    """Its score is a mean of categories' means: an interval for a mean of answers would be another score's."""
    categories = ["a"] * 6 + ["b"] * 2
    columns = {
        "index": list(range(8)), "image": [picture(i) for i in range(8)],
        "question": ["Which?\nOptions: A: x, B: y, C: z, D: w"] * 8, "answer": LETTERS * 2,
        "category": ["math"] * 8, "l2_category": categories,
    }  # fmt: skip
    right = [True] * 6 + [True, False]
    answers = [
        f"<answer>{a if ok else 'BCDA'[LETTERS.index(a)]}</answer>" for a, ok in zip(LETTERS * 2, right, strict=True)
    ]
    result = run("mmstar", write(tmp_path / "val.parquet", columns), answers, "--strip-tags")
    assert (result["metric"], result["value"]) == ("average", 0.75)
    assert result["low"] < 0.75 < result["high"] <= 1
    assert (result["strict"]["value"], result["strict"]["agreement"]) == (7 / 8, 1.0)
    assert run("mmstar", tmp_path, answers)["value"] == 0.75  # its scorer, unlike MMMU's, finds letters in tags
    limited = run("mmstar", tmp_path, answers, "--strip-tags", "eval.num_samples=6", "eval.batch_size=4")
    assert (limited["value"], limited["n"]) == (1.0, 6)


def test_jsonl_names_images_beside_it(run, tmp_path):
    """Rows of one's own have files for images, which lmms-eval takes for texts."""
    picture(3).save(tmp_path / "a.png")
    rows = [{"image": "a.png", "question": "Stop or go?\nA. stop\nB. go", "answer": "B"},
            {"image": "a.png", "question": "How many?", "answer": "two"}]  # fmt: skip
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    result = run("realworldqa", tmp_path / "mine.jsonl", ["<answer>B</answer>", "<answer>Two</answer>"], "--strip-tags")
    assert (result["value"], result["strict"]["value"]) == (1.0, 1.0)
    assert run.policy.prompts[0].images[0].getpixel((0, 0)) == (60, 60, 60)


def test_realworldqa_agrees_with_our_answers(run, tmp_path):
    """Its scorer compares whole texts after its own filter: letters, words and numbers, right and wrong."""
    picture(1).save(tmp_path / "a.png")
    question = "Stop or go?\nA. stop\nB. go"
    rows = [("A", "B"), ("B", "B"), ("two", "Two"), ("two", "three"), ("7", "7"), ("7", "8")]
    asked = [{"image": "a.png", "question": question if truth in "AB" else "How many?", "answer": truth}
             for truth, _ in rows]  # fmt: skip
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, asked)))
    result = run("realworldqa", tmp_path, [f"<answer>{answer}</answer>" for _, answer in rows], "--strip-tags")
    strict = result["strict"]
    assert (result["metric"], result["value"], result["n"]) == ("exact_match", 0.5, 6)
    assert (strict["task"], strict["value"], strict["agreement"]) == ("visual_reasoning", 0.5, 1.0)
    plain = run("realworldqa", tmp_path, [answer for _, answer in rows])
    assert (plain["value"], plain["strict"]["value"], plain["strict"]["parse_fail"]) == (0.5, 0.0, {"no_answer": 1.0})


def test_the_embedded_model_answers(tmp_path, capsys, monkeypatch):
    """A real policy is asked through its processor, and answers as long as the benchmark lets it."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    data = str(screens(tmp_path, [[0.0, 0.0, 1.0, 1.0]] * 3))
    assert main(["eval", "embedded", "policy.max_tokens=8", "--benchmark", "screenspot_v2", "--data", data]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("screenspot_v2: screenspot_v2_action_acc ") and lines[0].endswith(" on 3 samples")
    assert any(line.startswith("strict parser of gui_grounding: accuracy ") for line in lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--benchmark", "screenspt_v2"], "lmms-eval has no such task; did you mean 'screenspot_v2'?"),
        (["--benchmark", "mathvision_test"], "runs parts of answers as Python: refused here"),
        (["--benchmark", "worldvqa_mc_ppl"], "it asks for multiple_choice, not for one answer a question"),
        (["--benchmark", "mmmu_pro"], "a group: name one of "),
        (["--benchmark", "screenspot_v2", "--data", "nowhere"], "--data nowhere: there is no such file or folder"),
        (["--benchmark", "mmstar", "--data", "."], "no rows of the split 'val': name a file val.parquet or val.jsonl"),
        (["--benchmark", "mmstar"], "Lin-Chen/MMStar: HF_HUB_OFFLINE is set, and rows are streamed"),
        (["--benchmark", "screenspot_v2", "--report", "x.html"], "--report goes without --benchmark"),
        (["--data", "."], "--data and --strip-tags go with --benchmark"),
        (["--benchmark", "realworldqa", "--data", "."], "--benchmark realworldqa: the data has no column 'question'"),
        (["--benchmark", "screenspot_v2", "--data", "."], "has no column 'instruction': it has bbox, image"),
        (["--benchmark", "charades", "--data", "."], "does not exist, please check"),
        (["polcy.max_tokens=3", "--benchmark", "mmstar"], "polcy"),
    ],
)
def test_mistakes_are_one_line(arguments, message, tmp_path, capsys, monkeypatch):
    """A traceback of lmms-eval, after minutes of loading, says nothing of a file's name or a column."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    name = arguments[arguments.index("--benchmark") + 1] if "--benchmark" in arguments else ""
    columns = {"image": [picture(1)], "bbox": [[0.0, 0.0, 1.0, 1.0]]}
    if name in ("screenspot_v2", "realworldqa"):
        write(tmp_path / "test.parquet", columns)
    if name == "charades":
        row = {"video": "b.mp4", "caption": "sits", "timestamp": [1, 2]}
        (tmp_path / "test.jsonl").write_text(json.dumps(row))
    monkeypatch.chdir(tmp_path)
    assert main(["eval", "embedded", *arguments]) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert message in error[-1] and error[-1].startswith("vlrl: ")


def test_a_missing_package_is_said(monkeypatch, capsys):
    """Who has not installed the extra would see an import error of a file that is not his."""
    from importlib import util

    find = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda name, *rest: None if name == "lmms_eval" else find(name, *rest))
    assert main(["eval", "embedded", "--benchmark", "mmstar"]) == 2
    assert "pip install 'vlrl[benchmarks]'" in capsys.readouterr().err
    assert main(["eval", "embedded", "--benchmark", "screenspt_v2"]) == 2  # installing it would not help
    error = capsys.readouterr().err
    assert "--benchmark screenspt_v2: not a name that vlrl knows; did you mean 'screenspot_v2'?" in error
    assert "pip install 'vlrl[benchmarks]'" in error


def test_help_does_not_load_lmms_eval():
    """Its imports take ten seconds, which every other evaluation would wait for."""
    import subprocess

    code = "import sys, vlrl.evaluation.benchmarks; print([name for name in sys.modules if name.startswith('lmms')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
