"""Runs whose weights (FSDP2), optimizer (DeepSpeed) or sequences lie in parts, beside the same runs in one process."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env
from safetensors.torch import load_file

from vlrl.recipe_checks import load_config
from vlrl.types import UserError

pytestmark = pytest.mark.slow

_spec = importlib.util.spec_from_file_location("processes", Path(__file__).with_name("processes.py"))
processes = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(processes)
launch, ended, workplace = processes.launch, processes.ended, processes.workplace
TRAIN = processes.CONFIG["train"]

# rounding apart, all that a run does hangs on its configuration
UNEVEN = {
    "train": TRAIN | {"steps": 2, "micro_batch_size": 1, "prompts_per_step": 5, "num_minibatches": 1}
}  # three forwards beside two
APART = {"train": TRAIN | {"steps": 2, "num_minibatches": 5}}  # of one group each: some without a picture
LONG = {"policy": {"model": "embedded", "max_tokens": 160}, "train": TRAIN | {"steps": 2, "prompts_per_step": 2}}
ADAPTER = {"policy": processes.CONFIG["policy"] | {"lora": {"rank": 2}}, "train": TRAIN | {"steps": 2}}
LEAN = {"policy": processes.CONFIG["policy"] | {"gradient_checkpointing": True}, "train": TRAIN | {"steps": 2}}
VARIANTS: dict[str, dict[str, Any]] = processes.RECIPES | {
    "uneven": UNEVEN, "long": LONG, "adapter": ADAPTER, "checkpointing": LEAN, "apart": APART,
}  # fmt: skip
DEEPSPEED = processes.LAUNCHED["deepspeed"]
KINDS = {
    "one": {},
    **processes.LAUNCHED,
    "on hosts": DEEPSPEED | {"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "cpu"},
    # as `accelerate launch --use_parallelism_config` says it
    "slices of parts": processes.LAUNCHED["fsdp"]
    | processes.LAUNCHED["slices"]
    | {"ACCELERATE_USE_PARALLELISM_CONFIG": "true"},
}
SIZES = {"one": 1, "fsdp": 2, "deepspeed": 2, "on hosts": 2, "slices": 2, "slices of parts": 4}
SAME = [("fsdp", variant) for variant in VARIANTS]
SAME += [
    ("deepspeed", "grpo"),
    ("deepspeed", "apart"),
    ("deepspeed", "mssr"),
    ("deepspeed", "adapter"),
    ("on hosts", "whole"),
]
SAME += [("slices", variant) for variant in ("grpo", "uneven", "long", "talks", "adapter", "checkpointing")]
SAME += [("slices of parts", variant) for variant in ("uneven", "talks")]


@contextlib.contextmanager
def told(kind: str) -> Iterator[None]:
    """The environment of a kind."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in KINDS[kind].items():
            patch.setenv(name, value)
        yield


@contextlib.contextmanager
def launched(kind: str) -> Iterator[int]:
    """Processes that are started meanwhile are of a kind; how many there are to be."""
    if KINDS[kind].keys() >= DEEPSPEED.keys() and not importlib.util.find_spec("deepspeed"):
        pytest.skip("the extra deepspeed")
    with told(kind):
        yield SIZES[kind]


@pytest.fixture
def parted():
    with told("fsdp"):
        yield


@pytest.fixture(scope="module")
def finished(launch, tmp_path_factory):
    """`finished("fsdp", "grpo")`: the folder of a run of a variant in processes of a kind."""

    def make(variant: str, size: int) -> Path:
        return workplace(tmp_path_factory.mktemp(variant) / str(size), **VARIANTS[variant])

    known = {kind: processes.finishing(launch, make) for kind in KINDS}

    def of(kind: str, variant: str) -> Path:
        with launched(kind) as size:
            return known[kind](variant, size)

    return of


@pytest.mark.parametrize(("kind", "variant"), SAME)
def test_parts_train_what_whole_weights_do(kind, variant, finished):
    """Else what a model of many GPUs learns is not what was asked for, or processes wait for each other for ever."""
    assert_same_run(finished(kind, variant), finished("one", variant))


