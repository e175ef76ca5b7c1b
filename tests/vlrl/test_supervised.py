"""Supervised runs under the one outer loop: stopped, killed, resumed, and the same as a plain loop."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from vlrl import checkpoint
from vlrl.cli import main
from vlrl.config import PolicySection, load_as
from vlrl.imitation.behaviour_cloning import CloneLearner
from vlrl.imitation.configs import CloneConfig
from vlrl.imitation.datasets import draw_batches, imitate
from vlrl.policies.loading import load, newest_checkpoint
from vlrl.runner import Runner, SupervisedLearner
from vlrl.types import UserError
from vlrl.update import fit_supervised, linear_schedule

LOG = {"rows_every": 2, "checkpoint_every": 4}
PUSH = {"name": "manipulation", "robot": {"name": "tabletop", "job": "push"}, "horizon": 40, "held_out": 2}
SCREENS = {"task": {"name": "gui_grounding", "held_out": 2}}
RUNS = {
    "clone": {
        "task": PUSH, "episodes": 2, "steps": 10, "batch_size": 16, "policy": {"hidden": 16}, "log": LOG,
        "eval": {"every_steps": 4},
    },
    "pretrain": {
        "task": PUSH, "offline": [{"name": "demonstrations", "episodes": 2}], "updates": 10, "batch_size": 16,
        "hidden": 16, "log": LOG,
    },
    "warmstart": {
        "steps": 10, "images": 1, "model": {"hidden": 32, "layers": 1}, "lessons": [SCREENS], "log": LOG,
    },
}  # fmt: skip


class KilledError(Exception):
    """Ends a run as nothing that anybody handles."""


@contextmanager
def interrupted(step: int, how: Callable[[], None]) -> Iterator[None]:
    """Calls `how` when the step is to be made."""
    make = SupervisedLearner.step

    def step_made(learner, i):
        if i == step:
            how()
        return make(learner, i)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SupervisedLearner, "step", step_made)
        yield


def kill() -> None:
    raise KilledError


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A folder with the configurations."""
    monkeypatch.chdir(tmp_path)
    for name, values in RUNS.items():
        Path(f"{name}.yaml").write_text(yaml.safe_dump({"out": "out", **values}))


def run(name: str, out: str) -> int:
    return main([name, f"{name}.yaml", f"out={out}"])


def outcome(folder: str) -> tuple[bytes, list[dict]]:
    """The model, and the rows of metrics."""
    rows = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    return (Path(folder) / "model.safetensors").read_bytes(), [json.loads(row) for row in rows]


@pytest.mark.parametrize("name", RUNS)
def test_a_killed_run_resumes_as_if_it_had_not_been(name):
    """Hours of learning would begin anew, or end in another model."""
    assert run(name, "whole") == 0
    with interrupted(6, kill), pytest.raises(KilledError):  # the newest checkpoint is of step 4
        run(name, "killed")
    assert not Path("killed/model.safetensors").exists() and Path("killed/checkpoints/step_000004").is_dir()
    assert newest_checkpoint("killed").endswith("step_000004")  # for `serve`, `start` and `init`
    assert main([name, "--resume", "killed"]) == 0
    assert outcome("killed") == outcome("whole")
    assert {path.name for path in Path("killed").iterdir()} == {path.name for path in Path("whole").iterdir()}


@pytest.mark.parametrize("name", RUNS)
def test_ctrl_c_saves_and_the_run_goes_on(name, capsys):
    """What was learned since the last checkpoint would be lost."""
    assert run(name, "whole") == 0
    with interrupted(6, lambda: os.kill(os.getpid(), signal.SIGINT)):
        assert run(name, "stopped") == 130
    assert f"stopped at step 8; go on with: vlrl {name} --resume stopped" in capsys.readouterr().err
    assert main([name, "--resume", "stopped"]) == 0
    assert outcome("stopped") == outcome("whole")


def test_an_ended_run_stands_for_the_model_in_its_folder():
    """A server would take a checkpoint's weights, which are others than those that were measured and rounded."""
    assert run("clone", "out") == 0
    assert newest_checkpoint("out") == "out" and Path("out/checkpoints").is_dir()
    summary = json.loads(Path("out/summary.json").read_text())
    assert summary["task"] == "manipulation" and summary["after"]["n"] == 2 and summary["steps"] == 10
    assert "report.html" in {path.name for path in Path("out").iterdir()}
    assert run("clone", "out") == 0  # the earlier run is kept
    assert outcome("out") == outcome("out.1")


def test_a_run_of_an_older_version_is_refused_in_one_line():
    """A traceback, or a run that begins anew without a word."""
    checkpoint.save(Path("out/checkpoints/step_000001"), {"round": 1, "used": {}, "row": {}}, lambda folder: None)
    config = load_as(CloneConfig, "clone.yaml")
    with pytest.raises(UserError, match="an older version made it: begin a new run in another folder") as error:
        Runner(config, CloneLearner(config), resume=True).run()
    assert "\n" not in str(error.value)


def test_the_runner_learns_what_a_plain_loop_learns():
    """Steps would be counted, drawn or scheduled otherwise than they say."""
    config = load_as(CloneConfig, "clone.yaml")
    learner = CloneLearner(config)
    Runner(config, learner).run()
    torch.manual_seed(0)
    other = CloneLearner(config)
    other.setup()
    batches = draw_batches(other.examples, None, steps=10, size=16, rng=np.random.default_rng(0))
    imitate(other.policy, batches, steps=10, lr=config.lr)
    for one, same in zip(learner.policy.model.parameters(), other.policy.model.parameters(), strict=True):
        assert torch.equal(one, same)
    other.policy.save(Path("plain"), torch.float16)
    assert Path("plain/model.safetensors").read_bytes() == Path("out/model.safetensors").read_bytes()
    assert load(PolicySection(model="out")).shape == learner.policy.shape


def test_fit_supervised_is_gradient_descent():
    """By hand: x <- x - lr * 2 (x - target), and each loss is the one before its step."""
    x = torch.tensor(4.0, requires_grad=True)
    losses = fit_supervised(
        torch.optim.SGD([x]), [1.0, 1.0, 2.0], lambda target: (x - target) ** 2, lr=lambda step: 0.1 * (step - 4),
        first=5, clip=lambda: torch.nn.utils.clip_grad_value_([x], 5.0),
    )  # fmt: skip
    # lr 0.1, gradient 6 clipped to 5: 3.5; lr 0.2, gradient 5: 2.5; lr 0.3, gradient 1: 2.2
    assert losses == pytest.approx([9.0, 6.25, 0.25]) and x.item() == pytest.approx(2.2)
    rate = linear_schedule(2.0, 100, warmup_steps=4)
    assert [rate(0), rate(3), rate(50), rate(99)] == pytest.approx([0.5, 1.94, 1.0, 0.02])


def test_a_loss_that_is_not_finite_ends_the_run():
    """It would go on for hours with weights that are no numbers."""
    assert main(["clone", "clone.yaml", "lr=1e30"]) == 1
