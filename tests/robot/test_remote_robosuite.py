"""robosuite 1.4.0 with another Python, numpy and MuJoCo, from this one: trained on, evaluated, bit for bit."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from robot.sim.remote import Remote
from robot.workers import RobotPool

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench" / "bridge"))  # scripts, not a package
import robosuite14  # noqa: E402

pytestmark = pytest.mark.slow
CHUNK, HORIZON = 4, 12


@pytest.fixture(scope="module")
def suite() -> dict:
    """The robot's options; its environment is made at the first use."""
    return {
        "python": robosuite14.python(), "make": f"{robosuite14.__file__}:make", "images": ["render"],
        "options": {"shaped": True}, "state": list(robosuite14.STATE),
    }  # fmt: skip


@pytest.fixture(scope="module")
def policy(tmp_path_factory) -> Path:
    """A small network from a picture and the state, which has learned nothing."""
    import torch

    from vlrl.policies.discrete import ControlPolicy, DiscreteShape, Network

    torch.manual_seed(0)
    shape = DiscreteShape(19, ("x", "y", "z", "grip"), (-1.0,) * 4, (1.0,) * 4, CHUNK, 5, ((64, 64),), 16, 1)
    folder = tmp_path_factory.mktemp("policy") / "start"
    ControlPolicy(Network(shape)).save(folder)
    return folder


def test_it_is_the_other_version(suite):
    """All of this file would try the robosuite that is installed here."""
    versions = ", ".join(f"{name}.__version__" for name in ("numpy", "mujoco", "robosuite"))
    code = f"import sys, numpy, mujoco, robosuite; print(sys.version_info[:2], {versions})"
    run = subprocess.run([suite["python"], "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split("\n")[-2] == "(3, 11) 1.26.4 2.3.7 1.4.0" != np.__version__


def test_scenes_and_snapshots_are_exact_in_every_process(suite, bits, controls):
    """Two policies would not meet the same scenes."""
    one, other = Remote(**suite), Remote(**suite)
    following, episodes = controls(one, 0, 6), []
    for robot, seeds in ((one, (5,)), (other, (9, 5))):
        for seed in seeds:
            robot.reset(seed)
            episodes.append([(bits(robot.get_observation()), robot.send_action(c).tobytes(), robot.status())
                             for c in following])  # fmt: skip
    assert episodes[0] == episodes[2] != episodes[1] and one.controls.names == ("x", "y", "z", "grip")
    snapshot = one.snapshot()
    futures = []
    for robot in (one, other):
        robot.restore(snapshot)
        robot.send_action(following[0])
        futures.append((bits(robot.get_observation()), robot.status()))
    assert futures[0] == futures[1]
    one.close(), other.close()


def test_a_simulator_that_is_killed_costs_one_episode(suite):
    """A crash of MuJoCo in the other interpreter would end the run."""
    import psutil

    pool = RobotPool("robot.sim.remote:Remote", suite, size=1)
    try:
        episode = pool.environment(3, ticks=8)
        first = episode.reset()
        worker = psutil.Process(episode._worker.pid)
        next(each for each in worker.children() if "remote_host.py" in " ".join(each.cmdline())).kill()
        step = episode.step(np.zeros((4, 4), np.float32))
        assert step.truncated and step.fault.endswith("the simulator died (signal 9)")
        again = pool.environment(3, ticks=8)
        assert (again.reset().state == first.state).all()
        again.close()
    finally:
        pool.close()


def test_a_policy_trains_and_is_evaluated_on_it(suite, policy, tmp_path):
    """What LIBERO and the like are wanted for: learning from pixels, and results that another can repeat."""
    from safetensors.torch import load_file

    from vlrl.cli import main

    robot = json.dumps({"name": "remote", **suite})
    task = [f"task.robot={robot}", f"task.horizon={HORIZON}", f"task.chunk={CHUNK}", "task.workers=1",
            "task.scenes=2", "task.held_out=2", "task.weights={success: 1.0, shaped: 1.0}"]  # fmt: skip
    config = str(ROOT / "configs" / "manipulation.yaml")
    run = [f"out={tmp_path / 'run'}", f"policy.model={policy}", "train.steps=2", "train.prompts_per_step=2",
           "train.group_size=2", "train.num_minibatches=1", "train.update_epochs=1", "eval.num_samples=2",
           "log.trackers=[]", "log.checkpoint_every=2"]  # fmt: skip
    assert main(["train", config, *task, *run]) == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len([row for row in rows if "length" in row]) == 2
    before, after = (load_file(next(each.rglob("model.safetensors"))) for each in (policy, tmp_path / "run"))
    assert [name for name, weight in before.items() if (weight != after[name]).any()]
    results = []
    for name in ("first", "second"):
        out = tmp_path / name
        arguments = ["--policy", str(tmp_path / "run"), "--against", "random", "--episodes", "2", "--out", str(out)]
        assert main(["simulate", config, *task, *arguments]) == 0
        result = json.loads((out / "result.json").read_text())
        results.append((result["episodes"], result["facts"]["scenes"]))
    assert results[0] == results[1]
