"""Runs whose weights lie in parts in two processes (FSDP2), beside the same runs in one."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from vlrl import config as configs
from vlrl.types import UserError

_spec = importlib.util.spec_from_file_location("processes", Path(__file__).with_name("processes.py"))
processes = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(processes)
launch, ended, workplace = processes.launch, processes.ended, processes.workplace
TRAIN = processes.CONFIG["train"]

# rounding apart, all that a run does hangs on its configuration
UNEVEN = {"train": TRAIN | {"steps": 2, "microbatch": 1, "prompts": 5, "minibatches": 1}}  # three forwards beside two
LONG = {"policy": {"model": "embedded", "max_tokens": 160}, "train": TRAIN | {"steps": 2, "prompts": 2}}
ADAPTER = {"policy": processes.CONFIG["policy"] | {"lora": {"rank": 2}}, "train": TRAIN | {"steps": 2}}
LEAN = {"policy": processes.CONFIG["policy"] | {"gradient_checkpointing": True}, "train": TRAIN | {"steps": 2}}
VARIANTS: dict[str, dict[str, Any]] = processes.RECIPES | {
    "uneven": UNEVEN, "long": LONG, "adapter": ADAPTER, "checkpointing": LEAN,
}  # fmt: skip


@pytest.fixture
def parted(monkeypatch):
    """Processes that are started have weights in parts, as `accelerate launch --use_fsdp --fsdp_version 2` tells."""
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("FSDP_VERSION", "2")
    monkeypatch.setenv("FSDP_CPU_RAM_EFFICIENT_LOADING", "true")  # as the launcher does by itself


@pytest.fixture(scope="module")
def finished(launch, tmp_path_factory):
    """`finished("grpo", 2)`: the folder of a run of a variant in so many processes."""

    def make(variant: str, size: int) -> Path:
        return workplace(tmp_path_factory.mktemp(variant) / str(size), **VARIANTS[variant])

    return processes.finishing(launch, make)


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_parts_train_what_whole_weights_do(variant, finished, monkeypatch, request):
    """Else what a model of many GPUs learns is not what was asked for, or processes wait for each other for ever."""
    one = finished(variant, 1)
    request.getfixturevalue("parted")
    assert_same_run(finished(variant, 2), one)


@pytest.mark.parametrize("sizes", [(2, 1), (1, 2)], ids=["in parts to one", "one to in parts"])
def test_a_checkpoint_goes_on_in_parts_or_whole(sizes, finished, launch, tmp_path, request):
    """Else a run of eight GPUs can be looked at, or gone on with, on eight GPUs alone."""
    before, after = sizes
    one = finished("grpo", 1)
    if before == 2:
        request.getfixturevalue("parted")
    folder = shutil.copytree(finished("grpo", before), tmp_path / "copy")
    shutil.rmtree(folder / "run" / "checkpoints" / "step_000004")
    if after == 2:
        request.getfixturevalue("parted")
    assert ended(launch(after, folder, "train", "--resume", "run"), folder) == [0] * after
    assert_same_run(folder, one)


NOT_FINITE = """
import torch

def broken(now, batch):
    \"\"\"Not finite where a completion of the second process is among the rows.\"\"\"
    from vlrl.parallel import here
    return now.logprobs * (float("nan") if here().rank == 1 else 1.0)
"""


def test_a_loss_that_is_not_finite_in_one_process_holds_up_none(launch, parted, tmp_path):
    """Else one bad sample leaves eight GPUs waiting: the update is skipped in all, and the run goes on to its end."""
    broken = {"losses": [{"name": "mine:broken"}], "train": TRAIN | {"steps": 2, "microbatch": 1, "minibatches": 1}}
    folder = workplace(tmp_path / "broken", **broken)
    (folder / "mine.py").write_text((folder / "mine.py").read_text() + NOT_FINITE)
    assert ended(launch(2, folder, "train", "config.yaml"), folder) == [0, 0]
    assert (folder / "run" / "skipped.jsonl").read_text().count("\n") == 2


HOLDS = """
from pathlib import Path

