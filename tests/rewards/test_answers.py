"""Rewards for short answers, for names of classes and for numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards import parse
from rewards import text as rewards_text
from rewards.boxes import closeness, exact_count
from rewards.detection import cls_rl_accuracy, cls_rl_exact, cls_rl_format

COUNTS = st.integers(0, 10**9)


@pytest.mark.parametrize(
    ("truth", "right", "wrong"),
    [
        ("A", ["A", " a.", "A?", "A. cat", "A: cat", "The answer is A.", "option a", "answer: A"],
         ["B", "", "cat", "AB", "A B", "A;B", "A. B. C. D.", "A cat", "(A)", "AT&T.", "not A", "The answer is not A."]),
        ("D: none", ["D", "D. none"], ["none", "D D", "x D", "C! so D"]),
        ("cat", [], ["cat", "c", "A"]),
        ("", [], ["", "A"]),
    ],
)  # fmt: skip
def test_a_choice_is_one_letter(truth, right, wrong):
    """Listing all options, or mentioning the right one, must not be a right choice."""
    assert [rewards_text.multiple_choice(text, truth) for text in right] == [1.0] * len(right)
    assert [rewards_text.multiple_choice(text, truth) for text in wrong] == [0.0] * len(wrong)


@pytest.mark.parametrize(
    ("truth", "right", "wrong"),
    [
        ("yes", ["yes", "Yes.", "YES!", "yes, a cat", "The answer is yes"],
         ["no", "eyes", "yesterday", "yes and no", "no, yes", "Yes, there is no cat", "maybe", "", "the snow is yes"]),
        ("No.", ["no", "No defect"], ["know", "not", "none", "cannot", "There is no defect", "I do not know"]),
        ("maybe", [], ["maybe", ""]),
    ],
)  # fmt: skip
def test_yes_and_no_are_words(truth, right, wrong):
    """`I do not know` says no in the published code, and two answers without either word agree."""
    assert [rewards_text.yes_no(text, truth) for text in right] == [1.0] * len(right)
    assert [rewards_text.yes_no(text, truth) for text in wrong] == [0.0] * len(wrong)


@pytest.mark.parametrize(
    ("text", "truth", "numeric", "default"),
    [
        ("3", "3", 1, 1), ("3.0", " 3 ", 1, 1), ("1e3", "1000", 1, 1), ("-3", "3", 0, 0), ("3 cats", "3", 0, 0),
        ("3,000", "3000", 0, 1), ("1/2", "0.5", 0, 1), ("1/0", "0.5", 0, 0), ("$3$", "3", 0, 1),
        ("\\boxed{3}", "3", 0, 1), ("inf", "inf", 0, 1), ("nan", "nan", 0, 1), ("３", "3", 0, 0), ("2+1", "3", 0, 0),
        ("a cat", "cat", 0, 0.75), ("cats", "cat", 0, 6 / 7), ("", "cat", 0, 0), ("", "", 0, 0), ("B", "b", 0, 1),
        ("cat", "A. cat", 0, 0), ("x" * 501, "x" * 502, 0, 0), ("1" * 19, "1" * 19, 0, 1),
    ],
)  # fmt: skip
def test_numbers_are_numbers_and_texts_are_texts(text, truth, numeric, default):
    """`3.0` is right where 3 is asked for; a text that mentions a 3 is not."""
    assert rewards_text.numeric(text, truth) == numeric
    assert rewards_text.default(text, truth) == pytest.approx(default)


def test_all_match_forgives_case_and_final_dots():
    """Labels such as `No Defect` must be written out."""
    assert rewards_text.all_match(" no\n defect.. ", "No Defect") == 1.0
    assert (
        rewards_text.all_match("defect", "No Defect")
        == rewards_text.all_match("", "")
        == rewards_text.all_match(".", "")
        == 0.0
    )


@given(st.text(max_size=30), st.text(max_size=30))
def test_similarity_is_that_of_the_longest_common_subsequence(first, second):
    """The library must count what the plain table counts, in any script."""
    first, second = (" ".join(text.split()).rstrip(".").strip().lower() for text in ("~" + first, "~" + second))
    table = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i, a in enumerate(first):
        for j, b in enumerate(second):
            table[i + 1][j + 1] = table[i][j] + 1 if a == b else max(table[i][j + 1], table[i + 1][j])
    assert rewards_text.default(first, second) == 2 * table[-1][-1] / (len(first) + len(second))


# similar, anls, default, word_accuracy_of_all, word_accuracy, rouge_l, rouge: of this project's loops, before rapidfuzz
@pytest.mark.parametrize(
    ("predicted", "truth", "values"),
    [
        ("kitten", "sitting", (1, 4 / 7, 8 / 13, 0, 0, 0, 0)),
        ("naïve 上🙂", "naive 🙂上", (1, 5 / 8, 3 / 4, 0, 0, 0, 0)),
        ("\udc80x", "x\udc80", (0, 0, 1 / 2, 0, 0, 0, 2 / 3)),
        ("a b c d e", "a c b d x y", (1, 0, 3 / 5, 1 / 3, 1 / 5, 4 / 9, 14 / 33)),
        ("the quick brown fox jumps", "the quick brown foxes jumped over",
         (1, 20 / 29, 24 / 29, 1 / 2, 2 / 5, 4 / 9, 268 / 297)),
        ("red red red", "red", (0, 0, 3 / 7, 0, 0, 1 / 2, 1 / 3)),
        ("a" * 300 + "b" * 200, "a" * 250 + "b" * 250, (1, 9 / 10, 9 / 10, 0, 0, 0, 0)),
    ],
)  # fmt: skip
def test_texts_are_worth_what_they_were_before_the_library(predicted, truth, values):
    """Runs of earlier releases could no longer be compared."""
    measures = ("similar", "anls", "default", "word_accuracy_of_all", "word_accuracy", "rouge_l", "rouge")
    found = [getattr(rewards_text, name)(predicted, truth) for name in measures]
    assert found == pytest.approx(values)


def test_classes_are_named_in_full():
    """`Boeing 747` is satisfied by any 747 in the published code."""
    thought = "<think>t</think><answer>{}</answer>"
    assert cls_rl_accuracy(thought.format(" boeing 747\n"), "Boeing 747") == 1.0
    for text in ("747", "Boeing 747 or 737", "", "I count 747 reasons"):
        assert cls_rl_accuracy(thought.format(text), "Boeing 747") == 0.0
    assert cls_rl_accuracy("<answer>cat</answer>", "cat", thinking=False) == 1.0
    assert cls_rl_accuracy("<answer>cat</answer>", "cat") == cls_rl_accuracy(thought.format(" "), " ") == 0.0
    assert cls_rl_format(thought.format("cat")) == 1.0
    assert cls_rl_format(thought.format(" ")) == cls_rl_format("<answer>cat</answer>") == cls_rl_format("cat") == 0.0
    assert cls_rl_exact("cat", "cat") == 1.0
    assert cls_rl_exact("Cat", "cat") == cls_rl_exact("cat ", "cat") == cls_rl_exact("", "") == 0.0


@given(COUNTS, COUNTS)
def test_counts_are_worth_more_the_nearer_they_are(predicted, truth):
    """A guess far off must not earn what a near one does."""
    assert exact_count(predicted, truth) == (predicted == truth)
    assert (closeness(predicted, truth) == 1.0) == (predicted == truth)
    nearer = predicted + (truth > predicted) - (truth < predicted)
    assert closeness(nearer, truth) >= closeness(predicted, truth)


def test_counts_are_read_strictly():
    """A completion must say one number: several, or one among words, are several answers."""
    assert parse.count(" 12\n") == parse.Parsed(12)
    for text in ("", "-1", "1.0", "1 2", "12 cats", "１", "²", "1" * 10):
        assert parse.count(text).reason == "not_an_integer"
    assert closeness(4, 5) == pytest.approx(0.8)
    assert closeness(10, 5) == closeness(1, 0) == closeness(-1, -1) == 0.0
    assert closeness(0, 0) == 1.0
    assert closeness(10**400, 7) == 0.0
