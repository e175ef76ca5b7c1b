"""An encoder of texts behind HTTP: any server that speaks OpenAI's embeddings (vLLM, TEI, a provider's)."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

from pydantic import Field

from vlrl import credentials
from vlrl.decoders import parse_json
from vlrl.encoders.texts import MOST
from vlrl.judges.crowd import concurrently
from vlrl.judges.endpoint import AGAIN
from vlrl.judges.wire import UnansweredError, post
from vlrl.strict import Count, Rate
from vlrl.types import UserError

if TYPE_CHECKING:
    import numpy as np


class Endpoint:
    """Asks a server for vectors, `batch` texts a request, and remembers them while the run lasts.

    A request that fails is repeated; texts without an answer after that have None. All ends within `patience` seconds.

    Args:
        url: up to and without `/embeddings`: http://localhost:8000/v1
        model: as the server names it.
        key: the environment variable that holds the server's key.
        timeout: seconds for one request. patience: for all that are asked at once.
        retries: repetitions of a request. backoff: seconds before the first, twice as many before each further one.
        concurrent: requests at a time. batch: texts of a request.

    Raises:
        UserError: the URL is none; there is no such environment variable.
    """

    def __init__(
        self, *, url: str, model: str, key: str | None = None, timeout: Rate = 30.0, patience: Rate = 300.0,
        retries: Annotated[int, Field(ge=0)] = 3, backoff: Rate = 1.0, concurrent: Count = 8, batch: Count = 64,
    ):  # fmt: skip
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(f"embedder.url: {url!r}: write http://HOST:PORT/v1")
        self._url, self._model = f"{url.rstrip('/')}/embeddings", model
        self._headers = credentials.header(key, "embedder.key")
        self._timeout, self._patience, self._retries, self._backoff = timeout, patience, retries, backoff
        self._concurrent, self._batch = concurrent, batch
        self._known: dict[str, np.ndarray] = {}

    def embed(self, texts: Sequence[str]) -> list[np.ndarray | None]:
        until = time.monotonic() + self._patience
        short = [text[:MOST].encode("utf-8", "replace").decode() for text in texts]
        new = [text for text in dict.fromkeys(short) if text not in self._known]
        parts = [new[i : i + self._batch] for i in range(0, len(new), self._batch)]
        found = concurrently(lambda part: self._asked(part, until), parts, self._concurrent, until)
        for part, vectors in zip(parts, found, strict=True):
            self._known.update(zip(part, vectors or (), strict=False))
        return [self._known.get(text) for text in short]

    def _asked(self, texts: Sequence[str], until: float) -> list[np.ndarray] | None:
        body = json.dumps({"model": self._model, "input": list(texts)}).encode()
        for attempt in range(self._retries + 1):
            left = until - time.monotonic()
            if left <= 0:
                return None
            try:
                answer = post(self._url, body, self._headers, min(self._timeout, left))
                if answer.status == 200:
                    return vectors(answer.body, len(texts))
                if answer.status not in AGAIN and answer.status < 500:
                    return None
            except (UnansweredError, ValueError):
                pass  # asked again
            if attempt < self._retries:
                time.sleep(max(0.0, min(self._backoff * 2**attempt, until - time.monotonic())))
        return None


def vectors(body: bytes, count: int) -> list[np.ndarray]:
    """Vectors of length 1 from an answer, in the order that was asked for.

    Raises:
        ValueError: it holds no such vectors.
    """
    import numpy as np

    try:
        rows = {row["index"]: row["embedding"] for row in parse_json(body)["data"]}
        made = np.asarray([rows[i] for i in range(count)], np.float64)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError("an answer that holds no embeddings") from None
    norms = np.linalg.norm(made, axis=1) if made.ndim == 2 and made.size else np.zeros(1)
    if not all(math.isfinite(norm) and norm > 0 for norm in norms):
        raise ValueError("embeddings that are no vectors")
    return list((made / norms[:, None]).astype(np.float32))
