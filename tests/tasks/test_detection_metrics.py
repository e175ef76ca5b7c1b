"""What is reported for detection, phrases, counts and classes: equal to the published tools, and never flattering."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewards.parse import Object
from tasks import metrics
from tasks.metrics import STATS, Case, by_label, classification, counting, harmonic_mean, referring, summary

GOLDEN = Path(__file__).parents[1] / "golden"
CAT, DOG = Object("cat", (10, 10, 60, 60)), Object("dog", (100, 100, 180, 160))


def moved(found, by, label=None):
    x1, y1, x2, y2 = found.box
    return Object(label or found.label, (x1 + by, y1, x2 + by, y2))


def test_all_numbers_equal_pycocotools_and_ovdeval():
    """Numbers that are near the published tool's cannot be put into its tables. Crowds, areas and scores included."""
    command = [sys.executable, GOLDEN / "run.py", GOLDEN / "benchmarks.json"]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr) == (0, "")
    assert [(line["n"], line["equal"]) for line in lines] == [(11, 11)] * 12 + [(8, 8)] * 4


def test_scores_default_to_one_and_order_decides(capsys):
    """A generative model gives no scores: what it writes first counts first. pycocotools's prints stay away."""
    right_first = summary([Case([CAT, moved(CAT, 200)], [CAT])])
    right_last = summary([Case([moved(CAT, 200), CAT], [CAT])])
    scored = summary([Case([moved(CAT, 200), CAT], [CAT], scores=[0.1, 0.9])])
    assert (right_first["AP"], right_last["AP"], scored["AP"]) == pytest.approx((1.0, 0.5, 1.0))
    assert tuple(scored) == STATS
    assert capsys.readouterr().out == ""


def test_labels_are_compared_without_case_and_spaces():
    """` Cat` is no other animal than `cat`; a label that no image has cannot be scored, as in COCO."""
    assert summary([Case([moved(CAT, 0, " Cat ")], [CAT])])["AP"] == pytest.approx(1.0)
    assert summary([Case([CAT, moved(CAT, 0, "zebra")], [CAT])])["AP"] == pytest.approx(1.0)


def test_a_label_of_another_image_is_a_mistake():
    """Calling the dog a cat costs precision on cats, although the image has none."""
    cases = [Case([CAT], [CAT]), Case([moved(DOG, 0, "cat"), DOG], [DOG])]
    assert summary(cases)["AP"] == pytest.approx(1.0)  # it comes last, behind all right ones
    assert by_label(cases[::-1]) == pytest.approx({"cat": 0.5, "dog": 1.0})


def test_crowds_count_neither_way():
    """A box in a crowd is no mistake, and the crowd need not be found; else a right answer would cost."""
    crowd = Object("cat", (200, 0, 400, 200))
    inside = Object("cat", (210, 20, 260, 80))
    case = Case([inside, CAT], [CAT, crowd], crowd=[False, True])
    assert summary([case])["AP"] == pytest.approx(1.0)
    assert summary([Case([inside, CAT], [CAT])])["AP"] == pytest.approx(0.5)


def test_sizes_go_by_the_annotated_area():
    """COCO's areas are those of masks: a large box around a thin thing is a small object."""
    case = Case([CAT], [CAT], areas=[100.0])
    assert {name: summary([case])[name] for name in ("APs", "APm", "APl")} == pytest.approx(
        {"APs": 1.0, "APm": -1.0, "APl": -1.0}
    )
    assert summary([Case([CAT], [CAT])])["APm"] == pytest.approx(1.0)


def test_lvis_judges_only_what_it_knows():
    """Labels that nobody checked on an image cannot be wrong there, nor can more of what is not marked throughout."""
    elsewhere = Case([DOG], [DOG])
    stray = [moved(DOG, 0), CAT]
    asked = Case(stray, [CAT], asked={"cat"})
    assert by_label([asked, elsewhere])["dog"] == pytest.approx(1.0)
    assert by_label([Case(stray, [CAT]), elsewhere])["dog"] == pytest.approx(0.5)
    more = [moved(CAT, 200), CAT]
    assert summary([Case(more, [CAT], unsure={" CAT"})])["AP"] == pytest.approx(1.0)


