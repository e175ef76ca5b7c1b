"""Average precision, and the detection rewards of VLM-R1 and Vision-R1."""

import contextlib
import io
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from rewards import detection
from rewards.boxes import average_precision
from rewards.detection import (
    vlm_r1_cosine,
    vlm_r1_format,
    vlm_r1_iou,
    vlm_r1_od_ap,
    vlm_r1_od_ap50,
    vlm_r1_od_length,
    vlm_r1_phrases,
    vlm_r1_repetition,
    vlm_r1_weighted_sum,
)
from rewards.parse import Object

SIDES = st.integers(0, 60)
BOXES = st.builds(lambda x, y, w, h: (x, y, x + w, y + h), SIDES, SIDES, st.integers(1, 40), st.integers(1, 40))
OBJECTS = st.lists(st.builds(Object, st.sampled_from(["cat", "dog", "cow"]), BOXES), max_size=6)
CAT, DOG, CAT2 = Object("cat", (10, 10, 60, 60)), Object("dog", (100, 100, 180, 160)), Object("cat", (200, 20, 260, 90))
TRUTHS = [CAT, DOG, CAT2]
LISTS = {
    "average_precision": average_precision, "od_ap": vlm_r1_od_ap, "od_ap50": vlm_r1_od_ap50,
    "od_length": vlm_r1_od_length, "weighted_sum": vlm_r1_weighted_sum, "recall": detection.vision_r1_recall,
    "precision": detection.vision_r1_precision,
}  # fmt: skip


def mistaken(rng, truths):
    """Predictions as a model makes them: near misses, duplicates, wrong labels, boxes elsewhere."""
    for _ in range(rng.randrange(12)):
        near, by = rng.choice(truths), rng.choice([0, 1, 4, 12])
        x1, y1, x2, y2 = (side + rng.randint(-by, by) for side in near.box)
        yield Object(near.label if rng.random() < 0.8 else "cow", (x1, y1, max(x2, x1 + 1), max(y2, y1 + 1)))


def cocos(predicted, truths):
    """AP and AP50 by pycocotools, with all scores 1."""
    ids = {label: i for i, label in enumerate(dict.fromkeys(o.label for o in truths), start=1)}

    def rows(objects):
        return [
            {"image_id": 1, "category_id": ids[o.label], "bbox": [x1, y1, x2 - x1, y2 - y1]}
            for o in objects if o.label in ids for x1, y1, x2, y2 in [o.box]
        ]  # fmt: skip

    marked = [{**row, "id": i, "area": 1, "iscrowd": 0} for i, row in enumerate(rows(truths), start=1)]
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        coco.dataset = {"images": [{"id": 1}], "categories": [{"id": i} for i in ids.values()], "annotations": marked}
        coco.dataset["info"] = {}
        coco.createIndex()
        evaluated = COCOeval(coco, coco.loadRes([{**row, "score": 1.0} for row in rows(predicted)]), "bbox")
        evaluated.evaluate()
        evaluated.accumulate()
        evaluated.summarize()
    return evaluated.stats[:2]


@pytest.mark.parametrize("seed", range(60))
def test_average_precision_is_cocos(seed):
    """A number of the same name that is another cannot be compared with any paper's."""
    rng = random.Random(seed)
    truths = [Object(rng.choice("abA"), (x, y, x + rng.randrange(5, 90), y + rng.randrange(5, 90)))
              for x, y in ((rng.randrange(200), rng.randrange(200)) for _ in range(rng.randrange(1, 8)))]  # fmt: skip
    predicted = list(mistaken(rng, truths)) * (30 if seed % 20 == 0 else 1) + truths[:1]
    expected = cocos(predicted, truths)
    ours = average_precision(predicted, truths), average_precision(predicted, truths, (0.5,))
    assert ours == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", LISTS)
@settings(deadline=None)  # a busy machine is no failure
@given(truths=OBJECTS)
def test_the_truth_is_worth_1(name, truths):
    """A perfect answer must be the best there is, the empty one too."""
    assert LISTS[name](truths, truths) == pytest.approx(1.0, abs=1e-12)
    assert LISTS[name](truths[:-1], truths) < 1.0 or name == "precision" or not truths


