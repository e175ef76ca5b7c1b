"""What every reward promises whatever a model writes: no exception, the declared range, the same value twice.

2,000 random and mutated completions by default; VLRL_FUZZ=100000 for a thorough run.
"""

from __future__ import annotations

import ast
import copy
import inspect
import os
import random
import typing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rewards
from rewards import parse
from rewards.detection import vision_r1_dual_format
from rewards.gui import gui_g1_read, read_action
from rewards.parse import Object
from vlrl import registry

COMPLETIONS = int(os.environ.get("VLRL_FUZZ", "2000"))
SEEDS = [
    "<think>I look.</think> <answer>[{'action': 'click', 'coordinate': [150, 230]}]</answer>",
    "<answer>[{'action': 'scroll', 'coordinate': [0, 0], 'input_text': 'down'}]</answer>",
    "<think>a</think><answer>[{'action': 'click', 'point': [123, 300], 'input_text': 'no input text'}]</answer>",
    '<think>a</think><answer>[{"action": "type", "point": [-100, -100], "input_text": "a b"}]</answer>',
    '```json\n[\n\t{"bbox_2d": [100, 200, 300, 260], "label": "x"}\n]\n```',
    "[{'bbox_2d': [110.5, 2e2, 290, 255]}]",
    "Q: x\nA: y\nStatus: success",
    "shanghai shopping mall",
    "up",
    "<think>a</think><answer>{'bbox_2d': [101, 199, 300, 260]}</answer>",
    "",
]
SHORT = [
    "airplane",
    "B",
    "The answer is b.",
    "yes.",
    "3,000",
    "3000.0",
    "1/2",
    "<think>a</think><answer>airplane</answer>",
]
TIMED = [
    "<think>a</think><answer>6.0 to 12.5</answer>",
    '<think>a</think><answer>{"start_time": "6.0", "end_time": "0:12"}</answer>',
    "<think>a</think><answer>B</answer><glue>[(6.0, 12), (20, 25)]</glue>",
    "<think>a</think><answer>[" + ", ".join(["[0.1, 0.2, 0.3, 0.5]"] * 8) + "]</answer>",
]
OWN_SEEDS = dict.fromkeys(
    [
        "text.all_match",
        "text.default",
        "text.multiple_choice",
        "text.numeric",
        "text.yes_no",
        "detection.cls_rl_accuracy",
        "detection.cls_rl_exact",
        "detection.cls_rl_format",
        "video.video_r1_accuracy",
        "video.video_r1_exact",
        "video.video_r1_numerical",
        "video.video_r1_regression",
        "video.video_r1_relative_accuracy",
        "text.word_accuracy_of_all",
        "text.rouge",
    ],
    SHORT,
)
OPEN = [*SHORT, "3 cm", "red, blue", "shanghai shopping mall"]
OWN_SEEDS |= dict.fromkeys(
    [
        "text.chosen",
        "math.equal_numbers",
        "text.set_f1",
        "text.anls",
        "text.exact_match",
        "text.rouge_l",
        "text.squad_f1",
        "text.word_accuracy",
    ],
    OPEN,
)
OWN_SEEDS |= {name: ["x^2+1", "$2\\sqrt{3}$", "3", "x = 3"] for name in ("math.equal_formulas",)}
OWN_SEEDS |= {
    name: [
        "<observe>a</observe><think>b</think><answer>c</answer>",
        "<think><observe>a</observe></think><answer>c</answer>",
    ]
    for name in ("text.observe_format",)
}
TABLE = "\\begin{tabular}{cc}\n1 & \\textbf{2} \\\\\n\\multicolumn{2}{c}{5\\%} \\\\\n\\end{tabular}"
OWN_SEEDS |= {
    name: [TABLE, TABLE.replace("tabular", "array"), "$" + TABLE + "$", TABLE.replace("1", "\\hline x")]
    for name in (
        "tables.cells",
        "tables.content",
        "tables.structure",
    )
}
OWN_SEEDS |= {
    name: ["B", "B. cat", "<think>a</think><answer>B.</answer>"]
    for name in (
        "video.seed_bench_r1_accuracy",
        "video.seed_bench_r1_option",
    )
}
OWN_SEEDS |= dict.fromkeys(
    [
        "video.temporal_r1_format",
        "video.temporal_r1_iou",
        "video.temporal_r1_overall",
        "video.time_r1_discounted",
        "video.videochat_r1_answer",
        "video.videochat_r1_glue_format",
        "video.videochat_r1_glue_iou",
        "video.videochat_r1_tracking_format",
        "video.videochat_r1_tracking_iou",
    ],
    TIMED,
)
PIECES = [
    "<think>", "</think>", "<answer>", "</answer>", "```", "```json\n", "[", "]", "{", "}", "(", ")", "'", '"', ",",
    ":", "\\", "NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 400, "-", "0", ".5", "5.", "0x10", "1_0", "1j",
    "True", "None", "null", "'action': ", "'point': ", "'coordinate': ", "'input_text': ", '"bbox_2d": ', "click", "up",
    "[1, 2]", "\n", "\t", "\r", "\x00", "\ud800", "\u2028", "٣", "上", "\U0001f600", "Status:", "__import__('os')", "#",
    "[" * 300, "(" * 3000, "-" * 1500, "1+" * 900, "a" * 25_000, "{" * 50 + "}" * 50, "b'x'", "{1: 2}", "{[]: 1}", "*",
    "lambda: 0", "f'{1}'", " " * 3000, "1" * 5000, '"label": ', "A. ", "yes", "no", "the answer is ", "$", "\\boxed{",
    '[{"bbox_2d": [1, 2, 3, 4], "label": "a"}]', "a b " * 300,
]  # fmt: skip
BOX, POINT = [100, 200, 300, 260], [123, 300]
# what the other parameters of a reward may be; each example draws one
GIVEN = {
    "action": ["click", "CLICK", "scroll", "type", "open_app", "long_press", "close/delete", ""],
    "box": [BOX, [0.5, 0.5, 400.5, 300.5], [300, 260, 100, 200], [150, 230, 150, 230]],
    "place": [BOX, POINT, [-100, -100], [], [1, 2, 3]],
    "text": ["", "no input text", "up", "shanghai shopping mall", "[a]"],
    "scale": [[1.0, 1.0], [1.0027, 0.9913], [2.0, 0.5]],
    "image_size": [[1000, 800], [1, 1], [0, 0]],
    "thinking": [True, False],
    "notation": ["any", "python", "quoted", "line"],
    "read": [parse.literal, read_action, lambda written: parse.integers(written, 1, 9)],
    "truth": ["", "up", "shanghai shopping mall", "a b"],
    "least": [0.0, 1.0],
    "instances": [0, 3],
    "size": [6, 1],
    "options": [(), ("airplane", "car"), ("B", "A"), ("a", "a")],
    "absolute": [0.0, 1.0, float("nan"), -1.0],
    "relative": [0.0, 0.05, float("inf")],
    "same": [None, lambda predicted, truth: len(predicted) == len(truth)],
    "duration": [30.0, 5, 0, float("nan")],
    "problem_type": ["multiple choice", "numerical", "regression", "OCR", "free-form", "other"],
}
SPANS = [[6.0, 12.0], [5, 20.5], [12, 6], [6, 6], []]
OWN = {  # where a module has others than GIVEN's
    (
        "text.all_match",
        "text.default",
        "text.multiple_choice",
        "text.numeric",
        "text.yes_no",
    ): {"truth": ["airplane", "B", "yes", "3000", "0.5", ""]},
    ("text.chosen",): {"truth": ["airplane", "B", ""]},
    (
        "detection.cls_rl_accuracy",
        "detection.cls_rl_exact",
        "detection.cls_rl_format",
    ): {"truth": ["airplane", "B", ""]},
    (
        "gui.gui_g1_edges",
        "gui.gui_g1_hit",
        "gui.gui_g1_iou",
    ): {"notation": ["any", "python"]},
    ("math.equal_formulas",): {"truth": ["x^2+1", "2\\sqrt{3}", "3", ""]},
    ("math.equal_numbers",): {"truth": ["3000", "3 cm", "1/2", "2008", "", "x"]},
    (
        "video.seed_bench_r1_accuracy",
        "video.seed_bench_r1_option",
    ): {"truth": ["B", "B.", "", "b"]},
    ("text.set_f1",): {"truth": ["red, blue", "3000", ""]},
    (
        "text.anls",
        "text.exact_match",
        "text.rouge_l",
        "text.squad_f1",
        "text.word_accuracy",
    ): {"truth": ["airplane", "shanghai shopping mall", ""]},
    (
        "tables.cells",
        "tables.content",
        "tables.structure",
    ): {"truth": [TABLE, ""]},
    (
        "video.temporal_r1_format",
        "video.temporal_r1_iou",
        "video.temporal_r1_overall",
    ): {"truth": SPANS, "notation": ["any", "words", "object", "quoted"]},
    ("video.time_r1_discounted",): {"truth": SPANS, "notation": ["any", "words"]},
    (
        "video.video_r1_accuracy",
        "video.video_r1_exact",
        "video.video_r1_numerical",
        "video.video_r1_regression",
        "video.video_r1_relative_accuracy",
    ): {"truth": ["airplane", "B", "3000", "3000.00", "0", ""]},
    (
        "video.videochat_r1_answer",
        "video.videochat_r1_glue_format",
        "video.videochat_r1_glue_iou",
        "video.videochat_r1_tracking_format",
        "video.videochat_r1_tracking_iou",
    ): {
        "truth": ["B", ""],
        "truths": [[[6, 12]], [[6, 12], [20, 25]], [], [[0.1, 0.2, 0.3, 0.5]] * 8, [[2, 1]]],
        "notation": ["any", "tuples"],
    },
    (
        "detection.vlm_r1_cosine",
        "detection.vlm_r1_format",
        "detection.vlm_r1_iou",
        "detection.vlm_r1_od_ap",
        "detection.vlm_r1_od_ap50",
        "detection.vlm_r1_od_length",
        "detection.vlm_r1_phrases",
        "detection.vlm_r1_repetition",
        "detection.vlm_r1_weighted_sum",
    ): {"notation": ["any", "brackets", "braces"]},
    (
        "text.word_accuracy_of_all",
        "text.rouge",
    ): {"truth": ["The answer is yes.", "airplane", ""]},
}
OF_TEXT = {
    name: reward
    for name, reward in registry.rewards().items()
    if typing.get_type_hints(reward)[next(iter(inspect.signature(reward).parameters))] is str
    and not name.startswith("gui.gui_odyssey_")
}


