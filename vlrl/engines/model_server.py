"""The generation server: batching, prompts, weights, replies over HTTP."""

from __future__ import annotations

import argparse
import base64
import binascii
import contextlib
import hashlib
import hmac
import json
import os
import secrets
import signal
import sys
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Annotated, Any, Literal

import numpy as np
import torch
from PIL import Image
from PIL.Image import Image as ImageImage
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from vlrl.config import PolicySection
from vlrl.decoders import parse_json
from vlrl.engines import LocalEngine, load_policy
from vlrl.engines.protocols import RENDER, TOKENS, data_url, placeholders
from vlrl.media import MediaError, load_image, read_data_url
from vlrl.policies.engine import Completion, GenerationRequest, Options
from vlrl.policies.generation import bare
from vlrl.policies.processor import CODECS, Prompt, QwenProcessor, positions_of
from vlrl.report.html import render_playground
from vlrl.system.http_server import LIMITS, HttpError, HttpHandler, HttpLimits, HttpServer, is_loopback
from vlrl.types import MAX_PIXELS, Frame, Observation, Role, UserError, __version__

# What clients ask: JSON of OpenAI's completions and chat completions, read strictly.

COLDEST = 1e-4  # of temperatures above 0: logits are divided by it
TOTAL_PIXELS = 4 * MAX_PIXELS  # of all images of a request
LONGEST = 2**20  # characters or tokens of a prompt; how many fit is the model's matter
Text = Annotated[str, Field(max_length=LONGEST)]
Token = Annotated[int, Field(ge=0, lt=2**31)]
Stop = Annotated[str, Field(max_length=1024)]
Images = Annotated[list[str], Field(max_length=256)]


class RequestError(HttpError):
    """A request that asks for what is not done here: HTTP 400."""


class _Common(BaseModel):
    """Fields of other servers that change nothing here are let through; see `REFUSED` for those that would."""

    model_config = ConfigDict(extra="allow", strict=True)

    model: str | None = None
    n: Annotated[int, Field(ge=1, le=1024)] = 1
    seed: int | None = None
    temperature: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] = 1.0
    top_p: float | None = 1.0
    stop: Stop | Annotated[list[Stop], Field(max_length=64)] | None = None
    stop_token_ids: list[int] = Field(default_factory=list)
    logit_bias: dict[str, float] = Field(default_factory=dict)
    return_token_ids: bool = False
    uniform: str | None = None  # base64 of float32 [n, max_tokens] in [0, 1), which the tokens are drawn by


class Completions(_Common):
    prompt: Text | Annotated[list[Token], Field(min_length=1, max_length=LONGEST)]
    images: Images = []  # data URLs, in the order of their placeholders among the prompt's ids
    max_tokens: Annotated[int, Field(ge=1)] = 16
    logprobs: Annotated[int, Field(ge=0)] | None = None


class Url(BaseModel):
    url: str


class RequestPart(BaseModel):
    type: Literal["text", "image_url"]
    text: Text | None = None
    image_url: Url | None = None


class Function(BaseModel):
    name: Text
    arguments: Text | dict[str, Any] = Field(default_factory=dict)  # as OpenAI has them, or parsed


class Call(BaseModel):
    type: Literal["function"] = "function"
    function: Function


class RequestMessage(BaseModel):
    role: Role
    content: Text | Annotated[list[RequestPart], Field(max_length=1024)] | None = None
    tool_calls: Annotated[list[Call], Field(max_length=64)] = Field(default_factory=list)