@pytest.mark.parametrize("name", LISTS)
def test_nothing_is_worth_something_only_where_there_is_nothing(name):
    """A policy that always finds nothing, or always something, must not be paid on half of the images."""
    assert LISTS[name]([], []) == 1.0
    assert LISTS[name]([CAT], []) == LISTS[name]([], TRUTHS) == 0.0


@pytest.mark.parametrize("name", ["weighted_sum", "recall", "precision"])
@settings(deadline=None)  # a busy machine is no failure
@given(predicted=OBJECTS, truths=OBJECTS, rng=st.randoms(use_true_random=False))
def test_order_says_nothing(name, predicted, truths, rng):
    """Otherwise a policy learns an order in which to list its guesses."""
    shuffled = rng.sample(predicted, len(predicted)), rng.sample(truths, len(truths))
    assert LISTS[name](*shuffled) == pytest.approx(LISTS[name](predicted, truths), abs=1e-12)


@pytest.mark.parametrize(
    ("predicted", "length", "weighted"),
    [
        ([CAT2, DOG, CAT], 1.0, 1.0),
        ([CAT], 0.252475, 0.433333),
        ([CAT, DOG], 0.752475, 0.716667),
        (TRUTHS * 2, 0.5, 0.35 + 0.3 * 0.75),
        ([*TRUTHS, Object("cat", (300, 300, 340, 340))], 0.75, 0.7 * 0.75 + 0.3 * 0.875),
        ([Object("cat", (300, 300, 340, 340)), *TRUTHS], 0.625, 0.7 * 0.75 + 0.3 * 0.875),
        ([Object("cow", o.box) for o in TRUTHS], 0.0, 0.0),
        ([Object(o.label.upper(), o.box) for o in TRUTHS], 0.0, 1.0),
    ],
)
def test_vlm_r1_on_its_papers_cases(predicted, length, weighted):
    """The reward must be the published one where nothing is surplus or wrongly labelled."""
    assert vlm_r1_od_length(predicted, TRUTHS) == vlm_r1_od_ap(predicted, TRUTHS)
    assert vlm_r1_od_length(predicted, TRUTHS) == pytest.approx(length, abs=1e-6)
    assert vlm_r1_weighted_sum(predicted, TRUTHS) == pytest.approx(weighted, abs=1e-6)


def test_objects_in_one_place_keep_their_labels():
    """A rider on a horse is two objects; whichever is listed first, both are found."""
    truths = [Object("horse", CAT.box), Object("rider", CAT.box)]
    assert vlm_r1_weighted_sum(truths[::-1], truths) == detection.vision_r1_recall(truths[::-1], truths) == 1.0


def test_repetition_counts_what_is_written_again():
    """The penalty must not fall on two cats side by side."""
    assert vlm_r1_repetition([]) == vlm_r1_repetition(TRUTHS) == vlm_r1_phrases("one two three") == 0.0
    assert vlm_r1_repetition(TRUTHS * 4) == -0.75
    assert vlm_r1_repetition([Object("cat", [1, 2, 3, 4]), Object("cat", (1.0, 2, 3, 4))]) == -0.5  # a list is no error
    assert vlm_r1_phrases("a b c d e f a b c d e f") == pytest.approx(-1 / 7)


def test_cosine_falls_with_length_for_right_answers_only():
    """In the published code 2,048 tokens are worth as much as none, and wrong answers as much as right ones."""
    values = [vlm_r1_cosine(length, 1.0) for length in (-5, 0, 256, 512, 1024, 2048, 10**9)]
    assert values == sorted(values, reverse=True)
    assert [values[i] for i in (1, 3, 4, 5)] == pytest.approx([1.0, 0.75, 0.5, 0.5])
    assert vlm_r1_cosine(0, 0.0) == vlm_r1_cosine(0, math.nan) == 0.0


