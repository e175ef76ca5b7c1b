"""Several processes that train, for which a server writes."""

from __future__ import annotations

import importlib.util
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from vlrl.engines import client

pytestmark = pytest.mark.slow

_spec = importlib.util.spec_from_file_location("processes", Path(__file__).parents[1] / "processes.py")
processes = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(processes)
launch, ended, workplace = processes.launch, processes.ended, processes.workplace


LAUNCHED = {"whole": {}, **processes.LAUNCHED,
            "slices of parts": processes.LAUNCHED["fsdp"] | processes.LAUNCHED["slices"]}  # fmt: skip


@pytest.mark.parametrize("kind", list(LAUNCHED))
def test_two_processes_and_a_server_train_what_one_process_does(kind, server, launch, tmp_path, monkeypatch):
    """Else a server writes by other weights than those that learn, where more than one process has them."""
    train = processes.CONFIG["train"] | {"steps": 3, "num_minibatches": 1}
    changes = {"train": train | {"lr": 1e-5}}
    engine = {"name": "server", "urls": [server.url], "folder": str(server.folder)}
    served = {"policy": processes.CONFIG["policy"] | {"engine": engine}}
    served["advantages"] = [{"name": "grpo"}, {"name": "truncated_weights"}]
    one, two = workplace(tmp_path / "one", **changes), workplace(tmp_path / "two", **changes, **served)
    before = set(server.folder.iterdir())
    assert ended(launch(1, one, "train", "config.yaml"), one) == [0]
    if kind == "deepspeed":
        pytest.importorskip("deepspeed", reason="the extra deepspeed")
    for name, value in LAUNCHED[kind].items():
        monkeypatch.setenv(name, value)
    assert ended(launch(2, two, "train", "config.yaml"), two) == [0, 0]
    for own, served in zip(processes.rows(one), processes.rows(two), strict=True):
        for key in ("reward", "accuracy", "length", "eval/accuracy", "eval/reward"):
            assert own.get(key) == served.get(key), key
        for key in ("loss", "grad_norm", "entropy"):
            assert served.get(key) == pytest.approx(own.get(key), abs=1e-3), key
        assert abs(served.get("engine/weight", 1) - 1) < 1e-3
    assert {row["grad_norm"] > 0 for row in processes.rows(two) if "grad_norm" in row} == {True}
    left = set(server.folder.iterdir()) - before  # the newest, as forked processes end without their last words
    assert len(left) <= 1 and all(file.suffix == ".safetensors" for file in left)


HOLDS = """
from pathlib import Path
from vlrl.methods import Callback, method

@method
class Holds(Callback):
    \"\"\"Writes how many of the language model's numbers this process has before each update.\"\"\"

    def __init__(self, policy, task, updater, seed):
        self.policy = policy

    def on_step_begin(self, step):
        from vlrl.distributed.world import get_world
        from vlrl.policies.weights import local
        layers = self.policy.model.model.language_model.layers
        held = sum(local(p).numel() for p in layers.parameters())
        Path(f"held_{get_world().rank}").write_text(f"{held} {sum(p.numel() for p in layers.parameters())}")
"""


def test_weights_stay_in_parts_and_go_on_in_any_number_of_processes(server, launch, tmp_path, monkeypatch):
    """Else a model that fits no GPU whole is whole on all of them, or its checkpoints are for as many GPUs alone."""
    engine = {"name": "server", "urls": [server.url], "folder": str(server.folder)}
    made = {
        "policy": processes.CONFIG["policy"] | {"engine": engine}, "callbacks": [{"name": "mine:Holds"}],
        "losses": [{"name": "ppo_clip"}],
    }  # fmt: skip
    folder = workplace(tmp_path / "parts", **made)
    (folder / "mine.py").write_text((folder / "mine.py").read_text() + HOLDS)
    with monkeypatch.context() as patch:
        for name, value in processes.LAUNCHED["fsdp"].items():
            patch.setenv(name, value)
        assert ended(launch(2, folder, "train", "config.yaml"), folder) == [0, 0]
    (first, whole), (second, _) = (map(int, (folder / f"held_{rank}").read_text().split()) for rank in (0, 1))
    assert first + second == whole and abs(first - second) < whole / 10
    copy = shutil.copytree(folder, tmp_path / "copy")
    shutil.rmtree(copy / "run" / "checkpoints" / "step_000004")
    assert ended(launch(1, copy, "train", "--resume", "run"), copy) == [0]
    for own, resumed in zip(processes.rows(folder), processes.rows(copy), strict=True):
        for key in ("reward", "length", "eval/accuracy", "loss", "grad_norm"):
            assert resumed.get(key) == pytest.approx(own.get(key), abs=1e-4), key


def test_weights_that_several_processes_share_are_written_once(policy, tmp_path, monkeypatch):
    """Else 64 processes write 64 copies of a large model at every step, and the disk is what a step waits for."""
    own, saved, save = policy(), [], client._save_learned

    def slowly(given, path):
        saved.append(path)
        time.sleep(0.3)
        save(given, path)

    monkeypatch.setattr(client, "_save_learned", slowly)
    stores = [client.Store(own, str(tmp_path), whole=False) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        taken = list(threads.map(lambda store: store.take(), stores))
    assert len(saved) == 1 and len({each.path for each in taken}) == 1 and taken[0].path.exists()
    assert [file.name for file in tmp_path.iterdir()] == [taken[0].path.name]


def test_weights_that_a_lost_process_was_writing_are_written(policy, tmp_path, monkeypatch):
    """Else a run waits for ever for a process that is gone."""
    monkeypatch.setattr(client, "MINUTES", 0.01)
    own = policy()
    store = client.Store(own, str(tmp_path), whole=False)
    (tmp_path / f"{client.version_of(own.model)}.safetensors.claim").touch()
    assert store.take().path.exists()


@pytest.mark.parametrize("shared", [True, False])
def test_weights_go_with_who_published_them(policy, tmp_path, shared):
    """Runs that end without a close would fill the disk with models."""
    store = client.Store(policy(), str(tmp_path) if shared else None, whole=False)
    path = store.take().path
    assert path.exists()
    del store
    assert not path.exists()
