"""The video tasks on rows of files: what is shown, what is asked, what is scored, and what is reported beside it."""

import json

import numpy as np
import pytest

from tasks.grounded_video_qa import GroundedVideoQa
from tasks.rendering import robot_videos
from tasks.rendering.videos import VideoOptions
from tasks.temporal_grounding import TemporalGrounding
from tasks.video_qa import VideoQa
from vlrl.types import Data, Decision, Episode, Step, Turn, UserError

LEVELS = ("L1", "L2", "L3")


def played(task, sample, text):
    decision = Decision(text, logprobs=None, entropy=None, truncated=False)
    episode = Episode(sample, 0, [Turn(sample.prompt, decision, Step(sample.prompt, terminated=True))])
    episode.score = task.score(episode)
    episode.reward = task.reward(episode.score)
    return episode


def answered(task, texts=None, n=8):
    samples = task.samples("test")[:n]
    return [played(task, s, task.gold(s, ()) if texts is None else texts[i]) for i, s in enumerate(samples)]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Planning questions of the simulated robot, as files in SEED-Bench-R1's form."""
    folder = tmp_path_factory.mktemp("robot")
    files = robot_videos.write_robot_dataset(folder, 2, "test", 0, LEVELS, size=(64, 64))
    rows = [line for file in files for line in file.read_text().splitlines()]
    (folder / "all.jsonl").write_text("\n".join(rows))
    return folder


@pytest.fixture(scope="module")
def film(tmp_path_factory):
    """A video of three seconds at 10 frames a second, as h264."""
    folder = tmp_path_factory.mktemp("film")
    frames = np.full((30, 64, 64, 3), 90, np.uint8)
    frames[10:20, 16:48, 16:48] = (222, 48, 44)
    robot_videos.encode(folder / "AO8RW.mp4", frames)
    return folder


def rows(folder, name, *values):
    (folder / name).write_text("\n".join(map(json.dumps, values)))
    return Data(test=str(folder / name))


def test_planning_questions_read_from_files_as_published(recorded):
    """A user who has SEED-Bench-R1 could not evaluate on it."""
    task = VideoQa(data=Data(test=str(recorded / "test_L2.jsonl")), template="seed_bench_r1", thinking=True)
    sample = task.samples("test")[0]
    kinds = [type(part).__name__ for part in sample.prompt.content]
    assert kinds in (["Video", "Image", "str"], ["Image", "str"]) and sample.tags["level"] == "L2"
    assert sample.prompt.text.endswith("<think> reasoning process here </think><answer> answer here </answer>. ")
    assert "\nA. " in sample.prompt.text and sample.prompt.text.count("<think>") == 2
    assert all(episode.reward == 1.0 and episode.score.correct for episode in answered(task, n=2))


def test_accuracy_is_told_by_level_beside_what_guessing_earns():
    """Generalisation over three levels is the result that the benchmark is for."""
    task = VideoQa(film=VideoOptions(source="robot", levels=LEVELS, frames=2, size=(32, 32)), kinds=("planning",))
    samples = [task.samples("test")[i] for i in range(6)]
    assert [sample.tags["level"] for sample in samples] == [*LEVELS, *LEVELS]
    right = [task.gold(sample, ()) for sample in samples]
    found = task.metrics(answered(task, [*right[:1], "", "", *right[3:4], right[4], "nonsense"], 6))
    assert (found["level/L1"], found["level/L2"], found["level/L3"]) == (1.0, 0.5, 0.0)
    assert found["mean_level"] == 0.5 and found["parse_fail"] == 0.5
    letters = [sample.answer.answer for sample in samples]
    assert found["most_frequent_answer"] == max(map(letters.count, letters)) / 6


def test_held_out_levels_are_not_trained_on():
    """Generalisation would be memory."""
    task = VideoQa(film=VideoOptions(source="robot", levels=LEVELS, frames=2, size=(32, 32)), kinds=("planning",))
    assert {task.samples("train")[i].tags["level"] for i in range(4)} == {"L1"}


def test_captions_are_asked_for_and_questions_stay_as_they_are(film):
    """A question within a question confuses the model that was trained on the data set's own words."""
    told = [{"video": "AO8RW", "query": "a red square is there.", "span": [1, 2]},
            {"video": "AO8RW", "query": "When is the square red?", "span": [1, 2]}]  # fmt: skip
    task = TemporalGrounding(data=rows(film, "spans.jsonl", *told), template="guided", fps=4)
    first, second = task.samples("test")
    assert (
        "The video lasts 3.0 seconds. From when to when does it show this: a red square is there?" in first.prompt.text
    )
    assert second.prompt.text == "When is the square red?"
    assert len(first.prompt.videos[0].frames) == 12 and first.prompt.videos[0] is second.prompt.videos[0]


