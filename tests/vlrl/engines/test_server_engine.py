"""A policy that servers write for: the same rollouts as by itself, whatever happens to the servers."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator

import psutil
import pytest
import torch

from vlrl import api, config
from vlrl.engines.client import Store, learned_weights, version_of
from vlrl.policies.engine import EngineError
from vlrl.recipe_checks import load_config
from vlrl.rollout import collect
from vlrl.types import UserError

TASK = config.__file__.replace("vlrl/config.py", "configs/gui_grounding.yaml")
pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")  # peft asks for it


def played(policy, task, n: int = 4, **act):
    """Completions of the first prompts, two of each."""
    return collect(policy, task, task.samples("train")[:n], 2, **act)


def texts(episodes) -> list[str]:
    return [episode.completion for episode in episodes]


def changed(*policies, seed: int = 1) -> None:
    """The same update of each policy's weights."""
    for policy in policies:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in (p for p in policy.model.parameters() if p.requires_grad):
                weight.add_(0.02 * torch.randn(weight.shape, generator=generator))
        policy.forget()


class Slow:
    """A server behind a line that lets an answer through after a while."""

    def __init__(self, port: int, seconds: float):
        self.port, self.seconds, self.requests = port, seconds, 0
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listening.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def close(self) -> None:
        self.listening.shutdown(socket.SHUT_RDWR)  # `accept` would keep it open
        self.listening.close()

    def accept(self) -> None:
        while True:
            try:
                client, _ = self.listening.accept()
            except OSError:
                return
            threading.Thread(target=self.forward, args=(client,), daemon=True).start()

    def forward(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self.port)) as server:
            head = client.recv(2**16)
            self.requests += head.startswith(b"POST /v1/completions")
            server.sendall(head)
            threading.Thread(target=copy, args=(client, server), daemon=True).start()
            answer = server.recv(2**16)
            time.sleep(self.seconds)
            client.sendall(answer)
            copy(server, client)


def copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while piece := source.recv(2**16):
            target.sendall(piece)
    except OSError:
        return


