"""Episodes of verifiers' environments: their own code runs until it asks its model, which is the policy, for a reply.

An environment's `run` is a coroutine. It is resumed by `VerifiersEpisode.step` and pauses where it needs a completion,
so that it and the trainer take turns in one thread. Its tools are called in this process, not served from others.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

from rewards import parse
from robot.sim.gym import Generators
from tasks.context import MAX_ERROR
from tasks.tools import MALFORMED
from vlrl.decoders import parse_json
from vlrl.io import OverdueError, deadline
from vlrl.media import MediaError, load_rgb, read_data_url
from vlrl.plugins import make_verifiers_agent, make_verifiers_reply
from vlrl.types import Environment, Frame, Message, Observation, Sample, Step, ToolCall, UserError, first_line

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image


SCORING = object()  # what an episode pauses with when its rewards come next
RAISED, LATE = 1.0, 2.0  # values of `rubric_failed` in a step's info
CALLS, MALFORMED_CALLS = "tool_calls", "malformed_calls"
STATE: ContextVar[Any] = ContextVar("verifiers_state")  # of the episode that calls a tool


class EpisodeLoop:
    """The event loop of a task's episodes: whoever steps one of them runs it, in his own thread."""

    def __init__(self):
        self._loop, self._turn = asyncio.new_event_loop(), Lock()

    def run(self, awaitable: Awaitable[Any], seconds: float | None = None) -> Any:
        """What it returns. Raises OverdueError after `seconds`."""
        with self._turn, deadline(seconds):
            return self._loop.run_until_complete(awaitable)

    def close(self) -> None:
        if not self._loop.is_closed():
            self.run(self._loop.shutdown_asyncgens())
            self.run(self._loop.shutdown_default_executor())
            self._loop.close()


@dataclass(frozen=True)
class LoadedEnv:
    """An environment as loaded for one split. `env`: its own control flow; None: a single conversation."""

    taskset: Any
    env: Any = None
    tools: ToolServers = field(default_factory=lambda: ToolServers(()))  # shared by its episodes


