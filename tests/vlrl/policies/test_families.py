"""Runs of a family outside the packed path: killed and resumed, in two processes; what it is refused, in one line."""

from __future__ import annotations

import importlib.util
import json
import signal
import time
from pathlib import Path

import pytest

from vlrl.cli import main
from vlrl.config import Lora, PolicySection
from vlrl.policies import tiny
from vlrl.policies.loading import load
from vlrl.types import UserError

_spec = importlib.util.spec_from_file_location("processes", Path(__file__).parents[1] / "processes.py")
processes = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(processes)
launch, rows = processes.launch, processes.rows


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("gemma3")
    for part in tiny.build_family("gemma3"):
        part.save_pretrained(path)
    return path


@pytest.fixture
def workplace(model, tmp_path):
    """`workplace("one")`: a folder with a run's configuration."""
    return lambda name: processes.workplace(tmp_path / name, policy={"model": str(model), "max_tokens": 5})


@pytest.mark.slow
def test_a_killed_run_goes_on_and_two_processes_train_what_one_does(launch, workplace):
    """Else a reboot spoils a run, or a result depends on how many GPUs there were."""
    one, killed, two = (workplace(name) for name in ("one", "killed", "two"))
    assert processes.ended(launch(1, one, "train", "config.yaml"), one) == [0]
    (process,) = launch(1, killed, "train", "config.yaml")
    file, end = killed / "run" / "metrics.jsonl", time.monotonic() + processes.PATIENCE
    while not (file.exists() and file.read_text().count('"loss"') >= 2):
        assert time.monotonic() < end and process.is_alive()
        time.sleep(0.05)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert processes.ended(launch(1, killed, "train", "--resume", "run"), killed) == [0]
    assert rows(killed) == rows(one)
    assert processes.ended(launch(2, two, "train", "config.yaml"), two) == [0, 0]
    processes.assert_same_run(two, one)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_type_of_random_weights_learns_by_one_command(tmp_path):
    """docs/models.md says that a family learns, not only that its numbers agree."""
    settings = ["start.model.family=lfm2_vl", f"out={tmp_path}", "rl.train.steps=120"]
    assert main(["stages", "configs/stages/any_type.yaml", *settings]) == 0
    start, rl = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("01_start", "02_rl"))
    assert start["after"]["value"] == rl["before"]["value"] > 0.3
    assert rl["after"]["low"] > rl["before"]["high"]


@pytest.mark.slow
def test_weights_in_parts_are_refused_in_one_line(launch, workplace, monkeypatch):
    """FSDP knows the layers of the packed families alone: others would end in a traceback of torch."""
    for name, value in processes.LAUNCHED["fsdp"].items():
        monkeypatch.setenv(name, value)
    folder = workplace("fsdp")
    assert processes.ended(launch(2, folder, "train", "config.yaml"), folder) == [2, 2]
    assert "FSDP parts models of qwen2_5_vl and qwen3_vl, not gemma3" in (folder / "0.err").read_text()


def test_what_is_for_the_packed_families_is_refused_in_one_line(model, capsys):
    """Users of other families read what to do, not a traceback."""
    assert main(["serve-model", str(model)]) == 2
    assert "not of gemma3" in capsys.readouterr().err
    with pytest.raises(UserError, match="writes for qwen2_5_vl, qwen3_vl only"):
        load(PolicySection(model=str(model), engine={"name": "server", "urls": ["http://127.0.0.1:9"]}), device="cpu")


def test_adapters_of_experts_are_refused_in_one_line(tmp_path):
    """Experts' matrices lie in one three-dimensional parameter, which no adapter of peft's linear layers fits."""
    for part in tiny.build_family("qwen3_vl_moe"):
        part.save_pretrained(tmp_path)
    for targets, reason in (
        ("experts", "not found"), (["experts"], "Experts is no layer that peft can adapt"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=rf"^policy\.lora\.targets: .*{reason}"):
            load(PolicySection(model=str(tmp_path), lora=Lora(rank=2, alpha=4, targets=targets)), device="cpu")
