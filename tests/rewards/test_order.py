"""Jigsaw rewards: equal to Jigsaw-R1's on its own cases (tests/golden/jigsaw_r1.json), bounded everywhere."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards import order

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "jigsaw_r1.json").read_text())
INDICES = st.lists(st.integers(-2, 20), max_size=16)


def golden(function):
    return [(case["inputs"], case["output"]) for case in GOLDEN if case["function"] == function]


@pytest.mark.parametrize(("inputs", "output"), golden("score_jigsaw_patches"))
def test_index_accuracy_equals_the_reference(inputs, output):
    """Runs are compared with the paper: another number would be another method."""
    assert order.index_accuracy(inputs["patches_pred"], inputs["patches_gt"]) == pytest.approx(output, abs=1e-12)


@pytest.mark.parametrize(("inputs", "output"), golden("score_jigsaw_connections"))
def test_adjacencies_equal_the_reference(inputs, output):
    """As above, for the published alternative reward."""
    grid = inputs["patches_pred"], inputs["patches_gt"], inputs["m"], inputs["n"]
    assert order.adjacencies(*grid) == pytest.approx(output, abs=1e-12)


@given(INDICES, INDICES, st.integers(0, 5), st.integers(0, 5))
def test_rewards_stay_in_range_and_never_raise(predicted, truth, rows, columns):
    """An unbounded or crashing reward ruins a run; sizes that do not fit are worth nothing."""
    accuracy, exact = order.index_accuracy(predicted, truth), order.exact(predicted, truth)
    assert 0.0 <= accuracy <= 1.0
    assert exact == float(accuracy == 1.0)
    assert 0.0 <= order.adjacencies(predicted, truth, rows, columns) <= 1.0


@given(st.integers(1, 4), st.integers(1, 4), st.data())
def test_only_the_truth_earns_everything(rows, columns, data):
    """The gold answer is the maximum of both rewards, and naming the places otherwise changes neither."""
    places = list(range(1, rows * columns + 1))
    truth, names = data.draw(st.permutations(places)), data.draw(st.permutations(places))
    predicted = data.draw(st.permutations(places))
    assert order.index_accuracy(truth, truth) == 1.0
    if len(places) > 1:
        assert order.adjacencies(truth, truth, rows, columns) == 1.0
    renamed = [[names[index - 1] for index in indices] for indices in (predicted, truth)]
    assert order.index_accuracy(*renamed) == order.index_accuracy(predicted, truth)
    assert order.adjacencies(*renamed, rows, columns) == order.adjacencies(predicted, truth, rows, columns)


@given(st.permutations(list(range(1, 10))), st.integers(1, 9))
def test_repeating_one_index_earns_what_guessing_earns(truth, index):
    """The reward follows the paper here; this pins that the shortcut is worth 1/n and no more."""
    assert order.index_accuracy([index] * 9, truth) == pytest.approx(1 / 9)


@given(st.permutations(list(range(1, 7))), st.lists(st.integers(1, 6), min_size=6, max_size=6))
def test_only_permutations_are_paid_where_asked_for(truth, predicted):
    """Naming one index everywhere earns 1/n in the paper without a look at the image."""
    whole = sorted(predicted) == list(range(1, 7))
    expected = order.index_accuracy(predicted, truth) if whole else 0.0
    assert order.permutation_accuracy(predicted, truth) == expected
    assert order.permutation_accuracy([truth[0]] * 6, truth) == order.permutation_accuracy([], []) == 0.0


@given(st.permutations(list(range(1, 7))))
def test_a_perfect_backward_answer_has_all_neighbours(truth):
    """In the published code it scores 0.5 on average, so that right answers are unlearned."""
    assert order.inverse(order.inverse(truth)) == truth
    assert all(truth[place - 1] == piece for piece, place in enumerate(order.inverse(truth), 1))
    assert order.adjacencies(order.inverse(truth), order.inverse(truth), 2, 3) == 1.0


@pytest.mark.parametrize("answer", [[1, 1], [0, 1], [2, 3], [1, 2, 2]])
def test_what_is_no_permutation_has_no_inverse(answer):
    """A guess instead would be an answer that the model did not give."""
    assert order.inverse(answer) == []


NAMES = ["top left", "top right", "bottom left", "bottom right"]


@given(st.permutations([1, 2, 3, 4]), st.sampled_from([", ", ",", ";", " , ", "\n"]))
def test_places_in_words_are_read_like_numbers(places, between):
    """A model that answers in words would be paid for nothing."""
    text = between.join(NAMES[place - 1] for place in places)
    assert order.named(f" {text.upper()} ", NAMES).value == tuple(places)


@given(st.text(max_size=60) | st.text(alphabet="toplefrigh, ;\n", max_size=60))
def test_other_words_are_no_places(text):
    """A guess at what was meant would be a hack: `top` is neither of two places."""
    parsed = order.named(text, NAMES)
    assert (parsed.value is None) == (parsed.reason is not None)
    assert parsed.reason or all(word.strip().lower() in NAMES for word in text.replace(";", ",").split(","))
    for wrong in ("top", "top left,, top right", "top left.", "1"):
        assert order.named(wrong, NAMES).reason == "unknown_place"
    assert order.named("top left, " * 999, NAMES).reason == "too_long"
