"""A judge in training: that nothing but the picture tells the better answer, and what a verdict earns."""

import json
import re
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from tasks import open_answer
from tasks.judge_training import JudgeTraining, PairTruth, agreement
from tasks.rendering.screens import COLORS
from vlrl.types import Data, Decision, Episode, Frame, Observation, Sample, Step, Turn, UserError

FRAME = Frame("original_px", (64, 64), (64, 64))
N = 600


def answers(sample):
    """The two texts as they are shown, and the place of the better one from 0."""
    one, two = re.search(r"\(1\) (.*) \(2\) (.*) Which", sample.prompt.text).groups()
    return (one, two), int(sample.answer.better) - 1


def scored(task, completion, truth="1"):
    prompt = Observation(("?",))
    decision = Decision(completion, logprobs=None, entropy=None, truncated=False, frames=(FRAME,))
    sample = Sample("1", prompt, PairTruth(truth) if isinstance(truth, str) else truth)
    episode = Episode(sample, 0, [Turn(prompt, decision, Step(prompt, terminated=True))])
    return Episode(sample, 0, episode.turns, score=task.score(episode))


@pytest.mark.slow
@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("level", [1, 2])
def test_neither_place_length_nor_words_tell_the_better_one(split, level):
    """A judge would be trained to be biased, and look accurate."""
    samples = JudgeTraining(level=level, pool=N, held_out=N).samples(split)[:]
    places = Counter(sample.answer.better for sample in samples)
    assert places["1"] == places["2"] == N // 2
    longer, words = 0, Counter()
    for sample in samples[::2]:
        two, better = answers(sample)
        longer += (len(two[better]) > len(two[1 - better])) - (len(two[better]) < len(two[1 - better]))
        words.update(set(two[better].split()))
        words.subtract(set(two[1 - better].split()))
    # each pair is a fair coin if nothing tells: five deviations of N / 2 coins
    assert abs(longer) < 5 * (N / 2) ** 0.5
    assert max(abs(count) for count in words.values()) < 5 * (N / 2) ** 0.5


@pytest.mark.parametrize(("level", "kinds"), [(1, 2), (2, 3)])
def test_neither_kind_nor_words_tell_whether_a_claim_is_right(level, kinds):
    """FGAIF's judge would learn the kinds' rates, or that some words are seldom right."""
    samples = JudgeTraining(level=level, template="claim", pool=2 * N).samples("train")[:]
    both, words = Counter(), Counter()
    for sample in samples:
        told, kind = re.fullmatch(r"Describe the picture\. (.+) \(1\) right (\w+) \(2\).*", sample.prompt.text).groups()
        both[kind, sample.answer.better] += 1
        words.update({word: 3 - 2 * int(sample.answer.better) for word in set(told.split())})
    assert len(both) == 2 * kinds
    assert max(abs(count - N / kinds) for count in both.values()) < 5 * (N / kinds) ** 0.5
    assert max(abs(count) for count in words.values()) < 5 * (2 * N) ** 0.5


def test_colours_are_as_claimed_unless_an_attribute_is_wrong():
    """Seen in the pictures themselves: a claim of another kind would be judged by what is wrong elsewhere."""
    mismatches = Counter()
    for sample in JudgeTraining(template="claim").samples("test")[:200]:
        pixels = np.asarray(sample.prompt.images[0], int).reshape(-1, 1, 3)
        near = (np.abs(pixels - np.array([*COLORS.values()])).max(2) < 24).sum(0)
        told = next(color for color in COLORS if f" {color} " in sample.prompt.text)
        mismatches[sample.tags["kind"], sample.answer.better] += told != [*COLORS][near.argmax()]
    assert mismatches["attribute", "1"] == mismatches["existence", "2"] == 0
    assert mismatches["attribute", "2"] > 10 and mismatches["existence", "1"] > 5


def test_pairs_are_asked_in_both_orders():
    """Agreement under a swap could not be measured, nor places be balanced in every file."""
    samples = JudgeTraining(level=2).samples("test")[:100]
    for one, other in zip(samples[::2], samples[1::2], strict=True):
        assert one.prompt.images[0].tobytes() == other.prompt.images[0].tobytes()
        assert answers(one)[0] == answers(other)[0][::-1] and one.answer.better != other.answer.better
        assert one.answer.pair == other.answer.pair and one.id != other.id


def test_one_of_the_two_is_true_and_the_other_is_not():
    """What is called better would be a coin."""
    kinds = Counter()
    for sample in JudgeTraining(level=2).samples("train")[:200]:
        two, better = answers(sample)
        right, wrong = two[better], two[1 - better]
        assert open_answer.facts_f1(wrong, (right,)) < 1 and len(right.split()) == len(wrong.split())
        kinds[sample.tags["kind"]] += 1
    assert set(kinds) == {"color", "shape", "count", "relation"} and min(kinds.values()) > 20


def test_splits_share_no_content():
    """Whether a text was ever shown as true would tell it, in training as in the test."""
    task = JudgeTraining(level=2)
    seen = {split: {text for s in task.samples(split)[:300] for text in answers(s)[0]} for split in ("train", "test")}
    assert seen["train"] and seen["test"] and not seen["train"] & seen["test"]


