"""Our tasks as an environment of verifiers 0.4, which finds environments by names without a dot.

    # vlrl_tasks.py, anywhere on the Python path; there: `taskset = {id = "vlrl-tasks", task_name = "visual_search"}`
    from vlrl.tools.verifiers_env import VlrlEnv, VlrlTaskset

    __all__ = ["VlrlEnv", "VlrlTaskset"]

Prompts hold images as data URLs, rewards are our own. Tasks of several turns are played by `VlrlEnv`: what our
environment shows is the user's next message, its tools are a tool server's, and the episode's score is the reward.
"""

from __future__ import annotations

import inspect
import io
import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, cast

from pydantic import WithJsonSchema
from verifiers import v1 as vf

from vlrl.evaluation.score import CALL, CALL_END
from vlrl.tools import hub_export
from vlrl.tools.trl_verl import TaskSession, write_conversation
from vlrl.types import Observation, Score, UserError, Video

__all__ = ["VlrlEnv", "VlrlTaskset"]


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
    model: str | None = None
    """Whose coordinates the completions hold."""

    def begin(self) -> tuple[TaskSession, Observation]:
        """An episode of the sample, and what it shows first."""
        task, sample, _ = hub_export.find_sample(self.sample)
        session = TaskSession(task, hub_export.reader(self.model))
        return session, session.begin(sample)


class VlrlTaskConfig(vf.TaskConfig):
    takes_turns: bool = False
    has_tools: bool = False


class VlrlState(vf.State):
    """What an episode of several turns earned."""

    total: float = 0.0
    metrics: dict[str, float] = {}  # noqa: RUF012


class VlrlTools(vf.Toolset[vf.ToolsetConfig, vf.State]):
    """The tools of one sample, which act in an episode of their own beside the one that is scored."""

    TOOL_PREFIX = None

    async def setup_task(self, task: VlrlData) -> None:
        self._session, self._observation = task.begin()

    def register(self, mcp: Any) -> None:
        for schema in self._observation.tools:
            about = schema["function"]
            call = self._with_state(self._bind(about["name"], about["parameters"]))
            mcp.add_tool(call, name=about["name"], description=about.get("description"))

    def _bind(self, name: str, parameters: Mapping[str, Any]) -> Any:
        """A function of the tool's parameters, as its JSON schema has them."""

        async def call(**arguments: Any) -> list[Any]:
            filled = {key: value for key, value in arguments.items() if value is not None}
            observation, _, score = self._session.go_on(write_call(name, json.dumps(filled)))
            return ["The episode is over."] if score else read_result(observation)

        needed = parameters.get("required") or ()
        call.__signature__ = inspect.Signature(  # ty: ignore[missing-attribute]
            [
                inspect.Parameter(
                    key, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[Any, WithJsonSchema(dict(schema))],
                    default=inspect.Parameter.empty if key in needed else None,
                )
                for key, schema in parameters.get("properties", {}).items()
            ]
        )  # fmt: skip
        return call


class VlrlTask(vf.Task[VlrlData, VlrlState, VlrlTaskConfig]):
    @classmethod
    def toolsets(cls, config: VlrlTaskConfig) -> list[Any]:
        return [VlrlTools(vf.ToolsetConfig())] if config.has_tools else []

    @vf.reward
    async def reward(self, trace: vf.Trace) -> float:
        """The weighted sum; its parts, and whether the answer is correct, are metrics."""
        if cast("VlrlTaskConfig", self.config).takes_turns:
            state = cast("VlrlState", trace.state)
            trace.record_metrics(state.metrics)
            return state.total
        replies = trace.assistant_messages or [vf.AssistantMessage()]
        total, score = hub_export.scored(self.data.sample, write_reply(replies[-1]))
        trace.record_metrics(list_metrics(score))
        return total


