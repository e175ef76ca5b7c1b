"""Whole runs on other people's environments: they resume exactly, and outlive a process that dies."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import yaml

from tests.vlrl.processes import PATIENCE, Launch, ended, launch
from vlrl.imitation.behaviour_cloning import make_control
from vlrl.policies.discrete import DiscreteShape

__all__ = ["launch"]  # a fixture
pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
TOYS = (HERE / "toy_points.py", HERE / "toy_worlds.py", HERE.parent / "tasks" / "toy_verifiers.py")
TEXT = {"model": "embedded", "max_tokens": 8, "max_pixels": 4096}
GYM = {"name": "gym", "id": "toy_worlds:Echo-v0", "turns": 2, "template": "short", "held_out": 1}
SERVED = {"name": "openenv", "app": "toy_worlds:app", "sends": "completion", "turns": 2, "held_out": 1}
SUMS = {"name": "reasoning_gym", "generators": ["chain_sum"], "held_out": 1}
POINT = {"name": "remote", "python": sys.executable, "make": "toy_points.py:make_env", "patience": 300}
HUB = {"name": "manipulation", "robot": POINT, "horizon": 8, "chunk": 2, "scenes": 9, "held_out": 1, "workers": 1}
OTHERS = {
    id: {"name": "verifiers", "id": id, "held_out": 1}
    for id in ("toy-verifiers", "toy_verifiers:guess", "toy_verifiers:Shop")
}
PACKAGES = {"gym": "gymnasium", "openenv": "openenv", "reasoning_gym": "reasoning_gym", "manipulation": "gymnasium",
            "verifiers": "verifiers"}  # fmt: skip
TASKS = {"gym": GYM, "openenv": SERVED, "reasoning_gym": SUMS, "envhub": HUB, **OTHERS}
VERSIONS = {"verifiers": ("eval/verifiers", "0.4."), "openenv": ("eval/openenv-core", "0.")}
KILL_AT = {"gym": 3, "openenv": 18, "envhub": 80}  # a step of the environment's process in mid-run


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """`place("name", task)`: the folder of a run to be."""

    def make(name: str, task: dict) -> Path:
        if find_spec(PACKAGES[task["name"]]) is None:
            pytest.skip(f"{PACKAGES[task['name']]} is not installed")
        folder = tmp_path_factory.mktemp(name)
        for toy in TOYS:
            shutil.copy(toy, folder)
        policy = TEXT
        if task["name"] == "manipulation":
            torch.manual_seed(0)
            shape = DiscreteShape(2, ("a0", "a1"), (-1.0, -1.0), (1.0, 1.0), chunk=2, hidden=8, layers=1)
            make_control(shape, torch.eye(2), 0).save(folder / "start")
            policy = {"model": "start"}
        train = {"steps": 5, "prompts_per_step": 2, "group_size": 3, "lr": 1e-3}
        log = {"trackers": [], "checkpoint_every": 2}
        config = {"out": "run", "task": task, "policy": policy, "train": train, "log": log,
                  "eval": {"num_samples": 1, "every_steps": 100},
                  "advantages": [{"name": "grpo", "std": "group"}], "losses": [{"name": "ppo_clip"}]}  # fmt: skip
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        return folder

    return make


def read_rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]


def read_weights(folder: Path) -> list[bytes]:
    files = sorted((folder / "run" / "checkpoints" / "step_000005").glob("*.safetensors"))
    assert files
    return [file.read_bytes() for file in files]


@pytest.fixture(scope="module")
def straight(launch, place):
    """`straight("gym")`: the folder of a run that nothing disturbs, played once."""

    @cache
    def play(name: str) -> Path:
        folder = place("straight", TASKS[name])
        train(launch, folder, "config.yaml")
        return folder

    return play


def train(launch: Launch, folder: Path, *arguments: str) -> None:
    assert ended(launch(1, folder, "train", *arguments), folder) == [0], (folder / "0.err").read_text()


def kill_after(process, folder: Path, steps: int) -> None:
    """SIGKILL to a run that has finished so many steps."""
    metrics, deadline = folder / "run" / "metrics.jsonl", time.monotonic() + PATIENCE
    while not metrics.exists() or metrics.read_text().count('"loss"') < steps:
        assert process.is_alive() and time.monotonic() < deadline, (folder / "0.err").read_text()
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.join(PATIENCE)
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("name", TASKS)
def test_a_killed_run_resumes_exactly_and_knows_its_versions(name, launch, place, straight):
    """What an environment keeps between episodes must not be needed; an update of it must not pass unnoticed."""
    expected, killed = straight(name), place("killed", TASKS[name])
    (process,) = launch(1, killed, "train", "config.yaml")
    kill_after(process, killed, steps=3)
    train(launch, killed, "--resume", "run")
    metrics, resumed = ((folder / "run" / "metrics.jsonl").read_bytes() for folder in (expected, killed))
    assert metrics == resumed and read_weights(expected) == read_weights(killed)
    rows = read_rows(expected)
    learned = [row for row in rows if "loss" in row]
    assert len(learned) == 5 and (name in OTHERS or any(row["grad_norm"] > 0 for row in learned))
    key, version = VERSIONS.get(TASKS[name]["name"], ("step", ""))
    assert str(rows[-1][key]).startswith(version)
    assert name not in OTHERS or rows[-1]["eval/environment"] == name


@pytest.mark.parametrize("name", KILL_AT)
def test_a_run_whose_environment_is_killed_goes_on(name, launch, place, straight):
    """Its episode would be paid as if the policy had failed, or end hours of training."""
    expected, hurt = straight(name), place("hurt", TASKS[name])
    (order := hurt / "kill").write_text(str(KILL_AT[name]))
    train(launch, hurt, "config.yaml")
    assert not order.exists()
    learned = [[row for row in read_rows(folder) if "loss" in row] for folder in (expected, hurt)]
    repeated = [row["repeated"] for row in learned[1]]
    assert sorted(repeated) == [0, 0, 0, 0, 1] and not any(row["repeated"] for row in learned[0])
    before = repeated.index(1)
    assert learned[0][:before] == learned[1][:before]
    assert {row["played"] for row in learned[1]} == {6}
