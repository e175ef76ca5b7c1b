"""`vlrl accept`: the page that says what a checkpoint does on a machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from vlrl.cli import main
from vlrl.policies import tiny
from vlrl.tools import acceptance

SMALL = (
    "train.steps=2",
    "train.prompts_per_step=2",
    "train.group_size=2",
    "eval.num_samples=2",
    "policy.max_tokens=12",
)


@pytest.fixture
def rows(tmp_path) -> str:
    Image.effect_noise((64, 64), 50).convert("RGB").save(tmp_path / "page.png")
    row = {"image": "page.png", "instruction": "Click the red square.", "box": [10, 10, 30, 30]}
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row | {"id": i}) + "\n" for i in range(6)))
    return str(tmp_path / "rows.jsonl")


def test_a_checkpoint_is_examined_trained_and_written_up(rows, tmp_path, capsys):
    """The one thing that a user with a GPU can send back would be empty, or say less than it seems to."""
    out = tmp_path / "accept"
    assert main(["accept", "embedded", "--data", rows, "--out", str(out), *SMALL]) == 0
    page = (out / "accept.md").read_text()
    for part in ("## Machine", "| ok | parity | largest gap", "| frame check |", "plan says", "| reward by step | 1: "):
        assert part in page.replace("| warn | frame", "| frame").replace("| warn | reward", "| reward")
    assert "no measure of generalisation" in page and (out / "run" / "report.html").is_file()
    assert (
        "adapter" in (out / "run" / "config.yaml").read_text()
        or "rank: 16" in (out / "run" / "config.yaml").read_text()
    )


@pytest.mark.parametrize("family", ["qwen2_5_vl", "smolvlm"])
def test_parity_finds_a_model_that_is_not_forwarded_as_it_is(family, rows, tmp_path, monkeypatch):
    """A wrong mask, position or kernel would be trained on for hours."""
    model, processor = (
        tiny.build(tiny.tokenizer_from(["Click."]), family=family, patch=14, space=None)
        if family == "qwen2_5_vl" else tiny.build_family(family)
    )  # fmt: skip
    model.save_pretrained(tmp_path / "model")
    processor.save_pretrained(tmp_path / "model")
    given = (str(tmp_path / "model"), "gui_grounding", rows, None, str(tmp_path / "run"), SMALL)
    config = acceptance.configure(*given)
    assert config.task.options["template"] == "guided"
    assert acceptance.measure_parity(config).status == "ok"
    load = acceptance._load_plain

    def load_other(name: str) -> torch.nn.Module:
        other = load(name)
        with torch.no_grad():
            other.get_output_embeddings().weight[::2] *= 1.5
        return other

    monkeypatch.setattr(acceptance, "_load_plain", load_other)
    assert acceptance.measure_parity(config).status == "error"


def test_a_folder_that_is_no_model_is_said_at_once(rows, tmp_path, capsys):
    """Nothing should be written of a mistyped name."""
    assert main(["accept", "runs/nope", "--data", rows, "--out", str(tmp_path / "accept")]) == 2
    assert Path(tmp_path / "accept" / "run").exists() is False
    assert len(capsys.readouterr().err.splitlines()) == 1