def mutated(rng: random.Random, seeds: list[str]) -> str:
    """A completion as a model may write it: a good one with pieces put in, left out, doubled or cut off."""
    written = rng.choice(seeds)
    for _ in range(rng.randrange(6)):
        start, end = sorted(rng.randrange(len(written) + 1) for _ in range(2))
        if rng.random() < 0.7:  # near each other: a small change
            end = min(end, start + rng.randrange(4))
        middle = rng.choice(["", written[start:end] * 2, rng.choice(PIECES), chr(rng.randrange(0x3000))])
        written = written[:start] + middle + written[end:]
    return written


def drawn(rng: random.Random, name: str, reward) -> dict:
    """Values for the parameters after the first."""
    names = list(inspect.signature(reward).parameters)[1:]
    given = GIVEN | next((own for those, own in OWN.items() if name in those), {})
    return {each: rng.choice(given[each]) for each in names}


def test_every_reward_declares_its_range():
    """Advantages, curricula and trackers rely on the range."""
    assert sorted(rewards.RANGES) == sorted(registry.rewards())
    assert all(low < high for low, high in rewards.RANGES.values())


@pytest.mark.parametrize("name", sorted(OF_TEXT))
def test_no_completion_raises_or_leaves_the_range(name):
    """One odd completion among millions would end a run of days, or blow up its gradient."""
    reward, (low, high) = OF_TEXT[name], rewards.RANGES[name]
    seeds = OWN_SEEDS.get(name, SEEDS)
    paid = 0
    for index in range(COMPLETIONS):
        rng = random.Random(index)
        completion, values = mutated(rng, seeds), drawn(rng, name, reward)
        before = copy.deepcopy(values)
        value = reward(completion, **values)
        assert type(value) is float and low <= value <= high, (index, completion, values)
        assert value == reward(completion, **values) and values == before, (index, completion, values)
        paid += value > low
    assert 0 < paid <= COMPLETIONS - (low == 0)  # otherwise nothing was tested


