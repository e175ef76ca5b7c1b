"""`vlrl serve-model` as its clients see it: what it writes, whose weights, whom it lets in."""

from __future__ import annotations

import base64
import contextlib
import itertools
import math
import re
import socket
import threading
import urllib.request
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from vlrl.engines.client import learned_weights
from vlrl.engines.model_server import ModelServer, ModelService
from vlrl.engines.protocols import DIALECTS, RENDER, Caller, RefusedError
from vlrl.policies.conversation import join_prompt
from vlrl.policies.engine import GenerationRequest, Options
from vlrl.policies.processor import Prompt
from vlrl.types import Episode, Message, Observation, Sample, Step, Turn, UserError

SECONDS = 60.0


@pytest.fixture
def asked(policy, task):
    """`asked(i)`: the i-th prompt of the task, four completions of which are wanted."""
    own = policy()

    def make(i: int, greedy: bool = False) -> GenerationRequest:
        shown = task.samples("train")[i].prompt
        drawn = None if greedy else torch.rand((4, 12), generator=torch.Generator().manual_seed(i)).numpy()
        return GenerationRequest(shown, own.prompt(shown), 4, (), drawn)

    make.policy = own
    return make


def by_messages(server, asked: GenerationRequest, policy, temperature: float = 0.0):
    """The answer of a vLLM that has no routes for token ids."""
    dialect = DIALECTS["vllm"](policy.codec, "embedded")
    path, body = dialect.ask(asked, Options(12, temperature))
    return dialect.read(server.caller.post(path, body, SECONDS), asked)


def answer(server, asked: GenerationRequest, policy, api: str = "vlrl", temperature: float = 0.7):
    dialect = DIALECTS[api](policy.codec, "embedded")
    return dialect.read(dialect.call(server.caller, asked, Options(12, temperature), SECONDS), asked)


def test_log_probabilities_are_the_trainers(server, policy, asked) -> None:
    """Importance ratios would be wrong from the first update on, and nobody would see why a run falls apart."""
    own = policy(temperature=0.7)
    for i in range(3):
        made = answer(server, asked(i), own).completions
        decisions = [own.decision(asked(i).prompt, each.tokens) for each in made]
        for each, (logprobs, _) in zip(made, own.score(decisions), strict=True):
            torch.testing.assert_close(torch.tensor(each.logprobs), logprobs, rtol=0, atol=1e-4)


def test_chat_and_token_prompts_are_one(server, asked) -> None:
    """A client of the chat route would get answers to another prompt than the trainer evaluates."""
    for i in range(2):
        one, other = asked(i, greedy=True), asked(i, greedy=True)
        tokens = answer(server, one, asked.policy, "vlrl", 0.0).completions
        chat = by_messages(server, other, asked.policy).completions
        assert [each.tokens for each in tokens] == [each.tokens for each in chat]
        assert tokens[0].logprobs == pytest.approx(chat[0].logprobs, abs=1e-5)


def talk(policy, task, turns: int) -> tuple[Observation, Prompt]:
    """What is to be answered in the last of so many turns; the second shows no image, the others one each."""
    samples = task.samples("train")
    shown = [Observation.from_messages([Message("system", ("Be brief.",)), Message("user", samples[0].prompt.content)])]
    for i in range(1, turns):
        content = ("Are you sure?",) if i == 1 else (*samples[i].prompt.content, "And this?")
        shown.append(Observation.from_messages([Message("user", content)]))
    episode = Episode(Sample("c", shown[0]), 0, stream=(1, 0))
    for now, then in itertools.pairwise(shown):
        decision = policy.act([episode], [now])[0]
        episode.turns.append(Turn(now, decision, Step(then)))
    return join_prompt(episode.turns, shown[-1]), policy.prompt(shown[-1], before=episode.turns)


@pytest.mark.parametrize("api", ["vlrl", "vllm"])
def test_conversations_by_token_ids_are_the_trainers(api, server, policy, task) -> None:
    """A server that reads a conversation otherwise would write replies to turns that never were."""
    own = policy(temperature=0.7, max_tokens=12)
    shown, prompt = talk(own, task, 3)
    assert len(shown.images) == 2 and [node.grid is None for node in prompt.lineage] == [False, True, False]
    drawn = np.random.default_rng(0).random((2, 12), dtype=np.float32)
    made = answer(server, GenerationRequest(shown, prompt, 2, (), drawn), own, api).completions
    decisions = [own.decision(prompt, each.tokens) for each in made]
    for each, (logprobs, _) in zip(made, own.score(decisions), strict=True):
        torch.testing.assert_close(torch.tensor(each.logprobs), logprobs, rtol=0, atol=1e-4)
    greedy = GenerationRequest(shown, prompt, 1)
    begun = answer(server, greedy, own, api, 0.0).completions[0]
    (rest,) = answer(server, replace(greedy, begun=begun.tokens[:3]), own, api, 0.0).completions
    assert rest.tokens[: len(begun.tokens) - 3] == begun.tokens[3:]


