"""The table of what RL teaches: starts are made in order, curves are drawn."""

import importlib
import json
import sys
from pathlib import Path

import pytest
from PIL import Image

LEARN = Path(__file__).parents[2] / "bench" / "learn"


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(str(LEARN))
    yield importlib.import_module("tables")
    sys.modules.pop("tables", None)


def test_a_start_is_made_after_its_own_start(tables, tmp_path, monkeypatch):
    """One command reproduces a row; a folder that is there is not made again."""
    (tmp_path / "configs").symlink_to(LEARN.parents[1] / "configs")
    (tmp_path / "runs" / "visual_search_read").mkdir(parents=True)
    made = []
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    monkeypatch.setattr(tables, "run_vlrl", lambda arguments, log: made.append(tables.output(arguments)))
    tables.prepare("visual_search_blind", tmp_path)
    assert made == ["runs/visual_search_demos", "runs/visual_search_calls", "runs/visual_search_start"]


def test_curves_are_drawn(tables, tmp_path):
    """Of runs with tools and of runs without."""
    for name, row in (("a", {"eval/called_tools": 0.5}), ("b", {})):
        (tmp_path / name).mkdir()
        rows = [{"step": step, "eval/accuracy": step / 9, **row} for step in (0, 5)] + [{"step": 6, "reward": 1.0}]
        (tmp_path / name / "metrics.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in rows))
    tables.draw({"with": [tmp_path / "a"], "without": [tmp_path / "b"]}, tmp_path / "curves.png")
    assert len(Image.open(tmp_path / "curves.png").convert("RGB").getcolors(1_000_000)) > 20
