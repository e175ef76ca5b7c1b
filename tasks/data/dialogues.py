"""Conversations as JSON: messages with texts, images and calls of tools, and the right end of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from rewards import parse
from rewards.text import TextTruth
from tasks.data import records, rows
from tasks.data.images import BadRowError, open_image
from tasks.data.questions import MARK, truth
from tasks.data.rows import Form, Place
from vlrl.decoders import parse_json
from vlrl.types import ROLES, Message, ToolCall

CALLS = "function_call"  # whose value is a call as JSON
SHAREGPT = {
    "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", CALLS: "assistant",
    "system": "system", "observation": "tool", "tool": "tool",
}  # fmt: skip


@dataclass(frozen=True)
class RowMessage:
    """A message whose images are still files or encoded bytes."""

    role: str
    content: tuple[str | Path | bytes, ...]
    tool_calls: tuple[ToolCall, ...] = ()

    def open(self) -> Message:
        """The message with its images decoded."""
        content = tuple(part if isinstance(part, str) else open_image(part) for part in self.content)
        role = cast(Literal["system", "user", "assistant", "tool"], self.role)
        return Message(role, content, self.tool_calls)


@dataclass(frozen=True)
class DialogueRow:
    """A conversation up to the message that is to be answered last, and what is right there."""

    id: str
    messages: tuple[RowMessage, ...]
    truth: TextTruth
    weight: float = 1.0
    tags: Mapping[str, str] = field(default_factory=dict)


def _read_messages(values: Mapping[str, Any], place: Place) -> DialogueRow:
    """`{messages: [{role, content, tool_calls?}, ..], answer?}`, perhaps `images`, `options`, `kind`, `also`, `id`.

    `content` is a text, in which `<image>` stands for the next of `images`, or a list of `{type: text, text}` and
    `{type: image, image?}`. Without `answer` the last message, of an assistant, is the right end.
    """
    listed, named = values.get("messages"), _listed_images(values)
    if not isinstance(listed, list) or not listed:
        raise BadRowError("messages: must be a list of messages")
    messages = [_message(each, f"messages.{i}", place, named) for i, each in enumerate(listed)]
    if next(named, None) is not None:
        raise BadRowError("images: more than the messages show")
    answer = values.get("answer")
    if answer is None:
        answer = _end(messages)
    if not messages or messages[-1].role not in ("user", "tool"):
        raise BadRowError("messages: the last one, before the answer, must be of a user or a tool")
    options = records.option_fields(values["options"], "options") if values.get("options") is not None else ()
    also = rows.texts(values["also"], "also") if values.get("also") is not None else ()
    right = truth(answer, options, values.get("kind") or "", also=also)
    kept = [name for name in values if name not in ("id", "messages", "images", "answer", "kind")]
    return DialogueRow(records.identity(values, place), tuple(messages), right, tags=rows.tags(values, *kept))


def _read_sharegpt(values: Mapping[str, Any], place: Place) -> DialogueRow:
    """`{conversations: [{from: human or gpt, value}, ..], image or images?, system?}`, as LLaVA's.

    LLaMA-Factory's turns of tools as well: from `function_call`, whose value is `{name, arguments}`, and `observation`.
    """
    listed = values.get("conversations")
    if not isinstance(listed, list) or not all(isinstance(each, Mapping) for each in listed):
        raise BadRowError("conversations: must be a list of turns")
    turns = [_turn(each, f"conversations.{i}") for i, each in enumerate(listed)]
    system = values.get("system")
    first = [{"role": "system", "content": system}] if isinstance(system, str) and system else []
    rest = {key: value for key, value in values.items() if key not in ("conversations", "system")}
    return _read_messages({**rest, "messages": [*first, *turns]}, place)


def _turn(value: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A turn of ShareGPT's as a message."""
    speaker, text = str(value.get("from")), value.get("value")
    role = SHAREGPT.get(speaker, value.get("from"))
    if speaker != CALLS:
        return {"role": role, "content": text}
    try:
        return {"role": role, "content": "", "tool_calls": [parse_json(text if isinstance(text, str) else "")]}
    except (ValueError, RecursionError) as error:
        raise BadRowError(f"{where}: the call is not JSON ({error})") from None


def _listed_images(values: Mapping[str, Any]) -> Iterator[Any]:
    images = values.get("images", values.get("image"))
    return iter(images if isinstance(images, list) else [] if images is None else [images])


def _message(value: Any, where: str, place: Place, images: Iterator[Any]) -> RowMessage:
    if not isinstance(value, Mapping) or value.get("role") not in ROLES:
        role = value.get("role") if isinstance(value, Mapping) else value
        raise BadRowError(f"{where}: the role {role!r}: must be one of {', '.join(ROLES)}")
    content = value.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    message_parts: list[str | Path | bytes] = []
    for i, part in enumerate(parts):
        message_parts += _read_parts(part, f"{where}.content.{i}", place, images)
    calls = value.get("tool_calls") or []
    if not isinstance(calls, list) or (calls and value["role"] != "assistant"):
        raise BadRowError(f"{where}.tool_calls: must be a list, of an assistant")
    if not message_parts and not calls:
        raise BadRowError(f"{where}.content: is empty")
    return RowMessage(value["role"], tuple(message_parts), tuple(_call(each, f"{where}.tool_calls") for each in calls))


def _read_parts(part: Any, where: str, place: Place, images: Iterator[Any]) -> list[str | Path | bytes]:
    """A part of a message: a text with marks of images, or an image."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(part.get("text"), str):
        texts = part["text"].split(MARK)
        content: list[str | Path | bytes] = [texts[0].strip()]
        for text in texts[1:]:
            content += [_image(next(images, None), where, place), text.strip()]
        return [each for each in content if each != ""]
    if kind in ("image", "image_url"):
        value = part.get(kind)
        value = value.get("url") if isinstance(value, Mapping) and "url" in value else value
        return [_image(next(images, None) if value is None else value, where, place)]
    raise BadRowError(f"{where}: must be {{type: text, text}} or {{type: image, image}}")


def _image(value: Any, where: str, place: Place) -> Path | bytes:
    if value is None:
        raise BadRowError(f"{where}: shows an image that `images` has not")
    return rows.image({where: value}, where, place)[0]


def _call(value: Any, where: str) -> ToolCall:
    """`{function: {name, arguments}}` or what is inside; arguments may be JSON as a text."""
    inner = value.get("function", value) if isinstance(value, Mapping) else None
    arguments = inner.get("arguments", {}) if isinstance(inner, Mapping) else None
    try:
        arguments = parse_json(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError) as error:
        raise BadRowError(f"{where}: arguments are not JSON ({error})") from None
    if not isinstance(arguments, Mapping) or not isinstance(inner.get("name"), str):
        raise BadRowError(f"{where}: must be {{function: {{name, arguments}}}}")
    return ToolCall(inner["name"], dict(arguments))


def _end(messages: list[RowMessage]) -> str:
    """Takes the assistant's last message off, which is the right end; what stands in answer tags, where it has them."""
    if messages[-1].role != "assistant" or messages[-1].tool_calls:
        raise BadRowError("answer: is missing, and the last message is no assistant's")
    text = " ".join(part for part in messages.pop().content if isinstance(part, str))
    tagged = parse.answer_text(text, "<think>" in text)
    return text if tagged.reason else tagged.value


DIALOGUES: dict[str, Form[DialogueRow]] = {
    "messages": Form(frozenset({"messages"}), _read_messages),
    "sharegpt": Form(frozenset({"conversations"}), _read_sharegpt),
}