class VerifiersEpisode(Environment):
    """One episode of an environment; the last step's `info` holds its rewards, or `rubric_failed`.

    Args:
        task: a tasks.verifiers.Verifiers.
        world: the environment of the sample's split.
        row: the sample's verifiers.v1.Task.
    """

    def __init__(self, task: Any, world: LoadedEnv, row: Any, sample: Sample):
        self._task, self._world, self._row, self._sample = task, world, row, sample
        self.calls = {CALLS: 0.0, MALFORMED_CALLS: 0.0}
        self.cut = False  # by the limit of turns
        self.traces: list[Any] = []  # of the conversations that ended
        self._job: Any = None  # the task of `_play`
        self._pause: Any = None  # the future set by the episode where it hands over
        self._resume: Any = None  # the future set by whoever steps it
        self._conversation: list[Any] = []  # verifiers' messages, as shown and written
        self._one_at_a_time = asyncio.Lock()
        self._is_scoring = False
        self._generators = Generators()
        self._generators.seed(zlib.crc32(sample.id.encode()))

    def reset(self) -> Observation:
        if self._job is not None:
            raise RuntimeError("an environment is made for one episode: make a new one")
        try:
            observation = self._advance(None)
        except (Exception, OverdueError) as error:
            raise UserError(f"task.id: {self._task.id}: {self._describe(error)}") from error
        if observation is None:
            raise UserError(f"task.id: {self._task.id}: an episode ended before its model was asked anything")
        self._observation = observation
        return observation

    def step(self, action: str | np.ndarray, frames: Sequence[Frame] = ()) -> Step:
        if self._job is None or self._job.done():
            raise RuntimeError("a step comes after a reset and before the episode's end")
        return self._end_or_show(str(action))

    def finish(self) -> Step:
        """Ends the conversation where it is, as a limit does, and has it scored."""
        self.cut = True
        return self._end_or_show(None)

    def close(self) -> None:
        if self._job is not None and not self._job.done():
            self._job.cancel()
            self._task.loop.run(asyncio.wait({self._job}, timeout=1.0))

    def _end_or_show(self, action: str | None) -> Step:
        try:
            observation = self._advance(action)
        except (Exception, OverdueError) as error:
            problem = self._describe(error)
            if not self._is_scoring:
                return Step(self._observation, truncated=True, fault=f"{self._task.id}: {problem}")
            self._task.problems[self._sample.id] = problem
            failed = LATE if isinstance(error, OverdueError) else RAISED
            return Step(self._observation, terminated=True, info={"rubric_failed": failed})
        if observation is None:
            info = {**self._task.list_rewards(self.traces), **self.calls}
            return Step(self._observation, terminated=not self.cut, truncated=self.cut, info=info)
        self._observation = observation
        return Step(observation)

    def _describe(self, error: BaseException) -> str:
        if isinstance(error, OverdueError):
            return f"took longer than task.seconds = {self._task.seconds:g} s"
        return f"{type(error).__name__}: {first_line(error)}"

    def _advance(self, value: str | None) -> Observation | None:
        """What the policy is shown next; None: the episode has ended. Raises what the environment raised."""
        self._is_scoring, seconds = False, self._task.seconds
        while True:
            with self._generators.lent():
                self._task.loop.run(self._go_on(value), seconds)
            if not self._pause.done():
                self._job.result()  # raises
                return None
            if self._pause.result() is not SCORING:
                return self._pause.result()
            self._is_scoring, seconds, value = True, self._task.reward_timeout_s, None

    async def _go_on(self, value: str | None) -> None:
        """Sends the episode a value, and waits until it hands over or has ended."""
        self._pause = asyncio.get_running_loop().create_future()
        if self._job is None:
            self._job = asyncio.create_task(self._play())
        else:
            self._resume.set_result(value)
        await asyncio.wait({self._job, self._pause}, return_when=asyncio.FIRST_COMPLETED)

    async def _hand_over(self, reason: Any) -> Any:
        """Has `_go_on` return; returns what it sends next."""
        self._resume = asyncio.get_running_loop().create_future()
        self._pause.set_result(reason)
        return await self._resume

    async def announce_scoring(self) -> None:
        """What fails from here on is a reward."""
        async with self._one_at_a_time:
            await self._hand_over(SCORING)

    async def ask(self, messages: Sequence[Any], tools: Sequence[Any]) -> str | None:
        """The policy's reply to a conversation of verifiers' messages; None: it is to end here."""
        async with self._one_at_a_time:
            count = len(self._conversation)
            goes_on = count > 0 and len(messages) > count and all(map(is_same, self._conversation, messages))
            new = messages[count:] if goes_on else messages
            schemas = () if goes_on else write_schemas(tools)
            self._conversation = list(messages)
            if count == 0 and self._world.env is None and schemas == self._sample.prompt.tools:
                observation = self._sample.prompt  # its images are decoded
            else:
                restart = count > 0 and not goes_on
                observation = Observation.from_messages([*map(read_message, new)], schemas, restart)
            return await self._hand_over(observation)

    def note_reply(self, message: Any) -> None:
        """What the policy wrote is the conversation's next message, and need not be shown to it."""
        self._conversation.append(message)

    async def _play(self) -> None:
        """The environment's own control flow over one agent, or a single conversation."""
        from verifiers import v1 as vf

        seat, env, row = PolicySeat(self, self._task, self._world), self._world.env, self._row
        if env is None:
            await seat.run(row)
            return
        agents = vf.Agents(env.config, lambda name, spec: cast("Any", seat))
        await env.setup(agents)
        await env.run(row, agents)
        if not self.traces:
            raise ValueError("its run() asked no agent")
        await self.announce_scoring()
        about = vf.TraceTask(type=type(row).__name__, data=row.data)
        episode = vf.Episode(env=vf.EnvInfo(id=self._task.id), task=about)
        episode.traces = self.traces
        await env.finalize(row, episode)


class PolicySeat:
    """What an environment's `run` is handed as its agent (`verifiers.v1.Agent`)."""

    trainable = True

    def __init__(self, episode: VerifiersEpisode, task: Any, world: LoadedEnv):
        self._episode, self._task, self._world = episode, task, world

    async def run(self, task: Any, *, on_trace: Any = None) -> Any:
        """One conversation on a task's prompt; its trace, scored."""
        async with self.interaction(task, on_trace=on_trace) as conversation:
            await conversation.turn()
        return conversation.trace

    @asynccontextmanager
    async def interaction(self, task: Any, *, on_trace: Any = None) -> AsyncIterator[PolicyConversation]:
        """A conversation whose user's messages are those of the caller; scored at its end."""
        from verifiers.v1.runtimes import SubprocessConfig, provision_runtime
        from verifiers.v1.utils.decorators import invoke

        trace = make_trace(task)
        if on_trace is not None:
            on_trace(trace)
        box = nullcontext() if self._task.runtime == "none" else provision_runtime(SubprocessConfig(), trace.id)
        async with box as runtime:
            named: dict[str | type, Any] = {"trace": trace, "runtime": runtime}
            await invoke(task.setup, named)
            tools = ToolServers(type(task).toolsets(task.config))
            await tools.open(task.data)
            yield PolicyConversation(self._episode, task, trace, tools.join(self._world.tools), self._task.turns)
            trace.stop("agent_completed")
            await invoke(task.finalize, named)
            await self._episode.announce_scoring()
            await task.score(trace, runtime)
            trace.ok = True
            self._episode.traces.append(trace)