NUMBER = st.one_of(st.integers(-2000, 2000), st.floats())
BOXES, POINTS = st.lists(NUMBER, min_size=4, max_size=4), st.lists(NUMBER, min_size=2, max_size=2)
PLAIN = st.one_of(st.none(), st.text(max_size=20), st.lists(NUMBER, max_size=4))
SIDES = st.one_of(st.integers(-50, 2000), st.floats())
CORNERS = st.tuples(SIDES, SIDES, SIDES, SIDES)
OBJECTS = st.lists(st.builds(Object, st.sampled_from(["cat", " Cat", "dog", ""]), CORNERS), max_size=5)
TIMES = st.lists(NUMBER, min_size=2, max_size=2)
BARS = st.tuples(st.floats(0.1, 0.6), st.floats(0.6, 1))
PICTURES = st.builds(lambda side, gray: np.full((176, side), gray), st.sampled_from([175, 176]), NUMBER)
COUNTS = st.integers(-3, 10**400)
KINDS = st.sampled_from(["CLICK", "LONG_PRESS", "TYPE", "SCROLL", "HOME", ""])
NUMERIC = {
    "boxes.average_precision": (OBJECTS, OBJECTS, BARS),
    "boxes.edges": (BOXES, BOXES, POINTS),
    "boxes.iou": (BOXES, BOXES),
    "boxes.closeness": (COUNTS, COUNTS),
    "boxes.exact_count": (COUNTS, COUNTS),
    "gui.gui_odyssey_click": (POINTS, POINTS, BOXES),
    "gui.gui_odyssey_step": (KINDS, PLAIN, KINDS, PLAIN, BOXES),
    "intervals.iop": (TIMES, TIMES),
    "intervals.set_iou": (st.lists(TIMES, max_size=5), st.lists(TIMES, max_size=5)),
    "intervals.tiou": (TIMES, TIMES),
    "boxes.f1": (OBJECTS, OBJECTS, BARS),
    "boxes.in_box": (POINTS, BOXES, st.booleans()),
    "boxes.near": (POINTS, POINTS, POINTS, NUMBER, st.booleans()),
    "tables.ms_ssim": (PICTURES, PICTURES),
    "gui.advances": (NUMBER, NUMBER, NUMBER, NUMBER),
    "detection.vision_r1_precision": (OBJECTS, OBJECTS, st.one_of(st.none(), BARS)),
    "detection.vision_r1_recall": (OBJECTS, OBJECTS, st.floats(0.1, 1), st.one_of(st.none(), BARS)),
    "detection.vlm_r1_cosine": (NUMBER, NUMBER, NUMBER),
    "detection.vlm_r1_od_ap": (OBJECTS, OBJECTS),
    "detection.vlm_r1_od_ap50": (OBJECTS, OBJECTS),
    "detection.vlm_r1_od_length": (OBJECTS, OBJECTS),
    "detection.vlm_r1_repetition": (OBJECTS,),
    "detection.vlm_r1_weighted_sum": (OBJECTS, OBJECTS),
}


