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
from tasks.jigsaw import Jigsaw
from tasks.rendering import puzzles, scenes
from vlrl.types import Data, Decision, Episode, Observation, Sample, Turn, UserError

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "jigsaw_r1.json").read_text())


def reward_cases(relation):
    return [case for case in GOLDEN if case.get("vlrl") == relation]


def answered(sample, text):
    decision = Decision(text, logprobs=None, entropy=None, truncated=False)
    return Episode(sample, 0, [Turn(sample.prompt, decision, None)])


def part(case):
    """The part of our score that stands for the reference's function, on the same completion.

    Jigsaw-R1 asks for no tags without thinking; this task does, so they are added there.
    """
    inputs = case["inputs"]
    full = inputs["answer_type"] == "grid"
    truth = inputs.get("solution", list(range(1, inputs["m"] * inputs["n"] + 1)) if full else "A")
    kind = "full" if full else "pair"
    task = Jigsaw(rows=inputs["m"], columns=inputs["n"], kind=kind, thinking=inputs["think"], reward="published")
    text = inputs["completion"] if inputs["think"] else answer_markup(inputs["completion"], thinking=False)
    sample = Sample("s", Observation(("?",)), tuple(truth) if full else truth)
    return task.score(answered(sample, text)).parts[case["function"].removesuffix("_reward")]


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
    grid = puzzles.PuzzleGrid(rows, columns, (columns * 6, rows * 5))
    noise = np.random.default_rng(0).integers(0, 256, size=(rows * 5, columns * 6, 3), dtype=np.uint8)
    origins = data.draw(st.permutations(range(1, rows * columns + 1)))
    shuffled = np.asarray(puzzles.shuffle(Image.fromarray(noise), grid, origins, mask=0.0))
    for place, origin in enumerate(origins, start=1):
        (x, y, right, bottom), (u, v, u2, v2) = grid.cell(place), grid.cell(origin)
        assert np.array_equal(shuffled[y:bottom, x:right], noise[v:v2, u:u2])


def test_masks_hide_every_seam():
    """The reference's bands: int(side * ratio) at the border, half of it on either side of a seam."""
    image = Image.new("RGB", (40, 20), "white")
    puzzles.blacken(image, puzzles.PuzzleGrid(1, 2, (40, 20)), 0.2)
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
        assert words[question.answer] == puzzles.RELATIONS[down, right]


@pytest.mark.slow
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
    task = Jigsaw(reward="published")
    sample = task.samples("train")[0]
    score = task.score(answered(sample, "<answer>1 1 1 1</answer>"))
    assert score.parts == {"accuracy": 0.25, "format": 1.0}
    assert [(mark.role, mark.kind) for mark in score.marks] == [
        ("truth", "text"),
        ("prediction", "text"),
        *[("truth", "box")] * 4,
    ]
    assert tuple(int(mark.label) for mark in score.marks[2:]) == sample.answer


@pytest.mark.parametrize("options", [{}, {"places": "words"}, {"backward": True}])
def test_an_order_that_names_a_place_twice_earns_nothing(options):
    """`1 1 1 1` is worth as much as guessing and right form in the paper, without a look at the picture."""
    task = Jigsaw(**options)
    sample = task.samples("train")[0]
    twice = "<answer>" + task.questions.format_answer(puzzles.PuzzleGrid.near(2, 2, 64), (1, 1, 1, 1)) + "</answer>"
    score = task.score(answered(sample, twice))
    assert (task.reward(score), score.reason, score.answer) == (-0.5, "repeated", None)
    swapped = task.questions.format_answer(
        puzzles.PuzzleGrid.near(2, 2, 64), (*sample.answer[:2], *sample.answer[:1:-1])
    )
    assert task.score(answered(sample, f"<answer>{swapped}</answer>")).parts == {"accuracy": 0.5, "format": 1.0}


@pytest.mark.parametrize("size", [(2, 1), (1, 3), (2, 2), (4, 4)])
def test_words_say_the_same_as_numbers(size):
    """Were two places called alike, some answers could not be right."""
    numbers, words = (Jigsaw(rows=size[0], columns=size[1], places=places) for places in ("numbers", "words"))
    for plain, worded in zip(numbers.samples("test")[:20], words.samples("test")[:20], strict=True):
        assert plain.answer == worded.answer
        gold = words.gold(worded, [])
        assert words.score(answered(worded, gold.upper().replace("ANSWER", "answer"))).correct == 1.0
        assert words.score(answered(worded, numbers.gold(plain, []))).reason == "unknown_place"
    assert worded.prompt.text == f"Solve the {size[0]}x{size[1]} jigsaw in words."
    if size == (2, 2):
        assert set(gold[8:-9].split(", ")) == {"top left", "top right", "bottom left", "bottom right"}


def test_backward_answers_say_where_the_pieces_lie():
    """The inverse of the forward answer; the report still labels each piece with its origin."""
    there, back = Jigsaw(rows=2, columns=3), Jigsaw(rows=2, columns=3, backward=True)
    for one, other in zip(there.samples("test")[:20], back.samples("test")[:20], strict=True):
        assert all(other.answer[origin - 1] == place for place, origin in enumerate(one.answer, 1))
        boxes = [
            [m for m in t.score(answered(s, "")).marks if m.kind == "box"] for t, s in ((there, one), (back, other))
        ]
        assert boxes[0] == boxes[1]


