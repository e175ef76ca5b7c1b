"""Jigsaw: the pieces lie where the answer says, and scores agree with Jigsaw-R1 where it is not fooled."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tasks.base import answer_markup
from tasks.drawn import puzzles
from tasks.jigsaw import RELATIONS, Jigsaw
from vlrl.types import Decision, Episode, Observation, Sample, Turn, UserError

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "jigsaw_r1.json").read_text())


def reward_cases(relation):
    return [case for case in GOLDEN if case.get("vlrl") == relation]


def part(case):
    """The part of our score that stands for the reference's function, on the same completion.

    Jigsaw-R1 asks for no tags without thinking; this task does, so they are added there.
    """
    inputs = case["inputs"]
    full = inputs["answer_type"] == "grid"
    truth = inputs.get("solution", list(range(1, inputs["m"] * inputs["n"] + 1)) if full else "A")
    task = Jigsaw(rows=inputs["m"], columns=inputs["n"], kind="full" if full else "pair", thinking=inputs["think"])
    text = inputs["completion"] if inputs["think"] else answer_markup(inputs["completion"], thinking=False)
    sample = Sample("s", Observation(("?",)), tuple(truth) if full else truth)
    decision = Decision(text, logprobs=None, entropy=None, cut=False)
    score = task.score(Episode(sample, 0, [Turn(sample.prompt, decision, None)]))
    return score.parts[case["function"].removesuffix("_reward")]


@pytest.mark.parametrize("case", reward_cases("equal"))
def test_scores_equal_the_reference(case):
    """Runs are compared with the paper's."""
    assert part(case) == pytest.approx(case["output"], abs=1e-12)


@pytest.mark.parametrize("case", reward_cases("lower"))
def test_what_fools_the_reference_earns_nothing(case):
    """`Banana` as B, an answer among the thoughts, text after the answer: paid there, not here."""
    assert case["output"] == 1.0
    assert part(case) == 0.0


@pytest.mark.parametrize("case", reward_cases("spaces"))
def test_the_one_place_that_is_more_lenient(case):
    """White space around a letter inside the tags is no fault here; the reference grades the bare output."""
    assert case["inputs"]["completion"].strip() == "A"
    assert part(case) == 1.0


@given(st.integers(1, 4), st.integers(1, 4), st.data())
def test_pieces_lie_where_the_answer_says(rows, columns, data):
    """Were origins and destinations mixed up, the model would be trained on the inverse permutation."""
    grid = puzzles.Grid(rows, columns, (columns * 6, rows * 5))
    noise = np.random.default_rng(0).integers(0, 256, size=(rows * 5, columns * 6, 3), dtype=np.uint8)
    origins = data.draw(st.permutations(range(1, rows * columns + 1)))
    shuffled = np.asarray(puzzles.shuffle(Image.fromarray(noise), grid, origins, mask=0.0))
    for place, origin in enumerate(origins, start=1):
        (x, y, right, bottom), (u, v, u2, v2) = grid.cell(place), grid.cell(origin)
        assert np.array_equal(shuffled[y:bottom, x:right], noise[v:v2, u:u2])


def test_masks_hide_every_seam():
    """The reference's bands: int(side * ratio) at the border, half of it on either side of a seam."""
    image = Image.new("RGB", (40, 20), "white")
    puzzles.blacken(image, puzzles.Grid(1, 2, (40, 20)), 0.2)
    row, column = np.asarray(image)[10, :, 0], np.asarray(image)[:, 10, 0]
    assert np.flatnonzero(row == 0).tolist() == [0, 1, 2, 3, 18, 19, 20, 21, 36, 37, 38, 39]
    assert np.flatnonzero(column == 0).tolist() == [0, 1, 2, 3, 16, 17, 18, 19]


@pytest.mark.parametrize(("rows", "columns"), [(1, 2), (3, 1), (2, 2), (3, 4)])
def test_pair_questions_have_the_right_option(rows, columns):
    """The letter's words must be true of the two places the question names."""
    full = Jigsaw(rows=rows, columns=columns, size=48).samples("train")[:60]
    pair = Jigsaw(rows=rows, columns=columns, size=48, kind="pair").samples("train")[:60]
    for puzzle, question in zip(full, pair, strict=True):
        assert puzzle.prompt.images[0].tobytes() == question.prompt.images[0].tobytes()
        asked, _, options = question.prompt.text.partition("? ")
        a, b = (puzzle.answer[int(word) - 1] - 1 for word in asked.split() if word.isdigit())
        words = dict(option.split(") ") for option in options.strip("(").split(" ("))
        assert len(words) == (2 if 1 in (rows, columns) else 8)
        down, right = np.sign(a // columns - b // columns), np.sign(a % columns - b % columns)
        assert words[question.answer] == RELATIONS[down, right]


def test_nothing_but_the_picture_gives_the_answer_away():
    """All orders occur, the identity too, and no letter is much more often right than another."""
    orders = Counter(Jigsaw(size=16).samples("train")[i].answer for i in range(480))
    assert len(orders) == 24
    assert max(orders.values()) < 3 * 480 / 24
    letters = Counter(Jigsaw(size=16, rows=1, kind="pair").samples("train")[i].answer for i in range(400))
    assert set(letters) == {"A", "B"}
    assert max(letters.values()) < 0.58 * 400


def test_sizes_are_whole_pieces():
    """A remainder column would tell which piece was last."""
    sample = Jigsaw(rows=3, columns=4, size=65).samples("train")[0]
    assert sample.prompt.images[0].size == (64, 66)


def test_marks_show_truth_and_answer():
    """The report draws the order in words and one labelled box per piece."""
    task = Jigsaw()
    sample = task.samples("train")[0]
    decision = Decision("<answer>1 1 1 1</answer>", logprobs=None, entropy=None, cut=False)
    score = task.score(Episode(sample, 0, [Turn(sample.prompt, decision, None)]))
    assert score.parts == {"accuracy": 0.25, "format": 1.0}
    assert [(mark.role, mark.kind) for mark in score.marks] == [
        ("truth", "text"),
        ("prediction", "text"),
        *[("truth", "box")] * 4,
    ]
    assert tuple(int(mark.label) for mark in score.marks[2:]) == sample.answer


@pytest.mark.parametrize("thinking", [False, True])
def test_the_papers_prompt_ends_byte_for_byte(thinking):
    """Checkpoints of the paper were trained on exactly this ending."""
    text = Jigsaw(template="jigsaw_r1", rows=3, columns=1, thinking=thinking).samples("train")[0].prompt.text
    asked = (
        "First, output the thinking process within <think> </think> tags. "
        "Then, provide the final answer within <answer> </answer> tags. "
        if thinking
        else "Directly output the final answer. "
    )
    assert text.endswith(f" {asked}The final answer should be the position indexes arranged in a 3x1 grid.")
    assert Jigsaw(rows=3, columns=1).samples("train")[0].prompt.text == "Solve the 3x1 jigsaw."


@pytest.mark.parametrize(
    "options", [{"rows": 0}, {"rows": 5}, {"rows": 1, "columns": 1}, {"mask": 0.5}, {"scale": (0.9, 0.5)}, {"size": 4}]
)
def test_options_out_of_range_stop_at_once(options):
    """A 1 x 1 puzzle or a fully masked one would run for hours and teach nothing."""
    with pytest.raises(UserError, match=r"^task\.\w+: .*must be"):
        Jigsaw(**options)
