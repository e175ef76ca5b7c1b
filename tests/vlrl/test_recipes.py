"""Every recipe of configs/recipes, run by the real command line for two steps on the embedded model."""

from __future__ import annotations

import json
import multiprocessing
import runpy
from pathlib import Path

import pytest

from vlrl.recipe_checks import load_config
from vlrl.registry import find, options_of
from vlrl.types import UserError

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "configs" / "recipes"
APART = {
    "digirl",  # plays in a browser: tests/vlrl/test_offline.py
    "a_lol",  # needs recorded episodes first: tests/vlrl/contrib/replay_mixing/test_recorded_recipes.py
    *("srpo", "srpo_released", "vla_rl_process", "vlm_rm"),  # tests/vlrl/process
    "resip",  # needs a residual first: tests/vlrl/test_manipulation_run.py
}
RECIPES = sorted(file for file in FOLDER.glob("*.yaml") if file.stem not in APART)
HELPER = Path(__file__).with_name("run_cli.py")
PATIENCE = 300  # seconds until a run counts as stuck
SMALL = (
    *(
        "train.steps=2",
        "train.prompts_per_step=2",
        "train.num_minibatches=1",
        "train.update_epochs=1",
        "policy.max_tokens=10",
    ),
    *("eval.num_samples=2", "eval.batch_size=2", "log.trackers=[]", "log.rollouts=1"),
)
FEW = {"pool": 4, "held_out": 2}  # samples, of tasks that are drawn
MORE = {  # dapo: its length penalty begins later; seele: a group is played in as many rounds;
    # sws, webrl: new samples lie behind the pool
    "dapo": ("policy.max_tokens=12",), "seele": ("rollout_strategy.rounds=2",), "sws": ("sampler.limit=2",),
    "webrl": ("sampler.limit=2",),
}  # fmt: skip


@pytest.fixture(scope="module")
def processes():
    """Forked processes, which spare each run the seconds of importing."""
    context = multiprocessing.get_context("forkserver")
    preloaded = ["vlrl.trainer", "vlrl.policies.tiny", "tasks.gui_actions", "tasks.detection", "qwen_vl_utils"]
    context.set_forkserver_preload(preloaded)
    return context


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda file: file.stem)
def test_a_recipe_trains(recipe, processes, tmp_path):
    """A recipe that is refused, or breaks at its first step, is no recipe."""
    own = load_config(recipe)
    size = min(own.train.group_size, 2)
    assert own.policy.model.startswith("embedded") and own.out == f"runs/{recipe.stem}"
    output = tuple(str(tmp_path / name) for name in ("out", "err"))
    few = [f"task.{key}={n}" for key, n in FEW.items() if key in options_of(find("task", own.task.name))]
    changes = [f"out={tmp_path / 'run'}", f"train.group_size={size}", *SMALL, *few, *MORE.get(recipe.stem, ())]
    request = {"arguments": ["train", str(recipe), *changes], "folder": str(tmp_path), "output": output,
               "largest_file": None}  # fmt: skip
    process = processes.Process(target=runpy.run_path, args=(str(HELPER), {"REQUEST": request}, "__main__"))
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == 0, Path(output[1]).read_text()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["steps"], summary["updates"], summary["skipped"]) == (2, 2, 0)


def test_ui_r1_e_pays_for_brevity_and_ui_r1_does_not():
    """The variant would be UI-R1 under another name."""
    plain, brief = (load_config(FOLDER / f"{name}.yaml") for name in ("ui_r1", "ui_r1_e"))
    assert [component.name for component in plain.reward_shaping] == []
    assert [component.name for component in brief.reward_shaping] == ["dast"]
    assert brief.losses == plain.losses and brief.train == plain.train


def test_the_length_term_needs_a_group():
    """One completion a prompt has nothing to be brief beside: the run would train on a constant."""
    with pytest.raises(UserError, match=r"reward_shaping\.0 \(dast\)"):
        load_config(FOLDER / "ui_r1_e.yaml", ["train.group_size=1", "advantages=[batch_norm]"])
