"""The strict parser: what it takes, why it refuses, and that no text whatever makes it raise."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards import parse
from rewards.parse import Object
from rewards.text import tagged

TAGS = ("<think>", "</think>", "<answer>", "</answer>")
CALLS = (parse.CALL, parse.CALL_END, '{"name": "zoom", "arguments": {"box": [', "]}}")
PIECES = st.sampled_from(
    (
        *TAGS,
        parse.CALL,
        parse.CALL_END,
        '{"name": "zoom", "arguments": {"box": [',
        "]}}",
        "[1, 2]",
        " ",
        "\n",
        "1 2 3 4",
        "A",
        "nan",
        "[",
        "{",
        "-",
        "'",
        '"',
        "\\",
        "１",
        "\x00",
        "\ud800",
    )
)
SOUP = st.one_of(st.text(), st.lists(PIECES, max_size=30).map("".join))


@given(SOUP, st.booleans())
def test_nothing_raises(text, thinking):
    """A single odd completion would end a run of days."""
    for parsed in (parse.answer_text(text, thinking), parse.literal(text), parse.integers(text, 1, 4)):
        assert (parsed.value is None) or parsed.reason is None
    for parsed in (parse.objects(text), parse.objects(text, label="cat"), parse.count(text)):
        assert (parsed.value is None) != (parsed.reason is None)
    for parsed in parse.tool_calls(text):
        assert (parsed.value is None) != (parsed.reason is None)
    assert parse.letter(text, 8).reason in (None, "not_a_letter")
    assert tagged(text, thinking) in (0.0, 1.0)
    for value in (parse.literal(text).value, text, None, True, {}, [1, "2"], [[1, 2]]):
        for parsed in (parse.point(value), parse.box(value)):
            assert parsed.reason or all(math.isfinite(number) for number in parsed.value)


@given(SOUP, st.booleans())
def test_only_one_answer_in_one_place_is_read(text, thinking):
    """A policy that learns to answer twice, or inside its thoughts, would be paid for it."""
    if parse.answer_text(text, thinking).reason is None:
        assert all(text.count(tag) == (1 if thinking else int("answer" in tag)) for tag in TAGS)
        assert text.strip().endswith("</answer>")
        assert text.strip().startswith("<think>" if thinking else "<answer>")


@pytest.mark.parametrize(
    ("completion", "thinking", "expected"),
    [
        ("<answer>[1, 2]</answer>", False, "[1, 2]"),
        (" \n<answer> A </answer>\n", False, " A "),
        ("<think>so</think>\n<answer>A</answer>", True, "A"),
        ("<think></think><answer></answer>", True, ""),
    ],
)
def test_well_formed_completions_are_read(completion, thinking, expected):
    """A parser that is too strict starves the run of reward."""
    assert parse.answer_text(completion, thinking) == parse.Parsed(expected)


@pytest.mark.parametrize(
    ("completion", "thinking", "reason"),
    [
        ("", False, "no_answer"),
        ("[1, 2]", False, "no_answer"),
        ("<answer>1", False, "no_answer"),
        ("<answer>1</answer><answer>2</answer>", False, "many_answers"),
        ("I say <answer>1</answer>", False, "outside_tags"),
        ("<answer>1</answer>.", False, "outside_tags"),
        ("</answer>1<answer>", False, "outside_tags"),
        ("<think>x</think><answer>1</answer>", False, "think_not_asked"),
        ("<answer>1</answer>", True, "no_think"),
        ("<think>x<answer>1</answer>", True, "no_think"),
        ("<think>a</think>b</think><answer>1</answer>", True, "many_thinks"),
        ("<think><answer>1</answer></think>", True, "outside_tags"),
        ("<think>x</think>so<answer>1</answer>", True, "outside_tags"),
        ("x<think>x</think><answer>1</answer>", True, "outside_tags"),
        ("<answer>" + "1" * parse.MAX_CHARS + "</answer>", False, "too_long"),
    ],
)
def test_reasons_name_the_fault(completion, thinking, reason):
    """The report's failure counts tell the user which rule the model breaks."""
    assert parse.answer_text(completion, thinking).reason == reason


