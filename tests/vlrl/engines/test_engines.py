"""What needs no server: options, versions, dialects as documented, weights between engine and trainer."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vlrl import config, registry
from vlrl.algorithms.gae import TruncatedWeights
from vlrl.engines.client import EnginePool, Host, WeightProbe, version_of
from vlrl.engines.model_server import PromptCache
from vlrl.engines.protocols import (
    DIALECTS,
    INIT,
    ROUTES,
    Caller,
    FailedError,
    find_group,
    same_prompt,
)  # fmt: skip
from vlrl.policies.engine import Completion, EngineError, GenerationRequest, Options
from vlrl.recipe_checks import load_config
from vlrl.rollout import collect
from vlrl.types import Policy, Rollouts, UserError

BASE = config.__file__.replace("vlrl/config.py", "configs/gui_grounding.yaml")


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("{name: servr}", "did you mean 'server'"), ("{name: server}", "urls, workers: give one of both"),
        ("{name: server, urls: [localhost]}", "write http://HOST:PORT"),
        ("{name: server, urls: ['http://a:1/v1']}", "without /v1"),
        ("{name: server, urls: ['http://a:1', 'http://a:1']}", "twice"),
        ("{name: server, urls: ['http://a:1'], api: vllm}", "folder: vllm reads weights from a folder"),
        ("{name: server, urls: ['http://a:1'], workers: 2}", "urls, workers: give one of both"),
        ("{name: server, urls: ['http://a:1'], command: 'x {port}'}", "command: .*workers: 1"),
        ("{name: server, workers: 1, api: vllm, folder: /w}", "command: say how vllm is started"),
        ("{name: server, workers: 1, command: 'vllm serve m'}", "command: it has to name {port}"),
        ("{name: server, urls: ['http://a:1'], pattience: 3}", "pattience: unknown key"),
    ],
)  # fmt: skip
def test_options_are_checked_when_read(engine, words) -> None:
    """A mistyped engine would show after the model has been loaded, or never."""
    with pytest.raises(UserError, match=words):
        load_config(BASE, [f"policy.engine={engine}"])


def test_engines_take_the_whole_law() -> None:
    """Log-probabilities of a part of the law would meet those of the whole one in the loss."""
    with pytest.raises(UserError, match="sample from all tokens"):
        load_config(BASE, ["policy.engine={name: server, urls: ['http://a:1']}", "policy.top_p=0.9"])


def test_a_token_that_is_not_there(policy) -> None:
    """Requests would be refused one by one while a run waits for them."""
    with pytest.raises(UserError, match="environment variable NO_SUCH_TOKEN is not set"):
        policy(urls=["http://a:1"], key="NO_SUCH_TOKEN")


def test_vllm_that_is_missing(policy) -> None:
    """A traceback from an import would not say what to install."""
    from vlrl import engines
    from vlrl.config import Component

    with pytest.raises(UserError, match="vllm is not installed"):
        engines.make(Component(name="vllm"), policy(), "embedded")


def test_versions_name_the_weights(policy) -> None:
    """A server that already has the weights would get them again, or one with old ones would keep them."""
    one, other = policy(), policy()
    assert version_of(one.model) == version_of(other.model)
    weight = next(p for p in one.model.parameters() if p.ndim > 1)
    with torch.no_grad():
        weight[0, 0] += 1e-3
    assert version_of(one.model) != version_of(other.model)


class Scores:
    """A policy whose log-probabilities of anything are the same number."""

    value = -1.0

    def decision(self, prompt, tokens):
        return tokens

    def score(self, decisions):
        return [(torch.full((len(tokens),), self.value), None) for tokens in decisions]


@pytest.mark.parametrize(
    ("trainer", "server", "noticed"),
    [
        ([-0.9], [-1.05], True),  # one large step, which a server did not take
        ([-0.99, -0.98, -0.97], [-1.05] * 3, True),  # several small ones
        ([-0.9], [-0.95], False),  # a server whose kernels differ by more than the step is large
        ([-0.995, -1.0, -0.995], [-1.05] * 3, False),  # nothing that could be told from rounding
        ([-0.9, -0.89], [-0.96, -0.96], False),  # the second step alone is too small again
    ],
)
def test_weights_are_followed_by_how_far_a_server_moves(trainer, server, noticed) -> None:
    """A threshold on the difference would stop runs in bfloat16, or let a server keep its weights in small steps."""
    policy = Scores()
    probe = WeightProbe(policy, GenerationRequest(None, SimpleNamespace(), 1), Options(16, 1.0))
    assert probe.options.max_tokens == 8
    probe.compare("a", Completion((5, 6), (-1.05, -1.05), False))
    with pytest.raises(UserError, match="a still answers by earlier weights") if noticed else nullcontext():
        for value, answer in zip(trainer, server, strict=True):
            policy.value = value
            probe.compare("a", Completion((5, 6), (answer, answer), False))
    policy.value = -3.0
    probe.compare("a", Completion((7, 6), (-1.0, -1.0), False))  # other tokens: other weights


@pytest.mark.parametrize(("gap", "noticed"), [(4e-5, False), (2e-4, True)])
def test_weights_of_exact_servers_are_the_trainers(gap, noticed) -> None:
    """In float32 small steps can be told: what arrives in part, or was lost, is not the trainer's."""
    policy = Scores()
    probe = WeightProbe(policy, GenerationRequest(None, SimpleNamespace(), 1), Options(16, 1.0))
    policy.value = -1.0
    probe.compare("a", Completion((5, 6), (-1.0, -1.0), False))
    assert probe.greedy.temperature == 0 and probe.recognises("a", Completion((7, 7), (-9.0, -9.0), False))
    probe.remember("a", Completion((5, 6), (-1.0, -1.0), False))
    assert probe.recognises("a", Completion((5, 6), (-1.0, -1.00005), False))
    assert not probe.recognises("a", Completion((5, 6), (-1.0, -1.0002), False))
    assert not probe.recognises("a", Completion((5, 7), (-1.0, -1.0), False))
    policy.value = -1.01
    with pytest.raises(UserError, match="a answers by other weights") if noticed else nullcontext():
        probe.compare("a", Completion((5, 6), (-1.01, -1.01 - gap), False))
    policy.value = -1.02
    with pytest.raises(UserError, match="a still answers by earlier weights"):
        probe.compare("a", Completion((5, 6), (-1.01, -1.01) if not noticed else (-1.0, -1.0), False))


