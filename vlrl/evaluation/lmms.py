"""lmms-eval's side of `vlrl.evaluation.benchmarks`: its tasks on rows at hand, and a policy as one of its models.

Imported when a benchmark runs: lmms-eval takes seconds to load.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
from lmms_eval.api.model import lmms
from lmms_eval.api.task import ConfigurableMessagesTask, ConfigurableTask
from lmms_eval.evaluator import simple_evaluate
from lmms_eval.tasks import TaskManager
from lmms_eval.utils import load_yaml_config
from loguru import logger
from PIL import Image
from tenacity import RetryError

from vlrl.logging import Progress
from vlrl.media import convert_rgb, load_rgb
from vlrl.rollout import act_within_memory
from vlrl.types import Episode, Message, Observation, Policy, Sample, UserError, Video, one_line

VERSION = importlib.metadata.version("lmms-eval")
BUILDERS = {".parquet": "parquet", ".jsonl": "json", ".json": "json", ".csv": "csv"}  # ending -> loader of `datasets`
OWN_FIELDS = ("doc_to_text", "doc_to_target", "doc_to_visual")  # of a definition, which may name a column
Splits = Mapping[str, "datasets.Dataset"]
Answered = Callable[[int, Mapping[str, Any], str], None]  # number of the document, its columns, what was answered
VideoReader = Callable[[str], Video]

datasets.disable_progress_bars()
logger.remove()  # it writes a line for every step that it takes
logger.add(sys.stderr, level="ERROR", format="lmms-eval: {message}")


def read_definition(file: Path) -> dict[str, Any]:
    """A task's YAML with what it includes; functions stay names."""
    return load_yaml_config(yaml_path=str(file), mode="simple")


def read_rows(files: Mapping[str, Sequence[Path]], source: str) -> Splits:
    """Split -> its rows. Texts in columns named `image...` that are files beside the rows become images.

    Raises:
        UserError: a file cannot be read.
    """
    splits = {}
    for split, listed in files.items():
        try:
            rows = datasets.load_dataset(
                BUILDERS[listed[0].suffix], data_files={split: [str(file) for file in listed]}, split=split
            )
        except (datasets.exceptions.DatasetGenerationError, OSError, ValueError) as error:
            raise UserError(
                f"--data {source}: cannot read {listed[0].name}: {one_line(error.__cause__ or error)}"
            ) from None
        for column, kind in rows.features.items():
            if column.startswith("image") and kind == datasets.Value("string") and len(rows):
                folder = listed[0].parent
                if (folder / str(rows[0][column])).is_file():
                    rows = rows.map(lambda row, name=column, at=folder: {name: str(at / row[name])})
                    rows = rows.cast_column(column, datasets.Image())
        splits[split] = rows
    return splits


class BenchmarkTask(ConfigurableMessagesTask):
    """A task of lmms-eval whose rows are at hand, or are fetched as it says (None)."""

    def __init__(self, definition: Mapping[str, Any], rows: Splits | None, prompts: str):
        self.rows = rows
        super().__init__(config=dict(definition), model_name=prompts)

    def download(self, dataset_kwargs: Any = None) -> None:
        if self.rows is None:
            super().download(dataset_kwargs)
            return
        prepare = self.config.process_docs or (lambda rows: rows)
        self.dataset = datasets.DatasetDict({split: prepare(rows) for split, rows in self.rows.items()})
        self.dataset_no_image = self.dataset
        if not self.config.process_results_use_image:  # prompts are built without decoding pictures
            self.dataset_no_image = datasets.DatasetDict({split: _drop_images(r) for split, r in self.dataset.items()})

    def check(self, columns: Sequence[str]) -> None:
        """The columns are there, and the first row can be asked and scored: said before the model answers them all.

        Raises:
            UserError: a column is missing. Others: what the task's own functions raise.
        """
        named = [self.config[key] for key in OWN_FIELDS if isinstance(self.config[key], str)]
        for column in (*columns, *(name for name in named if name.isidentifier())):
            if column not in self.features:
                raise KeyError(column)
        row = self.task_docs[0]
        self.doc_to_messages(row)
        inspect.unwrap(ConfigurableTask.process_results)(self, row, [""])  # without its five tries

    def aggregations(self) -> dict[str, Callable[[Sequence[Any]], Any]]:
        """Metric -> the official function from all documents' records to the score."""
        takes_args = {name: "args" in inspect.signature(each).parameters for name, each in self.aggregation().items()}
        return {
            name: functools.partial(each, args=None) if takes_args[name] else each
            for name, each in self.aggregation().items()
        }


def _drop_images(rows: datasets.Dataset) -> datasets.Dataset:
    return rows.remove_columns([name for name, kind in rows.features.items() if isinstance(kind, datasets.Image)])


