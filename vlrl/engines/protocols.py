"""Protocols of generation servers: requests, replies, their dialects; servers that a run starts."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import importlib.util
import io
import json
import math
import os
import re
import secrets
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from vlrl.decoders import parse_json
from vlrl.placement.workers import NODE, Packed, Worker, WorkerError, WorkerPool, WorkerService
from vlrl.policies.engine import Completion, GenerationRequest, Options
from vlrl.system.children import end_child, start_child
from vlrl.types import LOST_MOST, UserError, Video

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor, nn


@dataclass(frozen=True)
class Published:
    """Weights that lie ready. shared: whether the server sees the path as well."""

    version: str
    path: Path  # a safetensors file of what trains, or the folder of a whole checkpoint
    shared: bool
    write: Callable[[], None] = lambda: None  # makes the path, where it is not there yet
    model: Any = None  # has them until the next update; None where processes have parts of them
    pairs: Callable[[], list[tuple[str, Tensor]]] = list  # names as in the model's checkpoint; adapters merged
    is_present: Callable[[], bool] = lambda: True  # the model still has them


# What dialects share: prompts on their way to servers, completions on their way back.

OTHER_PROMPT = (
    "policy.engine: the server reads a prompt of {} tokens where the trainer's has {}: give both the same model folder "
    "and image limits (min_pixels, max_pixels)"
)


def completion(choice: dict[str, Any], logprobs: Sequence[float]) -> Completion:
    """KeyError or ValueError where a choice has no token ids, or another number of log-probabilities."""
    tokens = tuple(map(int, choice["token_ids"]))
    if len(tokens) != len(logprobs) or not tokens:
        raise ValueError(f"{len(tokens)} tokens with {len(logprobs)} log-probabilities")
    return Completion(tokens, numbers(logprobs), choice["finish_reason"] == "length")


def numbers(logprobs: Sequence[float]) -> tuple[float, ...]:
    values = tuple(map(float, logprobs))
    if not all(map(math.isfinite, values)):
        raise ValueError("log-probabilities that are no finite numbers")
    return values


def same_prompt(theirs: Sequence[int], asked: GenerationRequest, image_id: int) -> None:
    """UserError where a server reads another prompt than the trainer; an image may stand as one placeholder or all."""
    own = asked.prompt.ids.tolist()
    if list(theirs) not in (own, collapse_placeholders(own, image_id)):
        raise UserError(OTHER_PROMPT.format(len(theirs), len(own)))


def collapse_placeholders(ids: Sequence[int], image_id: int) -> list[int]:
    """Each run of placeholders as one of them."""
    return [token for token, run in groupby(ids) for _ in ([0] if token == image_id else run)]


def placeholders(ids: Sequence[int], image_id: int) -> list[dict[str, int]]:
    """Where each image stands among a prompt's tokens: offset and length of its run."""
    spans, offset = [], 0
    for is_image, run in groupby(token == image_id for token in ids):
        length = len(list(run))
        spans += [{"offset": offset, "length": length}] if is_image else []
        offset += length
    return spans


def messages(asked: GenerationRequest, pictures: Sequence[str]) -> list[dict[str, Any]]:
    """What is shown, as OpenAI messages."""
    from vlrl.policies.processor import to_turns  # imports torch

    waiting, turns = iter(pictures), to_turns(asked.shown)
    for turn in turns:
        turn["content"] = [
            part if part["type"] == "text" else {"type": "image_url", "image_url": {"url": next(waiting)}}
            for part in turn["content"]
        ]
    return turns


def image_digest(image: Image) -> bytes:
    """The same for images whose pixels are the same."""
    return hashlib.blake2b(repr((image.mode, image.size)).encode() + image.tobytes(), digest_size=16).digest()


def data_url(image: Image) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


# One HTTP request to an engine that ends in time, whatever the server does; what is sent may be a file.

MOST = 256 * 2**20  # bytes of an answer


class FailedError(Exception):
    """No usable answer, in a few words. Another time, or another server, it may work."""


class RefusedError(Exception):
    """The server says no for good, in its own words: the request is wrong, and would be elsewhere."""