@pytest.fixture
def told() -> Iterator[Callable[[dict[str, Any]], Caller]]:
    """`told({path: answer})`: a caller of a small server that gives these."""
    servers = []

    def make(answers: dict[str, Any]) -> Caller:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                given = answers.get(self.path, (404, {}))
                status, answer = given if isinstance(given, tuple) else (200, given)
                self.send_response(status)
                self.end_headers()
                self.wfile.write(answer if isinstance(answer, bytes) else json.dumps(answer).encode())

            do_POST = do_GET  # noqa: N815

            def log_message(self, *words: object) -> None:
                """Nothing."""

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return Caller(f"http://127.0.0.1:{servers[-1].server_port}", {})

    yield make
    for each in servers:
        each.shutdown()
        each.server_close()


@pytest.mark.parametrize(
    ("routes", "words", "reason"),
    [
        (ROUTES - {INIT}, "", "it has no routes for weight transfer"),
        (ROUTES, "Weight transfer not configured. Please set", "it was started without --weight-transfer-config"),
        (ROUTES, "Invalid init_info for Sparse: missing", "its transfer is Sparse, which is not carried here"),
        (ROUTES, "Invalid init_info for NCCLWeightTransferEngine: missing", "the trainer is not on a GPU"),
    ],
)  # fmt: skip
def test_vllm_says_how_it_takes_weights(told, routes, words, reason) -> None:
    """A run would wait for a transfer that its server has not, or read files without anybody knowing why."""
    caller = told({"/version": {"version": "0.26.0"}, INIT: (500, {"error": {"message": words}})})
    group, said = find_group(caller, frozenset({"/version", *routes}), torch.nn.Linear(1, 1), 20.0)
    assert (group, said) == (None, f"file (reload_weights; vLLM 0.26.0): {reason}")


