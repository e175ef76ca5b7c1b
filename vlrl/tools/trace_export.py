"""Episodes for other people's tools: messages JSON, logs of inspect, recordings of rerun, trackio's traces, a table.

`export_traces` writes what a run or a recording keeps; `rerun` also what a LeRobotDataset holds. Nothing is uploaded.
"""

from __future__ import annotations

import base64
import contextlib
import io
import itertools
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from vlrl.decoders import DecodeError, parse_json
from vlrl.episode_store import FILE, IMAGES
from vlrl.io import make_folder
from vlrl.report.run_reader import read_lines, rollout_files
from vlrl.types import UserError, first_line

# Episodes as conversations: messages as chat templates take them. An episode is one; where it begins anew (a summary,
# hidden images, one prompt a turn), one for each beginning. A reply's calls of tools become `tool_calls`, where all of
# them can be read; else it is text as written.

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


# One function for each format; each imports its package itself.

FORMATS = ("messages", "inspect", "rerun", "trackio", "wandb")
MODEL = "vlrl"  # and the project's name, where a tool sorts by it


def export_traces(source: Path, out: Path, form: str) -> int:
    """Writes the episodes of a folder to a new one, and returns how many entries that is.

    Args:
        form: one of FORMATS.

    Raises:
        UserError: there are none, the folder is not free, or the format is unknown.
        ModuleNotFoundError: the format's package is not installed.
    """
    if form not in FORMATS:
        raise UserError(f"--traces {form}: must be one of {', '.join(FORMATS)}")
    if form == "rerun":
        with make_folder(out) as part:
            return write_rerun(source, part)
    conversations, name = list(read_conversations(source)), source.resolve().name
    write = {"messages": write_messages, "inspect": write_inspect, "trackio": write_trackio, "wandb": write_wandb}[form]
    with _lasting_folder(out) if form == "wandb" else make_folder(out) as part:
        write(conversations, part, name)
    return len(conversations)


@contextlib.contextmanager
def _lasting_folder(out: Path) -> Iterator[Path]:
    """A new folder that has its name from the start, for what writes down absolute paths; removed where that fails."""
    with make_folder(out):
        pass
    try:
        yield out.resolve()
    except BaseException:
        shutil.rmtree(out, ignore_errors=True)
        raise


def _with_images(messages: Sequence[Mapping[str, Any]], show: Callable[[Path], Any]) -> list[dict[str, Any]]:
    """Messages with something in place of each image."""
    return [
        {**m, "content": [show(part["image"]) if part["type"] == "image" else part for part in m["content"]]}
        for m in messages
    ]


def _count_tokens(each: Conversation) -> int | None:
    """Tokens of all replies; None where the folder does not say."""
    counts = [turn["tokens"] for turn in each.turns if "tokens" in turn]
    return sum(counts) if counts and len(counts) == len(each.turns) else None


def _scores(each: Conversation) -> dict[str, float]:
    """Reward, success and the named parts of the reward, as far as they are known."""
    known = {**each.facts.get("parts", {}), **{name: each.facts.get(name) for name in ("correct", "reward")}}
    return {name: float(value) for name, value in known.items() if value is not None}


def write_messages(conversations: Sequence[Conversation], out: Path, name: str) -> None:
    """`{id, messages, tools, turns, ...}` a line, whose images are paths from the folder."""
    (out / "images").mkdir()

    def copy(path: Path) -> dict[str, str]:
        target = out / "images" / path.name
        if not target.exists():
            shutil.copyfile(path, target)
        return {"type": "image", "image": f"images/{path.name}"}

    with (out / "conversations.jsonl").open("w", encoding="utf-8") as file:
        for each in conversations:
            messages = _with_images(each.messages, copy)
            row = {"id": each.id, "messages": messages, "tools": list(each.tools), **each.facts, "turns": each.turns}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def write_trackio(conversations: Sequence[Conversation], out: Path, name: str) -> None:
    """A trace each, in a run of the source's name: `TRACKIO_DIR=OUT trackio show`."""
    for elsewhere in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL", "TRACKIO_TRACE_SESSIONS_DIR"):
        os.environ.pop(elsewhere, None)  # a run in training may go there: this stays in the folder
    os.environ["TRACKIO_DIR"] = str(out)  # read when the package is imported
    import trackio

    if Path(trackio.utils.TRACKIO_DIR) != out:
        raise UserError("--traces trackio: trackio is in use in this process: export from another")
    with contextlib.redirect_stdout(io.StringIO()):  # which names the folder that is not yet in its place
        run = trackio.init(project=MODEL, name=name, embed=False, auto_log_cpu=False, auto_log_gpu=False)
        for each in conversations:
            messages = _with_images(each.messages, lambda path: trackio.Image(str(path)))
            metadata = {"id": each.id, **each.facts, "turns": each.turns}
            run.log({"conversation": trackio.Trace(messages, metadata=metadata)}, step=each.facts.get("step"))
        trackio.finish()