class Holds:
    \"\"\"Writes how many numbers of a moment this process has, behind each update.\"\"\"

    def __init__(self, policy, task, updater, seed):
        self.optimizer = updater.optimizer

    def after(self, step, row):
        from vlrl.parallel import here
        from vlrl.parallel.sharded import local
        held = [local(state["exp_avg"]).numel() for state in self.optimizer.state.values()]
        Path(f"held_{here().rank}").write_text(str(sum(held)))
"""


def test_each_process_holds_a_part(launch, parted, tmp_path):
    """Else a run that was launched for parts of the optimizer's state runs out of memory all the same."""
    folder = workplace(tmp_path / "held", hooks=[{"name": "mine:Holds"}], train=TRAIN | {"steps": 1})
    (folder / "mine.py").write_text((folder / "mine.py").read_text() + HOLDS)
    assert ended(launch(2, folder, "train", "config.yaml"), folder) == [0, 0]
    held = [int((folder / f"held_{rank}").read_text()) for rank in (0, 1)]
    saved = load_file(folder / "run" / "checkpoints" / "step_000001" / "model.safetensors")
    tower = sum(value.numel() for name, value in saved.items() if "visual" in name)
    language = sum(value.numel() for name, value in saved.items() if "visual" not in name)
    assert sum(held) == 2 * tower + language
    assert abs(held[0] - held[1]) < language / 10


def assert_same_run(one: Path, other: Path) -> None:
    """Rows of metrics, weights and moments of the optimizer."""
    for row, expected in zip(processes.rows(one), processes.rows(other), strict=True):
        assert row == pytest.approx(expected, rel=1e-5, abs=1e-5)
    for name in ("*model.safetensors", "trainer.safetensors"):
        saved = [next(sorted((f / "run" / "checkpoints").glob("step_*"))[-1].glob(name)) for f in (one, other)]
        held = [load_file(file) for file in saved]
        assert held[0].keys() == held[1].keys()
        for key, value in held[0].items():
            torch.testing.assert_close(value, held[1][key], rtol=1e-4, atol=1e-6)


# -- refusals ----------------------------------------------------------------------------------------------------

WRONG = {
    "matrices": ({"train": {"optimizer": "muon"}}, "train.optimizer: muon changes whole matrices"),
    "frozen": ({"policy": {"freeze": ["language"]}}, "policy.freeze: FSDP parts the language model"),
    "graphs": ({"policy": {"cuda_graphs": True}}, "policy.cuda_graphs: FSDP puts weights"),
    "ahead": ({"train": {"staleness": 1}}, "train.staleness: copies whole weights"),
    "references": (
        {"hooks": ["soft_sync"], "losses": ["ppo_clip", {"name": "kl", "coef": 0.1}]},
        "hooks.0 (soft_sync) changes whole weights",
    ),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_what_needs_whole_weights_is_refused(name, parted, tmp_path, monkeypatch):
    """Else such a run ends far into the night, or changes a part of its weights."""
    changes, message = WRONG[name]
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({"task": "gui_grounding", "out": "run"} | changes))
    configs.load(tmp_path / "c.yaml")  # in one process nothing is in parts
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError) as told:
        configs.load(tmp_path / "c.yaml")
    assert message in str(told.value) and "\n" not in str(told.value)


def test_fsdp_of_the_first_version_is_refused(tmp_path, parted, monkeypatch):
    """Else a run that was launched for parts of the weights holds all of them everywhere."""
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({"task": "gui_grounding", "out": "run"}))
    monkeypatch.setenv("FSDP_VERSION", "1")
    with pytest.raises(UserError, match="FSDP is there in its version 2 alone: set fsdp_version: 2"):
        configs.load(tmp_path / "c.yaml")
