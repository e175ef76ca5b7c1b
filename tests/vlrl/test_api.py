"""What scripts use: `vlrl` itself. Training and simulation by it: tests/test_examples.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import vlrl

CLICK = {"completion": "<answer>[12, 15]</answer>", "answer": [10, 10, 20, 20], "image_size": [64, 48]}


def test_importing_is_light() -> None:
    """A script that only scores would wait for torch, or need it installed."""
    code = "import vlrl, sys; vlrl.load_config('gui_grounding'); vlrl.score_rows; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_every_name_is_there() -> None:
    """A name of the page would end in an AttributeError; and one that is not there in a strange one."""
    assert all(callable(getattr(vlrl, name)) for name in vlrl.__all__)
    assert set(vlrl.__all__) <= set(dir(vlrl))
    with pytest.raises(AttributeError, match="module 'vlrl' has no attribute 'trian'"):
        vlrl.trian  # noqa: B018


def test_changes_are_texts_recipes_and_mappings_in_order() -> None:
    """Values would have to be written as YAML, or the last one would not win."""
    changes = (
        "train.lr=0.5",
        {"train.lr": 0.25, "train.steps": 3},
        "recipes/mssr",
        {"out": Path("here"), "train.steps": 4},
    )
    config = vlrl.load_config("gui_grounding", *changes)
    assert (config.train.lr, config.train.steps, config.out) == (0.25, 4, "here")
    assert config.advantages == vlrl.load_config("gui_grounding", "configs/recipes/mssr.yaml").advantages


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"train.stepps": 3}, "train.stepps: unknown key; did you mean 'steps'?"),
        ({"train.steps": "3"}, "train.steps: "),
        ({"advantages": ["no:thing"]}, "advantages.0.name: cannot find 'no:thing'"),
    ],
)
def test_a_wrong_change_names_its_key(changes, told) -> None:
    """A mistyped key from Python would be passed over, where the command line refuses it."""
    with pytest.raises(vlrl.UserError, match=told.replace("?", r"\?")):
        vlrl.load_config("gui_grounding", changes)


def test_rows_are_scored_and_bad_ones_named() -> None:
    """A list of results shorter than the rows would be zipped with the wrong ones."""
    assert vlrl.score_rows("gui_grounding", [CLICK])[0]["reward"] == 1.0
    with pytest.raises(vlrl.UserError, match="row 2: "):
        vlrl.score_rows("gui_grounding", [CLICK, {"completion": "x"}])


def test_what_is_no_run_is_told(tmp_path) -> None:
    """A wrong folder would look like a run without metrics."""
    with pytest.raises(vlrl.UserError, match="is no run folder"):
        vlrl.resume(tmp_path)
    assert (vlrl.Run(tmp_path).summary, vlrl.Run(tmp_path).metrics) == ({}, [])
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5}\n{"step": 2, "reward": 1.0}\n')
    assert vlrl.Run(tmp_path).curve("reward") == ([1, 2], [0.5, 1.0])
    with pytest.raises(vlrl.UserError, match="no metric 'rewrad'; did you mean 'reward'"):
        vlrl.Run(tmp_path).curve("rewrad")
