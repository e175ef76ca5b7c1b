"""Open answers: what each kind of answer is read as, what it is worth, and the hacks that are worth nothing."""

import random
import threading
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards import math
from rewards import text as rewards_text
from rewards.math import equal_formulas
from rewards.text import KINDS, TEXTS, Grade, TextTruth, answer_text, grade, observe_format, set_f1

GOLDEN = [  # value and unit, by hand
    ("1,234.5", Fraction(2469, 2), ""), (".5", Fraction(1, 2), ""), ("-0.25", Fraction(-1, 4), ""),
    ("−3.", Fraction(-3), ""), ("3/4", Fraction(3, 4), ""), ("1 3/4", Fraction(7, 4), ""),
    ("-1 3/4", Fraction(-7, 4), ""), (r"\frac{3}{4}", Fraction(3, 4), ""),
    (r"$\boxed{\dfrac{1}{2}}$", Fraction(1, 2), ""),
    ("1.2e3", Fraction(1200), ""), ("1.2 × 10^3", Fraction(1200), ""), (r"5 \times 10^{-2}", Fraction(1, 20), ""),
    ("$5.50", Fraction(11, 2), "$"), ("-$5", Fraction(-5), "$"), ("5 euros", Fraction(5), "€"),
    ("$5$", Fraction(5), ""),
    ("42%", Fraction(42), "%"), (r"42\%", Fraction(42), "%"), ("60°", Fraction(60), "°"),
    (r"60^{\circ}", Fraction(60), "°"),
    ("3 cm", Fraction(3), "cm"), ("3 centimetres", Fraction(3), "cm"), (r"12\text{ cm}^2", Fraction(12), "cm^2"),
    ("12 square cm", Fraction(12), "cm^2"), ("12 cm²", Fraction(12), "cm^2"), ("12 sq. units", Fraction(12), ""),
]  # fmt: skip
NOT_NUMBERS = [
    "", "3 or 4", "3, 4", "3-4", "[3]", "3 4", "12,34", "1 234", "3 million", "3k", "3 hundred", "three", "about 3",
    "3x",
    "1/0", "nan", "inf", "0x10", "1_0", "٣", "9" * 19, "12*34", "1+2", "3?", "3!", "3 cm cm", "$5 €", "1e999",
]  # fmt: skip


@pytest.mark.parametrize(("text", "value", "unit"), GOLDEN)
def test_numbers_are_read_as_people_write_them(text, value, unit):
    """A right answer in another notation would be unlearned."""
    assert math.read_number(text).value == math.Number(value, unit)


@pytest.mark.parametrize("text", NOT_NUMBERS)
def test_guesses_ranges_and_sums_are_no_number(text):
    """H12, H13: the grader must not look for a number, or compute one."""
    assert math.read_number(text).reason == "not_a_number"
    assert math.equal_numbers(text, "3") == 0.0


@pytest.mark.parametrize(
    ("predicted", "truth", "absolute", "relative", "right"),
    [
        ("3.0", "3", 0, 0, 1), ("2.999", "3", 0, 0, 0), ("1/3", "0.333", 0, 0, 0), ("1/3", "2/6", 0, 0, 1),
        ("3.5", "3", 0.5, 0, 1), ("3.51", "3", 0.5, 0, 0), ("0.3", "0", 0.3, 0, 1),
        ("105", "100", 0, 0.05, 1), ("105.1", "100", 0, 0.05, 0), ("-95", "-100", 0, 0.05, 1),
        ("95", "-100", 0, 0.05, 0),
        ("2010", "2008", 0, 0.05, 0), ("2008", "2008", 0, 0.05, 1), ("2,010", "2,008", 0, 0.05, 1),
        ("2010 kg", "2008 kg", 0, 0.05, 1), ("2009", "2008", 1, 0, 1),  # a year, unless the row itself allows an error
        ("42%", "0.42", 0, 0, 1), ("42", "42%", 0, 0, 1), ("0.42", "42%", 0, 0, 0), ("42%", "42", 0, 0, 0),
        ("3", "3 cm", 0, 0, 1), ("3 cm", "3 cm", 0, 0, 1), ("3 mm", "3 cm", 0, 0, 0), ("3 cm", "3", 0, 0, 0),
        ("3 cm", "3 cm^2", 0, 0, 0), ("5", "five", 0, 0, 0), ("3", "3", float("nan"), 0, 0),
        ("9", "3", float("inf"), 0, 0),
        ("9", "3", -1, 0, 0),
    ],
)  # fmt: skip
def test_numbers_are_equal_within_what_is_allowed(predicted, truth, absolute, relative, right):
    """A tolerance that takes one year for another, or millimetres for centimetres, pays for wrong answers."""
    assert math.equal_numbers(predicted, truth, absolute, relative) == right