@pytest.fixture
def silent() -> Iterator[str]:
    """The URL of what takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_writes_what_the_policy_would(server, policy, task) -> None:
    """A run with a server would be another run than one without, and nothing could be compared."""
    own, served = policy(), policy(urls=[server.url])
    served.check(task.samples("train")[0])
    for _ in range(2):
        mine, theirs = played(own, task), played(served, task)
        assert texts(mine) == texts(theirs)
        for one, other in zip(mine, theirs, strict=True):
            a, b = one.turns[0].decision, other.turns[0].decision
            torch.testing.assert_close(a.logprobs, b.engine_logprobs, rtol=0, atol=1e-4)  # the engine's
            torch.testing.assert_close(a.logprobs, b.logprobs, rtol=0, atol=1e-4)  # the trainer's
            torch.testing.assert_close(a.entropy, b.entropy, rtol=0, atol=1e-4)
        assert texts(played(own, task, greedy=True)) == texts(played(served, task, greedy=True))
        assert 0 < served.metrics["engine/logprob_gap"] <= served.metrics["engine/logprob_gap_max"] < 1e-4
        changed(own, served)
    begun = [[7, 8]] * 8
    assert texts(played(own, task, begun=begun)) == texts(played(served, task, begun=begun))


def test_adapters_are_merged(server, policy, task, tmp_path) -> None:
    """The server would write by the model that the adapter was put on, for the whole run."""
    from transformers import AutoModelForImageTextToText

    lora = config.Lora(rank=2, alpha=4, targets=r".*language_model.*_proj")
    own, served = policy(lora=lora), policy(lora=lora, urls=[server.url])
    changed(own, served, seed=2)
    changed(own, served, seed=3)
    assert texts(played(own, task)) == texts(played(served, task))
    assert served.metrics["engine/logprob_gap_max"] < 1e-4
    whole = Store(own, str(tmp_path), whole=True)  # as vLLM and SGLang get them
    read = dict(AutoModelForImageTextToText.from_pretrained(whole.take().path).named_parameters())
    for name, weight in learned_weights(own.model):
        torch.testing.assert_close(read[name], weight)
    whole.close()


@pytest.mark.slow
def test_servers_of_its_own_are_started_anew(policy, task) -> None:
    """A server that died would leave its GPU idle until somebody looks, and one left behind would hold it for ever."""
    own, served = policy(), policy(workers=2, backoff=0.01)
    served.check(task.samples("train")[0])
    assert texts(played(own, task)) == texts(played(served, task))
    placed, hosts = served.engine._placed, served.engine._pool.hosts
    servers = [psutil.Process(host.worker.pid).children()[0] for host in hosts]
    for victim in (servers[0], psutil.Process(hosts[1].worker.pid)):  # the server; the worker around another
        victim.kill()
        before = {host.caller.url for host in hosts}
        changed(own, served)
        until = time.monotonic() + 60
        while before == {host.caller.url for host in hosts}:
            assert texts(played(own, task)) == texts(played(served, task)) and time.monotonic() < until
    assert placed.pool.counts["started"] == 4 and served.metrics["engine/servers"] == 2
    servers += [psutil.Process(host.worker.pid).children()[0] for host in hosts]
    served.engine.close()
    psutil.wait_procs(servers, 10)
    assert not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in servers)


def test_a_run_ends_its_servers(tmp_path) -> None:
    """In a notebook, where no process ends, each run would leave servers and their memory behind."""
    sizes = ["train.steps=1", "train.prompts_per_step=2", "eval.num_samples=2", f"out={tmp_path}", "log.trackers=[]"]
    before = set(psutil.Process().children(recursive=True))  # of tests that ran in this process
    api.train(load_config(TASK, [*sizes, "policy.engine={name: server, workers: 1}"]))
    left = [each.cmdline() for each in psutil.Process().children(recursive=True) if each not in before]
    assert not [command for command in left if "vlrl.placement.workers" in command or "serve-model" in command]


def test_a_server_that_cannot_start_says_why(policy) -> None:
    """The reason stands in a log on some node, or nowhere."""
    for command, reason in (
        ("no-such-program {port}", "No such file"),
        ("sh -c 'echo {port} no GPU; exit 3'", "no GPU"),
    ):
        with pytest.raises(UserError, match=f"policy.engine.command: .*{reason}"):
            policy(workers=1, command=command)


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_run_is_the_same_run(staleness, server, run, task, tmp_path) -> None:
    """Training through a server would learn something else, or the log would not show what the engine does."""
    engines = {"own": "{name: local}", "served": f"{{name: server, urls: ['{server.url}']}}"}
    small = ["train.steps=3", "train.prompts_per_step=3", "train.group_size=4", "eval.num_samples=12", "task.pool=16",
             "policy.max_tokens=8", f"train.max_staleness={staleness}"]  # fmt: skip
    rows = {}
    for name, engine in engines.items():
        place = config.__file__.replace("vlrl/config.py", "configs/gui_grounding.yaml")
        code, said = run("train", place, *small, f"out={tmp_path / name}", f"policy.engine={engine}").wait()
        assert code == 0, said
        rows[name] = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
    for own, served in zip(*rows.values(), strict=True):
        for key in ("reward", "accuracy", "length", "eval/accuracy", "eval/reward", "eval/length"):
            assert own.get(key) == served.get(key), key
        for key in ("loss", "grad_norm", "entropy"):
            assert served.get(key) == pytest.approx(own.get(key), abs=1e-3), key


def test_a_killed_server_is_replaced_and_comes_back(serve, server, policy, task) -> None:
    """One machine that fails would end a run of days, or its successor would write with the first step's weights."""
    other = serve()
    own, served = policy(), policy(urls=[other.url, server.url], backoff=0.05, concurrent=2)
    assert texts(played(own, task)) == texts(played(served, task))
    other.kill()
    changed(own, served)
    assert texts(played(own, task)) == texts(played(served, task))
    assert served.metrics["engine/retries"] >= 1
    assert served.metrics["engine/servers"] == 1
    again = serve("--port", other.port)
    until = time.monotonic() + 60
    while again.caller.get("/health", 60)["weights_version"] == "start":
        assert time.monotonic() < until
        assert texts(played(own, task)) == texts(played(served, task))
    assert again.caller.get("/health", 60)["weights_version"] == version_of(served.model)
    again.kill()


