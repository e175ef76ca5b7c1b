"""Robots from the command line: a script is cloned, the clone is trained, killed, resumed and evaluated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vlrl.cli import main

ROOT = Path(__file__).parents[2]
REACH = ["task.robot={name: tabletop, job: reach}", "task.horizon=24", "task.held_out=4", "task.workers=1"]
SMALL = ["task.scenes=6", "train.prompts_per_step=3", "train.group_size=3", "train.num_minibatches=1",
         "train.update_epochs=1",
         "eval.num_samples=4", "log.checkpoint_every=1", "log.trackers=[]"]  # fmt: skip


def vlrl(*arguments: str) -> None:
    assert main([str(argument) for argument in arguments]) == 0


def rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def cloned(tmp_path_factory) -> Path:
    """A policy that imitates a few demonstrations of reaching."""
    folder = tmp_path_factory.mktemp("cloned") / "policy"
    sizes = ["episodes=6", "steps=40", "policy={hidden: 32, layers: 1, bins: 9}"]
    vlrl("clone", ROOT / "configs" / "models" / "embedded_push.yaml", *REACH[:3], *sizes, f"out={folder}")
    return folder


def train(out: Path, policy: Path, *changes: str) -> None:
    config = ROOT / "configs" / "manipulation.yaml"
    vlrl("train", config, *changes, *REACH, *SMALL, f"policy.model={policy}", f"out={out}")


def test_a_clone_imitates_its_script(cloned, capsys):
    """A start that learned nothing from its demonstrations would never succeed, so never be rewarded."""
    capsys.readouterr()
    evaluated = ["eval", ROOT / "configs" / "manipulation.yaml", *REACH, f"policy.model={cloned}", "--json"]
    vlrl(*evaluated)
    told = json.loads(capsys.readouterr().out)
    vlrl(*evaluated)
    assert json.loads(capsys.readouterr().out) == told  # greedy, on the same scenes
    assert told["n"] == 4 and len(told["scenes"]) == 16 and told["metrics"]["clipped"] == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [[], ["policy.logprob_level=chunk"], [ROOT / "configs/recipes/mssr.yaml", "task.buckets=2",
    "train.prompts_per_step=9"]],
    ids=["grpo", "chunk level", "mssr"],
)  # fmt: skip
def test_a_run_that_was_killed_goes_on_exactly(tmp_path, cloned, method):
    """A night of simulation would be lost with one power cut, or go on as another run."""
    train(tmp_path / "whole", cloned, *method, "train.steps=3")
    train(tmp_path / "part", cloned, *method, "train.steps=2")
    config = tmp_path / "part" / "config.yaml"
    config.write_text(config.read_text().replace("steps: 2\n", "steps: 3\n"))
    vlrl("train", "--resume", tmp_path / "part")
    whole, part = rows(tmp_path / "whole"), rows(tmp_path / "part")
    steps = [row for row in whole if "length" in row]
    assert [row for row in part if "length" in row] == steps and part[-1] == whole[-1]
    assert len(steps) == 3 and (steps[0]["length"] == 1.0) == ("policy.logprob_level=chunk" in method)
    assert (tmp_path / "whole" / "report.html").read_text().count("time_out") > 0


def test_a_bucket_has_one_baseline(tmp_path, cloned):
    """Every scene would be met as if none like it had been seen."""
    from vlrl.checkpoint import latest, load_state

    train(tmp_path / "run", cloned, ROOT / "configs/recipes/mssr.yaml", "task.buckets=2", "train.steps=1",
          "train.prompts_per_step=6")  # fmt: skip
    state = load_state(latest(tmp_path / "run" / "checkpoints"))
    assert sorted(state["estimators"][0]["counts"]) == [f"manipulation/tabletop/reach/bucket/{i}" for i in (0, 1)]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [(["policy.model=embedded"], "task.speech"), (["policy.model=embedded_pull"], "embedded_pull"),
     (["task.robot={name: tabletop, job: pick}"], "it gives x, y, z; the robot takes x, y, z, grip"),
     (["task.robot.name=metawrld"], "did you mean 'metaworld'")],
)  # fmt: skip
def test_mistakes_stop_before_any_work(tmp_path, capsys, changes, problem):
    """A traceback, or a run folder full of nothing."""
    config = ROOT / "configs" / "manipulation.yaml"
    assert main(["train", str(config), "task.workers=1", f"out={tmp_path / 'run'}", *changes]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert problem in said and not (tmp_path / "run").exists()


@pytest.mark.parametrize("by", ["policy", "gold"])
def test_numbers_are_not_recorded_as_text(tmp_path, capsys, by):
    """A traceback would not say which command records robots."""
    config = ROOT / "configs" / "manipulation.yaml"
    told = ["--episodes", "1", "--out", str(tmp_path / "kept"), "--by", by]
    assert main(["record", str(config), "task.workers=1", *told]) == 2
    assert "`vlrl demos` records robots" in capsys.readouterr().err and not (tmp_path / "kept").exists()


@pytest.mark.slow
def test_a_residual_is_trained_on_a_frozen_clone(tmp_path, cloned):
    """ResiP as its recipe says: the base moves, the residual does not learn, or a killed run goes on otherwise."""
    start = tmp_path / "residual"
    vlrl("residual", cloned, "--out", start, "--ticks", 4)
    recipe = [ROOT / "configs" / "recipes" / "resip.yaml", "train.prompts_per_step=4", "train.group_size=1"]
    changes = [
        "task.scenes=6",
        "train.num_minibatches=1",
        "train.update_epochs=3",
        "eval.num_samples=4",
        "log.checkpoint_every=1",
    ]
    for name, steps in (("whole", 4), ("part", 3)):
        vlrl("train", ROOT / "configs" / "manipulation.yaml", *recipe, *REACH, *changes, "log.trackers=[]",
             f"train.steps={steps}", f"policy.model={start}", f"out={tmp_path / name}")  # fmt: skip
    config = tmp_path / "part" / "config.yaml"
    config.write_text(config.read_text().replace("steps: 3\n", "steps: 4\n"))
    vlrl("train", "--resume", tmp_path / "part")
    learned = [row for row in rows(tmp_path / "whole") if "loss" in row]
    assert learned == [row for row in rows(tmp_path / "part") if "loss" in row]
    assert [row["grad_norm"] > 0 for row in learned] == [False, False, True, True]  # the critic learns alone first
    newest = tmp_path / "whole" / "checkpoints" / "step_000004"
    base = sorted(path.relative_to(start) for path in start.rglob("*.safetensors"))
    assert len(base) == 2
    same = [(start / path).read_bytes() == (newest / path).read_bytes() for path in base]
    assert sorted(same) == [False, True]
