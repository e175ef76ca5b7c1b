"""Rewards, data and tasks in the forms of TRL, verl and OpenEnv."""

from __future__ import annotations

import asyncio
import inspect
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from vlrl import registry
from vlrl.decoders import pack_value, unpack_value
from vlrl.engines.protocols import data_url
from vlrl.evaluation.score import decide
from vlrl.media import ImageNumber
from vlrl.placement.workers import Arrays, LostWorkerError, Packed, WorkerError, WorkerPool, WorkerService
from vlrl.plugins import check_extra, make_verifiers_agent, make_verifiers_reply
from vlrl.tools import hub_export
from vlrl.types import (
    BaseTask,
    Environment,
    Episode,
    Frame,
    Message,
    Observation,
    Sample,
    Score,
    Split,
    Turn,
    UserError,
    Video,
    one_line,
    plain,
)

if TYPE_CHECKING:
    from datasets import Dataset


# Episodes as TRL hands them to a reward function: prompts, completions, token ids and columns of the data set.

RESERVED = ("prompts", "completions", "completion_ids", "trainer_state", "log_metric", "log_extra")
Messages = list[dict[str, Any]]


def prompt_of(shown: Observation) -> Messages:
    """What was asked, as one message of the user: a text, or with images blocks that hold them."""
    if not shown.images and not shown.videos:
        return [{"role": "user", "content": "".join(shown.content)}]
    return [{"role": "user", "content": [_block(part) for part in shown.content]}]


def _block(part: Any) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = "video" if isinstance(part, Video) else "image"
    return {"type": kind, kind: part}


def completion_of(turns: Sequence[Turn]) -> Messages:
    """What the policy wrote, and between its turns what it was shown."""
    messages: Messages = []
    for number, turn in enumerate(turns):
        messages += prompt_of(turn.observation) if number else []
        messages.append({"role": "assistant", "content": turn.decision.action})
    return messages


def columns_of(
    episodes: Sequence[Episode], gold: Callable[[Episode], str], names: Mapping[str, str]
) -> dict[str, list[Any]]:
    """Columns of equal length: `id`, `answer` (the truth as plain data), `gold` (the best completion), `images`, tags.

    Args:
        names: of a reward function's columns -> ours; those that it lists are given under its names as well.

    Raises:
        UserError: `names` lists a column that there is not.
    """
    samples = [episode.sample for episode in episodes]
    tags = sorted({tag for sample in samples for tag in sample.tags})
    columns = {tag: [sample.tags.get(tag) for sample in samples] for tag in tags} | {
        "id": [sample.id for sample in samples],
        "answer": [plain(sample.answer) for sample in samples],
        "gold": [gold(episode) for episode in episodes],
        "images": [list(sample.prompt.images) for sample in samples],
    }
    for theirs, ours in names.items():
        if ours not in columns:
            raise UserError(
                f"process_rewards: trl: columns.{theirs}: no column {ours!r}; there are {', '.join(sorted(columns))}"
            )
    columns |= {theirs: columns[ours] for theirs, ours in names.items()}
    return {name: values for name, values in columns.items() if name not in RESERVED}


# Our tasks in TRL's GRPOTrainer: a data set of a task's samples, and the reward that scores what is answered.
#
# TRL 1.16: a reward function is called with `prompts`, `completions`, `completion_ids`, every column of the data set
# and
# `trainer_state`, `log_metric`, `log_extra`; it returns a number for each completion, None where it does not apply.

Reward = Callable[..., list[float | None]]


def dataset(
    task: str,
    split: Split = "train",
    count: int | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
    model: str | None = None,
) -> Dataset:
    """The first `count` samples of a task for `GRPOTrainer(train_dataset=...)`: `prompt`, `images`, `sample`.

    `sample` holds how a completion is scored, and is all that `reward` reads. Arguments as `vlrl.tools.hub_export.ask`.

    Raises:
        UserError: as `ask`; the `datasets` package is missing; there are no samples.
    """
    try:
        from datasets import Dataset, Image, List
    except ImportError:
        raise UserError("a data set for TRL needs the package datasets: pip install 'vlrl[hub]'") from None
    questions = list(hub_export.ask(task, split, count, options=options, data=data, model=model))
    if not questions:
        raise UserError(f"task: {task!r} has no samples to ask for in the split {split!r}")
    prompts = [each.sample.prompt for each in questions]
    columns: dict[str, list[Any]] = {
        "prompt": [[{"role": "user", "content": content(each)}] for each in prompts],
        "sample": [each.key for each in questions],
    }
    if not any(each.images for each in prompts):
        return Dataset.from_dict(columns)
    rows = Dataset.from_dict(columns | {"images": [list(each.images) for each in prompts]})
    return rows.cast_column("images", List(Image()))


