"""The supervised start: goes on from a ready model, or builds one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from vlrl import cli
from vlrl.policies import tiny

SMALL = [
    "steps=1",
    "images=1",
    "lr=1e-7",
    "lessons=[{task: {name: gui_grounding, held_out: 2}}]",
]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}


@pytest.fixture
def config(tmp_path: Path) -> str:
    (tmp_path / "start.yaml").write_text("out: nowhere\nlessons: []\n")
    return str(tmp_path / "start.yaml")


def test_goes_on_from_a_ready_model(config: str, tmp_path: Path, capsys) -> None:
    """Hours of an earlier start would be thrown away."""
    assert cli.main(["warmstart", config, *SMALL, "start=embedded", f"out={tmp_path / 'more'}"]) == 0
    assert "gui_grounding: held-out accuracy" in capsys.readouterr().out
    before, after = weights(tiny.FOLDER), weights(tmp_path / "more")
    assert before.keys() == after.keys()
    torch.testing.assert_close(after, before, rtol=0, atol=1e-3)


def test_builds_a_model_without_a_start(config: str, tmp_path: Path) -> None:
    """The embedded model could not be rebuilt."""
    assert cli.main(["warmstart", config, *SMALL, "model.hidden=64", f"out={tmp_path / 'new'}"]) == 0
    assert weights(tmp_path / "new")["model.language_model.norm.weight"].shape == (64,)


def test_a_start_that_is_not_there_is_named(config: str, tmp_path: Path, capsys) -> None:
    assert cli.main(["warmstart", config, *SMALL, "start=/nowhere/model", f"out={tmp_path / 'new'}"]) == 2
    assert "no folder '/nowhere/model'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (["model.family=gemma33"], "'gemma33' is no type that transformers maps to image-text-to-text; did you mean"),
        (["model.family=t5gemma2"], "t5gemma2 cannot be trained: it is an encoder-decoder"),
        (["resize={patch: 16, space: grid100}"], "resize: of a start: name one, or set model.patch and model.space"),
        (["model.family=gemma3", "model.hidden=64"], "hidden: of qwen3_vl and qwen2_5_vl alone"),
    ],
)
def test_a_type_that_cannot_be_built_is_one_line(config: str, changes: list[str], reason: str, tmp_path, capsys):
    """Any type of transformers may be named, so that many names are wrong."""
    assert cli.main(["warmstart", config, *SMALL, *changes, f"out={tmp_path / 'new'}"]) == 2
    told = capsys.readouterr().err.strip()
    assert reason in told and "\n" not in told
