"""A judge behind HTTP: any server that speaks OpenAI's chat completions (vLLM, SGLang, LMDeploy, a provider's)."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from pydantic import Field

from vlrl import credentials
from vlrl.decoders import parse_json
from vlrl.judges import reply
from vlrl.judges.base import Question, Verdict
from vlrl.judges.crowd import Pace, concurrently
from vlrl.judges.framing import framed
from vlrl.judges.memory import Memory
from vlrl.judges.wire import UnansweredError, post
from vlrl.strict import Count, Rate
from vlrl.types import UserError

if TYPE_CHECKING:
    from PIL.Image import Image

AGAIN = (408, 409, 425, 429)  # and all from 500 on: another time it may work
OUT_OF_TIME = "no answer in time"


class Endpoint:
    """Asks a server, many questions at a time. What it answers is read by a strict schema (`vlrl.judges.reply`).

    A request that fails is repeated; a question without an answer after that has a verdict with a fault. `ask` returns
    after `patience` seconds at the latest. With a `cache` no question is asked twice, and a run that was killed goes on
    with the verdicts that it had; without one a judge that samples may judge otherwise then.

    Args:
        url: up to and without `/chat/completions`: http://localhost:8000/v1
        model: as the server names it.
        key: the environment variable that holds the server's key (`vlrl.credentials.header`). The key itself never
            stands in a configuration.
        temperature: above 0 for several votes (`grm`).
        max_tokens: of a reply.
        structured: ask the server to hold the model to the reply's schema (`response_format`), where it can.
        timeout: seconds for one request. patience: for all that are asked at once, with repetitions.
        retries: repetitions of a request. backoff: seconds before the first, twice as many before each further one.
        concurrent: requests at a time. per_minute: requests at most; default: no bound.
        cache: a file of verdicts, made where there is none.
        most: characters of an answer that are shown. frames: pictures of a video.

    Raises:
        UserError: the URL is none; there is no such environment variable; the cache cannot be written to.
    """

    def __init__(
        self, seed: int, *, url: str, model: str, key: str | None = None,
        temperature: Annotated[float, Field(ge=0)] = 0.0, max_tokens: Count = 2048, structured: bool = False,
        timeout: Rate = 60.0, patience: Rate = 600.0, retries: Annotated[int, Field(ge=0)] = 3, backoff: Rate = 1.0,
        concurrent: Count = 16, per_minute: Count | None = None, cache: str | None = None, most: Count = 16_000,
        frames: Count = 8,
    ):  # fmt: skip
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(f"judge.url: {url!r}: write http://HOST:PORT/v1")
        self._url = f"{url.rstrip('/')}/chat/completions"
        self._headers = credentials.header(key, "judge.key")
        self._model, self._seed, self._temperature, self._max_tokens = model, seed, temperature, max_tokens
        self._structured, self._timeout, self._patience, self._retries = structured, timeout, patience, retries
        self._backoff, self._concurrent, self._pace = backoff, concurrent, Pace(per_minute)
        self._memory, self._most, self._frames = Memory(cache), most, frames

    def ask(self, questions: Sequence[Question]) -> list[Verdict]:
        until = time.monotonic() + self._patience
        bodies = [self._body(question) for question in questions]
        keys = [hashlib.sha256(self._url.encode() + body).hexdigest()[:32] for body in bodies]
        asked = {k: (body, len(q.answers)) for k, body, q in zip(keys, bodies, questions, strict=True)}
        missing = [(key, *each) for key, each in asked.items() if self._memory.of(key) is None]
        found = concurrently(lambda each: self._verdict(*each, until), missing, self._concurrent, until)
        new = {each[0]: verdict or Verdict(fault=OUT_OF_TIME) for each, verdict in zip(missing, found, strict=True)}
        return [new.get(key) or self._memory.of(key) for key in keys]

    def _verdict(self, key: str, body: bytes, count: int, until: float) -> Verdict:
        """Of one question, after as many requests as it takes."""
        fault = OUT_OF_TIME
        for attempt in range(self._retries + 1):
            if not self._pace.wait(until):
                break
            try:
                answer = post(self._url, body, self._headers, min(self._timeout, max(0.01, until - time.monotonic())))
                if answer.status == 200:
                    scores, critique = reply.read(written(answer.body), count)
                    verdict = Verdict(scores, critique)
                    self._memory.add(key, verdict)
                    return verdict
                fault = f"HTTP {answer.status}"
                if answer.status not in AGAIN and answer.status < 500:
                    break
                self._pace.hold(answer.wait)
            except (UnansweredError, ValueError) as error:
                fault = str(error)
            if attempt < self._retries:
                time.sleep(max(0.0, min(self._backoff * 2**attempt, until - time.monotonic())))
        return Verdict(fault=fault)

    def _body(self, question: Question) -> bytes:
        """The request: equal for equal questions."""
        rules, parts = framed(question, self._most, self._frames)
        messages = [
            {"role": "system", "content": rules},
            {"role": "user", "content": [_part(part) for part in parts]},
        ]
        asked: dict[str, Any] = {"model": self._model, "messages": messages, "temperature": self._temperature,
                                 "max_tokens": self._max_tokens}  # fmt: skip
        if self._temperature:
            asked["seed"] = int(hashlib.sha256(f"{self._seed}/{question.key}".encode()).hexdigest()[:7], 16)
        if self._structured:
            shape = {"name": "verdict", "strict": True, "schema": reply.schema(len(question.answers))}
            asked["response_format"] = {"type": "json_schema", "json_schema": shape}
        return json.dumps(asked, sort_keys=True).encode()


def written(body: bytes) -> str:
    """The text of a chat completion.

    Raises:
        ValueError: it is none, or was cut off.
    """
    try:
        choice = parse_json(body)["choices"][0]
        text = choice["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        raise ValueError("an answer that is no chat completion") from None
    if not isinstance(text, str) or choice.get("finish_reason") == "length":
        raise ValueError("a reply that was cut off" if isinstance(text, str) else "an answer without text")
    return text


def _part(part: str | Image) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    file = io.BytesIO()
    part.save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