def processor(model: str) -> Any:
    """The model's processor for `GRPOTrainer(processing_class=...)`, from a folder, the hub or a bundled name.

    It pads on the left, as TRL needs it: padded on the right, prompts of unequal length end in a shape mismatch in
    transformers' `get_rope_index`.
    """
    from transformers import AutoProcessor

    from vlrl.policies.loading import bundled, newest_checkpoint

    return AutoProcessor.from_pretrained(newest_checkpoint(bundled(model)), padding_side="left")


def content(shown: Observation) -> str | list[dict[str, str]]:
    """The content of the user's message: a text, or blocks in reading order, whose images TRL puts in."""
    if not shown.images:
        return "".join(shown.content)
    texts = (part if isinstance(part, str) else None for part in shown.content)
    return [{"type": "image", "text": ""} if text is None else {"type": "text", "text": text} for text in texts]


def reward(task: str | None = None, *, part: str | None = None) -> Reward:
    """The reward of our tasks as a function for `GRPOTrainer(reward_funcs=...)`.

    Args:
        task: scores this task's rows alone; others get None, which TRL takes as not applicable. Default: all.
        part: one part of the reward, unweighted, or `correct`; default: the weighted sum. With a function for each
            part, TRL logs them apart and `reward_weights` weighs them.

    Raises:
        UserError: when called, for rows that `dataset` did not make, and for a part that the reward does not have.
    """

    def scores(completions: Sequence[Any], sample: Sequence[str], **columns: Any) -> list[float | None]:
        step = getattr(columns.get("trainer_state"), "global_step", 0)
        return [
            _value(key, text_of(completion), step, part) if task in (None, hub_export.of_task(key)) else None
            for key, completion in zip(sample, completions, strict=True)
        ]

    scores.__name__ = "_".join(filter(None, [task or "vlrl", part]))  # the name that TRL logs it under
    return scores


def _value(key: str, completion: str, step: int, part: str | None) -> float:
    total, score = hub_export.scored(key, completion, step)
    if part is None:
        return total
    parts = {"correct": score.correct, **score.parts}
    if part not in parts:
        raise UserError(f"reward: no part {part!r}; parts are {', '.join(parts)}")
    return parts[part]


def text_of(completion: str | Sequence[Mapping[str, Any]]) -> str:
    """The text of a completion: as it is, or of what the assistant says in a list of messages."""
    if isinstance(completion, str):
        return completion
    texts = [message["content"] for message in completion if message["role"] == "assistant"]
    return "".join(map(_join_text, texts))


def _join_text(held: str | Sequence[Mapping[str, Any]] | None) -> str:
    if held is None or isinstance(held, str):
        return held or ""
    return "".join(block.get("text") or "" for block in held)


# Our tasks in verl and EasyR1: rows for their parquet files, and the reward functions that score what is answered.
#
# verl: `custom_reward_function.path=.../vlrl/tools/trl_verl.py custom_reward_function.name=compute_score`, of the form
# `compute_score(data_source, solution_str, ground_truth, extra_info)`. EasyR1: `worker.reward.reward_function=
# .../vlrl/tools/trl_verl.py:compute_scores` with `worker.reward.reward_type=batch`. Both load this file by its path,
# and
# need vlrl installed beside them. `python -c "import vlrl.tools.trl_verl as v; print(v.__file__)"` tells the path.

REWARD_NAME, REWARD_TYPE = "vlrl", "batch"  # later releases of EasyR1 read them here


def verl_write(
    file: str | Path,
    task: str,
    split: Split = "train",
    count: int | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
    model: str | None = None,
) -> int:
    """Writes the first `count` samples as a parquet file for `data.train_files`; returns their number.

    Columns are verl's (`data_source`, `prompt`, `images`, `ability`, `reward_model`, `extra_info`) and EasyR1's
    (`problem`, `answer`). Arguments as `vlrl.tools.hub_export.ask`.

    Raises:
        UserError: as `ask`; there are no samples.
    """
    import pyarrow
    from pyarrow import parquet

    questions = hub_export.ask(task, split, count, options=options, data=data, model=model)
    rows = [_row(each, task, split, index) for index, each in enumerate(questions)]
    if not rows:
        raise UserError(f"task: {task!r} has no samples to ask for in the split {split!r}")
    parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    return len(rows)