@pytest.mark.parametrize(
    ("before", "after"), [("fsdp", "one"), ("one", "fsdp"), ("deepspeed", "one"), ("one", "deepspeed")]
)
def test_a_checkpoint_goes_on_in_parts_or_whole(before, after, finished, launch, tmp_path):
    """Else a run of eight GPUs can be looked at, or gone on with, on eight GPUs alone."""
    folder = shutil.copytree(finished(before, "grpo"), tmp_path / "copy")
    shutil.rmtree(folder / "run" / "checkpoints" / "step_000004")
    with launched(after) as size:
        assert ended(launch(size, folder, "train", "--resume", "run"), folder) == [0] * size
    assert_same_run(folder, finished("one", "grpo"))


NOT_FINITE = """
import torch
from vlrl.methods import Callback, method

@method
def broken(now, batch):
    \"\"\"Not finite where a completion of the second process is among the rows.\"\"\"
    from vlrl.distributed.world import get_world
    return now.logprobs * (float("nan") if get_world().rank == 1 else 1.0)
"""


@pytest.mark.parametrize("kind", ["fsdp", "deepspeed", "slices"])
def test_a_loss_that_is_not_finite_in_one_process_holds_up_none(kind, launch, tmp_path):
    """Else one bad sample leaves eight GPUs waiting: the update is skipped in all, and the run goes on to its end."""
    broken = {
        "losses": [{"name": "mine:broken"}],
        "train": TRAIN | {"steps": 2, "micro_batch_size": 1, "num_minibatches": 1},
    }
    folder = workplace(tmp_path / "broken", **broken)
    (folder / "mine.py").write_text((folder / "mine.py").read_text() + NOT_FINITE)
    with launched(kind):
        assert ended(launch(2, folder, "train", "config.yaml"), folder) == [0, 0]
    assert (folder / "run" / "skipped.jsonl").read_text().count("\n") == 2


HOLDS = """
from pathlib import Path
from vlrl.methods import Callback, method

@method
class Holds(Callback):
    \"\"\"Writes how many numbers of a moment this process has, behind each update.\"\"\"

    def __init__(self, policy, task, updater, seed):
        self.optimizer = getattr(updater.optimizer, "steps", updater).optimizer

    def on_step_end(self, step, row):
        from vlrl.distributed.world import get_world
        from vlrl.distributed.sharding import local
        held = [local(state["exp_avg"]).numel() for state in self.optimizer.state.values()]
        Path(f"held_{get_world().rank}").write_text(str(sum(held)))
"""


@pytest.mark.parametrize(("kind", "towers"), [("fsdp", 2), ("deepspeed", 1)])
def test_each_process_holds_a_part(kind, towers, launch, tmp_path):
    """Else a run that was launched for parts of the optimizer's state runs out of memory all the same."""
    folder = workplace(tmp_path / "held", callbacks=[{"name": "mine:Holds"}], train=TRAIN | {"steps": 1})
    (folder / "mine.py").write_text((folder / "mine.py").read_text() + HOLDS)
    with launched(kind):
        assert ended(launch(2, folder, "train", "config.yaml"), folder) == [0, 0]
    held = [int((folder / f"held_{rank}").read_text()) for rank in (0, 1)]
    saved = load_file(folder / "run" / "checkpoints" / "step_000001" / "model.safetensors")
    tower = sum(value.numel() for name, value in saved.items() if "visual" in name)
    language = sum(value.numel() for name, value in saved.items() if "visual" not in name)
    assert 0 <= sum(held) - towers * tower - language < 16  # what makes parts alike
    assert abs(held[0] - held[1]) < language / 10


KEEPS = """
import torch
from pathlib import Path
from vlrl.methods import Callback, method

@method
class Keeps(Callback):
    \"\"\"Writes how many bytes the language model's layers of this process have kept for backward passes.\"\"\"

    def __init__(self, policy, task, updater, seed):
        kept, update, layers = [], updater.step, policy.model.model.language_model.layers

        def keep(value):
            kept.append(value.nbytes)
            return value

        def counted(forward):
            def passed(*given, **named):
                with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
                    return forward(*given, **named)
            return passed

        def step(*given):
            for layer in layers:
                layer.forward = counted(layer.forward)
            weights = sum(p.nbytes for p in layers.parameters())
            stats = update(*given)
            from vlrl.distributed.world import get_world
            Path(f"kept_{get_world().rank}").write_text(f"{sum(kept)} {weights}")
            return stats

        updater.step = step
"""


