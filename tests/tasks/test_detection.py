"""Detection: what is paid, what does not count, and that rules can grow stricter while training."""

import json

import pytest

from rewards.parse import Object
from tasks.base import answer_markup
from tasks.detection import Detection, DetectionTruth
from vlrl.types import Decision, Episode, Frame, Observation, Sample, Step, Turn, UserError

SIZE = (100, 80)
CATS = (Object("cat", (10.0, 10.0, 30.0, 30.0)), Object("cat", (50.0, 40.0, 90.0, 70.0)))
TRUTH = DetectionTruth(CATS, ("cat",))


def scored(task, boxes, truth=TRUTH, space="original_px"):
    text = boxes if isinstance(boxes, str) else answer_markup(json.dumps(boxes), False)
    prompt = Observation(("?",))
    decision = Decision(text, logprobs=None, entropy=None, truncated=False, frames=(Frame(space, SIZE, SIZE),))
    return task.score(Episode(Sample("1", prompt, truth), 0, [Turn(prompt, decision, Step(prompt, terminated=True))]))


def boxes_of(objects):
    return [list(each.box) for each in objects]


@pytest.mark.parametrize("reward", ["f1", "od_ap", "od_ap50", "od_length", "weighted_sum", "vision_r1"])
def test_every_named_reward_pays_the_truth_in_full_and_surplus_less(reward):
    """A reward that surplus boxes do not lower teaches to box everything."""
    task, right = Detection(reward=reward), boxes_of(CATS)
    assert scored(task, right).parts["objects"] == pytest.approx(1)
    assert scored(task, right[::-1]).parts["objects"] == pytest.approx(1)
    for surplus in (right + right, [*right, [0, 0, 5, 5]], right[:1], []):
        assert scored(task, surplus).parts["objects"] < 1
    assert scored(task, "<answer>[[1, 2, 3]]</answer>").parts["objects"] == 0


def test_a_label_may_be_left_out_only_where_one_is_asked_for():
    """With two labels a bare box says nothing about which it is."""
    two = DetectionTruth((CATS[0],), ("cat", "dog"))
    assert scored(Detection(), [[10, 10, 30, 30]], two).reason == "not_an_object"
    assert scored(Detection(), [{"bbox_2d": [10, 10, 30, 30], "label": "Cat "}], two).correct == 1
    assert scored(Detection(), [{"bbox_2d": [10, 10, 30, 30], "label": "dog"}], two).correct == 0


def test_nothing_there_is_right_only_when_said():
    """On a picture without the object, neither silence nor broken lists may be paid."""
    nothing = DetectionTruth((), ("cat",))
    for said in ("<answer>[]</answer>", "<answer>None</answer>", "<answer>```json\n[]\n```</answer>"):
        assert scored(Detection(), said, nothing).correct == 1
    for broken in ("", "<answer></answer>", "[]", "<answer>[</answer>", "<answer>[[1, 1, 2, 2]]</answer>"):
        assert scored(Detection(), broken, nothing).correct == 0


def test_boxes_in_a_crowd_and_of_unsure_labels_neither_earn_nor_cost():
    """COCO's crowds and LVIS's labels that are not marked throughout would punish right answers."""
    crowd = DetectionTruth((*CATS, Object("cat", (0.0, 60.0, 40.0, 80.0))), ("cat",), crowd=(False, False, True))
    inside, outside = [5, 62, 20, 78], [60, 0, 80, 20]
    assert scored(Detection(), [*boxes_of(CATS), inside], crowd).correct == 1
    assert scored(Detection(), [*boxes_of(CATS), outside], crowd).correct == pytest.approx(0.8)
    unsure = DetectionTruth(CATS, ("cat",), unsure=("cat",))
    assert scored(Detection(), [*boxes_of(CATS), outside], unsure).correct == 1


def test_a_box_as_exact_as_the_coordinates_allow_is_paid_in_full():
    """A tiny model writes tenths of the picture: its best box must be worth as much as an exact one."""
    task = Detection()
    frame = Frame("grid10", SIZE, SIZE)
    gold = task.gold(Sample("1", Observation(("?",)), TRUTH), (frame,))
    score = scored(task, gold, space="grid10")
    assert score.parts["objects"] == 1
    assert score.answer[0].box != CATS[0].box  # what is reported stays what was written