@pytest.mark.parametrize(
    "text", ["[1, 2.5]", "(1, 2.5)", " [1,2.5,] ", "[1, 25e-1]", "```json\n[1, 2.5]\n```", "```[1, 2.5]```"]
)
def test_literals_of_either_kind(text):
    """Models write JSON and Python alike; refusing one would read as a bad model."""
    assert parse.point(parse.literal(text).value).value == (1.0, 2.5)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[NaN, 1]", "not_finite"),
        ("[-Infinity, 1]", "not_finite"),
        ("[" * 9 + "]" * 9, "too_deep"),
        ("[" * 100_000, "too_long"),
        ("-" * 1_900 + "1", "not_literal"),
        ("{[1]: 2}", "not_literal"),
        ("__import__('os').system('true')", "not_literal"),
        ("[１, 2]", "not_literal"),
        ("[1, 2", "not_literal"),
        ("", "not_literal"),
        ("'\\d' + ", "not_literal"),
    ],
)
def test_hostile_literals_are_refused(text, reason):
    """A completion must not run code, exhaust the stack, or smuggle in NaN (worth 1 in some published rewards)."""
    assert parse.literal(text).reason == reason


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([1], "not_a_point"),
        ([1, 2, 3], "not_a_point"),
        ("12", "not_a_point"),
        ({1, 2}, "not_a_point"),
        ([True, 2], "not_a_point"),
        (["1", 2], "not_a_point"),
        ([1j, 2], "not_a_point"),
        ([math.inf, 2], "not_finite"),
        ([10**400, 2], "not_finite"),
    ],
)
def test_points_are_two_finite_numbers(value, reason):
    """Anything that is no point must earn nothing, whatever its type."""
    assert parse.point(value).reason == reason


def test_boxes_have_area():
    """A box without area or with swapped corners would be scored as if it meant something."""
    assert parse.box([0, 1, 2, 3]).value == (0.0, 1.0, 2.0, 3.0)
    assert parse.box([0, 1, 0, 3]).reason == "empty_box"
    assert parse.box([2, 1, 0, 3]).reason == "empty_box"
    assert parse.box([0, 1, 2]).reason == "not_a_box"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no_integers"),
        (" ,;", "no_integers"),
        ("1 ２", "not_an_integer"),
        ("1 -2", "not_an_integer"),
        ("1.0 2", "not_an_integer"),
        ("1\t2", "not_an_integer"),
        ("1 " + "9" * 1_000, "not_an_integer"),
        ("0 1", "out_of_range"),
        ("1 5", "out_of_range"),
        ("1 " * 50_000, "too_long"),
    ],
)
def test_integers_refuse_what_is_not_one(text, reason):
    """An index outside the grid or in another script must not be taken for a place."""
    assert parse.integers(text, 1, 4).reason == reason


def test_integers_take_the_usual_separators():
    """Models lay a grid out in lines, with commas, in a code fence: all mean the same order."""
    for text in ("4 2 1 3", "4,2,1,3", "4; 2; 1; 3", "4 2\n1 3", "```\n4 2\n1 3\n```"):
        assert parse.integers(text, 1, 4).value == (4, 2, 1, 3)


def test_letters_are_one_of_the_options():
    """`Banana` counts as B in the published parser; here only the letter itself does."""
    assert parse.letter(" B\n", 2).value == "B"
    for text in ("Banana", "C", "a", "(A)", "AB", "", "Α"):  # the last is a Greek capital
        assert parse.letter(text, 2).reason == "not_a_letter"


def listed(*sides, label="cat"):
    return '{"bbox_2d": [' + ", ".join(map(str, sides)) + '], "label": "' + label + '"}'