class PolicyConversation:
    """The turns of one trace (`verifiers.v1.agent.Interaction`)."""

    def __init__(self, episode: VerifiersEpisode, task: Any, trace: Any, tools: ToolServers, turns: int):
        from verifiers import v1 as vf

        self.trace, self._episode, self._tools, self._turns = trace, episode, tools, turns
        self._stops = task.hooks("stop")
        system, prompt = task.data.system_prompt, task.data.prompt
        prompt = [vf.UserMessage(content=prompt)] if isinstance(prompt, str) else list(prompt or ())
        self._messages: list[Any] = [vf.SystemMessage(content=system), *prompt] if system else prompt
        self._is_opening, self._is_over = bool(prompt), False

    async def turn(self, message: Any = None) -> Any:
        """The policy's replies to a message of the user's, and what its tools answered, until it calls none."""
        from verifiers.v1.agent import Segment
        from verifiers.v1.graph import prepare_turn

        self._append(message)
        segment: list[Any] = []
        while not await self._stopped():
            text = await self._episode.ask(self._messages, self._tools.tools)
            if text is None:
                self.trace.stop("max_input_tokens")
                break
            reply, calls = read_reply(text, bool(self._tools.tools), self.trace.num_turns)
            prepare_turn(self.trace, self._messages, self._tools.tools).commit(make_verifiers_reply(reply))
            self._messages = [*self._messages, reply]
            self._episode.note_reply(reply)
            answers = [await self._answer(*pair) for pair in zip(calls, reply.tool_calls or (), strict=True)]
            self._messages += answers
            segment += [reply, *answers]
            if not calls:
                break
        self._is_over = not segment
        return Segment(messages=segment, terminated=not segment)

    def _append(self, message: Any) -> None:
        """Adds the user's message, as verifiers' Interaction.turn takes it."""
        from verifiers import v1 as vf
        from verifiers.v1.dialects import parse_message

        if self._is_over:
            raise RuntimeError("the conversation is over")
        if (message is None) != self._is_opening:
            raise ValueError("a task's prompt opens the conversation: turn() without a message first, and only then")
        self._is_opening = False
        if isinstance(message, str):
            message = [vf.UserMessage(content=message)]
        self._messages += [parse_message(each) if isinstance(each, dict) else each for each in message or ()]

    async def _stopped(self) -> bool:
        from verifiers.v1.utils.decorators import invoke

        if self.trace.num_turns >= self._turns:
            self._episode.cut = True
            self.trace.stop("max_turns")
        for stop in self._stops:
            result = invoke(stop, {"trace": self.trace, type(self.trace): self.trace})
            if await result if asyncio.iscoroutine(result) else result:
                self.trace.stop(stop.__name__)
        return self.trace.stop_condition is not None

    async def _answer(self, call: parse.Parsed, named: Any) -> Any:
        """The message that answers a call."""
        from verifiers import v1 as vf

        self._episode.calls[CALLS] += 1
        self._episode.calls[MALFORMED_CALLS] += bool(call.reason)
        if call.reason:
            content: Any = f"Error: {MALFORMED[call.reason]}"
        else:
            content = await self._tools.call(*call.value, self.trace.state)
        return vf.ToolMessage(tool_call_id=named.id, content=content, name=named.name)