def test_each_process_keeps_a_slice(launch, tmp_path):
    """Else a conversation that does not fit one GPU does not fit two either."""
    kept = {}
    for kind in ("one", "slices"):
        folder = workplace(
            tmp_path / kind, callbacks=[{"name": "mine:Keeps"}], task={"name": "gui_grounding"},
            train=TRAIN | {"steps": 1, "micro_batch_size": 1, "num_minibatches": 1, "prompts_per_step": 2},
        )  # fmt: skip
        (folder / "mine.py").write_text((folder / "mine.py").read_text() + KEEPS)
        with launched(kind) as size:
            assert ended(launch(size, folder, "train", "config.yaml"), folder) == [0] * size
        texts = [(folder / f"kept_{rank}").read_text().split() for rank in range(size)]
        kept[kind] = [int(all_of_it) - 2 * int(weights) for all_of_it, weights in texts]  # of two passes
    assert max(kept["slices"]) < 0.6 * kept["one"][0]  # both pass both groups


def assert_same_run(one: Path, other: Path) -> None:
    """Rows of metrics, weights and moments of the optimizer."""
    for row, expected in zip(processes.rows(one), processes.rows(other), strict=True):
        assert row == pytest.approx(expected, rel=1e-5, abs=1e-5)
    for name in ("*model.safetensors", "trainer*.safetensors"):  # what lay in parts has a file of its own
        saved = [sorted((f / "run" / "checkpoints").glob("step_*"))[-1].glob(name) for f in (one, other)]
        held = [
            {key.partition("#")[0]: value for file in files for key, value in load_file(file).items()}
            for files in saved
        ]  # fmt: skip
        assert held[0].keys() == held[1].keys()
        for key, value in held[0].items():
            torch.testing.assert_close(value, held[1][key], rtol=1e-4, atol=1e-6)


# -- refusals ----------------------------------------------------------------------------------------------------

WRONG = {
    "matrices": ({"train": {"optimizer": "muon"}}, "train.optimizer: muon changes whole matrices"),
    "frozen": ({"policy": {"freeze": ["language"]}}, "policy.freeze: FSDP parts the language model"),
    "graphs": ({"policy": {"cuda_graphs": True}}, "policy.cuda_graphs: FSDP puts weights"),
    "ahead": ({"train": {"max_staleness": 1}}, "train.max_staleness: copies whole weights"),
    "references": (
        {"callbacks": ["soft_sync"], "losses": ["ppo_clip", {"name": "kl", "coef": 0.1}]},
        "callbacks.0 (soft_sync) changes whole weights",
    ),
}


@pytest.mark.parametrize("name", list(WRONG))
def test_what_needs_whole_weights_is_refused(name, parted, tmp_path, monkeypatch):
    """Else such a run ends far into the night, or changes a part of its weights."""
    changes, message = WRONG[name]
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({"task": "gui_grounding", "out": "run"} | changes))
    load_config(tmp_path / "c.yaml")  # in one process nothing is in parts
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError) as found:
        load_config(tmp_path / "c.yaml")
    assert message in str(found.value) and "\n" not in str(found.value)


OTHERWISE = {
    "the second": ({"ZERO_STAGE": "2"}, {}, "there in its stage 1"),
    "weights elsewhere": ({"OFFLOAD_PARAM_DEVICE": "cpu"}, {}, "without offload_param_device"),
    "on a disk": ({"OFFLOAD_OPTIMIZER_DEVICE": "nvme"}, {}, "offload_optimizer_device is cpu or none"),
    "a file": ({"CONFIG_FILE": "mine.json"}, {}, "a deepspeed_config_file has no effect"),
    "matrices": ({}, {"train": {"optimizer": "muon"}}, "train.optimizer: DeepSpeed parts adamw alone"),
    "anew": (
        {}, {"callbacks": ["reference_reset"], "losses": ["ppo_clip", {"name": "kl", "coef": 0.1}]},
        "callbacks.0 (reference_reset) makes the optimizer anew",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(OTHERWISE))
def test_what_deepspeed_is_not_asked_for_is_refused(name, tmp_path, monkeypatch):
    """Else a run was launched for memory, or for a setting, that it does not get."""
    settings, changes, message = OTHERWISE[name]
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({"task": "gui_grounding", "out": "run"} | changes))
    with told("deepspeed"):
        monkeypatch.setenv("WORLD_SIZE", "2")
        for setting, value in settings.items():
            monkeypatch.setenv(f"ACCELERATE_DEEPSPEED_{setting}", value)
        with pytest.raises(UserError) as found:
            load_config(tmp_path / "c.yaml")
    assert message in str(found.value) and "\n" not in str(found.value)


