"""Runs of the command line in one process and in several, as torchrun starts them."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import runpy
import socket
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

HELPER = Path(__file__).with_name("run_cli.py")
PRELOADED = ["vlrl.trainer", "vlrl.policies.tiny", "tasks.gui_grounding", "qwen_vl_utils",
             "transformers.loss.loss_utils", "transformers.models.auto.processing_auto", "torchvision"]  # fmt: skip
PATIENCE = 200

MODULE = '''
from dataclasses import dataclass, replace
from PIL import Image
from tasks.gui_grounding import GuiGrounding
from vlrl.types import Environment, Message, Observation, Score, Step


@dataclass(frozen=True)
class Said:
    letters: tuple[str, ...]


class TwoTurns(Environment):
    """Shows pictures that it draws itself."""

    def __init__(self, sample):
        self.sample, self.turns = sample, 0

    def reset(self):
        return self.shown(64)

    def shown(self, side):
        return Observation((Image.new("RGB", (side, side), (len(self.sample.id) % 256, 9, 9)), "Click it."))

    def step(self, action, frames=()):
        self.turns += 1
        return Step(self.shown(96), terminated=self.turns == 2, info={"letters": float(len(action))})

    def close(self):
        pass


class Talk(TwoTurns):
    """Shows its pictures in one conversation."""

    def shown(self, side):
        return Observation.from_messages([Message("user", super().shown(side).content)])


class Mixed(GuiGrounding):
    """A picture, a text alone, or two turns with pictures of the environment's, one after the other."""

    def samples(self, split):
        made, drawn = [], super().samples(split)
        for i in range(12):
            sample = drawn[i]
            text = replace(sample, prompt=Observation(("Say something.",)))
            made.append(text if i % 3 == 1 else sample)
        return made

    def environment(self, sample):
        number = int(sample.id.rsplit("/", 1)[1])
        return TwoTurns(sample) if number % 3 == 2 else super().environment(sample)

    def score(self, episode):
        hit = float(sum(map(ord, episode.completion)) % 2)
        return Score({"hit": hit, "format": len(episode.completion) / 10}, hit, answer=Said(tuple(episode.completion)))

    def metrics(self, episodes):
        return {"letters": sum(len(e.score.answer.letters) for e in episodes) / len(episodes)}


class Talks(Mixed):
    def environment(self, sample):
        made = super().environment(sample)
        return Talk(sample) if isinstance(made, TwoTurns) else made
'''

CONFIG: dict[str, Any] = {
    "task": {"name": "mine:Mixed"},
    "policy": {"model": "embedded", "max_tokens": 5},
    "train": {"steps": 4, "prompts_per_step": 5, "group_size": 3, "lr": 1e-6, "num_minibatches": 2},
    "eval": {"batch_size": 7},
    "log": {"checkpoint_every": 2, "rollouts_every": 2, "rollouts": 6, "trackers": []},
    "losses": [{"name": "ppo_clip"}, {"name": "kl", "coef": 0.05}],
}
WHOLE = {
    "train": {"steps": 2, "prompts_per_step": 4, "group_size": 3, "lr": 1e-6}
}  # one update, on the rollout's own prefill
MSSR = {
    "train": CONFIG["train"]
    | {"group_size": 1, "prompts_per_step": 7, "steps": 2, "micro_batch_size": 2, "update_epochs": 2},
    "sampler": {"name": "shuffled", "limit": 9},
    "advantages": [{"name": "beta_tracker", "start": 1}, {"name": "batch_norm"}, {"name": "entropy_shaping"}],
}
REFILL = {
    "train": {"steps": 2, "prompts_per_step": 4, "group_size": 2, "lr": 1e-6},
    "rollout_strategy": {"name": "filter_refill", "rounds": 2},
    "task": {"name": "gui_grounding", "pool": 12, "held_out": 8}, "replay_mixing": [{"name": "ssr"}],
}  # fmt: skip
# no term that vanishes at the start: of its rounding error Adam's first step makes a whole one
TALKS = {"task": {"name": "mine:Talks"}, "losses": [{"name": "ppo_clip"}],
         "train": CONFIG["train"] | {"micro_batch_size": 2}}  # fmt: skip
RECIPES = {"grpo": {}, "whole": WHOLE, "mssr": MSSR, "refill": REFILL, "talks": TALKS}

LAUNCHED: dict[str, dict[str, str]] = {  # what `accelerate launch` tells the processes that it starts
    "fsdp": {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true"},
    "deepspeed": {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "1"},
    "slices": {"PARALLELISM_CONFIG_SP_SIZE": "2"},
}

Launch = Callable[..., list[multiprocessing.Process]]


@pytest.fixture(scope="module")
def launch() -> Iterator[Launch]:
    """`launch(2, folder, "train", ...)`: the command in processes that know of each other as torchrun tells them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        forkserver.ensure_running()  # now: those that it starts have its environment besides what they are told

        def start(size: int, folder: Path, *arguments: str) -> list[multiprocessing.Process]:
            with contextlib.closing(socket.socket()) as free:
                free.bind(("127.0.0.1", 0))
                port = str(free.getsockname()[1])
            started = []
            for rank in range(size):
                told = {"WORLD_SIZE": size, "RANK": rank, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1"}
                told = {name: str(value) for name, value in told.items()} | {"MASTER_PORT": port}
                theirs = ("ACCELERATE_", "FSDP_", "PARALLELISM_")
                told |= {name: value for name, value in os.environ.items() if name.startswith(theirs)}
                request = {
                    "arguments": list(arguments), "folder": str(folder), "largest_file": None,
                    "output": [str(folder / f"{rank}.out"), str(folder / f"{rank}.err")],
                    "environment": told if size > 1 else {},
                }  # fmt: skip
                given = (str(HELPER), {"REQUEST": request}, "__main__")
                process = context.Process(target=runpy.run_path, args=given)
                process.start()
                started.append(process)
            return started

        yield start


def ended(processes: list[multiprocessing.Process], folder: Path) -> list[int]:
    for process in processes:
        process.join(PATIENCE)
    errors = "\n".join((folder / f"{rank}.err").read_text() for rank in range(len(processes)))
    assert all(process.exitcode is not None for process in processes), errors
    assert "Traceback" not in errors, errors
    return [process.exitcode for process in processes]


def workplace(folder: Path, **changes: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "mine.py").write_text(MODULE)
    (folder / "config.yaml").write_text(yaml.safe_dump({"out": "run"} | CONFIG | changes))
    return folder


def rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]


def assert_same_run(one: Path, other: Path) -> None:
    for row, expected in zip(rows(one), rows(other), strict=True):
        assert row == pytest.approx(expected, rel=1e-5, abs=1e-5)
    saved = [sorted((f / "run" / "checkpoints").glob("step_*"))[-1] / "model.safetensors" for f in (one, other)]
    weights = [load_file(file) for file in saved]
    for name, value in weights[0].items():  # Adam's steps are of 1e-6 each
        torch.testing.assert_close(value, weights[1][name], rtol=0, atol=1e-5)


def finishing(launch: Launch, make: Callable[[str, int], Path]) -> Callable[[str, int], Path]:
    """`finishing(launch, make)("grpo", 2)`: the folder of a run of a variant in so many processes, played once.

    make: prepares the folder of a variant for a number of processes.
    """
    known: dict[tuple[str, int], Path] = {}

    def of(variant: str, size: int) -> Path:
        if (variant, size) not in known:
            folder = make(variant, size)
            assert ended(launch(size, folder, "train", "config.yaml"), folder) == [0] * size
            known[variant, size] = folder
        return known[variant, size]

    return of
