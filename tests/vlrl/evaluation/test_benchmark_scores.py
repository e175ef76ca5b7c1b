"""`vlrl eval --benchmark` as far as it goes without lmms-eval: intervals, files, truths, settings."""

from __future__ import annotations

import pytest
from PIL import Image

from vlrl.config import dump
from vlrl.evaluation.benchmarks import Match, StrictScores, box_truth, estimate, find_files, read_settings
from vlrl.recipe_checks import load_config
from vlrl.types import UserError, wilson


def mean(records: list[float]) -> float:
    return sum(records) / len(records)


def test_a_mean_has_wilsons_interval():
    """A bootstrap of five right answers would say [1, 1]."""
    score = estimate(mean, [1.0] * 5)
    assert (score.value, score.n) == (1.0, 5) and (score.low, score.high) == pytest.approx(wilson(5, 5))
    percent = estimate(lambda records: 100 * mean(records), [1.0, 0.0, 1.0, 1.0])
    assert (percent.low, percent.high) == pytest.approx(tuple(100 * each for each in wilson(3, 4)))
    nothing = estimate(lambda records: 100 * mean(records), [0.0] * 4, scale=100.0)
    assert nothing.high == pytest.approx(100 * wilson(0, 4)[1])


def test_other_scores_are_drawn_anew():
    """Wilson's interval of a mean of categories' means would be too narrow where a category has few samples."""

    def macro(records: list[tuple[str, float]]) -> float:
        groups: dict[str, list[float]] = {}
        for name, value in records:
            groups.setdefault(name, []).append(value)
        return mean([mean(values) for values in groups.values()])

    records = [("a", 1.0)] * 30 + [("b", 1.0), ("b", 0.0)]
    score = estimate(macro, records)
    low, high = wilson(31, 32)
    assert score.value == 0.75 and score.low <= 0.5 < low and score.high == 1.0 >= high
    assert estimate(macro, records) == score  # the same numbers every time


def test_what_is_no_number_is_no_score():
    """Aggregations that write a file for a server return None."""
    assert estimate(lambda records: None, [{}, {}]) is None
    assert estimate(lambda records: records[1], [0.5]) is None


def test_files_of_a_split(tmp_path):
    """`test` is not `testA`; a snapshot of the hub has its files in data/, of several subsets in their folders."""
    for name in ("data/test-00000-of-00002.parquet", "data/test-00001-of-00002.parquet", "data/testA.parquet",
                 "data/val.jsonl", "notes.json", "images/test.png", "part/test.csv"):  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    names = {
        split: [file.name for file in files] for split, files in find_files(str(tmp_path), ["test", "val"]).items()
    }
    assert names == {"test": ["test-00000-of-00002.parquet", "test-00001-of-00002.parquet"], "val": ["val.jsonl"]}
    assert [file.name for file in find_files(str(tmp_path), ["test"], "part")["test"]] == ["test.csv"]
    single = tmp_path / "data" / "val.jsonl"
    assert find_files(str(single), ["test", "dev"]) == {"test": [single]}
    with pytest.raises(UserError, match="no rows of the split 'validation'"):
        find_files(str(tmp_path), ["validation"])
    with pytest.raises(UserError, match="no folder, and no file ending in"):
        find_files(str(tmp_path / "images" / "test.png"), ["test"])


@pytest.mark.parametrize(
    "box", [[0.1, 0.2, 0.5, 0.6], [20, 20, 100, 60], "[20, 20, 100, 60]", [120, 80, 40, 10]], ids=str
)
def test_boxes_in_pixels(box):
    """ScreenSpot's box is in shares, ScreenSpot-Pro's in pixels: in the wrong unit nothing is ever hit."""
    expected = [120, 80, 160, 90] if box == [120, 80, 40, 10] else [20, 20, 100, 60]
    assert box_truth({"image": Image.new("RGB", (200, 100)), "bbox": box})["answer"] == pytest.approx(expected)


def test_a_truth_that_we_cannot_express_is_counted():
    """It would stop an evaluation of hours, or count against the model."""
    scores = StrictScores(Match("gui_grounding", "acc", (), box_truth))
    image = Image.new("RGB", (200, 100))
    scores.add(0, {"image": image, "bbox": "nonsense"}, "<answer>[0.1, 0.2]</answer>")
    scores.add(1, {"image": image, "bbox": [0.0, 0.0, 0.5, 0.5]}, "<think>Left.</think><answer>[0.1, 0.2]</answer>")
    assert (scores.unscored, scores.correct, scores.reasons) == (1, {1: 1.0}, {})


def test_a_run_is_asked_as_it_was_trained(tmp_path):
    """Another limit of pixels or frame than in training makes it another policy; a folder or name is just the model."""
    config = load_config("gui_grounding", ["policy.max_pixels=50176", "policy.max_tokens=7"])
    (tmp_path / "config.yaml").write_text(dump(config))
    policy = read_settings(str(tmp_path), []).policy
    assert (policy.model, policy.max_pixels) == (str(tmp_path), 50176)
    assert "max_tokens" not in policy.model_fields_set  # the benchmark's
    assert read_settings(str(tmp_path), ["policy.max_tokens=9"]).policy.max_tokens == 9
    assert read_settings("Qwen/Qwen3-VL-4B-Instruct", []).policy.model == "Qwen/Qwen3-VL-4B-Instruct"
    assert read_settings(str(tmp_path / "config.yaml"), []).policy.model == "embedded"
    with pytest.raises(UserError, match=r"eval\.smaples.*did you mean"):
        read_settings("embedded", ["eval.smaples=3"])
