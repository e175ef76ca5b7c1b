"""What dialects share: prompts on their way to servers, completions on their way back."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from vlrl.engines.base import Asked, Completion
from vlrl.types import UserError

if TYPE_CHECKING:
    from PIL.Image import Image

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
    given = tuple(map(float, logprobs))
    if not all(map(math.isfinite, given)):
        raise ValueError("log-probabilities that are no finite numbers")
    return given


def same_prompt(theirs: Sequence[int], asked: Asked, image_id: int) -> None:
    """UserError where a server reads another prompt than the trainer; an image may stand as one placeholder or all."""
    own = asked.prompt.ids.tolist()
    if list(theirs) not in (own, collapse_placeholders(own, image_id)):
        raise UserError(OTHER_PROMPT.format(len(theirs), len(own)))


def collapse_placeholders(ids: Sequence[int], image_id: int) -> list[int]:
    """Each run of placeholders as one of them."""
    return [token for token, run in groupby(ids) for _ in ([0] if token == image_id else run)]


def content(asked: Asked, pictures: Sequence[str]) -> list[dict[str, Any]]:
    """What is shown, as the content of an OpenAI message."""
    waiting = iter(pictures)
    return [
        {"type": "text", "text": part} if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": next(waiting)}}
        for part in asked.shown.content
    ]  # fmt: skip


def data_url(image: Image) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
