"""Episodes that a run or a recording keeps, as conversations: messages as chat templates take them.

An episode is one conversation; where it begins anew (a summary, hidden images, one prompt a turn), one for each
beginning. A reply's calls of tools become `tool_calls`, where all of them can be read; else it is text as written.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vlrl.decoders import DecodeError, parse_json
from vlrl.episode_store import FILE, IMAGES
from vlrl.report.run_reader import read_lines, rollout_files
from vlrl.types import UserError

CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
FACTS = ("step", "split", "group", "reward", "correct", "parts", "advantage", "reason")

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


def kept_rows(source: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """A name and a row for each episode of a run folder (`rollouts/`) or of a `vlrl record` folder.

    Raises:
        UserError: the folder is neither, or keeps none.
    """
    files = [source / FILE] if (source / FILE).is_file() else rollout_files(source)
    count = 0
    for file in files:
        for number, row in enumerate(read_lines(file)[0]):
            count += 1
            yield f"{row.get('sample_id', row.get('sample'))}/{file.stem}/{number}", row
    if not count:
        raise UserError(f"{source}: {_why_empty(source)}")


def _why_empty(source: Path) -> str:
    if not source.is_dir():
        return "there is no such folder"
    if is_dataset(source):
        return "a data set of robots: --traces rerun"
    if (source / "config.yaml").is_file():
        return "the run kept no rollouts: train with a smaller log.rollouts_every, or record with `vlrl record`"
    return "no run: name the folder of a run, or of `vlrl record`"


def is_dataset(source: Path) -> bool:
    """Whether a folder looks like a LeRobotDataset."""
    return (source / "meta" / "info.json").is_file()


def image_file(source: Path, name: str) -> Path:
    """An image that a row names; UserError: it is not in the folder."""
    path = (source / name).resolve()
    if not path.is_relative_to(source.resolve()) or not path.is_file():
        raise UserError(f"{source}: there is no image {name}")
    return path


def read_conversations(source: Path) -> Iterator[Conversation]:
    """Those of a run folder (images at most 256 pixels wide or high) or of a `vlrl record` folder.

    Raises:
        UserError: there are none, or a row is no episode.
    """
    for name, row in kept_rows(source):
        try:
            yield from _segments(row, source, name)
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            raise UserError(f"{source}: {name} is no episode ({error!r})") from None


def _segments(row: Mapping[str, Any], source: Path, name: str) -> Iterator[Conversation]:
    turns = row.get("turns") or [_only_turn(row)]
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


def _only_turn(row: Mapping[str, Any]) -> dict[str, Any]:
    """What a run keeps of an episode without turns: of one prompt, or of a robot."""
    images = [{"image": number} for number in range(len(row["images"]))]
    known = {name: row.get(name) for name in ("tokens", "entropy", "advantage")}
    return {"content": [*images, row["prompt"]], "action": row["completion"], **known}


def _split_part(part: Any, row: Mapping[str, Any], source: Path) -> Parts:
    """A part of a turn as one of a message; a recorded video as its frames."""
    if isinstance(part, str):
        return [{"type": "text", "text": part}]
    if "video" in part:
        return [{"type": "image", "image": image_file(source, f"{IMAGES}/{name}")} for name in part["video"]]
    number = part["image"]
    name = row["images"][number] if isinstance(number, int) else f"{IMAGES}/{number}"
    return [{"type": "image", "image": image_file(source, name)}]