def test_prompts_of_ids_are_the_codecs(policy, task) -> None:
    """Positions or pixels would differ between engine and trainer, at first by little."""
    own = policy()
    for sample in task.samples("train")[:3]:
        made = own.prompt(sample.prompt)
        read = PromptCache(own.codec).of(made.ids.tolist(), sample.prompt.images)
        for name in ("ids", "types", "positions", "pixels", "grid"):
            assert torch.equal(getattr(made, name), getattr(read, name)), name
        assert made.frames == read.frames


def test_placeholders_may_be_short(policy, task) -> None:
    """A server that counts an image as one token would be refused, or one that sees another size let through."""
    shown = task.samples("train")[0].prompt
    own = policy()
    asked = GenerationRequest(shown, own.prompt(shown), 1)
    ids, image = asked.prompt.ids.tolist(), own.codec.image_id
    same_prompt(ids, asked, image)
    first = ids.index(image)
    same_prompt([*ids[: first + 1], *(i for i in ids[first + 1 :] if i != image)], asked, image)
    for wrong in (ids[:-1], [*ids[:first], image, *ids[first:]], [*ids[:-1], 5]):
        with pytest.raises(UserError, match="the server reads a prompt of"):
            same_prompt(wrong, asked, image)


def test_sglang_as_documented(policy, task) -> None:
    """Answers of SGLang's `/generate` would be read wrongly: log-probability, token id, text, in this order."""
    shown, own = task.samples("train")[0].prompt, policy()
    asked = GenerationRequest(shown, own.prompt(shown), 2)
    dialect = DIALECTS["sglang"](own.codec, "m")
    path, body = dialect.ask(asked, Options(4, 1.0))
    assert (path, body["sampling_params"]["n"], len(body["image_data"])) == ("/generate", 2, 1)
    meta = {"prompt_tokens": len(asked.prompt.ids), "weight_version": "v", "finish_reason": {"type": "length"},
            "output_token_logprobs": [[-0.5, 7, "a"], [-0.25, 9, None]]}  # fmt: skip
    written = dialect.read([{"meta_info": meta}] * 2, asked)
    assert written.version == "v"
    assert written.completions[0].tokens == (7, 9)
    assert written.completions[1].logprobs == (-0.5, -0.25)
    assert written.completions[0].cut
    with pytest.raises(UserError, match="reads a prompt of 3 tokens"):
        dialect.read({"meta_info": meta | {"prompt_tokens": 3}}, asked)


def test_a_pool_finishes_what_it_can() -> None:
    """One job that fails on one server would fail the batch; a server that fails always would get all of its share."""
    hosts = [Host(Caller(f"http://h{i}", {})) for i in range(3)]
    done: list[tuple[str, int]] = []

    def do(host: Host, job: int) -> int:
        if host is hosts[0] or (host is hosts[1] and job == 3):
            raise FailedError("no")
        done.append((host.caller.url, job))
        return job * job

    pool = EnginePool(hosts, concurrent=2, backoff=0.01, patience=20.0)
    assert pool.run(do, list(range(12))) == [i * i for i in range(12)]
    assert sorted(job for _, job in done) == list(range(12))
    assert hosts[0].fails >= 1 and "http://h0" not in dict(done)
    assert "http://h2" in dict(done)
    with pytest.raises(ZeroDivisionError):
        pool.run(lambda host, job: 1 / 0, [1])
    with pytest.raises(EngineError, match=r"for 0.2 s \(http://h0: down"):
        EnginePool(hosts[:1], concurrent=1, backoff=0.05, patience=0.2).run(lambda host, job: down(), [1])


def down() -> None:
    raise FailedError("down")


def rollouts(decisions) -> Rollouts:
    logprobs = torch.stack([d.logprobs for d in decisions])
    n = len(decisions)
    return Rollouts(("a",) * n, torch.ones(n), torch.zeros(n, dtype=torch.int64), torch.arange(n),
                    torch.ones_like(logprobs, dtype=torch.bool), logprobs, torch.zeros_like(logprobs))  # fmt: skip