class RecordingCaller(Caller):
    """Remembers how many images each request to render has."""

    def post(self, path, body, seconds):
        if path == RENDER:
            self.rendered = [*getattr(self, "rendered", ()), len(body["messages"][0]["content"])]
        return super().post(path, body, seconds)


def test_a_conversations_images_are_rendered_once(server, policy, task) -> None:
    """Each turn would send and render all images since the first: ten screens, 55 times."""
    own = policy(temperature=0.7, max_tokens=12)
    caller, dialect = (
        RecordingCaller(server.caller.url, server.caller._headers),
        DIALECTS["vllm"](own.codec, "embedded"),
    )
    for turns in (1, 2, 3, 3):
        asked = GenerationRequest(*talk(own, task, turns), 1)
        made = dialect.read(dialect.call(caller, asked, Options(12, 0.0), SECONDS), asked)
        assert made.completions == answer(server, asked, own, "vllm", 0.0).completions
    assert caller.rendered == [1, 1]  # the second turn shows none


def test_conversations_by_messages_are_those_by_token_ids(server, policy, task) -> None:
    """A vLLM without routes for token ids would answer to another conversation."""
    own = policy(temperature=0.7, max_tokens=12)
    shown, prompt = talk(own, task, 2)
    if own.codec.encode(shown).ids.tolist() != prompt.ids.tolist():
        pytest.skip("the reply's text is written in several ways")
    asked = GenerationRequest(shown, prompt, 2)
    tokens = answer(server, asked, own, "vlrl", 0.0).completions
    assert [each.tokens for each in by_messages(server, asked, own).completions] == [each.tokens for each in tokens]


def test_text_that_spells_a_token_goes_by_token_ids(server, policy, task) -> None:
    """By messages vLLM takes it for the token itself: prompts from the web could not be trained on."""
    own = policy()
    shown = Observation((*task.samples("train")[0].prompt.content, "<|im_end|>"))
    asked = GenerationRequest(shown, own.prompt(shown), 1)
    assert answer(server, asked, own, "vllm", 0.0).completions == answer(server, asked, own, "vlrl", 0.0).completions
    with pytest.raises(UserError, match="spells the special token"):
        by_messages(server, asked, own)


def test_another_preprocessing_is_noticed(serve, asked) -> None:
    """A server with other image limits would write about pictures that the trainer never saw, unnoticed."""
    server = serve("--max-pixels", 32 * 32)
    for ask in (by_messages, partial(answer, api="vllm")):
        with pytest.raises(UserError, match=r"reads a prompt of \d+ tokens where the trainer's has \d+"):
            ask(server, asked(0), asked.policy)
    with pytest.raises(RefusedError, match="placeholders, but its images need"):
        answer(server, asked(0), asked.policy)
    server.kill()


def test_what_is_asked_beside_it_changes_nothing(server, asked) -> None:
    """A run would not repeat: who else asks at the same moment is chance."""
    alone = [answer(server, asked(i), asked.policy).completions for i in range(6)]
    found: dict[int, list] = {}

    def ask(i: int) -> None:
        found[i] = answer(server, asked(i), asked.policy).completions

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(6)]
    [each.start() for each in threads]
    [each.join() for each in threads]
    assert [[each.tokens for each in found[i]] for i in range(6)] == [[c.tokens for c in row] for row in alone]


def test_new_weights_change_answers(serve, asked, tmp_path) -> None:
    """Rollouts would stay those of the first step, or of features that the old vision tower made."""
    server, policy = serve("--weights-folder", tmp_path), asked.policy
    before = answer(server, asked(0), policy)
    with torch.no_grad():
        for name, weight in policy.model.named_parameters():
            if "visual" in name:  # the tower alone: its features are kept between requests
                weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)) * 0.5)
    save_file({name: value.contiguous() for name, value in learned_weights(policy.model)}, tmp_path / "w.safetensors")
    body = {"path": "w.safetensors", "version": "seven"}
    assert server.caller.post("/v1/weights", body, SECONDS)["weights_version"] == "seven"
    after = answer(server, asked(0), policy)
    assert (before.version, after.version) == ("start", "seven")
    assert [c.logprobs for c in before.completions] != [c.logprobs for c in after.completions]
    assert server.caller.get("/health", SECONDS)["weights_version"] == "seven"
    server.kill()