def test_a_slow_server_gets_less(server, policy, task) -> None:
    """Every step would last as long as the slowest machine needs for an equal share."""
    with (
        contextlib.closing(Slow(int(server.port), 0.4)) as slow,
        contextlib.closing(Slow(int(server.port), 0.0)) as fast,
    ):
        served = policy(urls=[slow.url, fast.url], concurrent=6)
        played(served, task, 12)  # nothing is known yet: equal shares
        first, before = slow.requests, slow.requests + fast.requests
        played(served, task, 12)
    assert before == 12
    assert slow.requests - first < fast.requests - (before - first)
    assert slow.requests - first < first


def test_answers_of_other_weights_are_not_used(server, policy, task) -> None:
    """Rollouts of another run's weights, or of those before a restart, would be trained on as if they were its own."""
    own, served = policy(), policy(urls=[server.url])
    played(served, task), played(own, task)
    other = policy(urls=[server.url])  # another run, which takes the server for itself
    changed(other, seed=9)
    played(other, task, 1)
    assert texts(played(served, task)) == texts(played(own, task))
    assert served.metrics["engine/stale"] >= 1


def test_a_server_that_hangs_is_left(silent, server, policy, task) -> None:
    """A step would wait for a machine that will never answer."""
    own, served = policy(), policy(urls=[silent, server.url], timeout=2.0, backoff=30.0)
    assert texts(played(own, task)) == texts(played(served, task))
    assert served.metrics["engine/retries"] >= 1


def test_without_any_server(silent, policy, task) -> None:
    """A run would start and fail at its first step; or end in a traceback instead of at its newest checkpoint."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}"
    served = policy(urls=[nobody, silent], timeout=0.3, backoff=0.05, patience=1.0)
    with pytest.raises(UserError, match=r"no server answers: .*no connection.*; .*no answer in 0.3 s"):
        served.check(task.samples("train")[0])
    with pytest.raises(EngineError, match=r"no engine answered for 1 s \(.*\): start one, then resume") as raised:
        played(served, task)
    assert raised.value.exit_code == 1
    assert "\n" not in str(raised.value)


def test_another_model_is_noticed(server, policy, task) -> None:
    """A run would learn from what another model wrote, and only a number in the log would say so."""
    served = policy(urls=[server.url])
    served.model.model.visual.requires_grad_(False)  # frozen, so that it is not sent, and not the server's
    with torch.no_grad():
        for weight in served.model.model.visual.parameters():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(4)))
    with pytest.raises(UserError, match="nats a token from the trainer's: serve the same model"):
        served.check(task.samples("train")[0])


def test_what_speaks_otherwise_is_named(server, policy, task, tmp_path) -> None:
    """A server of another kind would be asked for ever, or its error would not say what to change."""
    served = policy(urls=[server.url], api="vllm", folder=str(tmp_path))
    with pytest.raises(UserError, match=r"takes no weights \(/collective_rpc: HTTP 404: .*\): see docs/engines.md"):
        served.check(task.samples("train")[0])
    served = policy(urls=[server.url], api="sglang", folder=str(tmp_path))
    with pytest.raises(UserError, match=r"is no server of this kind \(/get_model_info: HTTP 404"):
        served.check(task.samples("train")[0])
