"""Episodes for other people's tools: messages JSON, logs of inspect, recordings of rerun, trackio's traces, a table.

`export_traces` writes what a run or a recording keeps; `rerun` also what a LeRobotDataset holds. Nothing is uploaded.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from vlrl.io import make_folder
from vlrl.tools.conversations import Conversation, image_file, is_dataset, kept_rows, read_conversations
from vlrl.types import UserError, first_line

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
    os.environ["WANDB_DATA_DIR"] = str(out)  # where images of a table are staged
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