@pytest.mark.parametrize(
    ("answer", "any_", "brackets", "braces"),
    [
        ('{"bbox_2d": [10, 10, 60, 60]}', 1, 1, 1),
        ('```json\n[{"bbox_2d": [10, 10, 60, 60], "label": "cat"}]\n```', 1, 1, 1),
        ("[10, 10, 60, 60]", 1, 1, 0),
        ("[10.0, 10, 60, 60]", 1, 0, 0),
        ("[ 10, 10, 60, 60]", 1, 0, 0),
        ("{'bbox_2d': (10, 10, 60, 60)}", 1, 0, 0),
        ("[[10, 10, 60, 60], [10, 10, 60, 60]]", 0, 0, 0),
        ("[60, 60, 10, 10]", 0, 0, 0),
        ("[10, 10, 60, NaN]", 0, 0, 0),
        ("[10, 10, 60, 60, 5]", 0, 0, 0),
        ('{"label": "cat"}', 0, 0, 0),
        ("None", 0, 0, 0),
    ],
)
def test_one_box_is_read_in_its_notation(answer, any_, brackets, braces):
    """Answers in plain JSON must count, and the papers' own notations must be there to compare with them."""
    completion = f"<think>t</think><answer>{answer}</answer>"
    for notation, expected in (("any", any_), ("brackets", brackets), ("braces", braces)):
        assert vlm_r1_format(completion, notation=notation) == expected
        assert vlm_r1_iou(completion, CAT.box, notation=notation) == expected
    assert vlm_r1_iou(completion, CAT.box, (2, 2)) == (0 if not any_ else pytest.approx(1600 / 10900))
    assert vlm_r1_iou(completion, (), (2, 2)) == 0.0


def test_vision_r1_raises_its_bars():
    """Answers that once were good enough must stop to be, or the reward stands still."""
    near = [Object("cat", (10, 10, 60, 50)), Object("dog", (100, 100, 180, 150)), CAT2]  # GIoUs 0.8, 0.83, 1
    early, late = detection.vision_r1_stage(0), detection.vision_r1_stage(1500)
    assert detection.vision_r1_stage(1499) == early != late == detection.vision_r1_stage(10**6)
    assert detection.vision_r1_stage(None) == detection.vision_r1_stage(-1) == detection.STATIC
    paid = [detection.vision_r1_precision(near, TRUTHS, stage.precision_band) for stage in (early, late)]
    assert paid == pytest.approx([1.0, (0.8 + 5 / 6 + 1) / 3])
    far = [Object("cat", (10, 10, 60, 40)), *near[1:]]  # the first 0.6
    assert detection.vision_r1_recall(far, TRUTHS, late.hit, late.recall_band) == pytest.approx(2 / 3)
    assert detection.vision_r1_recall(far, TRUTHS, early.hit, early.recall_band) == 1.0
    assert detection.vision_r1_recall(far[:1], TRUTHS, early.hit, early.recall_band) == 0.0
    own = detection.vision_r1_stage(7, {5: detection.BarStage(hit=0.9)})
    assert detection.vision_r1_recall(near, TRUTHS, own.hit) == pytest.approx(1 / 3)


def test_vision_r1_matches_box_first():
    """Matching by overlap alone would pair boxes otherwise than the paper and pay otherwise."""
    first, second = Object("cat", (0, 0, 10, 10)), Object("cat", (30, 0, 90, 10))
    assert detection.vision_r1_pairs([second, first], [first, second]) == [1.0, 1.0]
    assert detection.vision_r1_pairs([first] * 3, [first]) == [1.0]
    assert detection.vision_r1_pairs([Object("dog", first.box), second], [first, second]) == [-1.0, 1.0]
    huge = Object("cat", (-1.7e308, -1.7e308, 1.7e308, 1.7e308))
    assert detection.vision_r1_recall([huge, first], [first, second]) == 0.5


def test_dual_format_asks_for_emptiness_where_nothing_is():
    """In the published code broken JSON is the right answer to an image without objects."""
    listed = '```json\n[{"bbox_2d": [1, 2, 3, 4], "label": "a"}]\n```'
    assert (
        detection.vision_r1_dual_format(listed, 2)
        == detection.vision_r1_dual_format("[]", 0)
        == detection.vision_r1_dual_format("None", 0)
        == 1.0
    )
    for text in (listed, listed[:-9], "no cat here", "5", ""):
        assert detection.vision_r1_dual_format(text, 0) == 0.0
    for text in (listed[:-9], "5", '[{"bbox_2d": [1, 2, 3, 4]}]', f"Sure: {listed}"):
        assert detection.vision_r1_dual_format(text, 2) == 0.0
