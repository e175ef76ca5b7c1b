"""Scores saved completions without a model: one row in, one row out. So a reward can be checked or reused alone."""

from __future__ import annotations

import base64
import binascii
import inspect
import json
import math
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any

from PIL.Image import Image
from pydantic import ConfigDict, Field, ValidationError

from vlrl import registry
from vlrl.config import Component, Section, check_options, explain
from vlrl.decoders import parse_json
from vlrl.episode_store import recorded_read
from vlrl.media import MediaError, load_image
from vlrl.plugins import load_object, load_plugin
from vlrl.recipe_checks import load_config
from vlrl.types import (
    Decision,
    Episode,
    Frame,
    Message,
    Observation,
    Role,
    Sample,
    Score,
    Step,
    Turn,
    UserError,
    one_line,
    plain,
    suggest,
)

CALL, CALL_END = "<tool_call>", "</tool_call>"  # around a call of a tool, as Hermes and Qwen write it
Pixels = Annotated[int, Field(ge=1, le=1_000_000)]
Size = Annotated[list[Pixels], Field(min_length=2, max_length=2)]  # width, height
Scorer = Callable[[int, Mapping[str, Any]], dict[str, Any]]  # number of the row, row -> result


class TaskRow(Section):
    """A completion, or a conversation, and the truth.

    Unknown keys are refused: a saved rollout's `answer` is not the truth but a reply.
    """

    completion: str | None = None
    # instead of it: {role, content, tool_calls}, of which the last is the assistant's; as `vlrl export` writes them
    messages: list[dict[str, Any]] | None = None
    answer: Any  # the truth in the task's form, e.g. a box in pixels of the image
    id: str | int | None = None
    image_size: Size | None = None  # needed by tasks with coordinates
    shown_size: Size | None = None  # of the image as the model saw it; default: image_size
    coordinates: str = "original_px"  # in which the completion is written, see vlrl.types.Frame
    task: dict[str, Any] = Field(default_factory=dict)  # options, as in a YAML


class RewardRow(Section):
    """Arguments of a reward function by name."""

    inputs: dict[str, Any]


def score_file(name: str, path: str) -> Iterator[dict[str, Any]]:
    """Scores a JSONL file line by line; a row that cannot be scored becomes `{"row": n, "error": ...}` in its place.

    Args:
        name: a task (rows as in `TaskRow`), or a reward such as `boxes.in_box` (rows as in `RewardRow`); of a folder
            the YAML of a task with its options, too.
        path: the file, or a folder of `vlrl record`, whose episodes are scored anew.

    Returns:
        Per line `{id, reward, parts, correct, answer, reason}` for a task, `{value}` for a reward.

    Raises:
        UserError: nothing of that name, an unreadable file; after the last row: how many rows were bad.
    """
    return _score_recorded(name, path) if Path(path).is_dir() else _scored(make_scorer(name, Path(path).parent), path)