class Caller:
    """Requests to one server.

    Args:
        url: where its paths begin, without `/v1`.
        headers: of each request, for example the token.
    """

    def __init__(self, url: str, headers: Mapping[str, str]):
        self.url, self._headers, self._parts = url, dict(headers), urlsplit(url)

    def get(self, path: str, seconds: float) -> dict[str, Any]:
        return self._call("GET", path, None, {}, seconds)

    def post(self, path: str, body: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """JSON out and in; an answer without a body is {}.

        Raises:
            FailedError: no answer in time, or one of a server in trouble.
            RefusedError: 400, 401, 403, 404, 405, 413 or 422.
        """
        return self._call("POST", path, json.dumps(body).encode(), {"Content-Type": "application/json"}, seconds)

    def send(self, path: str, file: Path, headers: Mapping[str, str], seconds: float) -> dict[str, Any]:
        """A file as the body of a POST; errors as `post`."""
        sizes = {"Content-Type": "application/octet-stream", "Content-Length": str(file.stat().st_size)}
        with file.open("rb") as body:
            return self._call("POST", path, body, {**sizes, **headers}, seconds)

    def address(self) -> str:
        """This machine's, as the server sees it. FailedError: there is no way to it."""
        try:
            with socket.create_connection((self._parts.hostname or "", self._parts.port or 80), 10) as connection:
                return connection.getsockname()[0]
        except OSError as error:
            raise FailedError(f"no connection ({_reason(error)})") from None

    def _call(self, method: str, path: str, body: Any, headers: Mapping[str, str], seconds: float) -> dict[str, Any]:
        parts, late, watch = self._parts, threading.Event(), None
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname, parts.port, timeout=seconds)
        try:
            connection.connect()
            watch = threading.Timer(seconds, _cut, (connection.sock, late))  # a socket's own time-out begins anew
            watch.daemon = True
            watch.start()
            connection.request(method, parts.path.rstrip("/") + path, body, {**self._headers, **headers})
            response = connection.getresponse()
            text = response.read(MOST + 1)
        except (OSError, http.client.HTTPException, ValueError) as error:
            slow = late.is_set() or isinstance(error, TimeoutError)
            raise FailedError(f"no answer in {seconds:g} s" if slow else f"no connection ({_reason(error)})") from None
        finally:
            if watch:
                watch.cancel()
            connection.close()
        if late.is_set() or len(text) > MOST:
            raise FailedError(f"no answer in {seconds:g} s" if late.is_set() else "an answer that is too long")
        return _read(path, response.status, text)


def _read(path: str, status: int, text: bytes) -> dict[str, Any]:
    try:
        answer = parse_json(text) if text.strip() else {}
    except (ValueError, RecursionError):
        answer = None
    if status in (400, 401, 403, 404, 405, 413, 422):
        raise RefusedError(f"{path}: HTTP {status}: {_read_error(answer, text)}")
    if status // 100 != 2:
        raise FailedError(f"{path}: HTTP {status}: {_read_error(answer, text)}")
    if status == 200 and answer is None and not text.startswith(b"{"):
        return {}  # plain words, as some servers say that all is well
    if not isinstance(answer, dict):
        raise FailedError("an answer that is no JSON object")
    return answer


def _read_error(answer: Any, text: bytes) -> str:
    """The server's own words, on one line."""
    for name in ("error", "detail", "message"):
        if isinstance(answer, dict) and name in answer:
            answer = answer[name]
            answer = answer.get("message", answer) if isinstance(answer, dict) else answer
    words = answer if isinstance(answer, str) else text.decode(errors="replace")
    return " ".join(words.split())[:200]


def _cut(connection: socket.socket, late: threading.Event) -> None:
    late.set()
    with contextlib.suppress(OSError):  # it had ended
        connection.shutdown(socket.SHUT_RDWR)


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or type(error).__name__


# Weights from the trainer's memory to that of a server's workers: the trainer is rank 0 of a group with all of them.

INIT = "/init_weight_transfer_engine"
ROUTES = {INIT, "/start_weight_update", "/update_weights", "/finish_weight_update", "/get_world_size"}


