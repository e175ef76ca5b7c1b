"""Runs in two processes, as torchrun starts them, beside the same runs in one."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from vlrl import decoders
from vlrl.distributed import world
from vlrl.distributed.world import RemoteImage, World, fingerprint
from vlrl.policies.generation import normals, uniforms
from vlrl.policies.vlm import Reply
from vlrl.recipe_checks import load_config
from vlrl.tools.memory_fit import resolve_auto
from vlrl.types import Decision, Episode, Observation, Policy, Sample, Step, Turn, UserError

pytestmark = pytest.mark.slow

_spec = importlib.util.spec_from_file_location("processes", Path(__file__).with_name("processes.py"))
processes = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(processes)
launch, ended, workplace, rows = processes.launch, processes.ended, processes.workplace, processes.rows
assert_same_run, CONFIG, PATIENCE = processes.assert_same_run, processes.CONFIG, processes.PATIENCE

SNAPSHOTS = {
    "train": {"steps": 3, "prompts_per_step": 4, "group_size": 2, "lr": 1e-6},
    "rollout_strategy": {"name": "snapshots", "share": 0.9},
}
# a teacher that differs from its pupil from the first step on, and laws over tokens beside the columns of one number
TAUGHT = {
    "policy": {"model": "embedded", "max_tokens": 5, "teacher": "policy", "teacher_hint": "success"},
    "task": {"name": "gui_grounding", "pool": 12, "held_out": 8},
    "train": {"steps": 2, "prompts_per_step": 5, "group_size": 3, "lr": 1e-6},
    "losses": [{"name": "ppo_clip"}, {"name": "generalized_jsd", "top_k": 7}],
}
# groups of earlier steps, of which fewer completions go on than there are processes
PARTIAL = {
    "policy": {"model": "embedded", "max_tokens": 12},
    "task": {"name": "gui_grounding", "pool": 12, "held_out": 8},
    "train": {"steps": 4, "prompts_per_step": 3, "group_size": 2, "lr": 1e-6},
    "rollout_strategy": {"name": "partial", "tokens": 4},
}
VARIANTS = processes.RECIPES | {"snapshots": SNAPSHOTS, "taught": TAUGHT, "partial": PARTIAL}


@pytest.fixture(scope="module")
def finished(launch, tmp_path_factory):
    """`finished("grpo", 2)`: the folder of a run of a variant in so many processes."""

    def make(variant: str, size: int) -> Path:
        return workplace(tmp_path_factory.mktemp(variant) / str(size), **VARIANTS[variant])

    return processes.finishing(launch, make)


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_two_processes_train_what_one_does(variant, finished):
    """Else a result depends on how many GPUs there were. Groups are uneven, and only some of them have pictures."""
    assert_same_run(finished(variant, 2), finished(variant, 1))


def test_only_the_main_process_writes_and_shows_all(finished):
    """Else rows are doubled, or rollouts of other processes are missing or without their pictures."""
    one, two = (finished("grpo", size) / "run" for size in (1, 2))
    assert sorted(p.relative_to(one) for p in one.rglob("*.jsonl")) == sorted(
        p.relative_to(two) for p in two.rglob("*.jsonl")
    )
    told = [(run / "rollouts" / "step_000002.jsonl").read_text().splitlines() for run in (one, two)]
    for mine, its in zip(*(map(json.loads, lines) for lines in told), strict=True):
        assert its["completion"] == mine["completion"] and its["image_sizes"] == mine["image_sizes"]
        assert its["answer"] == mine["answer"] and len(its["images"]) == len(mine["images"])
        assert all((two / name).exists() for name in its["images"])
    assert (two.parent / "0.out").read_text() and not (two.parent / "1.out").read_text()


@pytest.mark.parametrize(
    ("variant", "sizes"), [("grpo", (2, 1)), ("grpo", (1, 2)), ("talks", (2, 1))], ids=["2 to 1", "1 to 2", "talks"]
)
def test_a_checkpoint_goes_on_in_any_number_of_processes(variant, sizes, finished, launch, tmp_path):
    """Else a run is tied to the machine that it began on."""
    before, after = sizes
    folder = shutil.copytree(finished(variant, before), tmp_path / "copy")
    shutil.rmtree(folder / "run" / "checkpoints" / "step_000004")
    assert ended(launch(after, folder, "train", "--resume", "run"), folder) == [0] * after
    assert_same_run(folder, finished(variant, 1))


def test_a_signal_to_one_process_stops_all_after_the_step(launch, tmp_path):
    """Else a job that is asked to end leaves no checkpoint, or processes that wait for ever."""
    folder = workplace(tmp_path / "stopped", train=CONFIG["train"] | {"steps": 500})
    processes = launch(2, folder, "train", "config.yaml")
    deadline = time.monotonic() + PATIENCE
    while not (file := folder / "run" / "metrics.jsonl").exists() or len(file.read_text().splitlines()) < 3:
        assert all(p.is_alive() for p in processes) and time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(processes[1].pid, signal.SIGTERM)
    assert ended(processes, folder) == [130, 130]
    step = rows(folder)[-1]["step"]
    assert (folder / "run" / "checkpoints" / f"step_{step:06d}" / "trainer.json").exists()
    told = [(folder / f"{rank}.err").read_text().count("go on with") for rank in (0, 1)]
    assert told == [1, 0]


def test_processes_agree_on_what_auto_takes_and_learn_what_numbers_would(launch, finished, tmp_path):
    """Each would cut its part by its own memory, and wait for passes that the other does not make."""
    folder = workplace(tmp_path / "auto", policy=CONFIG["policy"] | {"gradient_checkpointing": "auto"})
    assert ended(launch(2, folder, "train", "config.yaml", "train.micro_batch_size=auto"), folder) == [0, 0]
    told = [(folder / f"{rank}.err").read_text() for rank in (0, 1)]
    assert "auto: train.micro_batch_size=null policy.gradient_checkpointing=false" in told[0] and "auto" not in told[1]
    assert_same_run(folder, finished("grpo", 2))


# -- refusals ----------------------------------------------------------------------------------------------------

WRONG = {
    "too few groups": ({"train": {"prompts_per_step": 1}}, "train.prompts_per_step: 1 groups a step for 2 processes"),
    "whole batches": ({"losses": ["kl_cov"]}, "losses.0 (kl_cov) compares all tokens"),
    "judges": (
        {"process_rewards": [{"name": "arena", "judge": {"name": "scripted", "words": ["["]}}]},
        "process_rewards.0 (arena) looks at all episodes",
    ),
    "trees": ({"rollout_strategy": {"name": "latr", "share": {0: 1.0}}}, "rollout_strategy: latr asks the policy"),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_what_several_processes_cannot_do_is_refused(name, tmp_path, monkeypatch):
    """Else such a run hangs, or learns from a part of what it should compare."""
    changes, message = WRONG[name]
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({"task": "gui_grounding", "out": "run"} | changes))
    load_config(tmp_path / "c.yaml")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError) as told:
        load_config(tmp_path / "c.yaml")
    assert message in str(told.value) and "\n" not in str(told.value)


def test_an_engine_that_is_not_there_is_refused(tmp_path, monkeypatch):
    """Else a run trains without what it was launched for."""
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({"task": "gui_grounding", "out": "run"}))
    monkeypatch.setenv("ACCELERATE_USE_MEGATRON_LM", "true")
    with pytest.raises(UserError, match="MEGATRON_LM is not there: use FSDP2"):
        load_config(tmp_path / "c.yaml")


@pytest.mark.parametrize("engine", list(processes.LAUNCHED))
def test_auto_is_for_whole_weights(engine, monkeypatch):
    """What is tried before a run would not be what the run holds."""
    config = load_config("gui_grounding", ["train.micro_batch_size=auto"])
    for name, value in {"WORLD_SIZE": "2", **processes.LAUNCHED[engine]}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="auto goes with whole weights"):
        resolve_auto(config, 1e9)


def test_a_mistake_is_told_of_once(launch, tmp_path):
    """Else eight GPUs print eight times what is wrong."""
    folder = workplace(tmp_path / "wrong")
    assert ended(launch(2, folder, "train", "config.yaml", "train.prompts_per_step=1"), folder) == [2, 2]
    assert ended(launch(2, folder, "compare", "config.yaml"), folder) == [2, 2]
    assert "runs in one process" in (folder / "0.err").read_text() and not (folder / "1.err").read_text()


# -- parts -------------------------------------------------------------------------------------------------------


def test_every_group_is_in_one_part():
    """Else groups are played twice or never."""
    for size in (1, 2, 3, 8):
        parts = [World(rank, size).part(11) for rank in range(size)]
        assert [i for part in parts for i in part] == list(range(11))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def episode(place: int, turns: int = 0, stream: bool = True) -> Episode:
    shown = Observation(("?",))
    turn = Turn(shown, None, Step(shown))
    return Episode(Sample(str(place), shown), 0, [turn] * turns, stream=(7, place) if stream else None)


def test_what_an_episode_draws_hangs_on_its_place_and_turn_alone():
    """Else completions change with the number of processes, or with who else is in the batch."""
    generator = torch.Generator().manual_seed(0)
    whole = uniforms([episode(i) for i in range(5)], 9, generator)
    assert np.array_equal(uniforms([episode(3), episode(1)], 6, generator), whole[[3, 1], :6])
    assert not np.array_equal(uniforms([episode(3, turns=1)], 9, generator)[0], whole[3])
    again = torch.Generator().manual_seed(0)
    assert torch.equal(generator.get_state(), again.get_state())  # named episodes leave it alone
    first, second = (uniforms([episode(0, stream=False)], 9, generator) for _ in range(2))
    assert not np.array_equal(first, second)


def test_draws_are_even_and_normal():
    """Else sampling follows another law than the one that is trained."""
    generator = torch.Generator().manual_seed(0)
    even, normal = (
        draw([episode(i) for i in range(400)], n, generator) for draw, n in ((uniforms, 50), (normals, [50]))
    )
    assert (even >= 0).all() and (even < 1).all() and len(np.unique(even)) > 19000
    assert abs(even.mean() - 0.5) < 0.01 and abs(even.std() - 12**-0.5) < 0.01
    assert abs(normal.mean()) < 0.03 and abs(normal.std() - 1) < 0.03
    assert abs(np.corrcoef(even[:-1].ravel(), even[1:].ravel())[0, 1]) < 0.03


def test_what_is_sent_arrives_as_it_was():
    """Else metrics of other processes' episodes are computed of something else."""
    value = {
        "a": [1, 2.5, None, True, "x"], 3: (float("inf"), [()]), "t": torch.arange(6).view(2, 3),
        "n": np.array(5.0, np.float32), "o": Observation(("hi",), np.ones(3, np.float32)),
    }  # fmt: skip
    back = decoders.unpack_value(decoders.pack_value(value))
    assert back["a"] == value["a"] and back[3] == value[3] and torch.equal(back["t"], value["t"])
    assert back["n"] == 5 and back["n"].dtype == np.float32
    assert back["o"].content == ("hi",) and np.array_equal(back["o"].state, value["o"].state)
    with pytest.raises(UserError, match="holds a set"):
        decoders.pack_value({"x": {1}})
    with pytest.raises(UserError, match="does not know"):
        decoders._class("os", "system")


