"""The recipes of progress rewards, laid over a robot and run for two steps by the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vlrl.cli import main
from vlrl.recipe_checks import load_config

ROOT = Path(__file__).parents[4]
RECIPES = ROOT / "configs" / "recipes"
SMALL = ["train.steps=2", "train.prompts_per_step=3", "train.num_minibatches=1", "train.update_epochs=1",
         "task.workers=2", "task.scenes=3",
         "task.held_out=2", "eval.num_samples=2", "log.trackers=[]", "task.horizon=96"]  # fmt: skip


@pytest.mark.parametrize("name", ["srpo_released", "srpo", "vla_rl_process"])
def test_a_recipe_trains(tmp_path, name):
    """A recipe that is refused, or breaks at its first step, is no recipe."""
    own = load_config(RECIPES / f"{name}.yaml")
    assert own.out == f"runs/{name}" and own.train.steps == 40
    changes = [f"train.group_size={min(own.train.group_size, 4)}", f"out={tmp_path / 'run'}"]
    changes += ["rollout_strategy.rounds=1"] if own.rollout_strategy.name == "filter_refill" else []
    assert main(["train", str(RECIPES / f"{name}.yaml"), *SMALL, *changes]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["steps"], summary["skipped"]) == (2, 0)


def test_a_recipe_without_its_weights_is_refused_before_any_work(tmp_path, capsys):
    """A traceback, or a folder full of nothing, where CLIP is not at hand."""
    load_config(RECIPES / "vlm_rm.yaml")
    missing = "process_rewards=[{name: vlm_rm, model: nobody/nothing, goal: [done], baseline: [not done]}]"
    changes = [missing, f"out={tmp_path / 'run'}", "task.workers=1"]
    assert main(["train", str(RECIPES / "vlm_rm.yaml"), *changes]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("vlrl: nobody/nothing: ") and "no copy in the cache" in said
    assert not (tmp_path / "run").exists()


def test_what_pays_steps_needs_an_estimator_that_reads_them():
    """The process reward would be computed at every step and never used, as in the code that VLA-RL released."""
    from vlrl.types import UserError

    over = [str(RECIPES / "vla_rl_process.yaml"), "advantages=[grpo]", "train.group_size=2"]
    with pytest.raises(
        UserError, match=r"process_rewards\.0 \(milestones\) pays steps, which none of advantages reads"
    ):
        load_config(ROOT / "configs" / "manipulation.yaml", over)
    load_config(ROOT / "configs" / "manipulation.yaml", ["process_rewards=[srpo]"])  # an outcome is read by all
