"""The real vLLM (`make engine`: vLLM for CPUs, an environment of its own) writes for a policy and takes its weights."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
import pytest
import torch

from vlrl import config
from vlrl.engines.protocols import DIALECTS
from vlrl.policies.engine import GenerationRequest, Options
from vlrl.policies.loading import EMBEDDED
from vlrl.types import UserError

ROOT = Path(config.__file__).parents[1]


def load(name: str) -> ModuleType:
    """A module of tests beside this one, whose helpers are these tests' too."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


talk = load("test_serve_model").talk
servers = load("test_server_engine")
changed, played, texts = servers.changed, servers.played, servers.texts
PYTHON = ROOT / ".venv-engine" / "bin" / "python"
STARTS_S = 900  # until a server that does not answer counts as stuck
GAP = 1e-4  # nats in float32
GLOO = {"GlooWeightTransferEngine": load("gloo_transfer").Gloo}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("vllm"),
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning"),  # peft asks for it
    pytest.mark.skipif(not PYTHON.exists() and os.environ.get("CI") != "true", reason="no vLLM: make engine"),
]
ARGUMENTS = (
    "--dtype", "float32", "--enforce-eager", "--host", "127.0.0.1", "--max-model-len", "512", "--skip-mm-profiling",
    "--limit-mm-per-prompt", '{"image": 3, "video": 0}', "--logprobs-mode", "processed_logprobs",
    "--enable-prompt-tokens-details", "--weight-transfer-config", '{"backend": "gloo"}',
    "--worker-extension-cls", "gloo_transfer.Extension",
)  # fmt: skip
ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_TARGET_DEVICE": "cpu", "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "PYTHONPATH": str(Path(__file__).parent),
}  # fmt: skip


class Vllm:
    """A server of the embedded model at a port that stays the same when it is started again."""

    def __init__(self, folder: Path):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url, self.log = f"http://127.0.0.1:{self.port}", folder / "vllm.log"
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        command = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", EMBEDDED, "--port", str(self.port)]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [*command, *ARGUMENTS], env=os.environ | ENVIRONMENT, stdout=log, stderr=log, start_new_session=True
            )
        until = time.monotonic() + STARTS_S
        while not self.is_ready():
            assert self.process.poll() is None and time.monotonic() < until, self.log.read_text()[-3000:]
            time.sleep(0.5)

    def is_ready(self) -> bool:
        try:
            with urlopen(f"{self.url}/health", timeout=5) as answer:
                return answer.status == 200
        except (URLError, OSError):
            return False

    def stop(self, number: int = signal.SIGTERM) -> None:
        os.killpg(self.process.pid, number)
        self.process.wait(60)