def test_deepspeed_that_cannot_be_had_is_refused(tmp_path, monkeypatch):
    """Else a run of one process, or without the package, trains without what it was launched for."""
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({"task": "gui_grounding", "out": "run"}))
    with told("deepspeed"):
        with pytest.raises(UserError, match="nothing to part in one process"):
            load_config(tmp_path / "c.yaml")
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setitem(sys.modules, "deepspeed", None)
        with pytest.raises(UserError, match=r"not installed: pip install 'vlrl\[deepspeed\]'"):
            load_config(tmp_path / "c.yaml")


UNSHARED = {
    "three": ({"WORLD_SIZE": "3"}, {}, "3 processes do not share sequences evenly"),
    "alone": ({}, {}, "PARALLELISM_CONFIG_SP_SIZE=2: 1 processes do not share"),
    "nobody": ({"PARALLELISM_CONFIG_SP_SIZE": "0"}, {}, "PARALLELISM_CONFIG_SP_SIZE: '0': must be a number"),
    "plain": ({"WORLD_SIZE": "2"}, {"train": {"shared_prefix": False}}, "train.shared_prefix: false has no passes"),
    "matrices": ({"WORLD_SIZE": "2", "PARALLELISM_CONFIG_TP_SIZE": "2"}, {}, "parallelism_config_tp_size is not there"),
    "rings": ({"WORLD_SIZE": "2", "PARALLELISM_CONFIG_CP_SIZE": "2"}, {}, "parallelism_config_cp_size is not there"),
}


@pytest.mark.parametrize("name", list(UNSHARED))
def test_sequences_that_cannot_be_shared_are_refused(name, tmp_path, monkeypatch):
    """Else such a run waits for ever, or shares nothing."""
    settings, changes, message = UNSHARED[name]
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({"task": "gui_grounding", "out": "run"} | changes))
    for setting, value in (KINDS["slices"] | settings).items():
        monkeypatch.setenv(setting, value)
    with pytest.raises(UserError) as found:
        load_config(tmp_path / "c.yaml")
    assert message in str(found.value) and "\n" not in str(found.value)


def test_accelerate_says_what_the_processes_read():
    """Else its configuration shares nothing."""
    file = Path(__file__).parents[2] / "configs/accelerate/slices_8.yaml"
    arguments = launch_command_parser().parse_args(["--config_file", str(file), "run.py"])
    environment = prepare_multi_gpu_env(_validate_launch_command(arguments)[0])
    assert environment["PARALLELISM_CONFIG_SP_SIZE"] == "4" and environment["FSDP_VERSION"] == "2"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "=3: the model's 4 attention heads cannot be shared out evenly"),
        ({"task": {"name": "manipulation"}, "policy": {"model": "embedded_push"}}, "are shared by language models of"),
    ],
    ids=["heads", "a robot"],
)
def test_policies_whose_sequences_cannot_be_shared_are_refused(changes, message, launch, tmp_path, monkeypatch):
    """As above, once the model is there."""
    folder = workplace(tmp_path / "run", **changes)
    monkeypatch.setenv("PARALLELISM_CONFIG_SP_SIZE", "3")
    assert ended(launch(3, folder, "train", "config.yaml"), folder) == [2] * 3
    assert message in (folder / "0.err").read_text()


def test_fsdp_of_the_first_version_is_refused(tmp_path, parted, monkeypatch):
    """Else a run that was launched for parts of the weights holds all of them everywhere."""
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({"task": "gui_grounding", "out": "run"}))
    monkeypatch.setenv("FSDP_VERSION", "1")
    with pytest.raises(UserError, match="FSDP is there in its version 2 alone: set fsdp_version: 2"):
        load_config(tmp_path / "c.yaml")