def score_rows(name: str, rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """As `score_file`, of rows at hand.

    Raises:
        UserError: nothing of that name; the first row that cannot be scored, by its number from 1.
    """
    score = make_scorer(name)
    for number, row in enumerate(rows, start=1):
        try:
            yield _finite(score(number, row))
        except UserError as error:
            raise UserError(f"row {number}: {error}") from None


def _scored(score: Scorer, path: str) -> Iterator[dict[str, Any]]:
    number = bad = first = 0
    try:
        file = open(path, "rb")  # noqa: SIM115
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    with file:
        for number, line in enumerate(file, start=1):
            try:
                yield _finite(score(number, _decoded(line)))
            except Exception as error:  # a user's own task or reward may raise anything
                bad, first = bad + 1, first or number
                yield {"row": number, "error": str(error) if isinstance(error, UserError) else one_line(error)}
    if bad:
        raise UserError(f"{path}: {bad} of {number} rows could not be scored, the first is row {first}")


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    """UserError where the result is no number that JSON could hold."""
    name = next(key for key in ("value", "reward") if key in row)
    if not math.isfinite(row[name]):
        raise UserError(f"{name} is {row[name]}: a reward must be finite")
    return row


def _decoded(line: bytes) -> Mapping[str, Any]:
    try:
        row = parse_json(line, finite=False)
    except (ValueError, RecursionError) as error:
        raise UserError(f"not JSON: {error}") from None
    if not isinstance(row, dict):
        raise UserError("not a JSON object")
    return row


def _score_recorded(name: str, folder: str) -> Iterator[dict[str, Any]]:
    """Recorded episodes, by the samples of their names in either split of the task.

    Raises:
        UserError: as `recorded_read`; an episode's sample is none of the task's.
    """
    if name.endswith((".yaml", ".yml")):
        task = registry.make_task(load_config(name, ()))
    else:
        task = registry.make("task", Component(name=name), "task")
    recorded = recorded_read(folder)
    samples = _find_samples(task, {episode.sample.id for episode in recorded})
    for number, episode in enumerate(recorded, start=1):
        if episode.sample.id not in samples:
            raise UserError(f"{folder}: row {number}: {name} has no sample {episode.sample.id!r}: name the "
                            "configuration that it was recorded with")  # fmt: skip
        episode.sample = samples[episode.sample.id]
        yield _result(episode.sample.id, task, task.score(episode))


def _find_samples(task: Any, ids: Collection[str]) -> dict[str, Sample]:
    """Samples by id, of either split: by their place where ids end in it, as those of drawn samples, else by search."""
    samples_by_id: dict[str, Sample] = {}
    for split in ("train", "test"):
        samples = task.samples(split)
        likely: Iterable[Sample] = samples
        if len(samples) and _sample_number(samples[0].id) == 0:
            places = {place for each in ids if (place := _sample_number(each)) is not None}
            likely = (samples[place] for place in places if place < len(samples))
        samples_by_id |= {sample.id: sample for sample in likely if sample.id in ids}
    return samples_by_id


def _sample_number(name: str) -> int | None:
    tail = name.rpartition("/")[2]
    return int(tail) if tail.isdecimal() else None


def make_scorer(name: str, folder: Path = Path()) -> Scorer:
    """The function that scores one row by a task or a reward of this name; images lie in `folder`."""
    tasks, rewards = registry.task_names(), registry.rewards()
    if name in rewards:
        return partial(_reward_row, rewards[name])
    if ":" not in name and name not in tasks:
        raise UserError(f"unknown task or reward {name!r}{suggest(name, [*tasks, *rewards])}")
    if ":" in name and not inspect.isclass(load_object(name, "task")):
        return partial(_reward_row, load_plugin("reward", name, "reward"))
    registry.find("task", name)

    @lru_cache(maxsize=64)
    def task_with(options: str) -> Any:
        return registry.make("task", Component(**parse_json(options), name=name), "task")

    return partial(_task_row, task_with, folder)


def _reward_row(reward: Callable[..., float], number: int, values: Mapping[str, Any]) -> dict[str, Any]:
    inputs = check_options(_checked(RewardRow, values).inputs, _parameters(reward), "inputs", strict=True)
    try:
        return {"value": inspect.unwrap(reward)(**inputs)}  # wrapped, it would take what is malformed for wrong
    except (TypeError, ValueError) as error:  # right types, but for instance three numbers for a point
        raise UserError(f"inputs: {error}") from None


def _parameters(function: Callable) -> dict[str, tuple[Any, Any]]:
    """All parameters of a function: name -> (annotation, default or ... where required)."""
    hints = typing.get_type_hints(function)
    return {
        name: (hints.get(name, Any), ... if p.default is inspect.Parameter.empty else p.default)
        for name, p in inspect.signature(function).parameters.items()
    }


def _task_row(
    task_with: Callable[[str], Any], folder: Path, number: int, values: Mapping[str, Any]
) -> dict[str, Any]:  # fmt: skip
    row = _checked(TaskRow, values)
    if (row.completion is None) == (row.messages is None):
        raise UserError("completion: give it, or messages")
    if "name" in row.task:
        raise UserError("task.name: the task is named on the command line; give its options only")
    task = task_with(json.dumps(row.task, sort_keys=True))
    sample = Sample(str(number), Observation(()), _truth(task, row))
    _check_truth(task, sample, row)
    if row.messages is None:
        score = of_text(task, sample, row.completion, _frames(row, row.coordinates))
    else:
        score = task.score(Episode(sample, 0, read_turns(row.messages, folder, row.coordinates)))
    return _result(number if row.id is None else row.id, task, score)


def _result(name: str | int, task: Any, score: Score) -> dict[str, Any]:
    return {
        "id": name, "reward": task.reward(score), "parts": dict(score.parts),
        "correct": score.correct, "answer": plain(score.answer), "reason": score.reason,
    }  # fmt: skip


class ConversationRow(Section):
    """A message of a conversation; other keys than these, such as `tool_call_id`, say nothing here."""

    model_config = ConfigDict(extra="ignore")

    role: Role
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[dict[str, Any]] = Field(default_factory=list)


def read_turns(listed: Sequence[Mapping[str, Any]], folder: Path, coordinates: str) -> list[Turn]:
    """A conversation's turns, each of which ends with a message of the assistant. Calls of tools count as in training.

    Raises:
        UserError: a message is none, an image cannot be read, or the last message is not the assistant's.
    """
    messages: list[Message] = []
    frames: list[Frame] = []
    turns: list[Turn] = []
    for i, values in enumerate(listed):
        row = _checked(ConversationRow, values)
        content = [row.content] if isinstance(row.content, str) else row.content or []
        parts = tuple(_read_part(part, folder, f"messages.{i}.content") for part in content)
        if row.role != "assistant":
            messages.append(Message(row.role, parts))
            frames += [Frame(coordinates, part.size, part.size) for part in parts if not isinstance(part, str)]
            continue
        calls = [json.dumps(call.get("function", call)) for call in row.tool_calls]
        text = "".join([*(str(part) for part in parts), *(f"{CALL}{call}{CALL_END}" for call in calls)])
        counts = {"tool_calls": float(text.count(CALL)), "malformed_calls": float(text.count(CALL) - len(calls))}
        decision = decide(text, tuple(frames))
        observation = Observation.from_messages(messages)
        turns.append(Turn(observation, decision, Step(observation, terminated=i == len(listed) - 1, info=counts)))
        messages = []
    if messages or not turns:
        raise UserError("messages: the last one must be the assistant's")
    return turns


def _read_part(part: Any, folder: Path, where: str) -> str | Image:
    """A text, or an image: a file, or a data URL."""
    if isinstance(part, str):
        return part
    value = part.get(part.get("type"))
    source = value.get("url") if isinstance(value, Mapping) else value
    if part.get("type") == "text" and isinstance(value, str):
        return value
    if part.get("type") not in ("image", "image_url") or not isinstance(source, str):
        raise UserError(f"{where}: must be {{type: text, text}} or {{type: image, image}}")
    try:
        is_data = source.startswith("data:")
        return load_image(base64.b64decode(source.partition(",")[2]) if is_data else folder / source)
    except (MediaError, binascii.Error) as error:
        raise UserError(f"{where}: {error}") from None


def _checked(model: type[Section], values: Mapping[str, Any]) -> Any:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise UserError(explain(error, model)) from None


def _frames(row: TaskRow, space: str) -> tuple[Frame, ...]:
    if row.image_size is None:
        return ()
    frame = Frame(space, tuple(row.image_size), tuple(row.shown_size or row.image_size))
    try:
        frame.to_original(0.0, 0.0)
    except (ValueError, ZeroDivisionError) as error:
        raise UserError(f"coordinates: {space!r}: {error}") from None
    return (frame,)


def _truth(task: Any, row: TaskRow) -> Any:
    try:
        return task.truth(row.answer)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise UserError(f"answer: {row.answer!r} is no truth of this task: {error}") from None


def _check_truth(task: Any, sample: Sample, row: TaskRow) -> None:
    """A truth is what the task can answer rightly; any other would count against the model."""
    frames = _frames(row, "rel1")
    try:
        right = of_text(task, sample, task.gold(sample, frames), frames).correct == 1.0
    except (TypeError, ValueError, IndexError, KeyError, AttributeError, OverflowError):
        right = False
    if not right:
        hint = "; tasks with coordinates need image_size too" if row.image_size is None else ""
        raise UserError(f"answer: {row.answer!r} is no truth of this task{hint}")


def decide(completion: str, frames: tuple[Frame, ...]) -> Decision:
    """The decision of a completion that no policy took: there are no log-probabilities."""
    return Decision(completion, logprobs=None, entropy=None, truncated=False, frames=frames)


def of_text(task: Any, sample: Sample, completion: str, frames: tuple[Frame, ...]) -> Score:
    """The score of one turn that no policy took."""
    turn = Turn(sample.prompt, decide(completion, frames), Step(sample.prompt, terminated=True))
    return task.score(Episode(sample, 0, [turn]))