def _row(each: hub_export.KeyedSample, task: str, split: Split, index: int) -> dict[str, Any]:
    prompt = each.sample.prompt
    text = _text(prompt)
    return {
        "data_source": f"vlrl/{task}", "prompt": [{"role": "user", "content": text}], "problem": text,
        "images": [{"bytes": _png(image), "path": None} for image in prompt.images], "ability": task,
        "reward_model": {"style": "rule", "ground_truth": each.key}, "answer": each.key,
        "extra_info": {"split": split, "index": index, "id": each.sample.id},
    }  # fmt: skip


def _text(shown: Observation) -> str:
    """Texts in reading order, with `<image>` where an image is: what verl and EasyR1 replace."""
    return "".join(part if isinstance(part, str) else "<image>" for part in shown.content)


def _png(image: Any) -> bytes:
    held = io.BytesIO()
    image.save(held, "PNG")
    return held.getvalue()


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Mapping[str, Any] | None = None, **given: Any
) -> dict[str, float]:
    """verl's: `score` is what is learned from; `acc` and the reward's parts are logged beside it."""
    total, score = hub_export.scored(ground_truth, solution_str)
    return {"score": total, "acc": score.correct, **score.parts}


def compute_scores(reward_inputs: Sequence[Mapping[str, Any]], **given: Any) -> list[dict[str, float]]:
    """EasyR1's batched form: `overall` is what is learned from."""
    scores = [hub_export.scored(each["ground_truth"], each["response"]) for each in reward_inputs]
    return [{"overall": total, "accuracy": score.correct, **score.parts} for total, score in scores]


# Our tasks as OpenEnv's servers: `vlrl serve-task`.


def serve_task(task: BaseTask, split: Split, host: str, port: int, sessions: int) -> None:
    """Serves a task's episodes until it is interrupted; UserError where OpenEnv is missing or another version."""
    check_extra("serve-task", "openenv", "openenv.core.env_server.http_server", "uvicorn")
    import uvicorn

    uvicorn.run(make_openenv_app(task, split, sessions), host=host, port=port, log_level="warning")


def make_openenv_app(task: BaseTask, split: Split, sessions: int) -> Any:
    """The FastAPI app of a task, whose sessions are its episodes.

    A seed names a sample, whose observations are chat messages with images as data URLs. The action's `text` is a whole
    completion; coordinates are pixels of the images. The reward comes with the last observation, and `correct`,
    `parts` beside it.
    """
    from openenv.core.env_server import http_server
    from openenv.core.env_server import interfaces as oe
    from openenv.core.env_server import types as wire

    turn = Lock()  # tasks are no more made for threads than the trainer is

    class ServedAction(wire.Action):
        text: str

    class ServedObservation(wire.Observation):
        messages: list[dict[str, Any]]
        tools: list[dict[str, Any]] = []  # noqa: RUF012
        restart: bool = False
        correct: float = 0.0
        parts: dict[str, float] = {}  # noqa: RUF012

    class TaskEnvironment(oe.Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self):
            super().__init__()
            self._session = TaskSession(task)

        def reset(
            self, seed: int | None = None, episode_id: str | None = None, split: Split = split, **unknown: Any
        ) -> Any:
            if unknown or split not in ("train", "test"):  # OpenEnv itself drops what a signature has not
                raise ValueError(f"reset takes seed, episode_id and split, train or test, not {split} {unknown or ''}")
            with turn:
                samples = task.samples(split)
                observation = self._session.begin(samples[(seed or 0) % len(samples)])
                return ServedObservation(**write_conversation(observation))

        def step(self, action: Any, timeout_s: float | None = None, **options: Any) -> Any:
            with turn:
                observation, reward, score = self._session.go_on(action.text)
            result = {"correct": score.correct, "parts": dict(score.parts)} if score else {}
            return ServedObservation(**write_conversation(observation), done=score is not None, reward=reward, **result)

        @property
        def state(self) -> Any:
            return wire.State(episode_id=self._session.name, step_count=self._session.num_turns)

        def close(self) -> None:
            with turn:
                self._session.close()

    return http_server.create_fastapi_app(
        TaskEnvironment, ServedAction, ServedObservation, max_concurrent_envs=sessions
    )