@pytest.mark.parametrize(
    ("text", "iou", "reason"),
    [
        ("<answer>1 to 2</answer>", 1.0, None),
        ("<answer>0:01 to 0:02</answer>", 1.0, None),
        ('<answer>{"start_time": "1.0", "end_time": "2.0"}</answer>', 1.0, None),
        ("<answer>0 to 3</answer>", 1 / 3, None),
        ("<answer>2 to 1</answer>", 0.0, "empty_interval"),
        ("<answer>nan to 2</answer>", 0.0, "not_an_interval"),
        ("1 to 2", 0.0, "no_answer"),
        ("<answer>0 to 1</answer><answer>1 to 2</answer>", 0.0, "many_answers"),
    ],
)
def test_spans_are_paid_by_their_iou(film, text, iou, reason):
    """Anything else that is paid is a way to cheat."""
    task = TemporalGrounding(data=rows(film, "one.jsonl", {"video": "AO8RW", "query": "red", "span": [1, 2]}))
    (episode,) = answered(task, [text], 1)
    assert episode.score.parts["iou"] == pytest.approx(iou) and episode.score.reason == reason
    assert episode.score.correct == float(iou >= 0.5)


def test_of_several_true_spans_the_best_counts(film):
    """The model would be punished for naming the one that the file lists second."""
    task = TemporalGrounding(data=rows(film, "two.jsonl", {"video": "AO8RW", "query": "x", "spans": [[0, 1], [2, 3]]}))
    (episode,) = answered(task, ["<answer>2 to 3</answer>"], 1)
    assert episode.score.parts["iou"] == 1.0


def test_grounding_is_reported_beside_answers_without_looking():
    """A published model was below the whole video and nobody saw it. What cannot be read counts as wrong."""
    task = TemporalGrounding(film=VideoOptions(frames=2, size=(32, 32)))
    golds = [task.gold(sample, ()) for sample in task.samples("test")[:40]]
    found = task.metrics(answered(task, [*golds[:20], *[""] * 20], 40))
    assert (found["miou"], found["r1@0.7"], found["parse_fail"]) == (0.5, 0.5, 0.5)
    assert 0.2 < found["whole_video"] <= found["best_constant"] < 0.45


def test_a_grounded_answer_needs_the_letter_and_the_time(film):
    """Acc@GQA: a right answer for a wrong reason is none. A point earns nothing, though it lies in the truth."""
    asked = {"video": "AO8RW", "question": "Which color?", "options": ["red", "blue"], "answer": "red", "span": [1, 2]}
    task = GroundedVideoQa(data=rows(film, "grounded.jsonl", asked))
    texts = {
        "<answer>A</answer><glue>[(1, 2)]</glue>": (1.0, 2.0 - 0.7),
        "<answer>B</answer><glue>[(1, 2)]</glue>": (0.0, 1.0 - 0.7),
        "<answer>A</answer><glue>[(0, 3)]</glue>": (0.0, 1 + 1 / 3 - 0.7),
        "<answer>A</answer><glue>[]</glue>": (0.0, 1.0 - 0.7),
        "<answer>A</answer><glue>[(1.5, 1.5)]</glue>": (0.0, -0.25 - 0.7),
        "<answer>A</answer>": (0.0, -0.25 - 0.7),
    }
    for text, (correct, reward) in texts.items():
        (episode,) = answered(task, [text], 1)
        assert (episode.score.correct, episode.reward) == (correct, pytest.approx(reward)), text
    found = task.metrics(answered(task, ["<answer>A</answer><glue>[(0, 3)]</glue>"], 1))
    assert (found["acc"], found["acc@gqa"], found["miou"]) == (1.0, 0.0, pytest.approx(1 / 3))


def test_images_and_open_questions_of_mixed_data_are_judged_by_their_kind(tmp_path):
    """Video-R1's data mix images and videos, letters and numbers."""
    from PIL import Image

    Image.new("RGB", (64, 64)).save(tmp_path / "a.png")
    row = {"problem_id": 1, "problem": "How many?", "problem_type": "numerical", "data_type": "image", "options": [],
           "solution": "<answer>12</answer>", "path": "a.png", "data_source": "x"}  # fmt: skip
    task = VideoQa(data=rows(tmp_path, "mixed.jsonl", row), template="video_r1", thinking=True)
    (sample,) = task.samples("test")
    assert [type(part).__name__ for part in sample.prompt.content] == ["Image", "str"]
    assert sample.prompt.text.endswith("Give only the number.")
    paid = {"12": 1.0, "12.0": 0.0, "13": 0.0, "nan": 0.0}
    for text, accuracy in paid.items():
        (episode,) = answered(task, [f"<think>so</think><answer>{text}</answer>"], 1)
        assert episode.score.parts["accuracy"] == accuracy


def test_options_out_of_range_are_named():
    """The run would fail in the middle, or quietly ask something else."""
    for make, problem in (
        (lambda: VideoQa(kinds=("colour",)), r"task\.kinds"),
        (lambda: VideoQa(film=VideoOptions(source="robot"), kinds=("color",)), "some of planning, first, order"),
        (lambda: GroundedVideoQa(kinds=("count",)), r"task\.kinds"),
        (lambda: VideoOptions(levels=("L4",)), r"task\.film\.levels"),
        (lambda: VideoOptions(actions=("jumps",)), r"task\.film\.actions"),
        (lambda: TemporalGrounding(per_video=9), r"task\.per_video"),
        (lambda: TemporalGrounding(fps=0), r"task\.fps"),
    ):
        with pytest.raises(UserError, match=problem):
            make()