class TransferGroup(Protocol):
    """A group of the trainer and a server's workers; to make one returns when all have joined."""

    def __init__(self, address: str, port: int, world: int): ...

    def broadcast(self, tensor: Tensor) -> None:
        """From the trainer to all."""


class Nccl:
    """vLLM's own communicator over NCCL, on the trainer's current GPU."""

    def __init__(self, address: str, port: int, world: int):
        import torch
        from vllm.distributed.weight_transfer.nccl_common import stateless_init_process_group

        self._group = stateless_init_process_group(address, port, 0, world, torch.cuda.current_device())

    def broadcast(self, tensor: Tensor) -> None:
        import torch

        self._group.broadcast(tensor, src=0, stream=torch.cuda.current_stream())
        torch.cuda.current_stream().synchronize()


GROUPS: dict[str, type[TransferGroup]] = {"NCCLWeightTransferEngine": Nccl}  # by the class in its workers


def find_group(
    caller: Caller, routes: frozenset[str], model: nn.Module | None, seconds: float
) -> tuple[type[TransferGroup] | None, str]:
    """What joins the trainer and a server, None where it reads files; and in words, with the reason.

    Raises:
        FailedError: no answer.
    """
    version = caller.get("/version", seconds).get("version") if "/version" in routes else None
    words = _refuse_init(caller, seconds) if routes >= ROUTES else ""
    name = match[1] if (match := re.search(r"init_info for (\w+)", words)) else "of another kind"
    reason = None
    if not routes >= ROUTES:
        reason = "it has no routes for weight transfer"
    elif "not configured" in words:
        reason = "it was started without --weight-transfer-config"
    elif name not in GROUPS:
        reason = f"its transfer is {name}, which is not carried here"
    elif model is None:
        reason = "each process has a part of the weights"
    elif GROUPS[name] is Nccl and next(model.parameters()).device.type != "cuda":
        reason = "the trainer is not on a GPU"
    elif GROUPS[name] is Nccl and importlib.util.find_spec("vllm") is None:
        reason = "vllm is not installed beside the trainer"
    kind = f"vLLM {version}" if version else "its version is not known"
    if reason is not None:
        return None, f"file (reload_weights; {kind}): {reason}"
    return GROUPS[name], f"weight transfer ({name}; {kind})"


def _refuse_init(caller: Caller, seconds: float) -> str:
    """How the server declines to join nobody, which names what it would join by; FailedError: no answer."""
    try:
        caller.post(INIT, {"init_info": {}}, seconds)
    except (FailedError, RefusedError) as error:
        if "HTTP" not in str(error):
            raise
        return str(error)
    return ""


