"""Our tasks of one turn as an environment of verifiers 0.4, which finds environments by names without a dot.

    # vlrl_tasks.py, anywhere on the Python path; there: `taskset = {id = "vlrl-tasks", task_name = "counting"}`
    from vlrl.tools.verifiers_env import VlrlTaskset

    __all__ = ["VlrlTaskset"]

Prompts hold images as data URLs, rewards are our own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from verifiers import v1 as vf

from vlrl.tools import hub_export
from vlrl.tools.trl_verl import write_conversation
from vlrl.types import Observation, UserError

__all__ = ["VlrlTaskset"]


class VlrlConfig(vf.TasksetConfig):
    task_name: str = "gui_grounding"
    """A task of `vlrl list tasks`, or my_module:MyTask."""
    split: Literal["train", "test"] = "train"
    count: int | None = None
    """How many samples; all by default."""
    options: dict[str, Any] = {}  # noqa: RUF012
    """The task's options, as in a configuration of ours."""
    data: dict[str, Any] = {}  # noqa: RUF012
    """Its files, as under `data` there."""
    model: str | None = None
    """The model that will be asked, for the coordinates that it writes; default: pixels of the task's image."""


class VlrlData(vf.TaskData):
    sample: str
    """How a completion is scored: `vlrl.tools.hub_export.ask`."""


class VlrlTask(vf.Task[VlrlData]):
    @vf.reward
    async def reward(self, trace: vf.Trace) -> float:
        """The weighted sum; its parts, and whether the answer is correct, are metrics."""
        replies = trace.assistant_messages or [vf.AssistantMessage()]
        thoughts, content = replies[-1].reasoning_content, replies[-1].content or ""
        text = f"<think>{thoughts}</think>{content}" if thoughts else content
        total, score = hub_export.scored(self.data.sample, text)
        trace.record_metrics({"correct": score.correct, **score.parts})
        return total


class VlrlTaskset(vf.Taskset[VlrlTask, VlrlConfig]):
    """The samples of a task; UserError where it takes several turns, or asks about videos."""

    def load(self) -> Iterator[VlrlTask]:
        own = self.config
        rows = hub_export.ask(
            own.task_name, own.split, own.count, options=own.options or None, data=own.data or None, model=own.model
        )
        for each in rows:
            yield VlrlTask(VlrlData(id=each.sample.id, prompt=write_messages(each.sample.prompt), sample=each.key))


def write_messages(observation: Observation) -> list[Any]:
    """A prompt as verifiers' messages."""
    from verifiers.v1.dialects import parse_message

    messages = write_conversation(observation)["messages"]
    if any(each["role"] not in ("system", "user") for each in messages):
        raise UserError("verifiers is handed system and user messages only, and this task's prompts have others")
    return [parse_message(each) for each in messages]