class TaskSession:
    """Episodes of a task one after the other.

    Args:
        read: how whoever answers writes coordinates on what is shown; default: pixels of the images.
    """

    def __init__(self, task: BaseTask, read: hub_export.Reader | None = None):
        self._task, self._read = task, read or hub_export.reader(None)
        self._environment: Environment | None = None
        self._episode: Episode | None = None
        self._frames: list[Frame] = []  # of all images that are in view

    @property
    def name(self) -> str | None:
        return self._episode.sample.id if self._episode else None

    @property
    def num_turns(self) -> int:
        return len(self._episode.turns) if self._episode else 0

    def begin(self, sample: Sample) -> Observation:
        """The first observation of a sample."""
        self.close()
        self._environment, self._episode, self._frames = self._task.environment(sample), Episode(sample, 0), []
        return self._see(self._environment.reset())

    def go_on(self, completion: str) -> tuple[Observation, float, Score | None]:
        """What is shown next, the reward, and at the episode's end the score. RuntimeError: the episode is void."""
        if self._environment is None or self._episode is None:
            raise RuntimeError("a step comes after a reset and before the episode's end")
        frames = tuple(self._frames)
        step = self._environment.step(completion, frames)
        if step.fault:
            raise RuntimeError(f"the episode is void: {step.fault}")
        self._episode.turns.append(Turn(self._observation, decide(completion, frames), step))
        if not (step.terminated or step.truncated):
            return self._see(step.observation), 0.0, None
        return Observation.from_messages([Message("user", ())]), *self.finish()

    def finish(self) -> tuple[float, Score]:
        """The reward and the score of the turns so far, at least one."""
        if self._episode is None or not self._episode.turns:
            raise RuntimeError("an episode without a turn has no score")
        score = self._task.score(self._episode)
        self.close()
        return self._task.reward(score), score

    def _see(self, observation: Observation) -> Observation:
        """Notes the coordinates of new images."""
        if observation.restart or not observation.messages:
            self._frames = []
        self._frames += self._read(observation)
        self._observation = observation
        return observation

    def close(self) -> None:
        if self._environment is not None:
            self._environment.close()
            self._environment = None


def write_conversation(observation: Observation) -> dict[str, Any]:
    """An observation as chat messages, its images as data URLs; `restart`: they replace those before."""
    messages = observation.messages or (Message("user", observation.content),)
    rows = [{"role": each.role, "content": [write_part(part) for part in each.content]} for each in messages]
    for row, each in zip(rows, messages, strict=True):
        calls = [{"name": call.name, "arguments": json.dumps(call.arguments)} for call in each.tool_calls]
        if calls:
            row["tool_calls"] = [{"type": "function", "function": call} for call in calls]
    return {
        "messages": rows,
        "tools": list(observation.tools),
        "restart": observation.restart or not observation.messages,
    }


def write_part(part: Any) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if isinstance(part, Video):
        raise UserError("chat messages take no videos")
    return {"type": "image_url", "image_url": {"url": data_url(part)}}


# Reward functions that were written for verl, EasyR1 and verifiers, as TRL's.


def from_verl(compute_score: Callable[..., Any]) -> Callable[..., list[float]]:
    """verl's `compute_score(data_source, solution_str, ground_truth, extra_info)`: a number, or a dict with `score`."""

    def call(completions: Sequence[str], ground_truth: Sequence[Any], **columns: Any) -> list[float]:
        rows = _rows(columns, len(completions))
        return [
            _score(compute_score(row["id"].partition("/")[0], completion, truth, row), "score")
            for completion, truth, row in zip(completions, ground_truth, rows, strict=True)
        ]

    return call


def from_easyr1(compute_score: Callable[..., Any]) -> Callable[..., list[float]]:
    """EasyR1's `compute_score(reward_inputs)`, of a batch, or `compute_score(reward_input)`: dicts with `overall`."""
    at_once = "reward_inputs" in inspect.signature(compute_score).parameters

    def call(
        completions: Sequence[str], completion_ids: Sequence[Sequence[int]], ground_truth: Sequence[Any], **columns: Any
    ) -> list[float]:
        texts = zip(completions, completion_ids, ground_truth, _rows(columns, len(completions)), strict=True)
        inputs = [
            {**row, "response": text, "response_length": len(ids), "ground_truth": truth}
            for text, ids, truth, row in texts
        ]
        scores = compute_score(inputs) if at_once else [compute_score(each) for each in inputs]
        return [_score(each, "overall") for each in scores]

    return call