class Chat(_Common):
    messages: Annotated[list[RequestMessage], Field(min_length=1, max_length=1024)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool = False
    tools: Annotated[list[dict[str, Any]], Field(max_length=128)] = Field(default_factory=list)  # shown, not parsed


class PreparedImages(BaseModel):
    """Images that the route RENDER has prepared: here as data URLs, in vLLM as tensors; clients pass them on."""

    kwargs_data: dict[Literal["image"], Images]


class Generate(BaseModel):
    """vLLM's request by token ids."""

    token_ids: Annotated[list[Token], Field(min_length=1, max_length=LONGEST)]
    features: PreparedImages | None = None
    sampling_params: dict[str, Any]

    def completions(self) -> dict[str, Any]:
        """The same as a request for completions."""
        images = self.features.kwargs_data.get("image", []) if self.features else []
        return {**self.sampling_params, "prompt": self.token_ids, "images": images, "return_token_ids": True}


# fields that would change what is written, and the values with which they do not
REFUSED: dict[str, tuple[Any, ...]] = {
    "stream": (False,), "top_k": (0, -1), "min_p": (0, 0.0), "best_of": (1,), "echo": (False,),
    "tool_choice": ("none", "auto"),
    "frequency_penalty": (0, 0.0), "presence_penalty": (0, 0.0), "repetition_penalty": (1, 1.0),
    "response_format": ({"type": "text"},), "top_logprobs": (0,), "suffix": ("",), "ignore_eos": (False,),
    "bad_words": ([],), "allowed_token_ids": (), "min_tokens": (0,), "use_beam_search": (False,),
    "structured_outputs": (), "guided_json": (), "guided_regex": (), "guided_choice": (), "guided_grammar": (),
    "length_penalty": (1, 1.0), "logits_processors": ([],), "functions": ([],), "prompt_logprobs": (),
    "truncate_prompt_tokens": (), "chat_template": (), "chat_template_kwargs": ({},),
    "continue_final_message": (False,), "add_generation_prompt": (True,),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Wish:
    """A request as read: what to write, how, and what the answer is to hold."""

    options: Options
    count: int
    drawn: np.ndarray | None
    images: tuple[ImageImage, ...]
    prompt: str | list[int] | list[dict[str, Any]]  # text, tokens, or messages for the chat template
    logprobs: bool
    ids: bool
    tools: tuple[dict[str, Any], ...] = ()  # of messages


def validated[M: BaseModel](kind: type[M], body: Any) -> M:
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        raise RequestError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def requests_read[M: _Common](kind: type[M], body: Any, most: int, codec: Any) -> Wish:
    """A request's JSON. most: tokens of a completion where none are asked for, and at most.

    Raises:
        RequestError: it is none of its kind, or asks for what is not done here.
    """
    request = validated(kind, body)
    for name, value in (request.__pydantic_extra__ or {}).items():
        if name in REFUSED and value is not None and value not in REFUSED[name]:
            raise RequestError(f"{name}: not supported here")
    if not set(request.stop_token_ids) <= set(codec.stop_ids):
        raise RequestError("stop_token_ids: only those that end a completion of this model anyway")
    banned = {str(i) for i in codec.banned_ids}
    if any(name not in banned or bias > -100 for name, bias in request.logit_bias.items()):
        raise RequestError("logit_bias: only -100, of special tokens, which are never sampled anyway")
    if 0 < request.temperature < COLDEST:
        raise RequestError(f"temperature: 0, or at least {COLDEST}")
    if request.top_p not in (None, 1.0):
        raise RequestError("top_p: only 1: log-probabilities are those of the full distribution")
    chat = isinstance(request, Chat)
    room = (request.max_completion_tokens or request.max_tokens or most) if chat else request.max_tokens
    if room > most:
        raise RequestError(f"max_tokens: at most {most}")
    stop = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ())
    options = Options(room, request.temperature, tuple(filter(None, stop)))
    prompt, images = _messages(request.messages) if chat else (request.prompt, _pictures(request.images))
    logprobs = request.logprobs is True if chat else request.logprobs is not None
    tools = tuple(request.tools) if chat else ()
    return Wish(
        options,
        request.n,
        _read_uniform(request, options),
        tuple(images),
        prompt,
        logprobs,
        request.return_token_ids,
        tools,
    )


def _messages(messages: list[RequestMessage]) -> tuple[list[dict[str, Any]], list[ImageImage]]:
    """Turns for the chat template, and their images in order."""
    turns, urls = [], []
    for message in messages:
        parts = message.content or []
        parts = [RequestPart(type="text", text=parts)] if isinstance(parts, str) else parts
        content = []
        for part in parts:
            if part.type == "image_url":
                if part.image_url is None:
                    raise RequestError("messages: an image_url without its url")
                urls.append(part.image_url.url)
            content.append({"type": "image"} if part.type == "image_url" else {"type": "text", "text": part.text or ""})
        calls = [{"type": "function", "function": _function(call.function)} for call in message.tool_calls]
        turns.append({"role": message.role, "content": content, **({"tool_calls": calls} if calls else {})})
    return turns, _pictures(urls)


def _function(called: Function) -> dict[str, Any]:
    """A tool call with its arguments as an object, which is what chat templates render."""
    arguments = called.arguments
    if isinstance(arguments, str):
        try:
            arguments = parse_json(arguments)
        except ValueError as error:
            raise RequestError(f"messages: a tool call's arguments: {error}") from None
    return {"name": called.name, "arguments": arguments}


def _pictures(urls: list[str]) -> list[ImageImage]:
    images, room = [], TOTAL_PIXELS
    for url in urls:
        images.append(picture(url))
        room -= images[-1].width * images[-1].height
        if room < 0:
            raise RequestError(f"images: at most {TOTAL_PIXELS / 1e6:.0f} megapixels in all")
    return images


def picture(url: str) -> ImageImage:
    """An image of a data URL; nothing is fetched."""
    try:
        return load_image(read_data_url(url), name="an image")
    except MediaError as error:
        raise RequestError(f"images: {error}") from None


def _read_uniform(asked: _Common, options: Options) -> np.ndarray | None:
    """The numbers that are drawn by, [n, max_tokens]; None where nothing is sampled."""
    shape = (asked.n, options.max_tokens)
    if not options.temperature:
        return None
    if asked.uniform is None:
        seed = None if asked.seed is None else asked.seed % 2**64
        return np.random.default_rng(seed).random(shape, dtype=np.float32)
    try:
        numbers = np.frombuffer(base64.b64decode(asked.uniform, validate=True), "<f4").reshape(shape)
    except (binascii.Error, ValueError):
        raise RequestError(f"uniform: should be base64 of {shape[0]} x {shape[1]} float32") from None
    if not ((numbers >= 0) & (numbers < 1)).all():
        raise RequestError("uniform: numbers from 0 up to but without 1")
    return numbers.astype(np.float32)


# From a client's prompt to the policy's: token ids, text or messages, with images.

KEPT = 256  # prompts


class PromptCache:
    """Prompts preprocessed, the latest of them kept: members of a group are often asked for one by one."""

    def __init__(self, codec: QwenProcessor):
        self.codec = codec
        self._kept: OrderedDict[bytes, Prompt] = OrderedDict()

    def of(
        self, prompt: str | list[int] | list[dict[str, Any]], images: Sequence[Image.Image],
        tools: Sequence[dict[str, Any]] = (),
    ) -> Prompt:  # fmt: skip
        """RequestError where the prompt is too long, or has not as many placeholders as its images need."""
        key = _key((prompt, tools), images)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        try:
            prompt_inputs = self._preprocess(prompt, images, tools)
        except UserError as error:
            raise RequestError(str(error)) from None
        self._kept[key] = prompt_inputs
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return prompt_inputs

    def _preprocess(self, prompt: Any, images: Sequence[Image.Image], tools: Sequence[dict[str, Any]]) -> Prompt:
        """Messages are content; a text is the client's own rendering, in which special tokens are what they spell."""
        codec = self.codec
        inputs: Mapping[str, Any] = {}
        if isinstance(prompt, str):
            pictures = [codec.see(image) for image in images] or None
            inputs = codec.processor(text=[prompt], images=pictures, do_resize=False, return_tensors="pt")
            ids = inputs["input_ids"][0]
        elif isinstance(prompt[0], dict):
            ids, inputs = codec.tokenize(prompt, images, tools=tools)
        else:
            ids = torch.tensor(prompt)
            if images:
                pictures = [codec.see(image) for image in images]
                inputs = codec.processor.image_processor(pictures, do_resize=False, return_tensors="pt")
        if len(ids) > codec.max_prompt:
            raise RequestError(f"a prompt of {len(ids)} tokens: at most {codec.max_prompt}")
        if not len(codec.tokenizer) > int(ids.max()) >= int(ids.min()) >= 0:
            raise RequestError("prompt: ids that are no tokens of this model")
        return self._prompt(ids, inputs.get("pixel_values"), inputs.get("image_grid_thw"), images)

    def _prompt(self, ids: Tensor, pixels: Tensor | None, grid: Tensor | None, images: Sequence[Image.Image]) -> Prompt:
        codec, settings = self.codec, self.codec.processor.image_processor
        layers = [] if grid is None else [tuple(row) for row in grid.tolist()]
        types = (ids == codec.image_id).int()
        expected = sum(t * h * w for t, h, w in layers) // settings.merge_size**2
        if int(types.sum()) != expected or bool((ids == codec.video_id).any()):
            raise RequestError(f"prompt: {int(types.sum())} placeholders, but its images need {expected}")
        grids = [(t, h // settings.merge_size, w // settings.merge_size) for t, h, w in layers]
        frames = tuple(
            Frame(codec.space, image.size, (w * settings.patch_size, h * settings.patch_size))
            for image, (_, h, w) in zip(images, layers, strict=True)
        )
        return Prompt(ids, types, positions_of(types, grids, [[0]] * len(grids)), pixels, grid, frames)


def _key(prompt: Any, images: Sequence[Image.Image]) -> bytes:
    hashed = hashlib.blake2b(repr(prompt).encode(), digest_size=16)
    for image in images:
        hashed.update(f"{image.mode} {image.size}".encode())
        hashed.update(image.tobytes())
    return hashed.digest()


# New weights for a model that is served: checked as a whole, then put in place as a whole.


def confined(folder: Path | None, name: str) -> Path:
    """A safetensors file inside the folder.

    Raises:
        RequestError: there is no folder for weights, the path leads out of it, or it is no such file.
    """
    if folder is None:
        raise RequestError("path: this server reads weights from no folder: start it with --weights-folder")
    root = folder.resolve()
    try:
        path = (root / name).resolve()  # links as well
    except (OSError, ValueError) as error:
        raise RequestError(f"path: {error}") from None
    if not path.is_relative_to(root) or path.suffix != ".safetensors":
        raise RequestError("path: has to be a .safetensors file inside the server's folder for weights")
    if not path.is_file():
        raise RequestError(f"path: there is no file {name!r}")
    return path


class Weights:
    """The parameters of a model, and what those that were changed began with: clients send what differs from there."""

    def __init__(self, base: nn.Module):
        self._named = dict(base.named_parameters(remove_duplicate=False))
        self._first: dict[str, Tensor] = {}  # on the CPU

    @torch.no_grad()
    def put(self, path: Path) -> int:
        """Writes a file's tensors into the parameters of their names, the others are as they began; how many.

        Raises:
            RequestError: it is no safetensors file; a name or shape is none of the model's; a number is not finite.
                Then nothing has changed.
        """
        try:
            with safe_open(path, "pt") as file:
                names = list(file.keys())
                for name in names:
                    self._check(name, file)
                for name in names:
                    self._first.setdefault(name, self._named[name].cpu().clone())
                    self._named[name].copy_(file.get_tensor(name))
        except (SafetensorError, OSError) as error:
            raise RequestError(f"weights: {str(error).splitlines()[0]}") from None
        for name in set(self._first) - set(names):
            self._named[name].copy_(self._first.pop(name))
        return len(names)

    def _check(self, name: str, file: Any) -> None:
        shape = tuple(file.get_slice(name).get_shape())
        if name not in self._named or shape != tuple(self._named[name].shape):
            raise RequestError(f"weights: {name} is no parameter of this model, or has another shape")
        if not torch.isfinite(file.get_tensor(name)).all():
            raise RequestError(f"weights: {name} holds numbers that are not finite")


# One model, many clients: what waits at the same time is written in one batch.

GATHER = 0.005  # seconds without a newcomer after which a batch begins
Answer = tuple[Prompt, list[Completion], str]  # and the version of the weights that wrote it


class CompletionWriter:
    """Owns the model: one thread writes batches and, between them, takes new weights.

    Args:
        policy: a VLM; its weights are no longer trained.
        batch: completions that are written at once, at most.
    """

    def __init__(self, policy: Any, batch: int):
        self._policy, self._batch, self.version = policy, batch, "start"
        policy.model.requires_grad_(False)
        self._weights = Weights(bare(policy.model))
        self._engine, self._prompts = LocalEngine(policy), PromptCache(policy.codec)
        self._inbox: SimpleQueue[tuple[Wish, Future] | tuple[Callable[[], Any], Future] | None] = SimpleQueue()
        self._waiting: list[tuple[Wish, Future]] = []
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    @property
    def queue(self) -> int:
        return self._inbox.qsize() + len(self._waiting)

    def write(self, wish: Wish) -> Answer:
        """Waits for a request's completions; raises what went wrong with it."""
        return self._hand_in(wish)

    def tokenize(self, wish: Wish) -> Prompt:
        """A request's prompt, without a word of its answer."""
        return self._hand_in(lambda: self._prompts.of(wish.prompt, wish.images, wish.tools))

    def take(self, path: Path, version: str) -> int:
        """New weights, once the batch under way has ended; how many tensors. Nothing made by the old ones is kept."""

        def change() -> int:
            count = self._weights.put(path)
            self._policy.forget()
            self.version = version
            return count

        return self._hand_in(change)

    def close(self) -> None:
        self._inbox.put(None)
        self._thread.join(timeout=30)

    def _hand_in(self, what: Any) -> Any:
        future: Future = Future()
        self._inbox.put((what, future))
        return future.result()

    def _run(self) -> None:
        while True:
            if not self._gather():
                return
            self._write(self._next())

    def _gather(self) -> bool:
        """Takes what has come, until nothing more does or a batch is full; waits where there is nothing to do.

        Returns:
            False at the end.
        """
        while sum(wish.count for wish, _ in self._waiting) < self._batch:
            try:
                item = self._inbox.get(timeout=GATHER if self._waiting else None)
            except Empty:
                break
            if item is None:
                return False
            what, future = item
            if isinstance(what, Wish):
                self._waiting.append((what, future))
            else:
                _settle(future, what)
        return True

    def _next(self) -> list[tuple[Wish, Future]]:
        """The first that waits, and all that are sampled in the same way, as far as there is room."""
        options, chosen, size = self._waiting[0][0].options, [], 0
        for each in self._waiting:
            if each[0].options == options and (not chosen or size + each[0].count <= self._batch):
                chosen.append(each)
                size += each[0].count
        self._waiting = [each for each in self._waiting if not any(each is other for other in chosen)]
        return chosen

    def _write(self, chosen: list[tuple[Wish, Future]]) -> None:
        jobs: list[tuple[GenerationRequest, Future]] = []
        for wish, future in chosen:
            try:
                prompt = self._prompts.of(wish.prompt, wish.images, wish.tools)
                jobs.append((GenerationRequest(Observation(()), prompt, wish.count, (), wish.drawn), future))
            except Exception as error:
                future.set_exception(error)
        if not jobs:
            return
        options: Options = chosen[0][0].options
        try:
            results = self._engine.generate([each for each, _ in jobs], options)
        except Exception as error:
            for _, future in jobs:
                future.set_exception(error)
            return
        for (each, future), completions in zip(jobs, results, strict=True):
            future.set_result((each.prompt, completions, self.version))


def _settle(future: Future, do: Callable[[], Any]) -> None:
    try:
        future.set_result(do())
    except Exception as error:
        future.set_exception(error)


# The JSON of OpenAI's replies, with token ids and the weights' version.


def reply(name: str, codec: Any, wish: Wish, answer: Answer, chat: bool) -> dict[str, Any]:
    """The JSON of OpenAI's reply, with token ids and the weights' version."""
    prompt, completions, version = answer
    tokens = sum(len(each.tokens) for each in completions)
    body = {
        "id": f"{'chatcmpl' if chat else 'cmpl'}-{secrets.token_hex(8)}",
        "object": "chat.completion" if chat else "text_completion", "created": int(time.time()), "model": name,
        "choices": [_choice(codec, wish, i, each, chat) for i, each in enumerate(completions)],
        "usage": {"prompt_tokens": len(prompt.ids), "completion_tokens": tokens,
                  "total_tokens": len(prompt.ids) + tokens},
        "weights_version": version,
    }  # fmt: skip
    if prompt.frames:
        body["frames"] = [[frame.to_original(*pair) for pair in ((0, 0), (1, 0), (0, 1))] for frame in prompt.frames]
    return body | ({"prompt_token_ids": prompt.ids.tolist()} if wish.ids else {})


def _choice(codec: Any, wish: Wish, index: int, made: Completion, chat: bool) -> dict[str, Any]:
    text, words = codec.decode(made.tokens), [codec.tokenizer.decode([token]) for token in made.tokens]
    choice: dict[str, Any] = {"index": index, "finish_reason": "length" if made.cut else "stop"}
    choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    if wish.ids:
        choice["token_ids"] = list(made.tokens)
    if wish.logprobs and chat:
        each = zip(words, made.logprobs, strict=True)
        choice["logprobs"] = {"content": [{"token": w, "logprob": p, "top_logprobs": []} for w, p in each]}
    elif wish.logprobs:
        choice["logprobs"] = {"tokens": words, "token_logprobs": list(made.logprobs)}
    return choice


# The routes of `vlrl serve-model`, each request in a thread of its own.

LARGEST = 2**28  # bytes of a request's JSON


@dataclass(frozen=True)
class ModelService:
    """What a server serves.

    name: of the model. most: tokens of a completion. weights: the folder that paths of new weights are in; None: there
    is none. size: bytes of new weights, at most. token: what clients must show; None: nothing. page: HTML.
    """

    writer: CompletionWriter
    codec: Any
    name: str
    most: int
    weights: Path | None
    size: int
    token: str | None
    page: bytes = b""


class ModelServer(HttpServer):
    def __init__(self, host: str, port: int, service: ModelService, limits: HttpLimits = LIMITS):
        self.service = service
        super().__init__(host, port, ModelHandler, limits)


class ModelHandler(HttpHandler):
    """One connection."""

    server: ModelServer

    def handle_get(self) -> None:
        if self.path == "/" and self.server.service.page:
            self.send(200, "text/html; charset=utf-8", self.server.service.page)
            return
        self._answer({"/health": self._health, "/v1/models": self._models, "/openapi.json": self._paths})

    def handle_post(self) -> None:
        self._answer(self._posts)

    @property
    def _posts(self) -> dict[str, Callable[[], dict[str, Any]]]:
        return {
            "/v1/completions": lambda: self._completed(Completions),
            "/v1/chat/completions": lambda: self._completed(Chat),
            RENDER: self._rendered,
            TOKENS: self._generated,
            "/v1/weights": self._weights,
        }

    # -- routes --------------------------------------------------------------------------------------------------

    def _health(self) -> dict[str, Any]:
        writer = self.server.service.writer
        return {"status": "ok", "weights_version": writer.version, "queue": writer.queue}

    def _models(self) -> dict[str, Any]:
        service = self.server.service
        model = {"id": service.name, "object": "model", "owned_by": "vlrl", "weights_version": service.writer.version}
        return {"object": "list", "data": [model]}

    def _completed(self, kind: type[Completions] | type[Chat]) -> dict[str, Any]:
        service = self.server.service
        wish = requests_read(kind, self._json(), service.most, service.codec)
        return reply(service.name, service.codec, wish, service.writer.write(wish), chat=kind is Chat)

    def _paths(self) -> dict[str, Any]:
        """What a client that can do several things asks for first."""
        paths = {path: {"post": {}} for path in self._posts}
        return {"openapi": "3.1.0", "info": {"title": "vlrl", "version": __version__}, "paths": paths}

    def _rendered(self) -> dict[str, Any]:
        """A conversation as token ids and image features, of which nothing is written."""
        service = self.server.service
        wish = requests_read(Chat, self._json(), service.most, service.codec)
        ids, images = service.writer.tokenize(wish).ids.tolist(), [data_url(image) for image in wish.images]
        hashes = [hashlib.sha256(url.encode()).hexdigest() for url in images]
        features = {"mm_hashes": {"image": hashes}, "kwargs_data": {"image": images},
                    "mm_placeholders": {"image": placeholders(ids, service.codec.image_id)}}  # fmt: skip
        return {"token_ids": ids, "features": features if images else None}

    def _generated(self) -> dict[str, Any]:
        service = self.server.service
        body = validated(Generate, self._json()).completions()
        wish = requests_read(Completions, body, service.most, service.codec)
        answer = reply(service.name, service.codec, wish, service.writer.write(wish), chat=True)
        return {name: value for name, value in answer.items() if name != "prompt_token_ids"}  # the client's own

    def _weights(self) -> dict[str, Any]:
        """New weights: JSON with a path, or the file itself with its version in `X-Weights-Version`."""
        service = self.server.service
        if self.headers.get_content_type() == "application/json":
            request = self._json()
            path, version = request.get("path"), request.get("version")
            if not isinstance(path, str) or not isinstance(version, str) or not 0 < len(version) <= 256:
                raise RequestError("path and version are required, both text, of a version at most 256 characters")
            count = service.writer.take(confined(service.weights, path), version)
            return {"weights_version": version, "tensors": count}
        version = self.headers.get("X-Weights-Version", "")
        if not version:
            raise RequestError("the header X-Weights-Version is required")
        with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
            self.read_body(file.write, service.size)
            file.flush()
            return {"weights_version": version, "tensors": service.writer.take(Path(file.name), version)}

    # -- what all of them do ---------------------------------------------------------------------------------------

    def _answer(self, routes: dict[str, Callable[[], dict[str, Any]]]) -> None:
        path = self.path.partition("?")[0]
        try:
            if path not in routes:
                self._send(404, _error(f"there is no {self.command} {path}"))
            elif path != "/health" and not self._admitted():
                self._send(401, _error("this server wants its token: Authorization: Bearer TOKEN"))
            else:
                self._send(200, routes[path]())
        except HttpError as error:
            self._send(error.status, _error(str(error)))
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        except Exception as error:  # the next request may go well
            print(f"vlrl: {path}: {type(error).__name__}: {error}", file=sys.stderr)
            self._send(500, _error(type(error).__name__))

    def _admitted(self) -> bool:
        token = self.server.service.token
        kind, _, credential = self.headers.get("Authorization", "").partition(" ")
        same = token is None or hmac.compare_digest(credential.strip().encode(), token.encode())
        return same and (token is None or kind.lower() == "bearer")

    def _json(self) -> dict[str, Any]:
        if self.headers.get_content_type() != "application/json":  # others a web page may send unasked
            raise RequestError("Content-Type has to be application/json")
        parts: list[bytes] = []
        self.read_body(parts.append, LARGEST)
        try:
            body = parse_json(b"".join(parts))
        except ValueError as error:
            raise RequestError(f"the body is no JSON object: {error}") from None
        if not isinstance(body, dict):
            raise RequestError("the body is no JSON object")
        return body

    def _send(self, status: int, body: dict[str, Any]) -> None:
        self.send(status, "application/json", json.dumps(body).encode())


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error"}}


# `vlrl serve-model`: a vision-language model behind a port (docs/engines.md).

SLACK = 2**22  # bytes of a safetensors file beside its numbers


def main(options: argparse.Namespace) -> int:
    """Serves until SIGINT or SIGTERM: 0. Arguments and errors are those of `open_server`."""
    stop = threading.Event()
    with open_server(options) as address:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, lambda number, frame: stop.set())
        print(f"serving {options.name or options.model} at {address}", flush=True)
        stop.wait()
    return 0


@contextlib.contextmanager
def open_server(options: argparse.Namespace) -> Iterator[str]:
    """Serves in a thread, until the block ends -> the address.

    Args:
        options: model, host, port, name, token_env, weights_folder, max_tokens, max_batch, max_pixels, min_pixels,
            dtype.

    Raises:
        UserError: an option cannot be used, or the model cannot be served.
    """
    token = _token(options)
    if options.weights_folder and not Path(options.weights_folder).is_dir():
        raise UserError(f"--weights-folder: there is no folder {options.weights_folder!r}")
    section = PolicySection(
        model=options.model, dtype=options.dtype, max_pixels=options.max_pixels, min_pixels=options.min_pixels
    )
    policy: Any = load_policy(section)
    if not policy.writes_text:
        raise UserError(f"serve-model: {options.model} is no vision-language model: serve it with vlrl serve")
    if (family := policy.model.config.model_type) not in CODECS:
        raise UserError(
            f"serve-model: it reads prompts of {' and '.join(CODECS)}, not of {family}: serve that with "
            "vLLM or SGLang, or train it with policy.engine: local"
        )
    policy.model.eval()
    writer = CompletionWriter(policy, options.max_batch)
    size = sum(p.numel() for p in policy.model.parameters()) * 8 + SLACK  # float64 at most
    folder = Path(options.weights_folder) if options.weights_folder else None
    name = options.name or options.model
    page = render_playground(name, options.max_tokens, has_token=token is not None).encode()
    service = ModelService(writer, policy.codec, name, options.max_tokens, folder, size, token, page)
    try:
        server = ModelServer(options.host, options.port, service)
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"serve-model: cannot listen on {options.host}:{options.port}: {reason}") from None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    host, port = server.server_address[:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        server.shutdown()
        server.server_close()
        writer.close()


def _token(options: argparse.Namespace) -> str | None:
    """What clients must show; it stands in an environment variable and is written nowhere."""
    if options.token_env:
        if not os.environ.get(options.token_env):
            raise UserError(f"--token-env: the environment variable {options.token_env} is not set")
        return os.environ[options.token_env]
    if not is_loopback(options.host):
        raise UserError(f"--host {options.host}: others could change the model: give --token-env, or stay on 127.0.0.1")
    return None
