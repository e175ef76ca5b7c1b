"""Environments of PrimeIntellect's verifiers as tasks: their prompts, tools, users and rubrics, by name.

Needs `verifiers` (`pip install 'vlrl[verifiers]'`) and the environment's own package.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from itertools import islice
from statistics import fmean
from typing import Any, Literal

import numpy as np

from robot.sim.gym import Generators
from tasks.base import Rendered, Task, check, check_weights, find_version
from tasks.context import FULL, ContextStrategy, tool_metrics, with_context
from tasks.verifiers_episodes import (
    LATE,
    EpisodeLoop,
    LoadedEnv,
    ToolServers,
    VerifiersEpisode,
    read_message,
    write_schemas,
)
from vlrl import plugins
from vlrl.io import OverdueError
from vlrl.types import (
    Environment,
    Episode,
    Frame,
    Message,
    Observation,
    Sample,
    Score,
    Split,
    UserError,
    first_line,
    suggest,
)

WEIGHTS = {"reward": 1.0}
RUBRIC, METRIC = "rubric_", "metric_"  # before the names of an environment's reward functions and metrics


@dataclass(frozen=True)
class VerifiersTruth:
    """A sample's task: its place among those of its split, and what its environment keeps of it beside the prompt."""

    split: Split
    index: int
    fields: Mapping[str, Any]


class RubricError(Exception):
    """An environment's reward failed."""


