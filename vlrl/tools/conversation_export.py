"""Conversations of a run or a recording for other programs: messages JSON, trackio's traces, inspect's logs.

Each conversation becomes one entry; where an episode begins it anew (a summary, hidden images, one prompt a turn), one
entry for each. A reply's calls of tools become `tool_calls`, where all of them can be read; else it is text as written.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vlrl.decoders import DecodeError, parse_json
from vlrl.episode_store import FILE, IMAGES
from vlrl.io import make_folder
from vlrl.report.run_reader import read_lines, rollout_files
from vlrl.types import UserError

CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
FACTS = ("step", "split", "group", "reward", "correct", "parts", "advantage", "reason")
FORMATS = ("messages", "trackio", "inspect")

Parts = list[dict[str, Any]]  # of a message: {type: text, text}, {type: image, image: Path}


@dataclass
class Conversation:
    """Messages as chat templates take them, with paths for images, and what is known of their episode."""

    id: str
    facts: Mapping[str, Any]
    tools: Sequence[Mapping[str, Any]] = ()
    messages: list[dict[str, Any]] = field(default_factory=list)
    turns: list[dict[str, Any]] = field(default_factory=list)  # of each reply: tokens, logprob, entropy, advantage
    _waiting: list[str] = field(default_factory=list)  # ids of calls that no message has answered yet

    def show(self, turn: Mapping[str, Any], parts: Parts) -> None:
        """Appends what a turn shows, and the reply to it."""
        rest = iter(parts)
        prompt: dict[str, Any] = {"role": "user", "parts": len(parts)}
        for row in turn.get("messages") or [prompt]:
            content = list(itertools.islice(rest, row["parts"]))
            self._append({"role": row["role"], "content": content}, row.get("tool_calls") or [])
        text, calls = split_reply(turn["action"])
        self._append({"role": "assistant", "content": [{"type": "text", "text": text}] if text else []}, calls)
        self.turns.append(turn_facts(turn))

    def _append(self, message: dict[str, Any], calls: Sequence[Mapping[str, Any]]) -> None:
        if message["role"] == "tool" and self._waiting:
            message["tool_call_id"] = self._waiting.pop(0)
        if calls:
            self._waiting = [f"call_{len(self.messages)}_{i}" for i in range(len(calls))]
            message["tool_calls"] = [
                {"id": name, "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
                for name, call in zip(self._waiting, calls, strict=True)
            ]
        self.messages.append(message)


def turn_facts(turn: Mapping[str, Any]) -> dict[str, Any]:
    """Of a reply, as far as it is known: its tokens, their mean log-probability, mean entropy and advantage."""
    logprobs = turn.get("logprobs")
    facts = {name: turn.get(name) for name in ("tokens", "entropy", "advantage")}
    facts["logprob"] = sum(logprobs) / len(logprobs) if logprobs else None
    return {name: value for name, value in facts.items() if value is not None}


def split_reply(text: str) -> tuple[str, list[dict[str, Any]]]:
    """A reply as the text around its calls of tools, and the calls; all of it is text where one cannot be read."""
    thoughts, closed, rest = text.rpartition("</think>")
    calls = []
    for body in CALL.findall(rest):
        try:
            call = parse_json(body)
        except DecodeError:
            return text, []
        if not isinstance(call, dict) or call.keys() != {"name", "arguments"}:
            return text, []
        if not isinstance(call["name"], str) or not isinstance(call["arguments"], dict):
            return text, []
        calls.append(call)
    return (thoughts + closed + CALL.sub("", rest)).strip() if calls else text, calls


def read_conversations(source: Path) -> Iterator[Conversation]:
    """Those of a run folder (`rollouts/`, images at most 256 pixels wide or high) or of a `vlrl record` folder.

    Raises:
        UserError: the folder holds none.
    """
    files = [source / FILE] if (source / FILE).is_file() else rollout_files(source)
    count = 0
    for file in files:
        for number, row in enumerate(read_lines(file)[0]):
            name = f"{row.get('sample_id', row.get('sample'))}/{file.stem}/{number}"
            try:
                segments = list(_segments(row, source, name))
            except (AttributeError, IndexError, KeyError, TypeError) as error:
                raise UserError(f"{file}: row {number + 1} is no conversation ({error!r})") from None
            count += len(segments)
            yield from segments
    if not count:
        raise UserError(f"{source}: no conversations: name the folder of a run that holds some, or of `vlrl record`")


def _segments(row: Mapping[str, Any], source: Path, name: str) -> Iterator[Conversation]:
    turns = row.get("turns") or []
    facts = {"sample_id": row.get("sample_id", row.get("sample"))} | {k: row[k] for k in FACTS if k in row}
    if row.get("answer") is not None:
        facts["reply"] = row["answer"]
    begins = [i for i, turn in enumerate(turns) if i == 0 or turn.get("restart") or not turn.get("messages")]
    for number, (start, end) in enumerate(itertools.pairwise([*begins, len(turns)]), start=1):
        whole = len(begins) == 1
        segment = Conversation(name if whole else f"{name}/{number}", facts, turns[start].get("tools") or ())
        for turn in turns[start:end]:
            parts = [part for each in turn["content"] for part in _split_part(each, row, source)]
            segment.show(turn, parts)
        yield segment


def _split_part(part: Any, row: Mapping[str, Any], source: Path) -> Parts:
    """A part of a turn as one of a message; a recorded video as its frames."""
    if isinstance(part, str):
        return [{"type": "text", "text": part}]
    if "video" in part:
        return [{"type": "image", "image": source / IMAGES / name} for name in part["video"]]
    number = part["image"]
    path = source / row["images"][number] if isinstance(number, int) else source / IMAGES / number
    return [{"type": "image", "image": path}]


def export_conversations(source: Path, out: Path, form: str) -> int:
    """Writes the conversations of a folder to a new one, and returns how many.

    Args:
        form: `messages` writes conversations.jsonl and images/, `trackio` a folder for TRACKIO_DIR, `inspect` a log.

    Raises:
        UserError: there are none, the folder is not free, or a package is missing.
    """
    conversations = list(read_conversations(source))
    write = {"messages": write_messages, "trackio": write_trackio, "inspect": write_inspect}[form]
    with make_folder(out) as part:
        write(conversations, part, source.resolve().name)
    return len(conversations)


def write_messages(conversations: Sequence[Conversation], out: Path, name: str) -> None:
    """`{id, messages, tools, turns, ...}` a line, whose images are paths from the folder."""
    (out / "images").mkdir()
    with (out / "conversations.jsonl").open("w", encoding="utf-8") as file:
        for each in conversations:
            messages = _with_images(each.messages, lambda path: {"type": "image", "image": _copied(path, out)})
            row = {"id": each.id, "messages": messages, "tools": list(each.tools), **each.facts, "turns": each.turns}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _copied(path: Path, out: Path) -> str:
    target = out / "images" / path.name
    if not target.exists():
        shutil.copyfile(path, target)
    return f"images/{path.name}"


def _with_images(messages: Sequence[Mapping[str, Any]], show: Any) -> list[dict[str, Any]]:
    """Messages with something in place of each image."""
    return [
        {**m, "content": [show(part["image"]) if part["type"] == "image" else part for part in m["content"]]}
        for m in messages
    ]


def write_trackio(conversations: Sequence[Conversation], out: Path, name: str) -> None:
    """A trace each, in a project and a run of the source's name: `TRACKIO_DIR=OUT trackio show`."""
    os.environ["TRACKIO_DIR"] = str(out)  # read when the package is imported
    try:
        import trackio
    except ImportError:
        raise UserError("--conversations trackio: the package is not installed: pip install 'vlrl[trackio]'") from None
    run = trackio.init(project="vlrl", name=name, embed=False, auto_log_cpu=False, auto_log_gpu=False)
    for each in conversations:
        messages = _with_images(each.messages, lambda path: trackio.Image(str(path)))
        metadata = {"id": each.id, **each.facts, "turns": each.turns}
        run.log({"conversation": trackio.Trace(messages, metadata=metadata)}, step=each.facts.get("step"))
    trackio.finish()


