"""Reward functions that were written for TRL's trainers, as they are."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from vlrl.methods import method
from vlrl.types import Episode, Policy, UserError

Names = Annotated[list[str], Field(min_length=1)]


@method(source="TRL 1.16, GRPOTrainer: reward_funcs, reward_weights; huggingface.co/docs/trl/grpo_trainer")
class Trl:
    """An episode earns what TRL's reward functions say: the weighted sum of those that apply to it.

    Called as in TRL: `function(prompts=, completions=, completion_ids=, **columns)`, all of a step at once, which gives
    one number for each completion, or None (NaN) where it does not apply. Columns: `answer` (the sample's truth),
    `gold` (the best completion), `id`, `images`, the sample's tags; `trainer_state.global_step`, and `log_metric(name,
    value)`, whose values go to the log. Functions may be `async`. Each is among the score's parts, as `trl_function`.

    Ours: an episode to which no function applies keeps `keep` times the task's reward, where TRL leaves it out of the
    baseline; columns are those above, where TRL has its data set's.

    Args:
        rewards: functions, as my_module:function from anywhere on the Python path.
        weights: of each; default: 1.
        columns: names that the functions expect -> names above, as `{solution: answer}`.
        conversational: completions are lists of messages; false: texts, and prompts as well.
        keep: how much of the task's own reward remains beside it.

    Raises:
        UserError: no such function, or one that takes no `**columns`; when called, one that does not return a number
            or None for each completion.
    """

    def __init__(
        self, policy: Policy, task: Any, seed: int, *,
        rewards: Names, weights: list[float] | None = None, columns: dict[str, str] | None = None,
        conversational: bool = True, keep: float = 0.0,
    ):  # fmt: skip
        if weights is not None and len(weights) != len(rewards):
            raise UserError(f"process: trl: {len(weights)} weights for {len(rewards)} rewards: one for each")
        own = [name.rpartition(":")[2] for name in rewards]
        if len(set(own)) < len(own):
            raise UserError(f"process: trl: rewards: {', '.join(rewards)}: each needs a name of its own")
        self._functions = {short: found(name) for short, name in zip(own, rewards, strict=True)}
        self._weights = weights or [1.0] * len(rewards)
        self._policy, self._task, self._columns = policy, task, columns or {}
        self._conversational, self.keep = conversational, keep
        self.metrics: dict[str, float] = {}

    def __call__(self, episodes: Sequence[Episode], step: int) -> list[Episode]:
        self.metrics = {}
        given = self._given(episodes, step)
        values = [numbers(name, call(each, given), len(episodes)) for name, each in self._functions.items()]
        for name, column in zip(self._functions, values, strict=True):
            known = [value for value in column if value is not None]
            self.metrics |= {f"trl_{name}": sum(known) / len(known)} if known else {}
        return [self._earned(episode, row) for episode, row in zip(episodes, zip(*values, strict=True), strict=True)]

    def _earned(self, episode: Episode, row: Sequence[float | None]) -> Episode:
        pairs = zip(self._weights, row, strict=True)
        total = sum(weight * value for weight, value in pairs if value is not None)
        parts = {f"trl_{name}": value for name, value in zip(self._functions, row, strict=True) if value is not None}
        score = episode.score and replace(episode.score, parts={**episode.score.parts, **parts})
        return replace(episode, reward=self.keep * episode.reward + total, score=score)

    def _given(self, episodes: Sequence[Episode], step: int) -> dict[str, Any]:
        """The arguments of every function."""
        from transformers import TrainerState

        from vlrl.interop import columns

        prompts = [columns.prompt_of(episode.turns[0].observation) for episode in episodes]
        completions: list[Any] = [columns.completion_of(episode.turns) for episode in episodes]
        if not self._conversational:
            prompts = [episode.turns[0].observation.text for episode in episodes]
            completions = [episode.completion for episode in episodes]
        ids = getattr(self._policy, "ids", lambda decision: [])
        return columns.columns_of(episodes, self._gold, self._columns) | {
            "prompts": prompts, "completions": completions,
            "completion_ids": [ids(episode.turns[-1].decision) for episode in episodes],
            "trainer_state": TrainerState(global_step=step), "log_extra": lambda column, values: None,
            "log_metric": lambda name, value: self.metrics.update({f"trl_{name}": float(value)}),
        }  # fmt: skip

    def _gold(self, episode: Episode) -> str:
        return self._task.gold(episode.sample, episode.turns[0].decision.frames)


trl = Trl


def found(name: str) -> Callable[..., Any]:
    """A reward function by its name."""
    from vlrl import registry

    if ":" not in name:
        raise UserError(f"process: trl: rewards: {name!r}: name a function as my_module:function")
    function = registry.find("TRL reward", name, "process: trl: rewards")
    kinds = {each.kind for each in inspect.signature(function).parameters.values()} if callable(function) else set()
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        raise UserError(f"process: trl: rewards: {name} takes no **columns, which TRL's reward functions do")
    return function


def call(function: Callable[..., Any], given: dict[str, Any]) -> Any:
    """What a function, perhaps an async one, returns."""
    made = function(**given)
    return asyncio.run(made) if inspect.iscoroutine(made) else made


def numbers(name: str, values: Any, count: int) -> list[float | None]:
    """A reward for each completion, None where NaN as well; UserError where there are not as many, or none are."""
    held = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(held, list | tuple) or len(held) != count:
        got = f"{len(held)} rewards" if isinstance(held, list | tuple) else type(held).__name__
        raise UserError(f"process: trl: {name} gave {got} for {count} completions: it must give one for each")
    try:
        found = [None if value is None or math.isnan(value) else float(value) for value in held]
    except TypeError:
        raise UserError(f"process: trl: {name} gave something that is no number: use None for none") from None
    if any(value is not None and math.isinf(value) for value in found):
        raise UserError(f"process: trl: {name} gave an infinite reward: use None for none")
    return found