def test_truncated_weights_by_hand(policy, task) -> None:
    """The gradient would be the engine's policy's, or explode at one token that the engine thought unlikely.

    p / q of the three tokens, in float64: exp(-1 + 1.5) = 1.648721, exp(-2 + 2) = 1, exp(-0.5 + 3) = 12.182494, of
    which the last is cut to 2. The advantages 0.5 and -1 become [0.824361, 0.5, 1] and [-1, -1, -1].
    """
    episodes = collect(policy(), task, task.samples("train")[:1], 2)
    trainer, engine = torch.tensor([-1.0, -2.0, -0.5]), torch.tensor([-1.5, -2.0, -3.0])
    for episode, sampled in zip(episodes, (engine, trainer), strict=True):
        turn = episode.turns[0]
        episode.turns[0] = replace(turn, decision=replace(turn.decision, logprobs=trainer, engine_logprobs=sampled))
    method = TruncatedWeights(most=2.0)
    method.revisit(Policy(), episodes)
    weighed = method(rollouts([e.turns[0].decision for e in episodes]), torch.tensor([0.5, -1.0]))
    wanted = torch.tensor([[0.824361, 0.5, 1.0], [-1.0, -1.0, -1.0]])
    torch.testing.assert_close(weighed, wanted, rtol=0, atol=1e-6)
    assert method.metrics == pytest.approx({"engine/weight": (1.648721 + 1 + 2 + 3) / 6, "engine/truncated": 1 / 6})


@pytest.mark.parametrize("outside", ["cut", "drop"])
@pytest.mark.parametrize("of", ["token", "sequence"])
def test_engine_weights_by_sequence_equal_the_worked_example(policy, task, golden, of, outside) -> None:
    """A completion would be weighed by one of its tokens, or what is far off would count in full."""
    inputs, wanted = golden("engine_weights")
    episodes = collect(policy(), task, task.samples("train")[:1], 2)
    trainer = torch.tensor(inputs["trainer"])
    for episode, sampled in zip(episodes, inputs["engine"], strict=True):
        turn = episode.turns[0]
        decision = replace(turn.decision, logprobs=trainer, engine_logprobs=torch.tensor(sampled))
        episode.turns[0] = replace(turn, decision=decision)
    truncated_weights = TruncatedWeights(most=inputs["most"], least=inputs["least"], of=of, outside=outside)
    truncated_weights.revisit(Policy(), episodes)
    found = truncated_weights(rollouts([e.turns[0].decision for e in episodes]), torch.ones(2))
    if of == "sequence":
        torch.testing.assert_close(found, torch.tensor(wanted[outside])[:, None].expand(2, 3), rtol=0, atol=2e-6)
    elif outside == "drop":
        torch.testing.assert_close(found, torch.tensor(wanted["token_drop"]), rtol=0, atol=2e-6)
    else:
        assert found.max() == inputs["most"] and found.min() >= inputs["least"]


def test_truncated_weights_leave_local_runs_alone(policy, task) -> None:
    """A recipe with the weights would change a run whose engine and trainer are one."""
    own = policy()
    episodes = collect(own, task, task.samples("train")[:1], 1)
    method, advantage = TruncatedWeights(), torch.tensor([0.5])
    method.revisit(own, episodes)
    assert method(rollouts([e.turns[0].decision for e in episodes]), advantage) is advantage


def test_truncated_weights_need_both_log_probabilities(policy) -> None:
    """p / q would be counted twice: the surrogate's own ratio is p / q where nobody scores anew."""
    with pytest.raises(UserError, match=r"set policy\.engine\.rescore: true"):
        TruncatedWeights().revisit(policy(urls=["http://a:1"], rescore=False), [])


def test_truncated_weights_have_a_name() -> None:
    """A recipe could not ask for them."""
    assert registry.find("advantages", "truncated_weights") is TruncatedWeights