def write_inspect(conversations: Sequence[Conversation], out: Path, name: str) -> None:
    """One log (EvalLog, version 2) that `inspect view --log-dir OUT` opens; images are inside."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    log = {
        "version": 2, "status": "success",
        "eval": {"created": now, "task": name, "model": "vlrl", "config": {},
                 "dataset": {"name": name, "samples": len(conversations)}},
        "samples": [_inspect_sample(each) for each in conversations],
    }  # fmt: skip
    stamp = now.replace(":", "-")
    (out / f"{stamp}_{name}_conversations.json").write_text(json.dumps(log, ensure_ascii=False), encoding="utf-8")


def _inspect_sample(each: Conversation) -> dict[str, Any]:
    messages = [
        {**m, "tool_calls": [{"id": call["id"], "function": call["function"]["name"],
                              "arguments": call["function"]["arguments"]} for call in m["tool_calls"]]}
        if "tool_calls" in m else m for m in _with_images(each.messages, _inspect_image)
    ]  # fmt: skip
    facts = dict(each.facts)
    scores = {key: {"value": facts[key]} for key in ("correct", "reward") if facts.get(key) is not None}
    last = messages[-1]
    text = "".join(part["text"] for part in last["content"])
    return {
        "id": each.id, "epoch": 1, "target": "", "messages": messages, "scores": scores,
        "input": messages[: next(i for i, m in enumerate(messages) if m["role"] == "assistant")],
        "output": {"model": "vlrl", "completion": text, "choices": [{"message": last, "stop_reason": "stop"}]},
        "metadata": {**facts, "turns": each.turns, "tools": [tool["function"]["name"] for tool in each.tools]},
    }  # fmt: skip


def _inspect_image(path: Path) -> dict[str, Any]:
    return {"type": "image", "image": f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"}