def test_sizes_grow_with_the_training_steps_alone():
    """A resumed run, or one on more machines, would otherwise go on with other puzzles, and ids would mean two."""
    task = Jigsaw(rows=3, columns=1, curriculum={0: (2, 1), 20: (2, 2)})
    train = task.samples("train")

    def sizes(step):
        task.at_step(step)
        return train[5].tags["size"], task.samples("test")[5].tags["size"], len(train[5].answer), train[5].id

    assert train[5].tags["size"] == "3x1"  # outside training, what is tested
    seen = [sizes(step) for step in (0, 19, 20, 500, 0)]
    assert [each[:3] for each in seen] == [
        ("2x1", "3x1", 2), ("2x1", "3x1", 2), ("2x2", "3x1", 4), ("2x2", "3x1", 4), ("2x1", "3x1", 2),
    ]  # fmt: skip
    assert seen[0] == seen[1] == seen[4] and seen[0][3] != seen[2][3]
    task.at_step(0)
    early = train[5]
    task.at_step(500)  # a sample is scored as the puzzle that it is
    assert task.score(answered(early, task.gold(early, []))).correct == 1.0


def test_turned_puzzles_swap_rows_and_columns():
    """The paper shows half of its puzzles so; metrics keep both apart."""
    task = Jigsaw(rows=3, columns=1, turned=True)
    samples = task.samples("test")[:200]
    assert 70 < sum(sample.tags["size"] == "1x3" for sample in samples) < 130
    assert {sample.tags["size"]: sample.prompt.text for sample in samples} == {
        size: f"Solve the {size} jigsaw." for size in ("3x1", "1x3")
    }
    right = [answered(s, task.gold(s, []) if s.tags["size"] == "1x3" else "") for s in samples]
    for episode in right:
        episode.score = task.score(episode)
    measured = task.metrics(right)
    assert (measured["1x3"], measured["3x1"], measured["chance"]) == (1.0, 0.0, pytest.approx(1 / 6))
    assert measured["parse_fail"] == pytest.approx(sum(s.tags["size"] == "3x1" for s in samples) / 200)


def test_metrics_show_what_needs_no_picture():
    """An accuracy says little without chance and the best constant answer beside it: few pairs lie diagonally."""
    task = Jigsaw(kind="pair")
    episodes = [answered(sample, task.gold(sample, [])) for sample in task.samples("test")]
    for episode in episodes:
        episode.score = task.score(episode)
    measured = task.metrics(episodes)
    assert measured["chance"] == 1 / 8 < measured["best_constant"] < 0.25
    assert {measured[relation] for relation in puzzles.RELATIONS.values()} == {1.0}


def test_noise_holds_no_answer():
    """The control: were its pieces told apart by place or seam, it would not show a leak."""
    grid, rng = puzzles.PuzzleGrid.near(2, 1, 64), np.random.default_rng(0)
    pictures = np.stack([np.asarray(scenes.noise(rng, grid), dtype=np.float64) for _ in range(400)])
    top, bottom = pictures[:, :32], pictures[:, 32:]
    spread = pictures.std() / 20  # of a mean over 400 puzzles
    assert np.abs(top.mean(0) - bottom.mean(0)).max() < 8 * spread
    across, within = (np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in (
        (pictures[:, 31], pictures[:, 32]), (pictures[:, 30], pictures[:, 31]))
    )  # fmt: skip
    assert abs(across) < 0.05 < 0.8 < within


def test_landscapes_have_an_order():
    """Skies and seams must tell how pieces lay, or training on them would teach nothing."""
    task = Jigsaw(rows=2, columns=1, source="landscapes")
    swapped, kept = [], []
    for sample in task.samples("train")[:200]:
        pixels = np.asarray(sample.prompt.images[0], dtype=np.float64)
        jump = np.abs(pixels[31] - pixels[32]).mean()
        (kept if sample.answer == (1, 2) else swapped).append(jump)
    assert np.mean(kept) < 0.5 * np.mean(swapped)


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
    "options",
    [
        *({"rows": 0}, {"rows": 5}, {"rows": 1, "columns": 1}, {"mask": 0.5}, {"scale": (0.9, 0.5)}, {"size": 4}),
        *({"curriculum": {0: (1, 1)}}, {"curriculum": {-1: (2, 1)}}, {"curriculum": {9: (5, 1)}}, {"drawn": 1.5}),
        *({"source": "x"}, {"reward": "x"}, {"places": "x"}, {"places": "words", "template": "jigsaw_r1"}),
        {"backward": True, "kind": "pair"},
    ],
)
def test_options_out_of_range_stop_at_once(options):
    """A 1 x 1 puzzle or a fully masked one would run for hours and teach nothing."""
    with pytest.raises(UserError, match=r"^task\.[\w.]+: .*must be"):
        Jigsaw(**options)


def test_photographs_that_would_not_be_shown_are_refused(tmp_path):
    """The user's folder would be ignored without a word."""
    with pytest.raises(UserError, match=r"task\.source noise shows no photographs"):
        Jigsaw(source="noise", data=Data(train=str(tmp_path)))