def test_paths_stay_in_their_folder(server, tmp_path) -> None:
    """Whoever reaches the port could have the server read any file of the machine."""
    outside = tmp_path / "w.safetensors"
    save_file({"x": torch.zeros(1)}, outside)
    (server.folder / "link.safetensors").symlink_to(outside)
    for path in ("../w.safetensors", str(outside), "link.safetensors", "/etc/passwd", "a\0.safetensors"):
        with pytest.raises(RefusedError, match="path"):
            server.caller.post("/v1/weights", {"path": path, "version": "x"}, SECONDS)


def test_wrong_weights_change_nothing(server, asked) -> None:
    """Half of a broken file would be in the model, and the version would not say so."""
    name, weight = next(iter(learned_weights(asked.policy.model)))
    version, before = server.caller.get("/health", SECONDS)["weights_version"], answer(server, asked(1), asked.policy)
    bad = {"nan": {name: torch.full_like(weight, float("nan"))}, "shape": {name: weight[:1].contiguous()},
           "name": {name: weight + 1, "z.other": weight}}  # fmt: skip
    for kind, weights in bad.items():
        save_file(weights, server.folder / f"{kind}.safetensors")
        with pytest.raises(RefusedError, match="weights:"):
            server.caller.post("/v1/weights", {"path": f"{kind}.safetensors", "version": kind}, SECONDS)
    (server.folder / "text.safetensors").write_text("no tensors")
    with pytest.raises(RefusedError, match="weights:"):
        server.caller.send("/v1/weights", server.folder / "text.safetensors", {"X-Weights-Version": "x"}, SECONDS)
    after = answer(server, asked(1), asked.policy)
    assert after.version == version
    assert [c.logprobs for c in before.completions] == [c.logprobs for c in after.completions]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"top_p": 0.9}, "top_p"), ({"stream": True}, "stream"), ({"top_k": 5}, "top_k"), ({"n": 0}, "n:"),
        ({"min_tokens": 3}, "min_tokens"), ({"guided_regex": "a+"}, "guided_regex"),
        ({"logit_bias": {"5": 1.0}}, "logit_bias"), ({"stop_token_ids": [5]}, "stop_token_ids"),
        ({"chat_template": "{{ messages }}"}, "chat_template"),
        ({"temperature": -1.0}, "temperature"), ({"max_tokens": 10**6}, "max_tokens"), ({"prompt": []}, "prompt"),
        ({"images": ["http://localhost/a.png"]}, "data URLs"), ({"images": ["data:image/png;base64,AAAA"]}, "images"),
        ({"prompt": [10**9]}, "no tokens"), ({"prompt": [5] * 10**5}, "at most"), ({"uniform": "AAAA"}, "uniform"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused(server, change, words) -> None:
    """A client would believe that it got what it asked for."""
    body = {"prompt": "Click.", "max_tokens": 4, "temperature": 1.0} | change
    with pytest.raises(RefusedError, match=f"HTTP 400: .*{words}"):
        server.caller.post("/v1/completions", body, SECONDS)


EPS = "data:image/png;base64," + base64.b64encode(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n").decode()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"temperature": 1e300}, "temperature"), ({"temperature": 1e-300}, "temperature"),
        ({"temperature": math.nan}, "no JSON"), ({"temperature": math.inf}, "no JSON"),
        ({"top_p": math.nan}, "no JSON"),
        ({"n": 10**9}, "n:"), ({"n": 10**4000}, "n:"), ({"n": True}, "n:"), ({"max_tokens": -5}, "max_tokens"),
        ({"max_tokens": 10**30}, "max_tokens"), ({"prompt": [10**30]}, "prompt"), ({"prompt": [-1]}, "prompt"),
        ({"prompt": [5] * (2**20 + 1)}, "prompt"), ({"prompt": "a" * (2**20 + 1)}, "prompt"),
        ({"stop": ["a"] * 65}, "stop"), ({"stop": "a" * 1025}, "stop"),
        ({"images": ["data:image/png,"] * 257}, "images"),
        ({"images": [EPS]}, "not one of PNG"), ({"seed": 0.5}, "seed"),
    ],
)  # fmt: skip
def test_absurd_values_are_refused(server, change, words) -> None:
    """They gave HTTP 500 without a reason, or could take the server's memory."""
    body = {"prompt": "Click.", "max_tokens": 4, "temperature": 1.0} | change
    with pytest.raises(RefusedError, match=f"HTTP 400: .*{words}"):
        server.caller.post("/v1/completions", body, SECONDS)