def test_what_an_engine_sampled_is_told():
    """Else `truncated_weights` weighs the main process's own completions alone, or asks for pictures of others."""

    class Writes(Policy):
        def ids(self, decision):
            return [5, 6]

        def decide(self, *given, **named):
            raise RuntimeError("made anew")

    prompt, sampled = Observation(("?",)), torch.tensor([-0.5, -1.0])
    sample, drawn = Sample("0", prompt), Observation((Image.new("RGB", (4, 3)),))
    reply = Reply(None, (5, 6))
    made = Decision("hi", torch.zeros(2), torch.zeros(2), False, (), reply, engine_logprobs=sampled)
    played = Episode(sample, 0, [Turn(drawn, made, Step(drawn))], reward=1.0)
    row = decoders.unpack_value(decoders.pack_value(world.pack_episode(played, Writes())))
    found = world.unpack_episode(row, sample, 0, Writes(), home=1).turns[0].decision
    assert torch.equal(found.engine_logprobs, sampled) and found.inputs.tokens == (5, 6) and found.owner_rank == 1


def test_a_picture_elsewhere_has_the_key_of_the_picture():
    """Else steps that saw the same are told apart by the process that they lie in."""
    image = Image.new("RGB", (4, 3), "red")
    away = RemoteImage(image.size, fingerprint(image))
    assert fingerprint(away) == fingerprint(image) != fingerprint(Image.new("RGB", (4, 3), "blue"))
    with pytest.raises(RuntimeError, match="another process"):
        away.copy()