class ToolServers:
    """Tools of verifiers' Toolsets, called in this process with the episode's own state."""

    def __init__(self, servers: Sequence[Any]):
        self._servers, self.tools = servers, []
        self._owners: dict[str, tuple[Any, str]] = {}  # a tool's full name -> its server and the name there

    async def open(self, data: Any = None) -> None:
        """Sets the servers up, for one task where its data are passed on, and lists their tools."""
        from mcp.server.mcpserver import MCPServer
        from verifiers import v1 as vf

        for server in self._servers:
            if server.config.url:
                place = f"{type(server).__name__} is a tool server at {server.config.url}"
                raise UserError(f"task.id: {place}: only those that run in this process are called")
            bind_state(server)
            await server.setup()
            if data is not None:
                await server.setup_task(data)
            own = MCPServer(server.server_name or type(server).__name__, log_level="CRITICAL")
            server.register(own)
            for tool in await own.list_tools():
                name = f"{server.server_name}_{tool.name}" if server.server_name else tool.name
                self._owners[name] = own, tool.name
                self.tools.append(vf.Tool(name=name, description=tool.description or "", parameters=tool.input_schema))

    def join(self, other: ToolServers) -> ToolServers:
        """These with those of another."""
        both = ToolServers(())
        both.tools, both._owners = [*self.tools, *other.tools], self._owners | other._owners
        return both

    async def call(self, name: str, arguments: Mapping[str, Any], state: Any) -> Any:
        """What a tool returns, as a message's content; a failure is told to the model, as verifiers does."""
        from verifiers.v1.harnesses.utils.mcp import mcp_content_to_chat_content

        if name not in self._owners:
            return f"Error: there is no tool {name[:40]!r} (one of: {', '.join(sorted(self._owners))})"
        server, own_name = self._owners[name]
        token = STATE.set(state)
        try:
            result = await server.call_tool(own_name, dict(arguments))
        except Exception as error:  # tools raise what they like
            return f"Error: {first_line(error)}"[:MAX_ERROR]
        finally:
            STATE.reset(token)
        return mcp_content_to_chat_content(result.content)


def bind_state(server: Any) -> None:
    """Has a server read and change the state of the episode that calls it, which it would else ask for by HTTP."""

    async def pull() -> Any:
        return STATE.get()

    async def push(before: bytes) -> None:
        """Nothing is to be sent: the state was changed in place."""

    server._pull_state, server._push_state = pull, push


# Verifiers' messages and ours.


def make_trace(task: Any) -> Any:
    """An empty trace of a task, with its state."""
    from verifiers import v1 as vf
    from verifiers.v1.state import state_cls

    about = vf.TraceTask(type=type(task).__name__, data=task.data)
    return vf.Trace(task=about, state=state_cls(type(task))(), agent=make_verifiers_agent())


def read_reply(text: str, has_tools: bool, number: int) -> tuple[Any, tuple[parse.Parsed, ...]]:
    """A completion as a server hands it on: its thoughts and its calls are no part of its content."""
    from verifiers import v1 as vf

    calls = parse.tool_calls(text) if has_tools else ()
    thoughts, closed, content = text.rpartition("</think>")
    if calls:
        content = content.partition(parse.CALL)[0]
    named = [call.value or ("malformed", {}) for call in calls]
    listed = [
        vf.ToolCall(id=f"call_{number}_{i}", name=name, arguments=json.dumps(arguments))
        for i, (name, arguments) in enumerate(named)
    ]
    reasoning = thoughts.removeprefix("<think>").strip() if closed else None
    content = content.strip() if closed or calls else content
    return vf.AssistantMessage(content=content, reasoning_content=reasoning, tool_calls=listed or None), calls


def is_same(one: Any, other: Any) -> bool:
    return one is other or one == other


def read_message(message: Any) -> Message:
    """A message of verifiers', with its images decoded; their URLs must hold them."""
    content = message.content or ()
    parts = (content,) if isinstance(content, str) else tuple(map(_read_part, content))
    calls = message.tool_calls or () if message.role == "assistant" else ()
    return Message(message.role, parts, tuple(ToolCall(call.name, parse_json(call.arguments)) for call in calls))


def _read_part(part: Any) -> str | Image:
    return part.text if part.type == "text" else load_data_url(part.image_url.url)


def load_data_url(url: str) -> Image:
    """The image of a data URL.

    Raises:
        UserError: another URL, as nothing is fetched; a damaged image.
    """
    try:
        return load_rgb(read_data_url(url), name="an image of the environment")
    except MediaError as error:
        raise UserError(f"task.id: an image at {url[:60]!r}: {first_line(error)}") from None


def write_schemas(tools: Sequence[Any]) -> tuple[Mapping[str, Any], ...]:
    """Tools as a chat template takes them."""
    return tuple(
        {"type": "function", "function": {"name": t.name, "description": t.description, "parameters": t.parameters}}
        for t in tools
    )