@pytest.fixture(scope="module")
def vllm(tmp_path_factory) -> Iterator[Vllm]:
    server = Vllm(tmp_path_factory.mktemp("vllm"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def served(vllm, policy, tmp_path) -> Callable:
    """`served(...)`: the embedded model, written for by vLLM."""

    def make(**options):
        engine = {"urls": [vllm.url], "api": "vllm", "model": str(EMBEDDED), "folder": str(tmp_path / "weights")}
        return policy(**engine | options)

    return make


@pytest.mark.parametrize("way", ["file", "transfer"])
def test_writes_what_the_policy_would(served, policy, task, way, tmp_path, monkeypatch, capfd) -> None:
    """Greedy tokens and log-probabilities of images, before and after an update, are the trainer's own."""
    monkeypatch.setattr("vlrl.engines.protocols.GROUPS", GLOO if way == "transfer" else {})
    own, other = policy(), served()
    other.check(task.samples("train")[0])
    for _ in range(2):
        assert texts(played(own, task, greedy=True)) == texts(played(other, task, greedy=True))
        for episode in played(other, task):
            decision = episode.turns[0].decision
            torch.testing.assert_close(decision.engine_logprobs, decision.logprobs, rtol=0, atol=GAP)
        assert 0 < other.metrics["engine/logprob_gap_max"] < GAP and other.metrics["engine/published"] == 1
        assert other.metrics["engine/publish_seconds"] > 0
        changed(own, other)
    said = {"file": r"file \(reload_weights; vLLM 0.26.*\): its transfer is GlooWeight.*, which is not carried here",
            "transfer": r"weight transfer \(GlooWeightTransferEngine; vLLM 0.26.*\)"}  # fmt: skip
    assert re.search(rf"takes weights by {said[way]}\n", capfd.readouterr().err)
    other.engine.publish()
    assert any((tmp_path / "weights").iterdir()) == (way == "file")


def test_weights_that_others_gave_are_noticed(served, policy, task, monkeypatch) -> None:
    """A server that was restarted between two steps, or serves another run, would write the next one's rollouts."""
    monkeypatch.setattr("vlrl.engines.client.IDLE_S", 0.0)
    own, other, stranger = policy(), served(), served()
    for each in (other, stranger):
        each.check(task.samples("train")[0])
    changed(own, other, seed=4)
    wanted = texts(played(own, task, greedy=True))
    assert texts(played(other, task, greedy=True)) == wanted and other.metrics["engine/stale"] == 0
    changed(stranger, seed=5)
    played(stranger, task, 1)
    assert texts(played(other, task, greedy=True)) == wanted and other.metrics["engine/stale"] == 1
    played(other, task)
    assert other.metrics["engine/logprob_gap_max"] < GAP


def test_other_weights_than_were_given_are_noticed(served, task, monkeypatch) -> None:
    """What arrives in part moves as well, and elsewhere."""
    own, stranger = served(), served()
    for each in (own, stranger):
        each.check(task.samples("train")[0])
    changed(stranger, seed=6)
    stranger.engine.publish()
    wrong, publish = stranger.engine._store.newest, DIALECTS["vllm"].publish
    monkeypatch.setattr(DIALECTS["vllm"], "publish", lambda self, caller, _, s: publish(self, caller, wrong, s))
    changed(own, seed=7)
    with pytest.raises(UserError, match="answers by other weights than were published"):
        played(own, task)


def test_weights_that_do_not_arrive_are_noticed(served, task, monkeypatch) -> None:
    """vLLM 0.14 was reported to say that all is well and to answer by the weights of before."""
    own = served(temperature=0.7)
    own.check(task.samples("train")[0])
    changed(own)
    played(own, task)  # by weights that arrive
    given = []
    monkeypatch.setattr(DIALECTS["vllm"], "publish", lambda *weights: given.append(weights))
    changed(own, seed=2)
    for _ in range(2):  # requests that waited would give weights whose folder goes: vLLM does not survive it
        with pytest.raises(UserError, match="still answers by earlier weights"):
            played(own, task)
    assert len(given) == 1


def test_adapters_arrive_merged(served, task) -> None:
    """A server that lacks the adapter would answer by the base."""
    own = served(lora=config.Lora())
    own.check(task.samples("train")[0])
    changed(own, seed=2)
    played(own, task)
    assert 0 < own.metrics["engine/logprob_gap_max"] < GAP


def test_conversations_by_token_ids_are_the_trainers(served, task) -> None:
    """Images in the first and the third turn: a server that reads another conversation replies to another."""
    own = served(temperature=0.7)
    own.engine.publish()
    shown, prompt = talk(own, task, 3)
    drawn = np.full((2, 12), 0.5, np.float32)
    for answer in own.engine.generate([GenerationRequest(shown, prompt, 2, (), drawn)], Options(12, 0.7))[0]:
        ((logprobs, _),) = own.score([own.decision(prompt, answer.tokens)])
        torch.testing.assert_close(torch.tensor(answer.logprobs), logprobs, rtol=0, atol=GAP)


def test_a_run_trains_through_it(vllm, run, tmp_path) -> None:
    """Each step's weights are published once and count."""
    engine = f"{{name: server, api: vllm, urls: ['{vllm.url}'], model: '{EMBEDDED}', folder: '{tmp_path / 'weights'}'}}"
    small = ["train.steps=3", "train.prompts_per_step=4", "eval.num_samples=8", "log.trackers=[]"]
    done = run("train", "gui_grounding", *small, f"policy.engine={engine}", f"out={tmp_path / 'run'}")
    code, err = done.wait()
    assert code == 0, err
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [SimpleNamespace(**{k.removeprefix("engine/"): v for k, v in row.items()}) for row in rows if "loss" in row]
    assert all(0 <= step.prefix_cache_hit_rate <= 1 for step in steps)
    assert [step.published for step in steps] == [1, 1, 1] and max(step.logprob_gap_max for step in steps) < GAP


def test_a_server_that_was_killed_gets_the_weights_again(vllm, served, policy, task) -> None:
    """A restarted server has the weights that it was started with: its answers would be another model's."""
    own, other = policy(), served(backoff=0.1)
    other.check(task.samples("train")[0])
    changed(own, other, seed=3)
    assert texts(played(own, task, greedy=True)) == texts(played(other, task, greedy=True))
    vllm.stop(signal.SIGKILL)
    starting = threading.Thread(target=vllm.start)
    starting.start()
    assert texts(played(own, task, greedy=True)) == texts(played(other, task, greedy=True))  # it waits for the server
    starting.join()


def test_what_the_colocated_engine_calls_is_there() -> None:
    """`policy.engine: {name: vllm}` has not run on a GPU; a name that vLLM has not would end it at its first step."""
    code = """
import dataclasses, inspect
from vllm import LLM, SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.engine.llm_engine import LLMEngine
known = {field.name for field in dataclasses.fields(EngineArgs)} | set(inspect.signature(LLM.__init__).parameters)
print({"model", "tensor_parallel_size", "gpu_memory_utilization", "enable_sleep_mode", "logprobs_mode",
       "max_model_len", "weight_transfer_config"} - known)
print({"generate", "collective_rpc", "sleep", "wake_up", "reset_prefix_cache", "start_weight_update", "update_weights",
       "finish_weight_update"} - set(dir(LLM)))
print({"reset_encoder_cache"} - set(dir(LLMEngine)))
print({"n", "seed", "temperature", "top_p", "max_tokens", "logprobs", "stop", "include_stop_str_in_output",
       "stop_token_ids", "logit_bias"} - set(inspect.signature(SamplingParams).parameters))
"""
    done = subprocess.run(
        [PYTHON, "-c", code], env=os.environ | ENVIRONMENT, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-4:] == ["set()"] * 4, done.stdout
