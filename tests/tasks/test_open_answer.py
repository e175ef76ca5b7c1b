"""Open answers: what the facts of a scene are worth, files with right texts, and what `vlrl score` makes of them."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tasks import open_answer
from tasks.open_answer import OpenAnswer, OpenTruth
from tasks.rendering import scenes
from vlrl.evaluation.score import score_file
from vlrl.types import Data, Decision, Episode, Frame, Observation, Sample, Step, Turn, UserError

FRAME = Frame("original_px", (64, 64), (64, 64))
RIGHT = ("two red circles left of a blue square", "two red circles above a blue square")


def scored(task, completion, truth):
    prompt = Observation(("?",))
    decision = Decision(completion, logprobs=None, entropy=None, truncated=False, frames=(FRAME,))
    return task.score(Episode(Sample("1", prompt, truth), 0, [Turn(prompt, decision, Step(prompt, terminated=True))]))


@pytest.mark.parametrize(
    ("said", "worth"),
    [
        # 7 facts are needed: shape, colour and number of each group, and one relation
        (RIGHT[0], 1), (RIGHT[1], 1), ("A blue square is to the right of two red circles.", 1),
        ("There are two red circles, left of a blue square, above a blue square", 14 / 18),  # below
        ("two red circles and a blue square", 2 * 6 / 13),  # 6 of 6 true, 6 of 7 told
        ("two red circles right of a blue square", 6 / 7),  # 6 of 7 true, 6 of 7 told
        ("three red circles left of a blue square", 6 / 7), ("two green circles left of a blue square", 4 / 7),
        ("circles", 2 * 1 / 8), ("red circle", 2 * 2 / 10),  # a circle and red are true, one alone is not
        ("no red circle", 0), ("two red circles maybe", 0), ("", 0), ("two red", 0), ("red circle left of", 0),
        ("red red circle", 0), ("left of a red circle", 0),
    ],
)  # fmt: skip
def test_facts_equal_the_worked_example(said, worth):
    """A description would be paid by another rule than the one told."""
    # of `There are`: the square is told twice, so 3 of 11 are surplus, and what lies above is the square that was named
    # last: 7 of 11 true (6 of things, 1 of 2 relations), 7 of 7 told
    assert open_answer.facts_f1(said, RIGHT) == pytest.approx(worth)


@given(st.lists(st.sampled_from([*scenes.DESCRIBED_COLORS, *scenes.SHAPES, "two", "a", "left", "of", "above", "not"])))
def test_no_words_raise_or_leave_the_range(words):
    """A text is what a policy writes, and only the right one is worth 1."""
    text = " ".join(words)
    worth = open_answer.facts_f1(text, RIGHT)
    assert 0 <= worth <= 1
    said = open_answer.read_claims(text)
    if worth == 1:
        assert sorted(map(str, said.objects)) == sorted(map(str, open_answer.read_claims(RIGHT[0]).objects))


def test_naming_everything_does_not_pay():
    """The policy would learn to list the vocabulary."""
    everything = " and ".join(f"a {c} {s}" for c in scenes.DESCRIBED_COLORS for s in scenes.SHAPES)
    assert open_answer.facts_f1(everything[:900].rpartition(" and ")[0], ("a red circle",)) < 0.15
    assert open_answer.facts_f1("a red circle and a red circle", ("a red circle",)) == pytest.approx(2 * 0.5 / 1.5)


@pytest.mark.parametrize(("level", "most"), [(1, 1), (1, 3), (2, 2)])
def test_a_scene_shows_what_its_sentences_say(level, most):
    """The truth would be wrong: every text in the answer must be worth 1, and every other relation less."""
    task = OpenAnswer(level=level, most=most)
    for split in ("train", "test"):
        for sample in task.samples(split)[:30]:
            rights = sample.answer.answers
            assert all(open_answer.facts_f1(text, rights) == 1 for text in rights)
            others = {text.replace(r, o) for text in rights for r, o in scenes.OPPOSITE.items() if r in text}
            assert all(open_answer.facts_f1(text, rights) < 1 for text in others)


def test_splits_share_no_content():
    """Held-out accuracy would be memory."""
    task = OpenAnswer(level=2)
    seen = {split: {s.answer.answers[0] for s in task.samples(split)[:200]} for split in ("train", "test")}
    assert len(seen["train"]) > 150 and len(seen["test"]) > 150 and not seen["train"] & seen["test"]


@pytest.mark.parametrize(
    ("options", "completion", "parts", "reason"),
    [
        ({}, "<answer>a red circle</answer>", {"facts": 1, "token_f1": 1, "rouge_l": 1, "format": 1}, None),
        ({}, "<answer>a red ring</answer>", {"facts": 0, "token_f1": 1 / 2, "rouge_l": 1 / 2, "format": 1}, None),
        ({}, "a red circle", {"facts": 0, "token_f1": 0, "rouge_l": 0, "format": 0}, "no_answer"),
        ({}, "<answer> </answer>", {"facts": 0, "token_f1": 0, "rouge_l": 0, "format": 0}, "empty_answer"),
        ({"modality": True, "weights": {"modality": 1, "format": 1}}, "<stripes><answer>x</answer>",
         {"modality": 1, "format": 1}, None),
        ({"modality": True, "weights": {"modality": 1, "format": 1}}, "<DOTS><answer>x</answer>",
         {"modality": 0, "format": 1}, None),
        ({"modality": True, "weights": {"modality": 1, "format": 1}}, "<answer>x</answer>",
         {"modality": 0, "format": 1}, None),
        ({"modality": True, "weights": {"modality": 1, "format": 1}}, "<STRIPES><DOTS><answer>x</answer>",
         {"modality": 1, "format": 0}, "outside_tags"),
        ({"weights": {"format": 1}}, "<STRIPES><answer>x</answer>", {"format": 0}, "outside_tags"),
    ],
)  # fmt: skip
def test_parts_of_an_answer(options, completion, parts, reason):
    """An answer out of form would be paid, or the kind of image read where none was asked for."""
    truth = OpenTruth(("a red circle",), "STRIPES", facts=True)
    score = scored(OpenAnswer(**options), completion, truth)
    assert (score.parts, score.reason) == (pytest.approx(parts), reason)


@pytest.mark.parametrize(
    ("options", "needle"),
    [
        ({"level": 3}, "task.level"), ({"most": 9}, "task.most"), ({"size": (32, 64)}, "task.size"),
        ({"template": "long"}, "task.template"), ({"weights": {"modality": 1.0}}, "modality"),
        ({"pool": 0}, "task.pool"),
    ],
)  # fmt: skip
def test_options_out_of_range_stop_with_one_line(options, needle):
    """Before anything is drawn or trained."""
    with pytest.raises(UserError, match=needle):
        OpenAnswer(**options)


# ---- files


@pytest.fixture
def file(tmp_path):
    """Writes rows to a file beside a picture a.png."""
    Image.fromarray(np.zeros((40, 30, 3), np.uint8)).save(tmp_path / "a.png")

    def write(*rows):
        made = tmp_path / "rows.jsonl"
        made.write_text("\n".join(json.dumps({"image": "a.png", "question": "What?", **row}) for row in rows))
        return Data(test=str(made))

    return write


def test_files_hold_one_or_several_right_texts(file):
    """Paraphrases would count as wrong; MediX-R1's truths bring their tag."""
    data = file({"answer": "the liver"}, {"answers": ["heart attack", "myocardial infarction"]},
                {"answer": "<CT_SCAN> liver", "id": "mine"})  # fmt: skip
    weights = {"token_f1": 1.0, "format": 0.5}
    liver, heart, tagged = OpenAnswer(data=data, weights=weights).samples("test")[:]
    assert [each.answer.answers for each in (liver, heart, tagged)] == [
        ("the liver",), ("heart attack", "myocardial infarction"), ("liver",)
    ]  # fmt: skip
    task = OpenAnswer(data=data, weights=weights)
    assert scored(task, "<answer>Liver.</answer>", liver.answer).correct == 1
    assert scored(task, "<answer>Myocardial infarction</answer>", heart.answer).parts == {"token_f1": 1, "format": 1}
    half = scored(task, "<answer>old infarction</answer>", heart.answer)
    assert (half.correct, half.parts["token_f1"]) == (0, pytest.approx(0.5))
    assert tagged.answer.modality == ""  # nobody is asked for it
    with pytest.raises(UserError, match=r"task\.modality: True: must be false: row rows/1"):
        OpenAnswer(data=data, weights=weights, modality=True)
    one = file({"answer": "<ct_scan>liver"})
    (sample,) = OpenAnswer(data=one, weights={"modality": 1.0}, modality=True).samples("test")[:]
    assert sample.answer.modality == "CT_SCAN" and "<X_RAY>" in sample.prompt.text