def from_verifiers(function: Callable[..., Any]) -> Callable[..., Any]:
    """A rubric function of verifiers 0.4, `async def exact(task, trace) -> float`, or one that is not `async`.

    Raises:
        UserError: verifiers is not installed, or another version.
    """
    check_extra("process_rewards: trl: api: verifiers", "verifiers", "verifiers.v1.graph")
    from verifiers import v1 as vf
    from verifiers.v1.graph import prepare_turn
    from verifiers.v1.utils.decorators import invoke

    async def score(prompt: str, completion: str, row: Mapping[str, Any]) -> Any:
        fields: dict[str, Any] = {**row, "prompt": prompt}
        task = vf.WireTaskData.model_construct(None, **fields)  # columns hold what pydantic knows not
        about = vf.TraceTask.model_construct(type="Task", data=task)
        trace = vf.Trace.model_construct(task=about, agent=make_verifiers_agent())
        message = vf.AssistantMessage(content=completion)
        prepare_turn(trace, [vf.UserMessage(content=prompt)]).commit(make_verifiers_reply(message))
        value = invoke(function, {"task": task, "trace": trace})
        return await value if inspect.isawaitable(value) else value

    async def call(prompts: Sequence[str], completions: Sequence[str], **columns: Any) -> list[Any]:
        rows = _rows(columns, len(completions))
        return [await score(*each) for each in zip(prompts, completions, rows, strict=True)]

    return call