@pytest.mark.parametrize(
    ("thoughts", "k"),
    [
        ("Answer 1 is better.", 1), ("The first is right. Response 1 wins.", 1), ("the second is better", -1),
        ("Answer 2 says red. It is red.\nAnswer 1 is better.", 1), ("Answer 1 is not better.", 0), ("I look.", 0),
        ("Answer 1 is worse.", 0), ("Answer 1 and answer 2 are equal.", 0), ("", 0), ("There are 2 circles.", 0),
        ("Answer 2 is better.\na\nb\nc", 0),  # only the last three lines count
    ],
)  # fmt: skip
def test_rewards_equal_r1_rewards_formula(thoughts, k):
    """0.5 format + accuracy (1 + 0.5 k): thoughts that say the other would be paid as much."""
    task = JudgeTraining(thinking=True, weights={"format": 0.5, "accuracy": 0.5, "consistency": 1.0})
    completion = f"<think>{thoughts}</think>\n<answer>1</answer>"
    assert agreement(completion, "1") == k
    right, wrong = scored(task, completion, "1"), scored(task, completion, "2")
    assert task.reward(right.score) == pytest.approx(0.5 + 1.0 * (1 + 0.5 * k))
    assert task.reward(wrong.score) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("completion", "reason"),
    [
        ("<answer>not 2</answer>", "not_a_verdict"), ("<answer>1 or 2</answer>", "not_a_verdict"),
        ("<answer>1+1</answer>", "not_a_verdict"), ("<answer>1/2</answer>", "not_a_verdict"), ("2", "no_answer"),
        ("<answer>1</answer><answer>2</answer>", "many_answers"), ("<answer>\u00b2</answer>", "not_a_verdict"),
    ],
)  # fmt: skip
def test_what_is_no_verdict_earns_nothing(completion, reason):
    """The released code takes `not 2`, `1 or 2` and `1+1` for 2, and pays for exceptions."""
    score = scored(JudgeTraining(), completion, "2").score
    assert (set(score.parts.values()), score.correct, score.reason) == ({0.0}, 0.0, reason)


def test_an_evaluation_tells_bias_from_knowledge():
    """A judge that always takes the first is right half of the time."""
    task = JudgeTraining()
    truths = [PairTruth(better, f"p{pair}") for pair in range(4) for better in ("1", "2")]
    first = task.metrics([scored(task, "<answer>1</answer>", truth) for truth in truths])
    assert (first["first_chosen"], first["swap_agreement"]) == (1.0, 0.0)
    knows = task.metrics([scored(task, f"<answer>{truth.better}</answer>", truth) for truth in truths])
    assert (knows["first_chosen"], knows["swap_agreement"]) == (0.5, 1.0)
    contrary = task.metrics([scored(task, f"<answer>{3 - int(truth.better)}</answer>", truth) for truth in truths])
    assert contrary["swap_agreement"] == 1.0  # agrees with itself, and is wrong
    silent = task.metrics([scored(task, "well", truth) for truth in truths])
    assert (silent["first_chosen"], silent["swap_agreement"], silent["parse_fail"]) == (0.0, 0.0, 1.0)


@pytest.fixture
def file(tmp_path):
    """Writes rows to a file beside a picture a.png."""
    Image.fromarray(np.zeros((40, 30, 3), np.uint8)).save(tmp_path / "a.png")

    def write(*rows):
        made = tmp_path / "rows.jsonl"
        made.write_text("\n".join(json.dumps({"image": "a.png", "question": "What?", **row}) for row in rows))
        return Data(test=str(made))

    return write


@pytest.mark.parametrize(
    "row", [{"answers": ["a cat", "a dog"], "better": 2}, {"chosen": "a dog", "rejected": "a cat"}]
)
def test_files_are_asked_in_both_orders(file, row):
    """The data's own order, often the better one first, would be learned."""
    one, other = JudgeTraining(data=file(row)).samples("test")[:]
    assert (answers(one), answers(other)) == ((("a dog", "a cat"), 0), (("a cat", "a dog"), 1))
    assert one.answer.pair == other.answer.pair == "rows/1" and [one.id, other.id] == ["rows/1/1", "rows/1/2"]


@pytest.mark.parametrize(
    ("row", "needle"),
    [
        ({"answers": ["a"], "better": 1}, "must be two"), ({"answers": ["a", "b"], "better": 3}, "better"),
        ({"answers": ["a", "a "], "better": 1}, "neither is better"), ({"chosen": "a", "rejected": ""}, "rejected"),
    ],
)  # fmt: skip
def test_a_bad_row_is_named(file, row, needle):
    """A pair that cannot be told apart pays a coin."""
    with pytest.raises(UserError, match=rf"rows\.jsonl, row 1: .*{needle}"):
        JudgeTraining(data=file(row))


@pytest.mark.parametrize("options", [{"pool": 3}, {"held_out": 0}, {"level": 0}, {"template": "x"}])
def test_options_out_of_range_stop_with_one_line(options):
    """Before anything is drawn or trained."""
    with pytest.raises(UserError, match=r"task\."):
        JudgeTraining(**options)
