"""`auto` of micro-batches and of recomputed layers: what the memory that is free takes."""

from __future__ import annotations

import json

import pytest

import vlrl
from vlrl.cli import main
from vlrl.recipe_checks import load_config
from vlrl.tools import memory_fit
from vlrl.tools.memory_fit import find_candidates, resolve_auto
from vlrl.types import UserError

AUTO = ("train.micro_batch_size=auto", "policy.gradient_checkpointing=auto")
SMALL = ("train.prompts_per_step=8", "train.group_size=2", "policy.max_tokens=8", "train.steps=2", "eval.num_samples=4",
         "log.trackers=[]", "log.checkpoint_every=1", "eval.batch_size=4")  # fmt: skip


def chosen(free: float) -> tuple[int | None, bool]:
    fitted = resolve_auto(load_config("gui_grounding", [*AUTO, *SMALL]), free)
    return fitted.train.micro_size, fitted.policy.recomputes_layers


def test_less_memory_takes_smaller_forwards_then_recomputed_layers(capsys, monkeypatch):
    """A run would end out of memory, or recompute for nothing."""
    config = load_config("gui_grounding", [*AUTO, *SMALL])
    sizes = [(c.train.micro_batch_size, c.policy.gradient_checkpointing) for c in find_candidates(config)]
    assert sizes == [(size, again) for again in (False, True) for size in (None, 4, 2, 1)]
    assert chosen(1e12) == (None, False)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("vlrl: auto: train.micro_batch_size=null policy.gradient_checkpointing=false: ")
    monkeypatch.setattr(memory_fit, "try_update", lambda config: True)  # which the last test does
    found = [chosen(each) for each in (5e7, 3e7, 2.5e7, 2e7)]
    assert len(set(found)) > 1 and found[-1] != (None, False), found
    with pytest.raises(UserError, match="GB are needed"):
        chosen(1e6)


def test_what_does_not_get_through_an_update_is_not_taken(monkeypatch):
    """The memory model knows nothing of what else is on a card."""
    tried = []

    def fail_twice(config):
        tried.append((config.train.micro_size, config.policy.recomputes_layers))
        return len(tried) > 2

    monkeypatch.setattr(memory_fit, "try_update", fail_twice)
    assert chosen(1e12) == tried[2] and tried[0] == (None, False) and len(set(tried)) == 3


def test_the_run_keeps_what_was_chosen_and_resumes_by_it(tmp_path, capsys):
    """A resumed run would be cut into other forwards than the one that it goes on with."""
    out = tmp_path / "run"
    assert main(["train", "gui_grounding", *AUTO, *SMALL, f"out={out}"]) == 0
    assert "vlrl: auto: train.micro_batch_size=" in capsys.readouterr().err
    config = vlrl.load_config(out / "config.yaml")
    assert (config.train.micro_batch_size, config.policy.gradient_checkpointing) == (None, False)
    assert main(["train", "--resume", str(out), "train.steps=3"]) == 0
    assert "auto" not in capsys.readouterr().err
    assert json.loads((out / "summary.json").read_text())["steps"] == 3