OPTIONS = ("red", "dark red", "3", "B cells", "none of the above")


@pytest.mark.parametrize(
    ("said", "place"),
    [
        ("A", 0), ("a", 0), ("(B)", 1), ("B.", 1), ("b)", 1), ("C. 3", 2), ("(D) B cells", 3), ("Red", 0),
        ("dark  red.", 1),
        ("The answer is B", 1), ("the correct option is: (c)", 2), ("Answer: none of the above", 4), ("3", 2),
        ("B cells", 3), ("F", None), ("A, B", None), ("A or B", None), ("ABCDE", None), ("A. dark red", None),
        ("red, dark red", None), ("not red", None), ("reddish", None), ("", None), ("A B C D E", None),
        ("(A)(B)", None), ("A\nB", None), ("red or 3", None), ("A dark red", None), ("a red", None),
    ],
)  # fmt: skip
def test_a_choice_is_one_option(said, place):
    """H13: two options, all of them, or a word that contains one must not be paid."""
    assert rewards_text.find_option(said, OPTIONS) == place
    assert rewards_text.chosen(said, "dark red", OPTIONS) == float(place == 1)


def test_choices_without_known_options_are_single_letters():
    """Data sets such as ViRL39K write the options into the question."""
    assert [rewards_text.chosen(said, "B") for said in ("B", "(b)", "B.", "B. cat", "A", "B or C")] == [
        1,
        1,
        1,
        0,
        0,
        0,
    ]
    assert rewards_text.chosen("B", "", OPTIONS) == 0.0


@pytest.mark.parametrize(
    ("predicted", "truth", "exact", "f1", "rouge_l", "words", "anls"),
    [
        ("the cat", "Cat.", 1, 1, 1, 1, 1),
        ("the cat sat", "a cat sat down", 0, 0.8, 0.8, 2 / 3, 1 - 5 / 12),  # cat sat / cat sat down
        ("sat cat", "cat sat", 0, 1, 0.5, 0, 1 - 2 / 7),  # edits: 2 of 7 letters, 2 of 2 words
        ("cat cat cat", "cat", 0, 0.5, 0.5, 0, 0),
        ("12.50", "1250", 0, 0, 0, 0, 0.8),
        ("-3", "3", 0, 0, 0, 0, 0.5),
        ("", "cat", 0, 0, 0, 0, 0),
        ("cat", "", 0, 0, 0, 0, 0),
        ("(Straße)", "STRASSE", 1, 1, 1, 1, 1),
    ],
)
def test_texts_are_worth_what_they_share(predicted, truth, exact, f1, rouge_l, words, anls):
    """Computed by hand; H13, H14: repeated words and empty texts earn less."""
    found = [measure(predicted, truth) for measure in TEXTS.values()]
    assert found == pytest.approx([exact, f1, rouge_l, words, anls])


@pytest.mark.parametrize(
    ("predicted", "truth", "f1"),
    [
        ("red, blue", "Blue; red", 1), ("red and blue", "blue, red", 1), ('["red", "blue"]', "red, blue", 1),
        ("3.0, 4", "4, 3", 1), ("1,200, 5", "5, 1200", 1), ("red", "red, blue", 2 / 3), ("red, red", "red, blue", 0.5),
        ("red, red, blue, blue", "red, blue", 2 / 3), ("red, blue, green, white", "red, blue", 2 / 3), ("", "red", 0),
        (", ,;", "red", 0), ("red", "", 0), ("[[1]]", "1", 0), (", ".join(["red"] * 200), "red", 0),
    ],
)  # fmt: skip
def test_lists_count_each_item_once(predicted, truth, f1):
    """H6: a flood of guesses, or a right item named twice, costs precision."""
    assert set_f1(predicted, truth) == pytest.approx(f1)