def test_files_have_no_facts(file):
    """The part would be 0 for everything, and nothing learned."""
    with pytest.raises(UserError, match=r"task\.weights\.facts: 1\.0: must be 0 where data names files"):
        OpenAnswer(data=file({"answer": "liver"}))


@pytest.mark.parametrize(
    ("row", "needle"),
    [
        ({"answer": ""}, "answer"), ({"answers": []}, "answers"), ({"answers": [1]}, "answers"),
        ({"answer": "..."}, "answer"),
        ({"answer": "x", "modality": "a b"}, "modality"), ({"answer": "x", "image": "no.png"}, "no such image"),
        ({"answer": "x", "question": " "}, "question"),
    ],
)  # fmt: skip
def test_a_bad_row_is_named_before_anything_runs(file, row, needle):
    """A truth that cannot be met would pay nobody."""
    with pytest.raises(UserError, match=r"rows\.jsonl, row 1: ") as raised:
        OpenAnswer(data=file(row), weights={"token_f1": 1.0})
    assert needle in str(raised.value) and "\n" not in str(raised.value)


def test_rows_are_scored_without_a_model(tmp_path):
    """`vlrl score open_answer FILE`: a text, several, or the fields of a truth."""
    rows = [
        {"completion": "<answer>liver</answer>", "answer": "Liver"},
        {"completion": "<answer>liver</answer>", "answer": ["heart", "liver"]},
        {"completion": "<answer>a blue ring</answer>", "answer": {"answers": "a blue ring", "facts": True}},
        {"completion": "<answer>liver</answer>", "answer": {"answers": "liver", "facts": True}},
        {"completion": "<answer>liver</answer>", "answer": ""},
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    out = []
    with pytest.raises(UserError, match="2 of 5 rows"):
        out.extend(score_file("open_answer", str(file)))
    assert [line.get("correct") for line in out] == [1.0, 1.0, 1.0, None, None]
    assert out[2]["parts"]["facts"] == 1.0