def _rows(columns: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    lists = {name: column for name, column in columns.items() if isinstance(column, list) and len(column) == count}
    return [{name: column[i] for name, column in lists.items()} for i in range(count)]


def _score(value: Any, key: str) -> float:
    if isinstance(value, Mapping) and key not in value:
        raise UserError(f"process_rewards: trl: a reward function gave {sorted(map(str, value))} without {key!r}")
    return value[key] if isinstance(value, Mapping) else value


# Where reward functions are called: in this process, or in one of their own that is ended when it takes too long.

Rewards = list[float | None]  # of each completion
START_S = 600.0  # seconds for a process to import what its functions need


class LocalRewards:
    """Reward functions, called in this process.

    Args:
        names: each as `my_module:function`.
        api: whose trainer calls them so.

    Raises:
        UserError: as `find_reward_function`.
    """

    def __init__(self, names: Sequence[str], api: str):
        self._functions = {name.rpartition(":")[2]: find_reward_function(name, api) for name in names}

    def compute(self, columns: Mapping[str, list[Any]], step: int) -> tuple[list[Rewards], dict[str, float]]:
        """What each function gives, and what they log."""
        logged: dict[str, float] = {}
        return [self.compute_one(name, columns, step, logged) for name in self._functions], logged

    def compute_one(self, name: str, columns: Mapping[str, list[Any]], step: int, logged: dict[str, float]) -> Rewards:
        """Raises UserError as `numbers`, and what the function raises."""
        from transformers import TrainerState

        result = self._functions[name](
            **columns,
            trainer_state=TrainerState(global_step=step),
            log_metric=lambda key, value: logged.update({key: float(value)}),
            log_extra=lambda column, values: None,
        )
        rewards = asyncio.run(result) if inspect.iscoroutine(result) else result
        return numbers(name, rewards, len(columns["completions"]))


class WorkerRewards:
    """The same, called in a worker. A call that is lost with its worker gives None for each completion.

    Args:
        seconds: that a call may take.
    """

    def __init__(self, names: Sequence[str], api: str, seconds: float):
        self._names, self._seconds = [name.rpartition(":")[2] for name in names], seconds
        options = {"names": list(names), "api": api}
        self.pool = WorkerPool(
            f"{__name__}:RewardService", options, kind="reward", size=1, patience=START_S, name="process_rewards: trl"
        )
        self.pool.give(self.pool.take())  # finds the functions now

    def compute(self, columns: Mapping[str, list[Any]], step: int) -> tuple[list[Rewards], dict[str, float]]:
        """What each function gives; what they log, and `lost`, the calls that were."""
        fields, arrays = pack_columns(columns)
        values: list[Rewards] = []
        logged: dict[str, float] = {"lost": 0.0}
        for name in self._names:
            try:
                answer = self._ask({**fields, "name": name, "step": step}, arrays)
            except LostWorkerError:
                values.append([None] * len(columns["completions"]))
                logged["lost"] += 1
            else:
                values.append(answer["rewards"])
                logged |= answer["logged"]
        return values, logged

    def _ask(self, fields: Mapping[str, Any], arrays: Arrays) -> dict[str, Any]:
        worker = self.pool.take()
        worker.patience = self._seconds
        try:
            answer, _ = worker.ask("compute", fields, arrays)
        except WorkerError as error:
            self.pool.bury(worker, str(error))
            raise
        except BaseException:
            self.pool.give(worker)
            raise
        self.pool.give(worker)
        return answer


class RewardService(WorkerService):
    """A worker's reward functions."""

    def __init__(self) -> None:
        self._rewards: LocalRewards | None = None

    def answers(self) -> Mapping[str, Callable[[Mapping[str, Any], Arrays], Packed]]:
        return {"make": self.make, "compute": self.compute}

    def make(self, fields: Mapping[str, Any], arrays: Arrays) -> Packed:
        import transformers

        _ = transformers.TrainerState  # takes seconds, which are not the first call's
        self._rewards = LocalRewards(fields["names"], fields["api"])
        return {}, {}

    def compute(self, fields: Mapping[str, Any], arrays: Arrays) -> Packed:
        if self._rewards is None:
            raise RuntimeError("make comes first")
        columns, logged = unpack_columns(fields, arrays), {}
        try:
            rewards = self._rewards.compute_one(fields["name"], columns, fields["step"], logged)
        except UserError:
            raise
        except Exception as error:  # functions raise what they like
            raise UserError(f"process_rewards: trl: {fields['name']} raised {one_line(error)}") from error
        return {"rewards": rewards, "logged": logged}, {}


def pack_columns(columns: Mapping[str, list[Any]]) -> Packed:
    """Columns as fields and arrays, each image once."""
    from PIL.Image import Image

    images: dict[int, Image] = {}  # by identity
    numbers: dict[int, ImageNumber] = {}

    def pack(value: Any) -> Any:
        if isinstance(value, Image):
            images[id(value)] = value
            return numbers.setdefault(id(value), ImageNumber(len(numbers)))
        return map_parts(pack, value)

    arrays = {"columns": np.frombuffer(pack_value(pack(dict(columns))), np.uint8)}
    arrays |= {str(i): np.frombuffer(image.tobytes(), np.uint8) for i, image in enumerate(images.values())}
    return {"images": [[image.mode, image.size] for image in images.values()]}, arrays


def unpack_columns(fields: Mapping[str, Any], arrays: Arrays) -> dict[str, list[Any]]:
    from PIL import Image

    images = [
        Image.frombytes(mode, tuple(size), arrays[str(i)].tobytes()) for i, (mode, size) in enumerate(fields["images"])
    ]

    def unpack(value: Any) -> Any:
        return images[value.number] if isinstance(value, ImageNumber) else map_parts(unpack, value)

    return unpack(unpack_value(arrays["columns"].tobytes()))


def map_parts(function: Callable[[Any], Any], value: Any) -> Any:
    """A list, tuple or dictionary with a function of each of its parts; anything else as it is."""
    if isinstance(value, dict):
        return {key: function(each) for key, each in value.items()}
    return type(value)(map(function, value)) if isinstance(value, list | tuple) else value


def find_reward_function(name: str, api: str) -> Callable[..., Any]:
    """A reward function by its name, to be called as TRL calls them."""
    if ":" not in name:
        raise UserError(f"process_rewards: trl: rewards: {name!r}: name a function as my_module:function")
    function = registry.find("TRL reward", name, "process_rewards: trl: rewards")
    kinds = {each.kind for each in inspect.signature(function).parameters.values()} if callable(function) else set()
    if api != "trl" and callable(function):
        return {"verl": from_verl, "easyr1": from_easyr1, "verifiers": from_verifiers}[api](function)
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        raise UserError(f"process_rewards: trl: rewards: {name} takes no **columns, which TRL's reward functions do")
    return function


def numbers(name: str, values: Any, count: int) -> list[float | None]:
    """A reward for each completion, None where NaN as well; UserError where there are not as many, or none are."""
    held = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(held, list | tuple) or len(held) != count:
        got = f"{len(held)} rewards" if isinstance(held, list | tuple) else type(held).__name__
        raise UserError(f"process_rewards: trl: {name} gave {got} for {count} completions: it must give one for each")
    try:
        checked_values = [None if value is None or math.isnan(value) else float(value) for value in held]
    except TypeError:
        raise UserError(f"process_rewards: trl: {name} gave something that is no number: use None for none") from None
    if any(value is not None and math.isinf(value) for value in checked_values):
        raise UserError(f"process_rewards: trl: {name} gave an infinite reward: use None for none")
    return checked_values