@pytest.mark.parametrize(
    ("predicted", "truth", "alike", "verified"),
    [
        (r"2 \sqrt{3}", r"$2\sqrt{3}$", 1, 1), (r"\sqrt{12}", r"2\sqrt{3}", 0, 1), ("1 + x^2", "x^2+1", 0, 1),
        ("(x+1)^2", "x^2+2x+1", 0, 1), (r"\frac{\pi}{2}", r"\frac{1}{2}\pi", 0, 1), ("x = 3", "3", 1, 1),
        (r"\boxed{3}", "$3$", 1, 1), ("0.5", r"\frac{1}{2}", 1, 1), ("1,2", "2,1", 0, 1),
        ("(1,2)", "(2,1)", 0, 0), (r"3\sqrt{2}", r"2\sqrt{3}", 0, 0), ("(0,1]", "[0,1)", 0, 0), ("3,4", "3", 0, 0),
        ("12*34", "408", 0, 0), (r"\sqrt{25}", "5", 0, 0), (r"\pm 3", "3", 0, 0), (r"\pm x", "x", 0, 0),
        (r"\int_0^x 2t dt", "x^2", 0, 0), (r"\sum_{i=1}^x 1", "x", 0, 0), ("x!", "x", 0, 0), ("x or y", "x", 0, 0),
        ("x=1, x=2", "x=1", 0, 0), ("$x$ $y$", "x", 0, 0), ("x" + "+y-y" * 20, "x", 0, 0), ("", "x", 0, 0),
        (r"2\sqrt{3}\text{ km}", r"2\sqrt{3}\text{ cm}", 0, 0), (r"2\sqrt{3}", r"2\sqrt{3}\text{ cm}", 1, 1),
        ("9^{9^{9}}", "x", 0, 0), ("9^9^9", "x", 0, 0), ("9^999", "x", 0, 0), ("x", "unknown word", 0, 0),
        ("__import__('os').abort()", "x", 0, 0), (r"\input{/etc/passwd}", "x", 0, 0),
    ],
)  # fmt: skip
def test_formulas_are_equal_and_worked_out(predicted, truth, alike, verified):
    """The question copied as an answer (`12*34`), lists of guesses and units of another size must not be paid."""
    same_math = pytest.importorskip("tasks.math_equivalence")
    assert equal_formulas(predicted, truth) == alike
    assert equal_formulas(predicted, truth, same_math.judge()) == verified


def test_formulas_are_compared_in_threads_and_none_hangs():
    """Environments are scored in threads, where the library's own time limit raises; and sympy can run for hours."""
    from tasks import math_equivalence

    judge, hard, found = math_equivalence.judge(), "((x+y+z+1)^99)^99", {}
    pairs = [(hard, "((x+y+z+2)^98)^99"), ("x+1", "1+x"), ("x+y", "y+x"), ("x", "y")]
    threads = [threading.Thread(target=lambda p=p: found.update({p: judge(*p)})) for p in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert [found.get(pair) for pair in pairs] == [False, True, True, False]
    judge.pool.workers[0].kill()  # what no limit of its own could end
    assert [judge("2x", "x+x"), judge("3x", "x+x+x")] == [True, True]  # asked again: who was killed has judged nothing
    judge.close()


def test_without_math_verify_it_is_said_at_once(monkeypatch):
    """Not after hours, at the first formula."""
    import importlib.util

    from tasks import math_equivalence
    from vlrl.types import UserError

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"need math-verify: pip install 'vlrl\[math\]'"):
        math_equivalence.judge()


SEEN = "<observe>A bar chart.</observe>"


@pytest.mark.parametrize(
    ("completion", "reason"),
    [
        (f"{SEEN}<think>a</think><answer>3</answer>", None),
        (f"<think>{SEEN} so</think>\n<answer>3</answer>", None),
        ("<think>a</think><answer>3</answer>", "no_observe"),
        (f"{SEEN}{SEEN}<think>a</think><answer>3</answer>", "many_observes"),
        (f"<think>a</think>{SEEN}<answer>3</answer>", "observe_misplaced"),
        (f"<think>a</think><answer>3</answer>{SEEN}", "observe_misplaced"),
        ("<observe> </observe><think>a</think><answer>3</answer>", "observe_misplaced"),
        ("<observe><answer>3</answer></observe><think>a</think>", "observe_misplaced"),
        ("</observe><observe><think>a</think><answer>3</answer>", "observe_misplaced"),
        (f"{SEEN}<answer>3</answer>", "no_think"),
        (f"{SEEN}<think>a</think><answer>3</answer><answer>4</answer>", "many_answers"),
        (f"{SEEN}<think>a</think><answer>3</answer> or 4", "outside_tags"),
        (f"{SEEN}<think>{'a' * 20_000}</think><answer>3</answer>", "too_long"),
    ],
)
def test_one_observation_comes_before_the_thoughts(completion, reason):
    """H11: an answer hidden in the observation, or an observation after the answer, is not in form."""
    assert answer_text(completion).reason == reason
    assert observe_format(completion) == float(reason is None)