class PolicyModel(lmms):
    """A policy as a chat model of lmms-eval.

    Args:
        batch: documents that are answered together.
        greedy: the likeliest tokens; else at the policy's temperature.
        answered: is told each answer.
        strip_tags: lmms-eval is shown what stands inside `<answer>` alone.
    """

    is_simple = False  # asked by messages, their images in reading order

    def __init__(
        self, policy: Policy, read_video: VideoReader, answered: Answered, *, batch: int, greedy: bool, strip_tags: bool
    ):
        super().__init__()
        self.policy, self.read_video, self.answered = policy, read_video, answered
        self.batch, self.greedy, self.strip_tags = batch, greedy, strip_tags

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Texts in the order of the requests. As in lmms-eval's own chat models, `until` does not cut them."""
        texts: list[str] = []
        key = self.policy.draw_key()
        with Progress(len(requests)) as progress:
            for start in range(0, len(requests), self.batch):
                arguments = [request.args for request in requests[start : start + self.batch]]
                with explain_errors(arguments[0][4]):
                    rows = [self.task_dict[task][split][number] for *_, number, task, split in arguments]
                    prompts = [self._observe(each[1](row)) for each, row in zip(arguments, rows, strict=True)]
                episodes = [
                    Episode(Sample(str(each[3]), prompt), i, stream=None if self.greedy else (key, start + i))
                    for i, (each, prompt) in enumerate(zip(arguments, prompts, strict=True))
                ]
                decisions = act_within_memory(self.policy, episodes, prompts, greedy=self.greedy)
                for each, row, decision in zip(arguments, rows, decisions, strict=True):
                    text = str(decision.action)
                    self.answered(each[3], row, text)
                    texts.append(read_inner(text) if self.strip_tags else text)
                progress.note(f"answer {len(texts)}/{len(requests)}")
        return texts

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        raise NotImplementedError

    def generate_until_multi_round(self, requests: Sequence[Any]) -> list[str]:
        raise NotImplementedError

    def _observe(self, messages: Sequence[Mapping[str, Any]]) -> Observation:
        """A conversation as a policy is shown it; one message of a user is a prompt of its own."""
        turns = [Message(each["role"], tuple(map(self._read, _split_content(each["content"])))) for each in messages]
        if [turn.role for turn in turns] == ["user"]:
            return Observation(turns[0].content)
        return Observation.from_messages(turns)

    def _read(self, part: Mapping[str, Any]) -> str | Image.Image | Video:
        kind = part["type"]
        if kind == "text":
            return part["text"]
        source = part["url"]
        if kind == "image":
            return convert_rgb(source) if isinstance(source, Image.Image) else load_rgb(source)
        if kind == "video" and isinstance(source, str):
            return self.read_video(source)
        raise UserError(f"--benchmark: it shows {kind} as {type(source).__name__}, which policies are not shown here")


def read_inner(text: str) -> str:
    """What stands inside the last `<answer>` of a text; all of it where there is none."""
    inner, closed, _ = text.rpartition("<answer>")[2].partition("</answer>")
    return inner.strip() if closed and "<answer>" in text else text


def _split_content(content: Any) -> Sequence[Mapping[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


@contextlib.contextmanager
def explain_errors(name: str, columns: Sequence[str] = ()) -> Iterator[None]:
    """Whatever a benchmark's own code raises becomes one line.

    Raises:
        UserError: what it was.
    """
    try:
        yield
    except UserError:
        raise
    except KeyError as error:
        there = f": it has {', '.join(columns)}" if columns else ""
        raise UserError(f"--benchmark {name}: the data has no column {error}{there}") from None
    except ModuleNotFoundError as error:
        raise UserError(f"--benchmark {name}: lmms-eval's task needs {error.name}: install it") from None
    except SystemExit as error:  # how some of its tasks say that a file is missing
        raise UserError(f"--benchmark {name}: {error}") from None
    except Exception as error:
        cause = error.last_attempt.exception() if isinstance(error, RetryError) else error
        raise UserError(f"--benchmark {name}: {one_line(cause or error)}") from None


def load_task(file: Path, rows: Splits | None, prompts: str) -> BenchmarkTask:
    """The task of a YAML. prompts: the model family in whose words it asks, where it has such.

    Raises: what the task's own code raises.
    """
    return BenchmarkTask(load_yaml_config(yaml_path=str(file), mode="full"), rows, prompts)


def run_task(task: BenchmarkTask, model: PolicyModel, limit: int | None) -> dict[str, Any]:
    """lmms-eval's own evaluation: requests, filters, scoring, aggregation -> its results with `samples`.

    Raises:
        UserError: a later row could not be scored, or all of them not be aggregated.
    """
    try:
        return simple_evaluate(
            model, tasks=[task], limit=limit, bootstrap_iters=0, task_manager=TaskManager(include_defaults=False),
            distributed_executor_backend="torchrun", process_docs_parallel=1,
        )  # fmt: skip
    except RetryError as error:
        raise UserError(f"{task.task_name}: scoring: {one_line(error.last_attempt.exception() or error)}") from None
    except KeyError as error:
        few = "" if limit is None else f" (eval.num_samples is {limit})"
        raise UserError(f"{task.task_name}: its aggregation finds no {error} in these rows{few}") from None


@contextlib.contextmanager
def media_folder(folder: Path | None, name: str | None) -> Iterator[None]:
    """Lets tasks find videos in a local folder: they look for them in HF_HOME, under the name of their cache."""
    if folder is None or name is None:
        yield
        return
    import tempfile

    before = os.environ.get("HF_HOME")
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / name).symlink_to(folder.resolve(), target_is_directory=True)
        os.environ["HF_HOME"] = home
        try:
            yield
        finally:
            os.environ.pop("HF_HOME")
            if before is not None:
                os.environ["HF_HOME"] = before