def write_wandb(conversations: Sequence[Conversation], out: Path, name: str) -> None:
    """A run with the table `episodes`, kept offline: `wandb sync OUT/wandb/offline-run-*` uploads it.

    Images are staged in the folder under absolute paths, so it is moved after `wandb sync`, not before.
    """
    os.environ |= {"WANDB_DATA_DIR": str(out), "WANDB_ERROR_REPORTING": "false"}  # images of tables are staged there
    import wandb

    scores = sorted({score for each in conversations for score in _scores(each)})
    facts = ("step", "split", "group", "advantage", "reason")
    table = wandb.Table(columns=["id", *facts, *scores, "tokens", "messages", "images"])
    for each in conversations:
        messages, files = _number_images(each.messages)
        known = [*(each.facts.get(fact) for fact in facts), *(_scores(each).get(score) for score in scores)]
        images = [wandb.Image(str(path)) for path in files]
        table.add_data(each.id, *known, _count_tokens(each), json.dumps(messages, ensure_ascii=False), images)
    settings = wandb.Settings(silent=True, console="off", disable_git=True, save_code=False, x_disable_stats=True)
    with wandb.init(project=MODEL, name=name, mode="offline", dir=str(out), settings=settings) as run:
        run.log({"episodes": table})
    wandb.teardown()


def _number_images(messages: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[Path]]:
    """Messages with each image's number in its place, and the images by their numbers."""
    files: list[Path] = []

    def number(path: Path) -> dict[str, Any]:
        files.append(path)
        return {"type": "image", "image": len(files) - 1}

    return _with_images(messages, number), files


def write_inspect(conversations: Sequence[Conversation], out: Path, name: str) -> None:
    """One log that `inspect view --log-dir OUT` opens; images are inside."""
    from inspect_ai.log import EvalLog, write_eval_log

    now = datetime.now(UTC).isoformat(timespec="seconds")
    samples = [_inspect_sample(each) for each in conversations]
    values: dict[str, list[float]] = {}
    for each in conversations:
        for score, value in _scores(each).items():
            values.setdefault(score, []).append(value)
    means = [
        {"name": score, "scorer": score, "metrics": {"mean": {"name": "mean", "value": fmean(of_score)}}}
        for score, of_score in values.items()
    ]
    log = EvalLog.model_validate({
        "status": "success", "samples": samples,
        "eval": {"created": now, "task": name, "model": MODEL, "config": {},
                 "dataset": {"name": name, "samples": len(samples)}},
        "results": {"total_samples": len(samples), "completed_samples": len(samples), "scores": means},
    })  # fmt: skip
    write_eval_log(log, str(out / f"{now.replace(':', '-')}_{name}_episodes.eval"), format="eval")


def _inspect_sample(each: Conversation) -> dict[str, Any]:
    messages = [
        {**m, "tool_calls": [{"id": call["id"], "function": call["function"]["name"],
                              "arguments": call["function"]["arguments"]} for call in m["tool_calls"]]}
        if "tool_calls" in m else m for m in _with_images(each.messages, _inspect_image)
    ]  # fmt: skip
    facts, tokens, last = dict(each.facts), _count_tokens(each), messages[-1]
    usage = {"output_tokens": tokens, "total_tokens": tokens} if tokens is not None else None
    text = "".join(part["text"] for part in last["content"])
    reply = {"answer": json.dumps(facts["reply"]) if "reply" in facts else None, "explanation": facts.get("reason")}
    return {
        "id": each.id, "epoch": 1, "target": "", "messages": messages,
        "scores": {score: {"value": value, **reply} for score, value in _scores(each).items()},
        "input": messages[: next(i for i, m in enumerate(messages) if m["role"] == "assistant")],
        "output": {"model": MODEL, "completion": text, "choices": [{"message": last, "stop_reason": "stop"}],
                   "usage": usage},
        "model_usage": {MODEL: usage} if usage else {},
        "metadata": {**facts, "turns": each.turns, "tools": [tool["function"]["name"] for tool in each.tools]},
    }  # fmt: skip


