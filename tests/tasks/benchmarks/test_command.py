"""`vlrl eval` on published files, with the embedded model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest
import yaml

import vlrl
from vlrl import cli


def config(folder, task, file):
    """A config that evaluates the embedded model on a file."""
    values = {
        "out": "run",
        "task": task,
        "data": {"test": str(file)},
        "policy": {"model": "embedded", "max_tokens": 12},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(values))
    return str(folder / "config.yaml")


@pytest.mark.slow
def test_vlrl_eval_prints_a_benchmark_as_json(gui_files, tmp_path):
    """`vlrl eval CONFIG --json` on a published file: one line with every number, for scripts."""
    path = config(tmp_path, {"name": "gui_grounding"}, gui_files / "screenspot_mobile.json")
    command = [sys.executable, "-m", "vlrl.cli", "eval", path, "--json"]
    environment = os.environ | {"PYTHONPATH": str(Path(vlrl.__file__).parents[1])}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    result = json.loads(line)
    metrics = result["metrics"]
    assert (result["n"], result["bad_rows"]) == (6, 0)
    assert metrics["micro"] == pytest.approx(result["value"])
    splits = [f"by/{platform}/{kind}" for platform in ("mobile", "desktop", "web") for kind in ("text", "icon")]
    assert metrics["macro"] == pytest.approx(fmean(metrics[split] for split in splits))
    assert metrics["parse_fail"] == pytest.approx(sum(result["parse_fail"].values()))
    assert metrics["best_constant"] >= 1 / 6


def test_vlrl_eval_prints_a_benchmark_as_a_table(gui_files, tmp_path, capsys, monkeypatch):
    """Read by people: one line a number, zero-hit categories included."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = config(tmp_path, {"name": "gui_actions", "system": "gui_r1_android"}, gui_files / "os_atlas.jsonl")
    assert cli.main(["eval", path]) == 0
    first, *table = capsys.readouterr().out.splitlines()
    assert first.startswith("accuracy 0.000 [0.000, ") and "on 7 samples" in first
    numbers = {name: float(value) for name, value in map(str.split, table)}
    assert {"type", "grounding", "step", "step/click", "step/wait", "os_atlas/step"} <= numbers.keys()
    assert numbers["zero_hit"] == len({"click", "type", "scroll", "open_app", "wait", "long_press", "press_back"})
    assert len({len(line) - len(line.split()[-1]) for line in table}) == 1  # aligned