def test_every_reward_is_held_to_its_range():
    """A new reward must come with its property test (those of orders are in test_order.py)."""
    orders = {name for name in rewards.RANGES if name.startswith("order.")}
    assert {*OF_TEXT, *NUMERIC, *orders} == set(rewards.RANGES)


@pytest.mark.parametrize("name", NUMERIC)
@settings(deadline=None, max_examples=max(30, COMPLETIONS // 50))  # a busy machine is no failure
@given(data=st.data())
def test_no_numbers_raise_or_leave_the_range(name, data):
    """NaN, infinities and boxes inside out come from models and from data."""
    values = data.draw(st.tuples(*NUMERIC[name]))
    before = repr(values)
    low, high = rewards.RANGES[name]
    value = registry.rewards()[name](*values)
    assert type(value) is float and low <= value <= high
    assert value == registry.rewards()[name](*values) and repr(values) == before


def test_rewards_use_nothing_but_their_arguments():
    """A reward that reads a file, a clock or a random number scores the same completion differently elsewhere."""
    pure = {"__future__", "ast", "collections", "dataclasses", "fractions", "functools", "json", "math"}
    pure |= {"inspect", "numpy", "rapidfuzz", "re", "rewards", "scipy", "types", "typing", "unicodedata"}
    for file in Path(rewards.__file__).parent.glob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        imported = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        imported += [name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names]
        assert {name.partition(".")[0] for name in imported} <= pure | {"threading", "warnings"}, file
        assert not [n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) in ("open", "print")]


@pytest.mark.parametrize("size", [parse.MAX_CHARS + 1, 1_000_000])
def test_long_completions_are_cut_off_by_a_limit(size):
    """Otherwise one runaway completion keeps all others waiting."""
    padded = f"<think>{'a' * size}</think><answer>[1, 2]</answer>"
    many = "[" + ", ".join(['{"bbox_2d": [1, 2, 3, 4], "label": "a"}'] * 100_000) + "]"
    assert parse.answer_text(padded, True).reason == "too_long"
    assert {gui_g1_read(many).reason, parse.literal(many).reason, parse.python_literal(many).reason} == {"too_long"}
    assert parse.literal("[" * 1000).reason == "too_deep"
    assert parse.objects(many).reason == "too_long" and vision_r1_dual_format(many, 1) == 0.0
    assert parse.objects("[" + "[1,2,3,4]," * 301 + "]", label="a").reason == "too_many_objects"
