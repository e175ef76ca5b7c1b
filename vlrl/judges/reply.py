"""What a judge wrote -> scores, by a strict schema: anything else is no answer."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vlrl.decoders import parse_json
from vlrl.judges.framing import TOP

MOST = 200_000  # characters of a reply


class Reply(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    critique: str
    scores: list[Annotated[float, Field(ge=0, le=TOP)]]


def schema(count: int) -> dict[str, Any]:
    """The reply's JSON schema, for servers that hold a model to one."""
    scores = {"type": "array", "items": {"type": "number"}, "minItems": count, "maxItems": count}
    return {
        "type": "object", "properties": {"critique": {"type": "string"}, "scores": scores},
        "required": ["critique", "scores"], "additionalProperties": False,
    }  # fmt: skip


def read(text: str, count: int) -> tuple[tuple[float, ...], str]:
    """-> `count` scores in [0, 1] and the critique. Thoughts before `</think>` and one code fence are left out.

    Raises:
        ValueError: it is no such object, in a few words.
    """
    if len(text) > MOST:
        raise ValueError("a reply that is too long")
    body = text.rpartition("</think>")[2].strip()
    if body.startswith("```") and body.endswith("```"):
        body = body.removesuffix("```").partition("\n")[2]
    try:
        reply = Reply.model_validate(parse_json(body))
    except ValidationError as error:
        problem = error.errors()[0]
        raise ValueError(f"a reply whose {'.'.join(map(str, problem['loc'])) or 'JSON'} is wrong") from None
    except ValueError:
        raise ValueError("a reply that is no JSON object of critique and scores") from None
    if len(reply.scores) != count:
        raise ValueError(f"a reply with {len(reply.scores)} scores for {count} answers")
    return tuple(score / TOP for score in reply.scores), reply.critique