def test_nothing_to_find_is_minus_one_and_nothing_found_is_zero():
    """An empty answer to a full image must not vanish from the mean; an empty image has no average precision."""
    nothing = dict.fromkeys(STATS, -1.0)
    assert summary([]) == summary([Case([CAT], [])]) == nothing
    assert summary([Case([], [CAT])])["AP"] == 0.0
    assert by_label([Case([CAT], [CAT]), Case([], [DOG])]) == pytest.approx({"cat": 1.0, "dog": 0.0})
    assert by_label([]) == {}


objects = st.builds(
    lambda label, x, y, w, h: Object(label, (x, y, x + w, y + h)),
    st.sampled_from(["a", "b"]),
    *[st.floats(0, 300)] * 2,
    *[st.floats(0.5, 200)] * 2,
)


@settings(max_examples=40, deadline=None)
@given(predicted=st.lists(objects, max_size=6), truths=st.lists(objects, min_size=1, max_size=4))
def test_every_number_is_a_share(predicted, truths):
    """Whatever is predicted, and finding everything first is never worse."""
    for case in (Case(predicted, truths), Case([*truths, *predicted], truths)):
        numbers = summary([case])
        assert all(value == -1 or 0 <= value <= 1 + 1e-9 for value in numbers.values())
        assert set(metrics.kept(case)) <= set(range(len(case.predicted)))
    assert numbers["AP"] == pytest.approx(1.0)


def test_one_label_an_object_under_nms_ap():
    """AP forgives naming an object thrice, each time otherwise; OVDEval's point is that it must not."""
    guesses = [CAT, moved(CAT, 0, "dog"), moved(CAT, 0, "cow")]
    dogs = Case([DOG], [DOG])
    case = Case(guesses, [CAT], scores=[0.9, 0.8, 0.7])
    assert metrics.kept(case) == [0]
    assert metrics.kept(Case(guesses, [CAT], scores=[0.7, 0.8, 0.9])) == [2]
    assert metrics.kept(Case(guesses, [CAT])) == [2]  # of equal scores the last, as in the source
    assert metrics.nms_ap([dogs, case])["AP"] == pytest.approx(1.0)
    assert metrics.nms_ap([dogs, Case(guesses, [CAT])])["AP"] == pytest.approx(0.5)


def test_the_first_truth_is_found_unless_the_source_is_reproduced():
    """OVDEval numbers truths from 0, which pycocotools reads as not found: published numbers are a little low."""
    cases = [Case([CAT], [CAT])]
    assert metrics.nms_ap(cases)["AP"] == pytest.approx(1.0)
    assert metrics.nms_ap(cases, reference=True)["AP"] == 0.0


def test_referring():
    """Half is enough; an unreadable answer is a miss in both numbers."""
    truth = (0.0, 0.0, 10.0, 10.0)
    half = (0.0, 0.0, 10.0, 5.0)
    numbers = referring([truth, half, None, (20.0, 0.0, 30.0, 10.0)], [truth] * 4)
    assert numbers == pytest.approx({"acc50": 0.5, "miou": 0.375})
    assert referring([], []) == {"acc50": 0.0, "miou": 0.0}


@given(
    st.lists(st.tuples(st.one_of(st.none(), st.integers(0, 50)), st.integers(0, 50)), min_size=1, max_size=20),
)
def test_counting_is_numpys_and_silence_does_not_pay(pairs):
    """Leaving unreadable answers out of the errors would reward saying nothing where it is hard."""
    predicted, truths = zip(*pairs, strict=True)
    errors = np.array([(p or 0) - t for p, t in pairs])
    numbers = counting(predicted, truths)
    assert numbers["mae"] == pytest.approx(np.abs(errors).mean())
    assert numbers["rmse"] == pytest.approx(math.sqrt((errors**2).mean()))
    assert numbers["exact"] == pytest.approx(np.mean([p is not None and p == t for p, t in pairs]))


def test_classes_without_a_hit_stay():
    """Published evaluators that drop them report more than there is."""
    numbers = classification(["Cat ", "cat", None, "dog"], ["cat", "cat", "dog", "cow"])
    assert numbers == pytest.approx(
        {"top1": 0.5, "macro": 1 / 3, "class/cat": 1.0, "class/cow": 0.0, "class/dog": 0.0, "zero_hit": 2.0}
    )


def test_base_to_new_is_a_harmonic_mean():
    """CoOp's table: 82.69 on base and 63.22 on new classes make 71.66."""
    assert harmonic_mean(0.8269, 0.6322) == pytest.approx(0.7166, abs=5e-5)
    assert harmonic_mean(0.0, 1.0) == 0.0