def test_rules_grow_stricter_by_the_training_step():
    """Progressive rule refinement hangs on the step alone, so that a resumed run goes on with its rules."""
    task = Detection(thresholds=(0.3,), schedule={10: (0.6,), 20: (0.9,)})
    near = [[10, 10, 30, 26], [50, 40, 90, 66]]  # IoUs 0.8 and 0.87
    paid = {}
    for step in (25, 0, 9, 10, 19, 20):
        task.at_step(step)
        paid[step] = scored(task, near).parts["objects"]
    assert paid == {0: 1, 9: 1, 10: 1, 19: 1, 20: 0, 25: 0}
    task.at_step(0)
    assert scored(task, [[10, 10, 30, 18], [50, 40, 90, 52]]).parts["objects"] == 1  # IoU 0.4
    assert scored(Detection(thresholds=(0.3,), schedule={10: (0.9,)}), near).parts["objects"] == 0  # outside training


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"thresholds": (0.9, 0.5)}, r"task.thresholds: \(0.9, 0.5\): must be rising IoUs"),
        ({"schedule": {5: (0.0,)}}, r"task.schedule.5: \(0.0,\)"),
        ({"schedule": {-1: (0.5,)}}, r"task.schedule: -1: must be steps from 0"),
        ({"reward": "ap"}, "task.reward: 'ap': must be one of f1, "),
        ({"objects": (3, 1)}, "task.objects"),
    ],
)
def test_wrong_options_are_named(options, message):
    """A schedule that is silently ignored is a different experiment."""
    with pytest.raises(UserError, match=message):
        Detection(**options)


def test_metrics_count_over_all_pictures():
    """Precision, recall and boxes a picture show phantom boxes that a mean reward hides."""
    task = Detection()
    episodes = []
    for boxes in (boxes_of(CATS), [[10, 10, 30, 30], [0, 0, 5, 5], [1, 1, 6, 6]], "nothing"):
        prompt = Observation(("?",))
        text = boxes if isinstance(boxes, str) else answer_markup(json.dumps(boxes), False)
        decision = Decision(
            text, logprobs=None, entropy=None, truncated=False, frames=(Frame("original_px", SIZE, SIZE),)
        )
        turns = [Turn(prompt, decision, Step(prompt, terminated=True))]
        episodes.append(Episode(Sample(str(len(episodes)), prompt, TRUTH), 0, turns))
        episodes[-1].score = task.score(episodes[-1])
    found = task.metrics(episodes)
    assert (found["precision"], found["recall"]) == (3 / 5, 3 / 6)
    assert found["f1"] == pytest.approx(2 * 3 / 11)
    assert (found["boxes"], found["false_boxes"], found["parse_fail"]) == (5 / 3, 2 / 3, 1 / 3)
    assert 0 < found["AP50"] < 1
    assert found["best_constant"] == pytest.approx(2 * 3 / (3 + 6))  # one of both boxes, in every picture


def test_coco_files_are_asked_about_label_by_label_of_their_own(tmp_path):
    """Training on a COCO file must need no more than its path."""
    from PIL import Image

    Image.new("RGB", SIZE, "grey").save(tmp_path / "a.jpg")
    coco = {
        "images": [{"id": 1, "file_name": "a.jpg", "width": 100, "height": 80}],
        "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
        "annotations": [
            {"id": 1, "image_id": 1, "category_id": 1, "bbox": [10, 10, 20, 20], "area": 400, "iscrowd": 0}
        ],
    }
    (tmp_path / "coco.json").write_text(json.dumps(coco))
    from vlrl.types import Data

    task = Detection(data=Data(train=str(tmp_path / "coco.json")))
    (sample,) = task.samples("train")
    assert "cat" in sample.prompt.text
    assert [each.box for each in sample.answer.single] == [(10, 10, 30, 30)]
    assert scored(task, task.gold(sample, (Frame("rel1", SIZE, SIZE),)), sample.answer, "rel1").correct == 1


def test_names_replace_labels_in_questions_and_answers():
    """Were the old name still right, nothing would be learned about the new one."""
    task = Detection(names={"circle": "disc"}, negatives=0.0)
    asked = [s for s in task.samples("train")[:60] if s.tags["label"] == "circle"]
    assert asked
    for sample in asked:
        assert sample.prompt.text == "Find every disc."
        assert {each.label for each in sample.answer.objects} <= {"disc"}
    with pytest.raises(UserError, match=r"task\.names: 'ball': must be one of circle"):
        Detection(names={"ball": "disc"})
