"""The run folder: rows are whole, and resuming leaves nothing of what is done again."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vlrl import registry
from vlrl.config import Config
from vlrl.metrics import (
    THUMBNAIL,
    append_row,
    cut_after,
    forget_after,
    provenance,
    save_rollouts,
    set_aside,
    write_text,
)
from vlrl.types import Decision, Episode, Frame, Observation, Sample, Score, Step, Turn


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def metrics(path: Path, steps: int) -> None:
    for step in range(1, steps + 1):
        append_row(path, {"step": step, "note": "café ≤\u2028"})


def episodes(n: int, text: str = "<answer>1 2 3 4</answer>") -> list[Episode]:
    """Scored episodes of a real task."""
    task = registry.make_task(Config.model_validate({"task": {"name": "jigsaw", "pool": n}, "out": "x"}))
    made = []
    for number, sample in enumerate(task.samples("train")):
        frames = tuple(Frame("original_px", image.size, image.size) for image in sample.prompt.images)
        decision = Decision(text, torch.zeros(2), torch.zeros(2), False, frames)
        episode = Episode(sample, number, [Turn(sample.prompt, decision, Step(sample.prompt, terminated=True))])
        episode.score = task.score(episode)
        episode.reward = task.reward(episode.score)
        made.append(episode)
    return made


@given(st.integers(0, 200))
def test_a_half_written_line_is_dropped_wherever_it_was_cut(cut):
    """A run killed while writing could not be resumed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "metrics.jsonl"
        metrics(path, 4)
        data = path.read_bytes()
        path.write_bytes(data[: max(0, len(data) - cut)])
        whole = path.read_bytes().count(b"\n")
        cut_after(path, 99)
        kept = [row["step"] for row in rows(path)]
        assert kept in ([*range(1, whole + 1)], [*range(1, whole + 2)])  # a line may lack no more than its end
        append_row(path, {"step": 100})
        assert rows(path)[-1] == {"step": 100}


@pytest.mark.parametrize(("step", "left"), [(-1, 0), (0, 0), (2, 2), (4, 4), (9, 4)])
def test_rows_behind_the_checkpoint_are_dropped(tmp_path, step, left):
    """A resumed run's curve would show some steps twice."""
    metrics(tmp_path / "metrics.jsonl", 4)
    cut_after(tmp_path / "metrics.jsonl", step)
    assert [row["step"] for row in rows(tmp_path / "metrics.jsonl")] == [*range(1, left + 1)]
    cut_after(tmp_path / "nowhere.jsonl", step)
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_forgetting_goes_back_to_a_checkpoint(tmp_path):
    """Rollouts of steps that are done again would stand beside the new ones."""
    for name in ("metrics.jsonl", "timings.jsonl"):
        metrics(tmp_path / name, 4)
    for step in (1, 3, 4):
        save_rollouts(tmp_path, step, episodes(1), None)
    forget_after(tmp_path, 3)
    assert [len(rows(tmp_path / name)) for name in ("metrics.jsonl", "timings.jsonl")] == [3, 3]
    assert sorted(p.name for p in (tmp_path / "rollouts").glob("*.jsonl")) == ["step_000001.jsonl", "step_000003.jsonl"]


def test_text_is_replaced_whole(tmp_path):
    """A reader would see half a summary, or a temporary file be left."""
    write_text(tmp_path / "summary.json", "a" * 10_000)
    write_text(tmp_path / "summary.json", "é")
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]
    assert (tmp_path / "summary.json").read_text(encoding="utf-8") == "é"


def test_saved_rollouts_hold_what_a_reader_asks(tmp_path):
    """What the policy saw and said, and what it was worth, could not be looked up after the run."""
    made = episodes(2)
    save_rollouts(tmp_path, 7, made, [[0.5], [-0.5]])
    saved = rows(tmp_path / "rollouts" / "step_000007.jsonl")
    for row, episode, advantage in zip(saved, made, [0.5, -0.5], strict=True):
        assert (row["step"], row["split"], row["sample_id"]) == (7, "train", episode.sample.id)
        assert (row["completion"], row["reward"], row["advantage"]) == (episode.completion, episode.reward, advantage)
        assert row["parts"] == dict(episode.score.parts) and row["answer"] == [1, 2, 3, 4]
        assert row["prompt"] == episode.sample.prompt.text and row["marks"]
        with Image.open(tmp_path / row["images"][0]) as image:
            assert max(image.size) <= THUMBNAIL


def test_saved_rollouts_of_a_robot_hold_its_numbers(tmp_path):
    """Texts of two decimals do not say what an arm did, nor at which tick."""
    state, action = np.array([0.123456, -2.0], np.float32), np.array([[1.5, 0.25], [1e-5, 0.0]], np.float32)
    shown = Observation(("Push.",), state)
    turn = Turn(shown, Decision(action, None, None, False), Step(shown, 0.5, True, info={"ticks": 1.0}))
    episode = Episode(Sample("push/0", shown), 0, [turn], Score({}, 1.0), 0.5)
    save_rollouts(tmp_path, 1, [episode], [[0.75]])
    (decision,) = rows(tmp_path / "rollouts" / "step_000001.jsonl")[0]["decisions"]
    assert decision == {"state": [0.123456, -2.0], "action": [[1.5, 0.25], [1e-5, 0.0]], "ticks": 1, "reward": 0.5,
                        "advantage": 0.75}  # fmt: skip


def test_saving_a_split_again_replaces_it_and_keeps_the_other(tmp_path):
    """An evaluation at the same step would be there twice, or wipe the training rollouts."""
    save_rollouts(tmp_path, 1, episodes(2), None)
    for n in (3, 1):
        save_rollouts(tmp_path, 1, episodes(n), None, split="eval")
    splits = [row["split"] for row in rows(tmp_path / "rollouts" / "step_000001.jsonl")]
    assert splits == ["train", "train", "eval"]


def test_equal_images_are_saved_once(tmp_path):
    """A group's completions share one image; the folder would grow by the group's size."""
    save_rollouts(tmp_path, 1, episodes(1) * 8, None)
    assert len(list((tmp_path / "rollouts" / "images").iterdir())) == 1


def test_provenance_is_comments():
    """A run's config.yaml must stay loadable."""
    lines = provenance(5)
    assert all(line.startswith("# ") and "\n" not in line for line in lines)
    assert "seed 5" in "".join(lines)


def test_a_new_run_sets_an_earlier_one_aside(tmp_path):
    """Starting again in the same folder must not cost the first run, nor let its checkpoints be resumed by mistake."""
    out = tmp_path / "run"
    for expected in ("run.1", "run.2"):
        (out / "checkpoints").mkdir(parents=True)
        (out / "config.yaml").write_text(expected)
        set_aside(out)
        assert not out.exists()
        assert (tmp_path / expected / "config.yaml").read_text() == expected
    set_aside(out)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.1", "run.2"]