def _inspect_image(path: Path) -> dict[str, Any]:
    return {"type": "image", "image": f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"}


def write_rerun(source: Path, out: Path) -> int:
    """`episode_N.rrd` for each episode of robots, which `rerun OUT/*.rrd` opens; returns how many.

    Of a LeRobotDataset all that rerun's own reader reads of it; of a run the decisions that it kept.

    Raises:
        UserError: there are none.
    """
    os.environ.setdefault("RUST_LOG", "error")  # rerun warns of each column that it has no use for
    if is_dataset(source):
        return _write_dataset(source, out)
    count = 0
    for name, row in kept_rows(source):
        if row.get("decisions"):
            try:
                _write_recording(row, source, out / f"episode_{count:06d}.rrd", name)
            except (KeyError, TypeError, ValueError) as error:
                raise UserError(f"{source}: {name} is no episode of a robot ({first_line(error)})") from None
            count += 1
    if not count:
        raise UserError(f"{source}: no episodes of robots: --traces rerun is of these")
    return count


def _write_dataset(source: Path, out: Path) -> int:
    from rerun.experimental import LeRobotReader

    try:
        reader = LeRobotReader(source)
        for number in reader.episodes():
            stream = reader.stream(number)
            name = f"{source.resolve().name}/{number}"
            stream.write_rrd(out / f"episode_{number:06d}.rrd", application_id=MODEL, recording_id=name)
    except (ValueError, RuntimeError, OSError) as error:
        raise UserError(f"{source}: rerun cannot read the data set: {first_line(error)}") from None
    return len(reader.episodes())


def _write_recording(row: Mapping[str, Any], source: Path, file: Path, name: str) -> None:
    """Observations stand at the tick where they were made, each action at its own, a reward where it was known."""
    import rerun as rr

    decisions = row["decisions"]
    ends = np.cumsum([decision["ticks"] for decision in decisions]).tolist()
    starts = [0, *ends[:-1]]
    with rr.RecordingStream(MODEL, recording_id=name) as recording:
        recording.save(file)
        recording.send_recording_name(name)
        recording.send_property("episode", rr.AnyValues(**_robot_facts(row)))
        recording.log("instruction", rr.TextDocument(row["prompt"]), static=True)

        def send(entity: str, ticks: Sequence[int], columns: Any) -> None:
            recording.send_columns(entity, [rr.TimeColumn("tick", sequence=ticks)], columns)

        send("reward", ends, _scalars([decision["reward"] for decision in decisions]))
        if decisions[0]["state"]:
            send("state", starts, _scalars([decision["state"] for decision in decisions]))
        for camera, pictures in enumerate(_cameras(row, source), start=1):
            columns = rr.EncodedImage.columns(blob=pictures, media_type=["image/png"] * len(pictures))
            send(f"camera{camera}", starts, columns)
        actions = [decision["action"] for decision in decisions]
        if isinstance(actions[0], str):  # of a policy that speaks
            send("action", starts, rr.TextDocument.columns(text=actions))
            return
        executed = [action[: decision["ticks"]] for action, decision in zip(actions, decisions, strict=True)]
        ticks = [start + i for start, chunk in zip(starts, executed, strict=True) for i in range(len(chunk))]
        if ticks:  # a first action that no robot may carry out has none
            send("action", ticks, _scalars([control for chunk in executed for control in chunk]))


def _scalars(rows: Sequence[Any]) -> Any:
    """A curve, or one for each number of a row; nan for what is not finite."""
    import rerun as rr

    return rr.Scalars.columns(scalars=np.array(rows, float))


def _robot_facts(row: Mapping[str, Any]) -> dict[str, Any]:
    known = {name: row.get(name) for name in ("step", "split", "reward", "correct", "advantage", "reason")}
    return {name: value for name, value in {**row["parts"], **known}.items() if value is not None}


def _cameras(row: Mapping[str, Any], source: Path) -> list[list[bytes]]:
    """Of each camera, a picture for each decision; the row names them decision by decision."""
    files = [image_file(source, name).read_bytes() for name in row["images"]]
    count, left = divmod(len(files), len(row["decisions"]))
    if left:
        raise ValueError(f"{len(files)} images of {len(row['decisions'])} decisions")
    return [files[camera::count] for camera in range(count)]
