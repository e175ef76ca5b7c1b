"""VLM-R1's rows through the task: the paper's prompts, each row's own reward, boxes in the policy's coordinates."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewards.parse import Object
from tasks.base import answer_markup
from tasks.check import prove
from tasks.vlm_r1 import METHODS, TEMPLATES, VlmR1
from vlrl import cli
from vlrl.types import Data, Decision, Episode, Frame, Turn, UserError

MIXED, DETECTION = "vlm_r1_mixed.jsonl", "vlm_r1_od.jsonl"


@pytest.fixture(scope="module")
def task(object_files):
    return VlmR1(data=Data(train=str(object_files / MIXED), test=str(object_files / DETECTION)))


def played(task, sample, text, space="original_px", shown=None):
    """The episode of one answer."""
    sizes = [image.size for image in sample.prompt.images]
    frames = tuple(Frame(space, size, shown or size) for size in sizes)
    text = task.gold(sample, frames) if text is None else text
    decision = Decision(text, logprobs=None, entropy=None, truncated=False, frames=frames)
    episode = Episode(sample, 0, [Turn(sample.prompt, decision, None)])
    episode.score = task.score(episode)
    return episode


ASKED = "{q} First output the thinking process in <think> </think> tags and then output the final answer in <answer> "
PROMPTS = {
    "default": ASKED + "</answer> tags.",
    "rec": ASKED + "</answer> tags. Output the final answer in JSON format.",
    "od_length": "First thinks about the reasoning process in the mind and then provides the user with the answer. The "
    "reasoning process and answer are enclosed within <think> </think> and <answer> </answer> tags, respectively, "
    "i.e., <think> reasoning process here </think><answer> answer here </answer>\n{q}",
}


@pytest.mark.parametrize("template", TEMPLATES)
def test_prompts_are_the_papers_to_the_byte(object_files, template):
    """A missing space in the template delayed their training by 60 steps; checkpoints know this prompt and no other."""
    task = VlmR1(data=Data(train=str(object_files / MIXED)), template=template)
    questions = ["\nDid the click work?", "\nIs there a dog?", "Which?\nA. dog\nB. cat", "How many dogs?"]
    for sample, question in zip(task.samples("train"), questions, strict=False):
        assert sample.prompt.content[-1] == PROMPTS[template].replace("{q}", question)


def test_all_images_of_a_row_are_shown_in_order(task, object_files):
    """Two screens are the question; with one, or swapped, there is none."""
    first, second = task.samples("train")[:2]
    assert [image.size for image in first.prompt.images] == [(64, 64), (64, 64)]
    assert [image.size for image in second.prompt.images] == [(160, 120)]


@pytest.mark.parametrize(
    ("row", "answer", "reward", "correct"),
    [
        (0, "operation no response.", 1.0, 1.0), (0, "No Defect", 0.0, 0.0),
        (1, "Yes.", 1.0, 1.0), (1, "I know not", 0.0, 0.0),
        (2, "A. dog", 1.0, 1.0), (2, "B", 0.0, 0.0),
        (3, "1.0", 1.0, 1.0), (3, "11", 0.0, 0.0),
        (4, '[{"bbox_2d": [10, 10, 50, 40], "label": "person"}]', 0.7 * 0.5 + 0.3 * 0.75, 2 / 3),
        (4, '[{"bbox_2d": [10, 10, 50, 40], "label": "dog"}]', 0.0, 0.0),
    ],
)  # fmt: skip
def test_each_row_is_paid_by_its_own_method(task, row, answer, reward, correct):
    """Paying a choice by similarity of texts, or boxes by equality, would teach another task."""
    score = played(task, task.samples("train")[row], answer_markup(answer, True)).score
    assert score.parts["accuracy"] == pytest.approx(reward)
    assert (score.correct, score.parts["format"], score.reason) == (pytest.approx(correct), 1.0, None)


@pytest.mark.parametrize("text", ["", "yes", "<answer>yes</answer>", "<think>x</think><answer> </answer>"])
def test_what_is_not_in_tags_earns_nothing(task, text):
    """The format is what makes an answer readable later."""
    for sample in task.samples("train"):
        score = played(task, sample, text).score
        assert (task.reward(score), score.answer) == (0.0, None) and score.reason


@settings(max_examples=60)
@given(text=st.one_of(st.text(), st.from_regex(r"[-\[\]{}\", 0-9a-z:_`]*", fullmatch=True)), row=st.integers(0, 4))
def test_no_answer_breaks_scoring(task, text, row):
    """Models write anything; each part stays in [0, 1], and what cannot be read has a reason."""
    score = played(task, task.samples("train")[row], answer_markup(text, True)).score
    assert all(0 <= part <= 1 for part in score.parts.values()) and 0 <= score.correct <= 1
    assert (score.answer is None) == (score.reason is not None)


def test_an_empty_list_must_be_said(task):
    """VLM-R1 pays 1.0 for broken JSON where nothing is there; that teaches a model to break it."""
    negative = task.samples("test")[1]
    for text, reward in (("None", 2.0), ("```json\n[]\n```", 2.0), ("[{", 0.0), ("nothing", 0.0)):
        assert task.reward(played(task, negative, answer_markup(text, True)).score) == reward


@pytest.mark.parametrize(("space", "shown"), [("original_px", None), ("resized_px", (84, 56)), ("rel1000", None)])
def test_boxes_are_compared_in_pixels_of_the_image(task, space, shown):
    """VLM-R1 compares raw numbers, so that its truth must be scaled by hand for each model."""
    sample = task.samples("test")[0]
    episode = played(task, sample, None, space, shown)
    assert task.reward(episode.score) == 2.0
    assert [found.label for found in episode.score.answer] == ["person", "dog"]
    for found, truth in zip(episode.score.answer, sample.answer.objects, strict=True):
        assert found.box == pytest.approx(truth.box, abs=2)


def test_metrics_name_every_method_and_have_cocos_numbers(task):
    """A mix of rewards has no one accuracy; boxes are reported as everywhere else."""
    samples = [*task.samples("train"), *task.samples("test")]
    perfect = task.metrics([played(task, sample, None) for sample in samples])
    methods = {"all_match", "default", "mcq", "odLength", "weighted_sum", "yes_no"}
    assert {name: perfect[f"method/{name}"] for name in methods} == dict.fromkeys(methods, 1.0)
    assert (perfect["AP"], perfect["parse_fail"]) == (pytest.approx(1.0), 0.0)
    nothing = task.metrics([played(task, sample, "") for sample in samples])
    assert (nothing["AP"], nothing["method/odLength"], nothing["parse_fail"]) == (0.0, 0.0, 1.0)
    assert "AP" not in task.metrics([played(task, samples[0], None)])


def test_rows_without_a_method_take_the_files(object_files, tmp_path):
    """VLM-R1 names methods per file where rows do not; a method that needs a judge is refused, not replaced."""
    data = Data(train=str(object_files / "vlm_r1_rec.jsonl"))
    assert VlmR1(data=data, method="all_match").samples("train")[0].tags == {"method": "all_match"}
    with pytest.raises(UserError, match=r"row 1: answer: not an object; must be a ```json list"):
        VlmR1(data=data, method="od_ap")
    rows = [json.loads(line) for line in (object_files / MIXED).read_text().splitlines()]
    (tmp_path / "judged.jsonl").write_text("\n".join(json.dumps(row | {"accu_reward_method": "llm"}) for row in rows))
    judged = Data(train=str(tmp_path / "judged.jsonl"), images=str(object_files), on_bad_row="skip")
    with pytest.raises(UserError, match=rf"5 bad, the first: accu_reward_method: 'llm': .* {', '.join(METHODS)}"):
        VlmR1(data=judged)


def test_a_truth_that_its_method_cannot_pay_is_a_bad_row(object_files, tmp_path):
    """`mcq` with `a dog` as truth is lost for every answer, and nobody would see why."""
    row = json.loads((object_files / MIXED).read_text().splitlines()[2])
    row["conversations"][1]["value"] = "a dog, I think"
    (tmp_path / "lost.jsonl").write_text(json.dumps(row))
    with pytest.raises(UserError, match=r"row 1: answer: 'a dog, I think': accu_reward_method mcq does not pay"):
        VlmR1(data=Data(train=str(tmp_path / "lost.jsonl"), images=str(object_files)))


def test_drawn_questions_ask_in_four_ways():
    """The task can be tried, and checked, without any file."""
    task = VlmR1(held_out=8)
    samples = task.samples("test")
    assert [s.tags["method"] for s in samples] == ["odLength", "mcq", "yes_no", "all_match"] * 2
    assert [len(s.prompt.images) for s in samples] == [1, 1, 1, 2] * 2
    assert all(isinstance(found, Object) for found in samples[0].answer.objects)
    assert [finding for finding in prove(task) if finding.problem] == []


def test_check_task_takes_a_file_of_the_users(object_files, capsys):
    """What a user runs first on rows of their own."""
    assert cli.main(["check-task", "vlm_r1", "--data", str(object_files / MIXED)]) == 0
    assert "FAILED" not in capsys.readouterr().out


@pytest.mark.parametrize("options", [{"method": "math"}, {"template": "ic"}, {"size": (8, 8)}, {"weights": {"iou": 1}}])
def test_wrong_options_stop(options):
    """A misspelt option must not fall back to a default."""
    with pytest.raises(UserError, match=next(iter(options))):
        VlmR1(**options)