PIECES = [
    "<answer>", "</answer>", "$", "\\boxed{", "\\frac{", "}", "{", "(", ")", "[", "]", ",", ";", " and ", " or ",
    "=", "^",
    "^{", "e99", "1e999", "9" * 30, "%", "°", "cm", "nan", "inf", "A", "B", "A, B, C", "red", "the answer is ", "-",
    "/",
    "/0", ".", "\\int", "\\text{ cm}", "٣", "\x00", "\ud800", "\u2028", "²", "×", "x",
    "(" * 500, "9,999" * 90, "a " * 400,
    "{" * 3000, "\\" * 900, "^9" * 60, "1/" * 60, '"', "'", "\n", "　", "İ", "ﬁ",
]  # fmt: skip
TRUTHS = [
    TextTruth("choice", "B", ("red", "blue", "3")), TextTruth("choice", "C"),
    TextTruth("number", "3.5 cm", absolute=0.1),
    TextTruth("number", "42%", relative=0.05), TextTruth("math", r"2\sqrt{3}"), TextTruth("math", "x^2+1"),
    TextTruth("text", "dark blue", also=("navy",)), TextTruth("list", "red, blue, 3"),
]  # fmt: skip
GOOD = ["B", "blue", "3.5 cm", "42%", r"$2\sqrt{3}$", "x^2+1", "dark blue", "red, blue, 3", "C", ""]


def hostile(rng):
    """An answer as a model may write it: a good one with pieces put in, left out or doubled."""
    written = rng.choice(GOOD)
    for _ in range(rng.randrange(5)):
        start = rng.randrange(len(written) + 1)
        end = min(len(written), start + rng.randrange(3))
        middle = rng.choice(["", written[start:end] * 2, rng.choice(PIECES), chr(rng.randrange(0x3000))])
        written = written[:start] + middle + written[end:]
    return written


def test_ten_thousand_hostile_answers_change_nothing_and_raise_nothing():
    """One odd completion among millions would end a run of days."""
    paid = 0
    for index in range(10_000):
        rng = random.Random(index)
        said, truth, measure = hostile(rng), rng.choice(TRUTHS), rng.choice(list(TEXTS))
        found = grade(said, truth, measure)
        assert 0.0 <= found.value <= 1.0 and found.correct in (0.0, 1.0), (index, said)
        assert found.reason is None or (found.value, found.correct) == (0.0, 0.0)
        assert found == grade(said, truth, measure)
        paid += found.correct
    assert 300 < paid < 5_000


@given(st.text(max_size=60), st.sampled_from(TRUTHS))
def test_any_text_is_graded(said, truth):
    """And what is right keeps being right with spaces around."""
    found = grade(said, truth)
    assert grade(f" {said} ", truth).correct == found.correct


@pytest.mark.parametrize("truth", TRUTHS, ids=lambda truth: f"{truth.kind} {truth.answer}")
def test_the_truth_is_right_and_all_others_together_are_not(truth):
    """A list of every guess is the cheapest hack of all."""
    assert grade(truth.answer, truth) == Grade(1.0, 1.0)
    guesses = [other.answer for other in TRUTHS]
    for joint in (", ", " or ", "\n", "; ", " "):
        assert grade(joint.join(guesses), truth).correct == 0.0
    assert {each.kind for each in TRUTHS} == set(KINDS)


@pytest.mark.parametrize(
    ("said", "truth", "reason"),
    [
        (" ", TextTruth("text", "a b"), "empty_answer"), ("E", TRUTHS[0], "not_an_option"),
        ("many", TRUTHS[2], "not_a_number"),
        ("two roots", TRUTHS[4], "not_a_formula"), (",", TRUTHS[7], "not_a_list"), ("1" * 300, TRUTHS[2], "too_long"),
        ("x" * 300, TRUTHS[4], "too_long"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_has_a_reason(said, truth, reason):
    """The report shows it: without one a user cannot tell a wrong answer from a wrong form."""
    assert grade(said, truth).reason == reason
