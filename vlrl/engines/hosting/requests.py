"""What clients ask: JSON of OpenAI's completions and chat completions, read strictly."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from PIL.Image import Image
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vlrl.engines.base import Options
from vlrl.http_server import HttpError
from vlrl.media import MediaError, load_image
from vlrl.types import MAX_PIXELS

PREFIX = "data:image/"
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
    return_token_ids: bool = False
    uniform: str | None = None  # base64 of float32 [n, max_tokens] in [0, 1), which the tokens are drawn by


class Completions(_Common):
    prompt: Text | Annotated[list[Token], Field(min_length=1, max_length=LONGEST)]
    images: Images = []  # data URLs, in the order of their placeholders among the prompt's ids
    max_tokens: Annotated[int, Field(ge=1)] = 16
    logprobs: Annotated[int, Field(ge=0)] | None = None


class Url(BaseModel):
    url: str


class Part(BaseModel):
    type: Literal["text", "image_url"]
    text: Text | None = None
    image_url: Url | None = None


class Message(BaseModel):
    role: Literal["system", "user", "assistant"]
    content: Text | Annotated[list[Part], Field(max_length=1024)]


class Chat(_Common):
    messages: Annotated[list[Message], Field(min_length=1, max_length=1024)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool = False


# fields that would change what is written, and the values with which they do not
REFUSED: dict[str, tuple[Any, ...]] = {
    "stream": (False,), "top_k": (0, -1), "min_p": (0, 0.0), "best_of": (1,), "echo": (False,), "tools": ([],),
    "frequency_penalty": (0, 0.0), "presence_penalty": (0, 0.0), "repetition_penalty": (1, 1.0),
    "response_format": ({"type": "text"},), "top_logprobs": (0,), "suffix": ("",), "ignore_eos": (False,),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Wish:
    """A request as read: what to write, how, and what the answer is to hold."""

    options: Options
    count: int
    drawn: np.ndarray | None
    images: tuple[Image, ...]
    prompt: str | list[int] | list[dict[str, Any]]  # text, tokens, or messages for the chat template
    logprobs: bool
    ids: bool


def read[M: _Common](kind: type[M], body: Any, most: int) -> Wish:
    """A request's JSON. most: tokens of a completion where none are asked for, and at most.

    Raises:
        RequestError: it is none of its kind, or asks for what is not done here.
    """
    try:
        asked = kind.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        raise RequestError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    for name, value in (asked.__pydantic_extra__ or {}).items():
        if name in REFUSED and value is not None and value not in REFUSED[name]:
            raise RequestError(f"{name}: not supported here")
    if 0 < asked.temperature < COLDEST:
        raise RequestError(f"temperature: 0, or at least {COLDEST}")
    if asked.top_p not in (None, 1.0):
        raise RequestError("top_p: only 1: log-probabilities are those of the whole law")
    chat = isinstance(asked, Chat)
    room = (asked.max_completion_tokens or asked.max_tokens or most) if chat else asked.max_tokens
    if room > most:
        raise RequestError(f"max_tokens: at most {most}")
    stop = (asked.stop,) if isinstance(asked.stop, str) else tuple(asked.stop or ())
    options = Options(room, asked.temperature, tuple(filter(None, stop)))
    prompt, images = _messages(asked.messages) if chat else (asked.prompt, _pictures(asked.images))
    logprobs = asked.logprobs is True if chat else asked.logprobs is not None
    return Wish(options, asked.n, _drawn(asked, options), tuple(images), prompt, logprobs, asked.return_token_ids)


def _messages(messages: list[Message]) -> tuple[list[dict[str, Any]], list[Image]]:
    """Turns for the chat template, and their images in order."""
    turns, urls = [], []
    for message in messages:
        parts = [Part(type="text", text=message.content)] if isinstance(message.content, str) else message.content
        content = []
        for part in parts:
            if part.type == "image_url":
                if part.image_url is None:
                    raise RequestError("messages: an image_url without its url")
                urls.append(part.image_url.url)
            content.append({"type": "image"} if part.type == "image_url" else {"type": "text", "text": part.text or ""})
        turns.append({"role": message.role, "content": content})
    return turns, _pictures(urls)


def _pictures(urls: list[str]) -> list[Image]:
    images, room = [], TOTAL_PIXELS
    for url in urls:
        images.append(picture(url))
        room -= images[-1].width * images[-1].height
        if room < 0:
            raise RequestError(f"images: at most {TOTAL_PIXELS / 1e6:.0f} megapixels in all")
    return images


def picture(url: str) -> Image:
    """An image of a data URL; nothing is fetched."""
    if not url.startswith(PREFIX):
        raise RequestError("images: data URLs only (data:image/png;base64,...)")
    try:
        return load_image(base64.b64decode(url.partition(",")[2], validate=True), name="an image")
    except (binascii.Error, MediaError) as error:
        raise RequestError(f"images: {error}") from None


def _drawn(asked: _Common, options: Options) -> np.ndarray | None:
    """The numbers that are drawn by, [n, max_tokens]; None where nothing is sampled."""
    shape = (asked.n, options.max_tokens)
    if not options.temperature:
        return None
    if asked.uniform is None:
        seed = None if asked.seed is None else asked.seed % 2**64
        return np.random.default_rng(seed).random(shape, dtype=np.float32)
    try:
        given = np.frombuffer(base64.b64decode(asked.uniform, validate=True), "<f4").reshape(shape)
    except (binascii.Error, ValueError):
        raise RequestError(f"uniform: should be base64 of {shape[0]} x {shape[1]} float32") from None
    if not ((given >= 0) & (given < 1)).all():
        raise RequestError("uniform: numbers from 0 up to but without 1")
    return given.astype(np.float32)