class Verifiers(Task):
    """Samples: the tasks that an environment of verifiers lists.

    The environment's own code plays the episode: it asks the policy, answers its calls of tools and scores the end.
    Parts: `reward`, the environment's weighted sum; `rubric_NAME` of each reward function and `metric_NAME` of each
    metric. An environment that raises makes the episode void, a reward that raises gives no credit. Thoughts up to
    `</think>` are kept from the rubric, as a server keeps them.

    Args:
        id: an installed environment, such as `reverse-text`, or `my_module:thing`, a Taskset or a function that
            returns a Taskset or an Env
        args: the taskset's own options, or the function's arguments
        test_args: those that are others for testing, as {split: test}; none: `held_out` tasks are set aside
        environment: options of the control flow around it, as {id: best-of-n, n: 4}
        gold: the right completion, of a task's fields: "<answer>{answer}</answer>"; none: it is not known
        success: the least reward of a success, or the name of a part that says so
        turns: of an episode at most
        seconds: for what the environment does in a turn
        runtime: where its hooks run programs: nowhere, or on this machine, where nothing protects it
        context: what of the conversation is shown: full, last_images or summary (tasks/context.py)
        pool: at most so many tasks for training

    Raises UserError where the environment cannot be loaded, refuses its options or needs what is not there.
    """

    def __init__(
        self,
        *,
        id: str,
        args: Mapping[str, Any] | None = None,
        test_args: Mapping[str, Any] | None = None,
        environment: Mapping[str, Any] | None = None,
        gold: str = "",
        success: str | float = 1.0,
        turns: int = 20,
        seconds: float = 60.0,
        runtime: Literal["none", "subprocess"] = "none",
        context: ContextStrategy = FULL,
        pool: int = 10_000,
        held_out: int = 500,
        weights: Mapping[str, float] = WEIGHTS,
        seed: int = 0,
    ):
        check(min(pool, held_out, turns) > 0, "pool, held_out, turns", (pool, held_out, turns), "at least 1")
        check(seconds > 0, "seconds", seconds, "above 0")
        check(seed >= 0, "seed", seed, "at least 0")
        self.weights = check_weights(weights, tuple(WEIGHTS))
        self.id, self.turns, self.seconds, self.runtime, self.context = id, turns, seconds, runtime, context
        self._gold, self._success = gold, success
        self.problems: dict[str, str] = {}  # a sample's id -> how its rubric failed last
        self.loop, generators = EpisodeLoop(), Generators()
        generators.seed(seed)  # some shuffle their tasks by the process' own
        try:
            with generators.lent():
                self._load(args or {}, test_args, environment or {}, pool, held_out, seed)
        except Exception as error:
            self.loop.close()
            if isinstance(error, UserError):
                raise
            raise UserError(f"task.id: {id}: {type(error).__name__}: {first_line(error)}") from error

    def _load(
        self, args: Mapping[str, Any], test_args: Mapping[str, Any] | None, environment: Mapping[str, Any],
        pool: int, held_out: int, seed: int,
    ) -> None:  # fmt: skip
        """Loads the environment for both splits, and their tasks."""
        train = load_world(self.id, args, environment)
        test = train if test_args is None else load_world(self.id, {**args, **test_args}, environment)
        if test is train:
            self._rows = divide(list_rows(train, pool + held_out, self.id), held_out, seed)
        else:
            self._rows = {"train": list_rows(train, pool, self.id), "test": list_rows(test, held_out, self.id)}
        for rows in self._rows.values():
            check_row(rows[0], self.runtime, self.id)
        opened = self.loop.run(open_world(train))
        self._worlds: dict[Split, LoadedEnv] = {
            "train": opened,
            "test": opened if test is train else self.loop.run(open_world(test)),
        }
        self._tools = opened.tools.join(self.loop.run(open_tools(self._rows["train"][0])))

    def samples(self, split: Split) -> Sequence[Sample]:
        return Rendered(len(self._rows[split]), partial(self._sample, split))

    def _sample(self, split: Split, index: int) -> Sample:
        from verifiers import v1 as vf

        data = self._rows[split][index].data
        fields = {name: value for name, value in data if name not in vf.TaskData.model_fields}
        messages = [] if self._worlds[split].env is None else [Message("user", (f"A task of {self.id}.",))]
        if not messages:
            system = [Message("system", (data.system_prompt,))] if data.system_prompt else []
            prompt = data.prompt
            asks = [Message("user", (prompt,))] if isinstance(prompt, str) else [*map(read_message, prompt or ())]
            messages = [*system, *asks]
        observation = Observation.from_messages(messages, write_schemas(self._tools.tools))
        return Sample(f"verifiers/{self.id}/{split}/{data.idx:06d}", observation, VerifiersTruth(split, index, fields))

    def environment(self, sample: Sample) -> Environment:
        return with_context(self._episode(sample), self.context)

    def _episode(self, sample: Sample) -> VerifiersEpisode:
        row: VerifiersTruth = sample.answer
        return VerifiersEpisode(self, self._worlds[row.split], self._rows[row.split][row.index], sample)

    def list_rewards(self, traces: Sequence[Any]) -> dict[str, float]:
        """What an episode's traces hold, as the parts of a score; of several conversations the means."""
        rows = [
            {
                "reward": trace.reward,
                **{f"{RUBRIC}{name}": each.score for name, each in trace.rewards.items() if each is not None},
                **{f"{METRIC}{name}": value for name, value in trace.metrics.items() if value is not None},
            }
            for trace in traces
        ]
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: fmean([row[name] for row in rows if name in row]) for name in names}

    def score(self, episode: Episode) -> Score:
        """The parts that the environment found; an episode that it did not play to its end is played again."""
        info = episode.turns[-1].step.info if episode.turns else {}
        if "reward" not in info and "rubric_failed" not in info:
            info = self._replay(episode)
        if failed := info.get("rubric_failed"):
            if failed == LATE:
                raise OverdueError
            raise RubricError(self.problems.get(episode.sample.id, "it failed"))
        parts = {name: value for name, value in info.items() if name == "reward" or name.startswith((RUBRIC, METRIC))}
        if isinstance(self._success, str):
            check(self._success in parts, "success", self._success, f"a number or one of {', '.join(parts)}")
            correct = min(max(parts[self._success], 0.0), 1.0)
        else:
            correct = float(parts["reward"] >= self._success - 1e-9)
        return Score(parts, correct, answer=episode.completion)

    def _replay(self, episode: Episode) -> Mapping[str, float]:
        """The last step's `info` of an episode with the same actions, ended where they end."""
        environment = self._episode(episode.sample)
        try:
            environment.reset()
            for turn in episode.turns:
                if turn.step.info.get("summary"):
                    continue
                step = environment.step(str(turn.decision.action))
                if step.fault:
                    raise RubricError(step.fault)
                if step.terminated or step.truncated:
                    return step.info
            return environment.finish().info
        finally:
            environment.close()

    def gold(self, sample: Sample, frames: Sequence[Frame]) -> str | None:
        """What `gold` makes of the task's fields."""
        if not self._gold:
            return None
        try:
            return self._gold.format(**sample.answer.fields)
        except (KeyError, IndexError, AttributeError) as error:
            known = list(sample.answer.fields)
            raise UserError(f"task.gold: no field {error}{suggest(str(error).strip(chr(39)), known)}") from None

    def metrics(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Turns, the share that was cut off, and how tools were called where there are any."""
        measured = tool_metrics(episodes)
        return measured if self._tools.tools else {name: measured[name] for name in ("turns", "truncated")}

    def facts(self, episodes: Sequence[Episode]) -> dict[str, str]:
        """The environment, and the versions that it came from."""
        module = self.id.partition(":")[0].rsplit("/", 1)[-1].split("@")[0].replace("-", "_").lower()
        return {"environment": f"{self.id} {find_version(module)}".strip(), "verifiers": metadata.version("verifiers")}

    def close(self) -> None:
        """Ends what the environments share."""
        for env in {id(world): world.env for world in self._worlds.values() if world.env is not None}.values():
            self.loop.run(env.stop())
        self.loop.close()


def load_world(id: str, args: Mapping[str, Any], environment: Mapping[str, Any]) -> LoadedEnv:
    """The environment of this name, with its options.

    Raises:
        UserError: verifiers is missing or another version; it has no such environment, or one of several agents; an
            option is refused.
    """
    plugins.check_extra("task.name: verifiers", "verifiers", "verifiers.v1.utils", "verifiers.v1.utils.loaders")
    from verifiers.v1.utils import loaders

    if ":" in id:
        check(not environment, "environment", dict(environment), "left out where `id` names an object")
        return load_own(id, args)
    try:
        env_cls = loaders.environment_class(id, str(environment.get("id", "")))
        taskset_cls = loaders.taskset_class(id)
    except ModuleNotFoundError as error:
        known = list_tasksets()
        name = str(error.name or id)
        is_other = name.replace("_", "-") != id.rsplit("/", 1)[-1].split("@")[0].replace("_", "-").lower()
        hint = (
            f"its package {name} is not installed"
            if is_other
            else f"no such environment is installed{suggest(id, known)}"
        )
        raise UserError(f"task.id: {id}: {hint}") from None
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UserError(f"task.id: {id}: {first_line(error)}") from None
    config = read_config(loaders.taskset_config_type(id), {**args, "id": id}, "task.args")
    if env_cls is loaders.SingleAgentEnv:
        check(not environment, "environment", dict(environment), f"left out: {id} has no control flow of its own")
        return LoadedEnv(build(taskset_cls, config, id))
    options = read_config(loaders.env_config_type(id, str(environment.get("id", ""))), environment, "task.environment")
    return check_env(build(env_cls, options.model_copy(update={"taskset": config}), id), id)


def load_own(id: str, args: Mapping[str, Any]) -> LoadedEnv:
    """The environment of `my_module:thing`: a Taskset, or a function of `args` that returns a Taskset or an Env."""
    from verifiers import v1 as vf
    from verifiers.v1.utils.generic import concrete_type

    thing = plugins.load_object(id, "task.id")
    if inspect.isclass(thing) and issubclass(thing, vf.Taskset):
        kind = concrete_type(thing, vf.TasksetConfig, origin=vf.Taskset) or vf.TasksetConfig
        return LoadedEnv(build(thing, read_config(kind, args, "task.args"), id))
    if not inspect.isfunction(thing):
        raise UserError(f"task.id: {id}: must be a Taskset, or a function that returns a Taskset or an Env")
    known = list(inspect.signature(thing).parameters)
    for name in args:
        if name not in known:
            raise UserError(f"task.args.{name}: {id} takes no such argument{suggest(name, known)}")
    environment = build(partial(thing, **args), None, id)
    if isinstance(environment, vf.Env):
        return check_env(environment, id)
    if not isinstance(environment, vf.Taskset):
        raise UserError(f"task.id: {id}: returned a {type(environment).__name__}: must be a Taskset or an Env")
    return LoadedEnv(environment)


def check_env(env: Any, id: str) -> LoadedEnv:
    """The environment's world; UserError unless the policy is its only agent."""
    from verifiers.v1.configs.agent import agent_config_fields

    seats = list(agent_config_fields(env.config))
    if len(seats) != 1:
        raise UserError(f"task.id: {id}: has the agents {', '.join(seats)}: only environments of one are played")
    return LoadedEnv(env.taskset, env)


def build(kind: Any, config: Any, id: str) -> Any:
    """What an environment's class or function makes; UserError in one line where it raises."""
    try:
        return kind() if config is None else kind(config)
    except Exception as error:  # environments raise what they like
        raise UserError(f"task.id: {id}: {type(error).__name__}: {first_line(error)}") from error


def read_config(kind: Any, values: Mapping[str, Any], path: str) -> Any:
    """Verifiers' own config object; UserError names the first option that it refuses, with the nearest right name."""
    from pydantic import ValidationError

    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place, wrong = ".".join(map(str, (path, *first["loc"]))), str(first["loc"][-1]) if first["loc"] else ""
        is_unknown = first["type"] == "extra_forbidden" and len(first["loc"]) == 1
        known = [name for name in kind.model_fields if name != "id"]
        raise UserError(f"{place}: {first['msg']}{suggest(wrong, known) if is_unknown else ''}") from None


def list_tasksets() -> list[str]:
    """The names of environments that come with verifiers."""
    from verifiers.v1 import tasksets

    return [each.name.replace("_", "-") for each in pkgutil.iter_modules(tasksets.__path__)]


def list_rows(world: LoadedEnv, most: int, id: str) -> list[Any]:
    """An environment's tasks, with the places that verifiers numbers them by.

    Raises:
        UserError: it cannot read them, as without a network, or lists none.
    """
    try:
        rows = list(islice(world.taskset, most))
    except Exception as error:  # whatever its source raises
        raise UserError(f"task.id: {id}: cannot list its tasks: {type(error).__name__}: {first_line(error)}") from error
    if not rows:
        raise UserError(f"task.id: {id}: lists no tasks")
    return rows


def divide(rows: Sequence[Any], held_out: int, seed: int) -> dict[Split, list[Any]]:
    """`held_out` of the rows for testing, the others for training, each in their order."""
    check(len(rows) > held_out, "held_out", held_out, f"below the {len(rows)} tasks that there are")
    chosen = set(np.random.default_rng(seed).permutation(len(rows))[:held_out].tolist())
    return {
        "train": [row for i, row in enumerate(rows) if i not in chosen],
        "test": [row for i, row in enumerate(rows) if i in chosen],
    }


def check_row(row: Any, runtime: str, id: str) -> None:
    """UserError where a task needs what is not offered here: containers, programs, hooks into requests."""
    from verifiers.v1 import Task as Base
    from verifiers.v1 import Trace
    from verifiers.v1.session import hook_boundary
    from verifiers.v1.utils.decorators import discover_decorated

    if row.NEEDS_CONTAINER or row.data.image:
        raise UserError(f"task.id: {id}: needs a container, which is not offered")
    hooks = [hook for kind in ("reward", "metric") for hook in row.hooks(kind)]
    hooks += [
        hook for hook, own in ((row.setup, Base.setup), (row.finalize, Base.finalize)) if hook.__func__ is not own
    ]
    needy = [hook.__name__ for hook in hooks if needs_runtime(hook)]
    if needy and runtime == "none":
        raise UserError(
            f"task.runtime: {id}: {', '.join(needy)} run programs: `subprocess` lets them, on this machine, unprotected"
        )
    stops = [hook for hook in row.hooks("stop") if hook_boundary(hook, allow_trace=True) is not Trace]
    if stops or discover_decorated(row, "intercept"):
        raise UserError(f"task.id: {id}: stops at or rewrites requests and responses, which is not offered")


def needs_runtime(hook: Any) -> bool:
    parameter = inspect.signature(hook).parameters.get("runtime")
    return parameter is not None and parameter.default is inspect.Parameter.empty


async def open_world(world: LoadedEnv) -> LoadedEnv:
    """The world with what its episodes share: tool servers, and what its control flow starts."""
    tools = ToolServers(type(world.taskset).toolsets(world.taskset.config))
    await tools.open()
    if world.env is not None:
        await world.env.start()
    return LoadedEnv(world.taskset, world.env, tools)


async def open_tools(row: Any) -> ToolServers:
    """The tools of a task, so that their schemas are known before an episode."""
    tools = ToolServers(type(row).toolsets(row.config))
    await tools.open(row.data)
    return tools