def test_objects_are_lists_of_labelled_boxes():
    """The usual ways of writing a list must all count, and an explicit nothing must be told from a failure."""
    one = Object("cat", (1.0, 2.0, 3.5, 4.0))
    for text in (f"[{listed(1, 2, 3.5, 4)}]", f"```json\n[{listed(1, 2, 3.5, 4)},]\n```", f" [{listed(1, 2, 3.5, 4)}]"):
        assert parse.objects(text) == parse.Parsed((one,))
    for text in ("[[1, 2, 3.5, 4]]", "[{'bbox_2d': (1, 2, 3.5, 4)}]"):
        assert parse.objects(text, label="cat") == parse.Parsed((one,))
    for text in ("[]", "```json\n[]\n```", "None", " none\n"):
        assert parse.objects(text) == parse.Parsed(())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not_literal"),
        ("nothing", "not_literal"),
        ("5", "not_a_list"),
        (listed(1, 2, 3, 4), "not_a_list"),
        ("[[1, 2, 3, 4]]", "not_an_object"),
        ('[{"box": [1, 2, 3, 4], "label": "cat"}]', "not_an_object"),
        ('[{"bbox_2d": [1, 2, 3, 4]}]', "no_label"),
        ('[{"bbox_2d": [1, 2, 3, 4], "label": null}]', "no_label"),
        (f"[{listed(1, 2, 3, 4)}, {listed(3, 4, 1, 2)}]", "empty_box"),
        (f"[{listed(1, 2, 3, 4)}, {listed(1, 2, 3)}]", "not_a_box"),
        (f"[{listed(1, 2, 3, 'NaN')}]", "not_finite"),
        (f"[{listed(1, 2, 3, 4)}][0:1]", "not_literal"),
        ("[" + ",".join([listed(1, 2, 3, 4)] * 301) + "]", "too_many_objects"),
        ("[" + ",".join([listed(1, 2, 3, 4)] * 1000) + "]", "too_long"),
    ],
)
def test_one_bad_object_spoils_the_list(text, reason):
    """Were bad ones dropped, a policy would be paid for breaking the boxes that it is not sure of."""
    assert parse.objects(text).reason == reason


def call(inside):
    return f"<tool_call>{inside}</tool_call>"


ZOOM = '{"name": "zoom", "arguments": {"box": [1, 2, 3, 4]}}'


def test_calls_are_read_in_order():
    """Text may stand around calls; a call in the thoughts is a plan, not a deed."""
    two = f"I look.\n{call(ZOOM)}\n{call(chr(10) + ZOOM.replace('zoom', 'crop') + chr(10))}"
    arguments = {"box": [1, 2, 3, 4]}
    assert [each.value for each in parse.tool_calls(two)] == [("zoom", arguments), ("crop", arguments)]
    assert parse.tool_calls("<answer>7</answer>") == ()
    assert parse.tool_calls(f"<think>{call(ZOOM)}</think><answer>7</answer>") == ()
    assert parse.tool_calls(f"<think>I will {call(ZOOM)}") == ()
    assert parse.tool_calls(f"so I will.</think>{call(ZOOM)}")[0].value == ("zoom", arguments)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"<tool_call>{ZOOM}", "unclosed_call"),
        (f"{ZOOM}</tool_call>", "unopened_call"),
        (f"{call(ZOOM)}</tool_call>", "unopened_call"),
        (call("{'name': 'zoom', 'arguments': {}}"), "not_json"),
        (call(""), "not_json"),
        (call("[1]"), "not_a_call"),
        (call('{"name": "zoom"}'), "not_a_call"),
        (call('{"name": 1, "arguments": {}}'), "not_a_call"),
        (call('{"name": "zoom", "arguments": []}'), "not_a_call"),
        (call('{"name": "zoom", "arguments": {}, "id": 1}'), "not_a_call"),
        (call('{"name": "zoom", "arguments": {"x": NaN}}'), "not_finite"),
        (call('{"name": "zoom", "arguments": {"x": ' + "[" * 20 + "]" * 20 + "}}"), "too_deep"),
        (call('{"name": "zoom", "arguments": {"x": ' + "9" * 5_000 + "}}"), "not_json"),
        (call(ZOOM) * 9, "too_many_calls"),
        (call(ZOOM + " " * parse.MAX_CHARS), "too_long"),
    ],
)
def test_what_is_no_call_says_why(text, reason):
    """The model is told, so that it can do better in the next turn."""
    assert parse.tool_calls(text)[-1] == parse.Parsed(reason=reason)