class VlrlTaskset(vf.Taskset[VlrlTask, VlrlConfig]):  # ty: ignore[invalid-type-arguments]
    """The samples of a task; UserError where it takes several turns without a `VlrlEnv`, or asks about videos."""

    def load(self) -> Iterator[VlrlTask]:
        from verifiers.v1.utils.loaders import environment_class

        own = self.config
        turns = issubclass(environment_class(own.id), VlrlEnv)
        task = hub_export.find_task(own.task_name, own.options, own.data)
        takes_turns = turns and hub_export.takes_turns(task, own.options)
        for each in hub_export.ask(
            own.task_name, own.split, own.count, options=own.options or None, data=own.data or None, model=own.model,
            turns=turns,
        ):  # fmt: skip
            prompt = each.sample.prompt
            config = VlrlTaskConfig(takes_turns=takes_turns, has_tools=takes_turns and bool(prompt.tools))
            system, messages = None, None  # of several turns: its environment opens the conversation
            if takes_turns:
                texts = [str(part) for each in prompt.messages if each.role == "system" for part in each.content]
                system = "".join(texts) or None
            else:
                messages = write_messages(prompt)
            data = VlrlData(
                id=each.sample.id, sample=each.key, model=own.model, prompt=messages, system_prompt=system
            )  # fmt: skip
            yield VlrlTask(data, config)


class VlrlEnv(vf.Env[vf.SingleAgentEnvConfig]):
    """Plays the episodes of our tasks, of one turn or several."""

    async def run(self, task: Any, agents: Any) -> None:
        if not task.config.takes_turns:
            await agents.agent.run(task)
            return
        session, observation = task.data.begin()
        try:
            async with agents.agent.interaction(task) as conversation:
                total, score = 0.0, None
                while score is None:
                    segment = await conversation.turn(write_turn(observation))
                    if not segment.messages:  # a limit of the agent's
                        total, score = session.finish() if session.num_turns else (0.0, Score({}, 0.0))
                    for reply in segment.messages:
                        if reply.role == "assistant" and score is None:
                            observation, total, score = session.go_on(write_reply(reply))
                            check_continues(observation)
                conversation.trace.state.total, conversation.trace.state.metrics = total, list_metrics(score)
        finally:
            session.close()

    async def stop(self) -> None:
        """Ends the processes of the task, such as browsers."""
        own = cast("VlrlConfig", self.config.taskset)
        hub_export.close_task(own.task_name, own.options, own.data)


# Our conversations as verifiers', and back.


def write_messages(observation: Observation) -> list[Any]:
    """A prompt as verifiers' messages."""
    from verifiers.v1.dialects import parse_message

    messages = write_conversation(observation)["messages"]
    if any(each["role"] not in ("system", "user") for each in messages):
        raise UserError("verifiers is handed system and user messages only, and this task's prompts have others")
    return [parse_message(each) for each in messages]


def check_continues(observation: Observation) -> None:
    """UserError where what is shown is to replace the conversation."""
    if observation.restart or not observation.messages:
        raise UserError("verifiers shows the whole conversation: set the task's option context to {name: full}")


def write_turn(observation: Observation) -> list[Any]:
    """What an environment shows, as messages of the user: a tool's, too, where no call was read of what was written."""
    from verifiers.v1.dialects import parse_message

    messages = [each for each in write_conversation(observation)["messages"] if each["role"] != "system"]
    return [parse_message({**each, "role": "user"}) for each in messages]


def write_call(name: str, arguments: str) -> str:
    """A call as our environments read it; arguments that are no JSON stay so, and are a malformed call there."""
    return f'{CALL}{{"name": {json.dumps(name)}, "arguments": {arguments}}}{CALL_END}'


def write_reply(message: Any) -> str:
    """What the policy wrote, with its thoughts and its calls of tools."""
    thoughts, content = message.reasoning_content, message.content or ""
    calls = [write_call(call.name, call.arguments) for call in message.tool_calls or ()]
    return "".join([f"<think>{thoughts}</think>" if thoughts else "", content, *calls])


def list_metrics(score: Score) -> dict[str, float]:
    return {"correct": score.correct, **score.parts}


def read_result(observation: Observation) -> list[Any]:
    """What a tool answered, as MCP's content."""
    from mcp.server.mcpserver import Image

    content: list[Any] = []
    for part in observation.content:
        if isinstance(part, str):
            content.append(part)
        elif not isinstance(part, Video):
            file = io.BytesIO()
            part.save(file, "PNG")
            content.append(Image(data=file.getvalue(), format="png"))
    return content
