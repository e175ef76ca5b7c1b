"""One off-policy run as typed, strict data: YAML file, its `base:` chain and overrides -> `OffPolicyConfig`.

Imports no torch: a mistake is answered at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field

from vlrl import registry
from vlrl.config import DataSection
from vlrl.decoders import DecodeError, load_yaml
from vlrl.strict import Change, Component, Count, Plugin, Rate, Section, load_as
from vlrl.types import UserError

Weight = Annotated[float, Field(allow_inf_nan=False)]
Whole = Annotated[int, Field(ge=0)]


class RewardSection(Section):
    """What a decision is worth: the weights of what the task and the simulator say of it."""

    success: Weight = 1.0  # of the job being done
    step: Weight = 0.0  # of each tick that passed, for example -0.01
    shaped: Weight = 0.0  # of what the simulator itself paid


class EvalSection(Section):
    every: Count | None = None  # ticks, and updates before the first tick; default: before and after only
    samples: Count | None = None  # default: the whole test split
    batch: Count = 128


class LogSection(Section):
    rows_every: Count = 500  # updates before the first tick; then each time that episodes have been played
    rollouts_every: Count = 5000  # ticks
    rollouts: Count = 16  # kept each time
    checkpoint_every: Count = 5000  # ticks, and updates before the first tick
    keep: Count = 2  # newest checkpoints, beside the best


class OffPolicyConfig(Section):
    task: Plugin
    out: str
    seed: int = 0
    data: DataSection = DataSection()
    agent: Plugin = Component(name="rlpd")
    start: str | None = None  # a policy to start from, or to build on, as the agent says
    offline: list[Plugin] = Field(default=[])  # sources of transitions that are given
    updates: Whole = 0  # on these, before the first tick
    ticks: Whole = 20_000  # of the environment; 0: learns from what is given alone
    warmup: Whole = 500  # first ticks, played by chance (or as the agent says) and not yet learned from
    episodes: Count = 2  # played between updates
    utd: Rate = 1.0  # updates a decision
    batch: Annotated[int, Field(ge=2)] = 256  # half of it given, half played, where there are both
    give_won: bool = False  # episodes that were won are also given: imitated, and half of each batch
    capacity: Count = 100_000  # transitions of each replay
    gamma: Annotated[float, Field(gt=0, le=1)] = 0.99  # a tick
    reward: RewardSection = RewardSection()
    threads: Count = 1  # of one process: small matrices gain nothing from more
    eval: EvalSection = EvalSection()
    log: LogSection = LogSection()


def load(path: str | Path, changes: Sequence[Change] = ()) -> OffPolicyConfig:
    """A YAML file and changes to it -> the checked configuration.

    Raises:
        UserError: as `load_as`; also for components and options that no plug-in has, and for nothing to learn from.
    """
    config = load_as(OffPolicyConfig, path, changes)
    named = [("task", config.task, "task"), ("agent", config.agent, "agent")]
    named += [("source", each, f"offline.{i}") for i, each in enumerate(config.offline)]
    try:
        for kind, component, key in named:
            registry.check_component(kind, component, key)
        _check_sense(config)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return config


def _check_sense(config: OffPolicyConfig) -> None:
    if config.updates and not config.offline:
        raise UserError("updates: before the first tick there is nothing to learn from: add sources under offline")
    if not config.ticks and not config.updates:
        raise UserError("ticks, updates: nothing to do: set ticks, or updates and offline")
    if config.capacity < config.batch:
        raise UserError(f"capacity: below batch = {config.batch}")
    requires = getattr(registry.find("agent", config.agent.name), "requires", ())
    if "offline" in requires and not config.offline:
        raise UserError(f"agent ({config.agent.name}) learns from what is given: add sources under offline")
    if "start" in requires and not config.start:
        raise UserError(f"agent ({config.agent.name}) builds on a policy: set start to its folder")


def dump(config: OffPolicyConfig) -> str:
    """The resolved configuration as YAML that `load` reads back."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, width=120)


def learned_off_policy(run: Path) -> bool:
    """Whether a run folder's config.yaml is one of these, and not of `vlrl train`."""
    try:
        values = load_yaml(run / "config.yaml")
    except (OSError, DecodeError):
        return False
    return isinstance(values, dict) and "agent" in values