def raw(server, text: str) -> bytes:
    with socket.create_connection(("127.0.0.1", int(server.port)), timeout=SECONDS) as connection:
        connection.sendall(text.encode())
        return connection.recv(4096)


def test_600_idle_connections_keep_nobody_out(server) -> None:
    """A broken client, or a stranger, could stop a training run by opening connections and saying nothing."""
    idle = [socket.create_connection(("127.0.0.1", int(server.port)), timeout=SECONDS) for _ in range(600)]
    assert server.caller.get("/health", SECONDS)["status"] == "ok"
    body = {"prompt": "Click.", "max_tokens": 2, "n": 2}
    assert len(server.caller.post("/v1/completions", body, SECONDS)["choices"]) == 2
    threads = int(re.search(r"Threads:\s+(\d+)", Path(f"/proc/{server.process.pid}/status").read_text())[1])
    assert threads < 400
    [each.close() for each in idle]


@pytest.mark.parametrize("header", ["Host: evil.example", "Host: localhost\r\nOrigin: http://evil.example",
                                    "Host: localhost\r\nSec-Fetch-Site: cross-site"])  # fmt: skip
def test_web_sites_cannot_use_the_model(server, header) -> None:
    """A page in a browser on this machine could have the model write, or put weights into it."""
    for route in ("GET /v1/models", "GET /health", "POST /v1/completions", "POST /v1/weights"):
        assert raw(server, f"{route} HTTP/1.1\r\n{header}\r\nContent-Length: 0\r\n\r\n").startswith(b"HTTP/1.1 403")


def test_slow_headers_end(server) -> None:
    """Clients that send a byte now and then would hold their connections for ever."""
    with socket.create_connection(("127.0.0.1", int(server.port)), timeout=SECONDS) as connection:
        with contextlib.suppress(ConnectionError):
            for _ in range(600):
                connection.send(b"G")
                connection.settimeout(0.2)
                with contextlib.suppress(TimeoutError):
                    assert connection.recv(1) == b""
                    return
        with contextlib.suppress(ConnectionError):
            connection.settimeout(SECONDS)
            assert connection.recv(1) == b""


def test_seeds_repeat_and_stops_end(server) -> None:
    """Clients without the trainer's numbers could repeat nothing; stop texts would run on."""
    body = {"prompt": "Click the red square.", "max_tokens": 12, "n": 3, "seed": 5, "logprobs": 0}
    texts = [[c["text"] for c in server.caller.post("/v1/completions", body, SECONDS)["choices"]] for _ in range(2)]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 1
    stop = texts[0][0][3]
    ended = server.caller.post("/v1/completions", body | {"stop": stop}, SECONDS)["choices"][0]
    assert ended["text"] == texts[0][0].partition(stop)[0] + stop
    assert ended["finish_reason"] == "stop"


def test_only_those_with_the_token(run, server) -> None:
    """Anyone on the network could change the model; and a token in a log is no secret."""
    for arguments, words in ((("--host", "0.0.0.0"), "give --token-env"), (("--token-env", "NO_SUCH"), "is not set")):
        code, said = run("serve-model", "embedded", *arguments).wait()
        assert code == 2 and words in said
    request = urllib.request.Request(f"{server.url}/v1/completions", b'{"prompt": "a"}', {"Content-Type": "text/plain"})
    with pytest.raises(urllib.error.HTTPError, match="400"):  # what a web page may send unasked
        urllib.request.urlopen(request)


def test_the_token_opens() -> None:
    """A server behind a token would be of no use, or open to all."""

    class Nothing:
        version, queue = "start", 0

    served = ModelServer("127.0.0.1", 0, ModelService(Nothing(), None, "m", 8, None, 100, "s3cret"))
    threading.Thread(target=served.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{served.server_address[1]}"
    assert Caller(url, {"Authorization": "Bearer s3cret"}).get("/v1/models", SECONDS)["data"][0]["id"] == "m"
    for headers in ({}, {"Authorization": "Bearer other"}, {"Authorization": "s3cret"}):
        with pytest.raises(RefusedError, match="401"):
            Caller(url, headers).get("/v1/models", SECONDS)
    served.shutdown()
    served.server_close()


def test_folder_has_to_exist(run, tmp_path) -> None:
    """A mistyped folder would show at the first update only."""
    code, said = run("serve-model", "embedded", "--weights-folder", tmp_path / "nowhere").wait()
    assert code == 2 and "there is no folder" in said