class WeightTransfer:
    """A server's workers, joined to this trainer.

    Raises:
        FailedError, RefusedError: as `Caller.post`; they did not join in time.
    """

    def __init__(self, caller: Caller, group: type[TransferGroup], seconds: float):
        world, address = 1 + int(caller.get("/get_world_size", seconds)["world_size"]), caller.address()
        with socket.create_server(("", 0)) as free:
            port = free.getsockname()[1]
        info = {"master_address": address, "master_port": port, "rank_offset": 1, "world_size": world}
        self._caller = caller
        self._group: TransferGroup = _together(
            seconds, lambda: group(address, port, world), lambda: caller.post(INIT, {"init_info": info}, seconds)
        )

    def send(self, weights: Published, seconds: float) -> None:
        """Errors as `WeightTransfer`; the weights were changed while they were sent."""
        pairs = weights.pairs()
        info = {
            "names": [name for name, _ in pairs], "shapes": [list(tensor.shape) for _, tensor in pairs],
            "dtype_names": [str(tensor.dtype).removeprefix("torch.") for _, tensor in pairs], "packed": False,
        }  # fmt: skip
        post = self._caller.post
        post("/start_weight_update", {}, seconds)
        try:
            _together(
                seconds, lambda: self._broadcast(tensor for _, tensor in pairs),
                lambda: post("/update_weights", {"update_info": info}, seconds),
            )  # fmt: skip
        except FailedError:
            with contextlib.suppress(FailedError, RefusedError):
                post("/finish_weight_update", {}, seconds)  # another update could not begin
            raise
        post("/finish_weight_update", {}, seconds)
        if not weights.is_present():
            raise FailedError("the weights changed while they were sent")

    def _broadcast(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            self._group.broadcast(tensor.contiguous())


def _together(seconds: float, *acts: Callable[[], Any]) -> Any:
    """What the first of several acts makes that wait for each other; a dead peer holds none longer than its time."""
    futures = [Future() for _ in acts]

    def run(act: Callable[[], Any], future: Future) -> None:
        try:
            future.set_result(act())
        except Exception as error:
            future.set_exception(error)

    for act, future in zip(acts, futures, strict=True):
        threading.Thread(target=run, args=(act, future), daemon=True).start()
    wait(futures, seconds, "FIRST_EXCEPTION")
    for future in futures:
        if future.done() and isinstance(error := future.exception(), RuntimeError | OSError):
            raise FailedError(f"the transfer of weights failed ({type(error).__name__})") from error
        if future.done():
            future.result()
    if not all(future.done() for future in futures):
        raise FailedError(f"no weights taken in {seconds:g} s")
    return futures[0].result()


# How servers are asked and how their answers are read: vlrl's own, vLLM's and SGLang's.
#
# Each dialect is a class with `ask(asked, options)` -> (path, body), `call(caller, asked, options, seconds)`, which
# asks, `read(answer, asked)` -> `Written`, and `publish(caller, weights, seconds)`.
#
# Sources, read in October and November 2026: vLLM's `ChatCompletionRequest` (`return_token_ids`, since 0.10.2), its
# routes for token ids (vllm/entrypoints/scale_out/token_in_token_out, 0.26), its developer routes `/collective_rpc` and
# `/reset_encoder_cache` and `reload_weights(weights_path=)`; SGLang's `/generate` and `/update_weights_from_disk`
# ("SGLang for RL systems").


@dataclass(frozen=True)
class Written:
    """An answer: completions, and the version of the weights that wrote them, where the server says it.

    Of the prompt's tokens those that came from the server's prefix cache; None: it does not say.
    """

    completions: list[Completion]
    version: str | None
    cached: int | None = None


def cached_tokens(answer: Mapping[str, Any]) -> int | None:
    """How many tokens of the prompt a server had in its prefix cache, as OpenAI's usage says it."""
    details = (answer.get("usage") or {}).get("prompt_tokens_details") or {}
    return details.get("cached_tokens")


class Dialect(ABC):
    """What the dialects share. codec: the policy's; model: its name on the server."""

    whole = True  # weights are published as a whole checkpoint, in a folder that the server reads
    names_weights = False  # answers name weights by what they are, so that old ones are noticed

    def __init__(self, codec: Any, model: str):
        self.codec, self.model = codec, model

    @abstractmethod
    def ask(self, asked: GenerationRequest, options: Options) -> tuple[str, dict[str, Any]]:
        """The path and the body of a request."""

    def call(self, caller: Caller, asked: GenerationRequest, options: Options, seconds: float) -> dict[str, Any]:
        """A server's answer; errors as `Caller.post`, and UserError for what it cannot be asked."""
        return caller.post(*self.ask(asked, options), seconds)

    def sends_files(self, caller: Caller) -> bool:
        """Whether the server takes weights as files."""
        return True

    def version(self, caller: Caller, seconds: float) -> str | None:
        """Which weights a server has; None where it does not say."""
        return None

    def pictures(self, asked: GenerationRequest) -> list[str]:
        """The prompt's images as the model is shown them, as data URLs; errors as `images`."""
        return [data_url(self.codec.see(image)) for image in self.images(asked)]

    def images(self, asked: GenerationRequest) -> Sequence[Image]:
        """The prompt's images.

        Raises:
            UserError: it shows a video.
        """
        if any(isinstance(part, Video) for part in asked.shown.content):
            raise UserError("policy.engine: engines take images, no videos: use engine: local")
        return asked.shown.images


class Vlrl(Dialect):
    """`vlrl serve-model`: the prompt's own tokens with its images, so that nothing is read anew."""

    whole, names_weights = False, True

    def version(self, caller: Caller, seconds: float) -> str | None:
        return str(caller.get("/health", seconds)["weights_version"])

    def ask(self, asked: GenerationRequest, options: Options) -> tuple[str, dict[str, Any]]:
        body = {
            "model": self.model, "prompt": [*asked.prompt.ids.tolist(), *asked.begun], "images": self.pictures(asked),
            "n": asked.count, "seed": asked.seed, "max_tokens": options.max_tokens, "stop": list(options.stop),
            "temperature": options.temperature, "top_p": 1.0, "logprobs": 0, "return_token_ids": True,
        }  # fmt: skip
        if asked.drawn is not None:  # so that a server writes what the policy itself would write
            body["uniform"] = base64.b64encode(asked.drawn.astype("<f4").tobytes()).decode()
        return "/v1/completions", body

    def read(self, answer: dict[str, Any], asked: GenerationRequest) -> Written:
        choices = [(c, c["logprobs"]["token_logprobs"]) for c in answer["choices"]]
        return Written([completion(*each) for each in choices], str(answer["weights_version"]), cached_tokens(answer))

    def publish(self, caller: Caller, weights: Published, seconds: float) -> None:
        if weights.shared:
            caller.post("/v1/weights", {"path": weights.path.name, "version": weights.version}, seconds)
        else:
            caller.send("/v1/weights", weights.path, {"X-Weights-Version": weights.version}, seconds)


TOKENS, RENDER = "/inference/v1/generate", "/v1/chat/completions/render"  # vLLM's routes for token ids
RENDERED = 512  # images whose features are kept; one of 1,000 visual tokens has 25 MB


class Vllm(Dialect):
    """vLLM from 0.10.2 on, and what speaks as it does. Its answers name no version of the weights.

    A server that has both routes for token ids gets the trainer's own tokens, with the images' features that it has
    rendered itself. Any other is sent messages, and has to read the prompt as the trainer does.
    """

    def __init__(self, codec: Any, model: str):
        super().__init__(codec, model)
        self._paths: dict[str, frozenset[str]] = {}  # its routes, by a server's URL
        self._transfers: dict[str, WeightTransfer | None] = {}  # by URL; None: by file
        self._reports: set[tuple[str, str]] = set()
        self._rendered: dict[bytes, dict[str, Any]] = {}  # features by an image's digest, the least recently used first
        self._lock = threading.Lock()

    def call(self, caller: Caller, asked: GenerationRequest, options: Options, seconds: float) -> dict[str, Any]:
        if not {TOKENS, RENDER} <= self._routes(caller, seconds):
            return super().call(caller, asked, options, seconds)
        body = self._sampling(asked, options)
        # 0: the sampled token's alone; 2: all completions in one answer, where the default is each one's last words
        body |= {"logprobs": 0, "output_kind": 2, "include_stop_str_in_output": True}
        ids = [*asked.prompt.ids.tolist(), *asked.begun]
        request = {"model": self.model, "token_ids": ids, "sampling_params": body}
        if self.images(asked):
            request["features"] = self._features(caller, asked, ids, seconds)
        return caller.post(TOKENS, request, seconds)

    def ask(self, asked: GenerationRequest, options: Options) -> tuple[str, dict[str, Any]]:
        if asked.begun:
            raise UserError("policy.engine: this vLLM has no route for token ids, without which no completion begins "
                            "with given tokens: take a newer one, or api: vlrl")  # fmt: skip
        self.codec.check_sendable(asked.shown)
        body = {
            "model": self.model, "messages": messages(asked, self.pictures(asked)), **self._sampling(asked, options),
            "logprobs": True, "top_logprobs": 0, "return_token_ids": True,
        }  # fmt: skip
        if asked.shown.tools:  # shown to the model; what it writes is left as text
            body |= {"tools": list(asked.shown.tools), "tool_choice": "none"}
        return "/v1/chat/completions", body

    def read(self, answer: dict[str, Any], asked: GenerationRequest) -> Written:
        if "prompt_token_ids" in answer:  # of messages
            same_prompt(answer["prompt_token_ids"], asked, self.codec.image_id)
        choices = sorted(answer["choices"], key=lambda choice: choice["index"])
        rows = [(c, [token["logprob"] for token in c["logprobs"]["content"]]) for c in choices]
        version = answer.get("weights_version")
        version = None if version is None else str(version)
        completions = [completion(*each) for each in rows]
        alike = completions * asked.count if len(completions) == 1 else completions  # greedy ones: `_sampling`
        return Written(alike, version, cached_tokens(answer))

    def _sampling(self, asked: GenerationRequest, options: Options) -> dict[str, Any]:
        count = asked.count if options.temperature else 1  # vLLM refuses several greedy ones, which are all the same
        return {
            "n": count, "seed": asked.seed, "max_tokens": options.max_tokens, "stop": list(options.stop),
            "temperature": options.temperature, "top_p": 1.0, "stop_token_ids": list(self.codec.stop_ids),
            "logit_bias": {str(i): -100.0 for i in self.codec.banned_ids},
        }  # fmt: skip

    def _routes(self, caller: Caller, seconds: float) -> frozenset[str]:
        if caller.url not in self._paths:
            try:
                paths = caller.get("/openapi.json", seconds).get("paths", {})
            except RefusedError:  # it does not say what it has
                paths = {}
            self._paths[caller.url] = frozenset(paths)
        return self._paths[caller.url]

    def _features(self, caller: Caller, asked: GenerationRequest, ids: Sequence[int], seconds: float) -> dict[str, Any]:
        """What the server makes of images, at the places that they have among the trainer's tokens."""
        own = placeholders(ids, self.codec.image_id)
        rows = self._render(caller, asked, seconds)
        theirs = [row["mm_placeholders"]["length"] for row in rows]
        if theirs != [each["length"] for each in own]:
            raise UserError(OTHER_PROMPT.format(sum(theirs), sum(each["length"] for each in own)))
        return {name: {"image": [row[name] for row in rows]} for name in rows[0]} | {"mm_placeholders": {"image": own}}

    def _render(self, caller: Caller, asked: GenerationRequest, seconds: float) -> list[dict[str, Any]]:
        """The features of each image. A conversation shows its images again in every turn: each is rendered once."""
        names = [image_digest(image) for image in asked.shown.images]
        with self._lock:
            cached = {name: self._rendered[name] for name in names if name in self._rendered}
        new = {name: image for name, image in zip(names, asked.shown.images, strict=True) if name not in cached}
        if new:
            urls = [data_url(self.codec.see(image)) for image in new.values()]
            content = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
            body = {"model": self.model, "messages": [{"role": "user", "content": content}]}
            features = caller.post(RENDER, body, seconds).get("features") or {}
            parts = {name: value["image"] for name, value in features.items() if value}
            if any(len(part) != len(new) for part in parts.values()) or "mm_placeholders" not in parts:
                raise UserError(f"policy.engine: the server's {RENDER} made no features of {len(new)} images")
            cached |= {name: {key: part[i] for key, part in parts.items()} for i, name in enumerate(new)}
        with self._lock:
            for name in dict.fromkeys(names):
                self._rendered[name] = self._rendered.pop(name, cached[name])
            while len(self._rendered) > RENDERED:
                del self._rendered[next(iter(self._rendered))]
        return [cached[name] for name in names]

    def publish(self, caller: Caller, weights: Published, seconds: float) -> None:
        transfer = self._transfer(caller, weights, seconds)
        if transfer is None:
            weights.write()
            kwargs = {"weights_path": str(weights.path)}
            caller.post("/collective_rpc", {"method": "reload_weights", "kwargs": kwargs}, seconds)
        else:
            try:
                transfer.send(weights, seconds)
            except FailedError:  # its workers may be new ones
                del self._transfers[caller.url]
                raise
        for cache in ("prefix", "encoder"):  # what was made by the old weights, of text and of images
            caller.post(f"/reset_{cache}_cache", {}, seconds)

    def _transfer(self, caller: Caller, weights: Published, seconds: float) -> WeightTransfer | None:
        """How the server takes weights, found out at the first of them, and said."""
        if caller.url not in self._transfers:
            group, reason = find_group(caller, self._routes(caller, seconds), weights.model, seconds)
            self._transfers[caller.url] = None if group is None else WeightTransfer(caller, group, seconds)
            if (caller.url, reason) not in self._reports:
                self._reports.add((caller.url, reason))
                print(f"\nvlrl: {caller.url} takes weights by {reason}", file=sys.stderr)
        return self._transfers[caller.url]

    def sends_files(self, caller: Caller) -> bool:
        return self._transfers.get(caller.url) is None


class Sglang(Dialect):
    """SGLang's own route, whose answers hold token ids, log-probabilities and the weights' version."""

    def version(self, caller: Caller, seconds: float) -> str | None:
        return str(caller.get("/get_model_info", seconds).get("weight_version"))

    def ask(self, asked: GenerationRequest, options: Options) -> tuple[str, dict[str, Any]]:
        if asked.begun:
            raise UserError("policy.engine: SGLang begins no completions with given tokens beside images: "
                            "use api: vlrl")  # fmt: skip
        self.codec.check_sendable(asked.shown)
        sampling = {
            "n": asked.count, "max_new_tokens": options.max_tokens, "temperature": options.temperature, "top_p": 1.0,
            "stop": list(options.stop), "stop_token_ids": list(self.codec.stop_ids), "sampling_seed": asked.seed,
            "no_stop_trim": True, "logit_bias": {str(i): -100.0 for i in self.codec.banned_ids},
        }  # fmt: skip
        pictures = self.pictures(asked)
        media = {"image_data": pictures} if pictures else {}
        text = self.codec.text(asked.shown)
        return "/generate", {"text": text, **media, "sampling_params": sampling, "return_logprob": True}

    def read(self, answer: Any, asked: GenerationRequest) -> Written:
        rows = answer if isinstance(answer, list) else [answer]
        infos = [row["meta_info"] for row in rows]
        if any(each["prompt_tokens"] != len(asked.prompt.ids) for each in infos):
            raise UserError(OTHER_PROMPT.format(infos[0]["prompt_tokens"], len(asked.prompt.ids)))
        results = [
            Completion(
                tuple(int(token) for _, token, *_ in each["output_token_logprobs"]),
                numbers([logprob for logprob, *_ in each["output_token_logprobs"]]),
                each["finish_reason"]["type"] == "length",
            )
            for each in infos
        ]
        return Written(results, str(infos[0].get("weight_version")), infos[0].get("cached_tokens"))

    def publish(self, caller: Caller, weights: Published, seconds: float) -> None:
        body = {"model_path": str(weights.path), "weight_version": weights.version, "flush_cache": True}
        caller.post("/update_weights_from_disk", body, seconds)


DIALECTS: dict[str, type[Dialect]] = {"vlrl": Vlrl, "vllm": Vllm, "sglang": Sglang}


# Generation servers that a run starts where its `placement` says: each is a program around which a worker lies.

SERVE = "{python} -m vlrl.cli serve-model {model} --host {host} --port {port} --token-env VLRL_ENGINE_TOKEN"
TOKEN_VARIABLES = ("VLRL_ENGINE_TOKEN", "VLLM_API_KEY")  # they tell a server what its clients must show
ASK_S = 0.2  # between two looks whether a server has come up


class EngineService(WorkerService):
    """A generation server on a worker's node, which ends with the worker."""

    process: subprocess.Popen[bytes] | None = None
    url = ""

    def answers(self) -> Mapping[str, Any]:
        return {"make": self._start, "find": self._find}

    def _start(self, options: Mapping[str, Any], _: Any) -> Packed:
        """Starts `command`, and waits until it answers.

        Raises:
            UserError: there is no such program, or it has ended; with the last that it said.
            RuntimeError: it was killed.
        """
        host = os.environ.get(NODE, "127.0.0.1")
        with socket.create_server((host, 0)) as free:
            port = free.getsockname()[1]
        words = {"python": sys.executable, "host": host, "port": str(port), **options["words"]}
        command = [fill_words(part, words) for part in shlex.split(options["command"])]
        environment = os.environ | dict.fromkeys(TOKEN_VARIABLES, options["token"])
        if "{python}" not in options["command"]:
            environment.pop("PYTHONPATH", None)  # of another Python our packages are none
        self.url, output = f"http://{host}:{port}", tempfile.TemporaryFile()  # noqa: SIM115 it writes until it ends
        try:
            self.process = start_child(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        except OSError as error:
            raise UserError(f"policy.engine.command: cannot start {command[0]}: {error.strerror}") from None
        while not self._is_up():
            if (code := self.process.poll()) is not None:
                if code < 0:  # another time it may live
                    raise RuntimeError(f"the server was killed (signal {-code})")
                output.seek(0)
                last = output.read().decode(errors="replace").strip().rpartition("\n")[2]
                raise UserError(f"policy.engine.command: {command[0]} ended before it answered: {last[:300]}")
            time.sleep(ASK_S)
        return {}, {}

    def _is_up(self) -> bool:
        try:
            Caller(self.url, {}).get("/health", 5.0)
        except FailedError:
            return False
        except RefusedError:  # it has no such route
            pass
        return True

    def _find(self, fields: Mapping[str, Any], _: Any) -> Packed:
        """Where it answers; an error where it has ended."""
        if self.process is None or self.process.poll() is not None:
            raise RuntimeError("the server has ended")
        return {"url": self.url}, {}

    def close(self) -> None:
        if self.process is not None:
            end_child(self.process)


def fill_words(text: str, words: Mapping[str, str]) -> str:
    """A command's part with `{model}` and the like; other braces stay, as in JSON."""
    for name, word in words.items():
        text = text.replace(f"{{{name}}}", word)
    return text


class PlacedEngines:
    """Generation servers of this process' own, as many as `count`. What is lost is started anew, elsewhere if need be.

    Args:
        command: starts one; `{model}` and what else is in `words`, `{python}`, `{host}` and `{port}` are filled in.
        patience: seconds until one has to answer.
    """

    def __init__(self, command: str, words: Mapping[str, str], count: int, patience: float):
        token = secrets.token_urlsafe(24)
        options = {"command": command, "words": dict(words), "token": token}
        self.headers = {"Authorization": f"Bearer {token}"}
        self.pool = WorkerPool(
            f"{__name__}:EngineService", options, kind="engine", size=count, patience=patience, name="policy.engine"
        )

    def start_all(self) -> list[tuple[Worker, Caller]]:
        """All of them, side by side; none is left where one cannot be started.

        Raises:
            UserError: as `start`; workers were lost.
        """
        try:
            with ThreadPoolExecutor(self.pool.size) as threads:
                return list(threads.map(lambda _: self.start(), range(self.pool.size)))
        except UserError:
            self.pool.close()
            raise
        except FailedError as error:
            self.pool.close()
            raise UserError(f"policy.engine: {error}") from None

    def start(self) -> tuple[Worker, Caller]:
        """One more, and where it is asked.

        Raises:
            UserError: the command cannot be started, or there is no room for it.
            FailedError: workers were lost, as often as an episode's may be.
        """
        for _ in range(LOST_MOST):
            worker = None
            try:
                worker = self.pool.take()
                return worker, Caller(worker.ask("find", {})[0]["url"], self.headers)
            except WorkerError as error:
                reason = str(error)
                if worker is not None:
                    self.pool.bury(worker, reason)
        raise FailedError(f"no server could be started ({reason})")

    def end_lost(self, worker: Worker, anyway: bool) -> bool:
        """Ends a worker whose server is gone, or `anyway`, so that another may start; whether it did."""
        try:
            worker.ask("find", {})
            reason = "it answered no more"
        except WorkerError as error:
            anyway, reason = True, str(error)
        if anyway:
            self.pool.bury(worker, reason)
        return anyway
