"""One off-policy run as typed, strict data: YAML file, its `base:` chain and overrides -> `OffPolicyConfig`.

Imports no torch: a mistake is answered at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, model_validator

from vlrl import config, registry
from vlrl.config import (
    Change,
    Component,
    Count,
    DataSection,
    FitConfig,
    Plugin,
    PolicySection,
    Rate,
    Section,
    Tracker,
    load_as,
)
from vlrl.offpolicy.base import Transitions, concat
from vlrl.types import UserError

Weight = Annotated[float, Field(allow_inf_nan=False)]
Whole = Annotated[int, Field(ge=0)]


class RewardSection(Section):
    """What a decision is worth: the weights of what the task and the simulator say of it."""

    success: Weight = 1.0  # of the job being done
    step: Weight = 0.0  # of each tick that passed, for example -0.01
    shaped: Weight = 0.0  # of what the simulator itself paid


class EncoderSection(Section):
    """How images become numbers (vlrl/policies/encoded.py)."""

    name: str = "conv"  # small, learned with the values; or a vision model of transformers: a folder or a hub name
    frozen: bool = False  # stays as it is, and its numbers stand behind the state's: of all but conv
    features: Count = 64  # numbers of an image; of conv
    shift: Whole = 4  # pixels, at most, by which images are moved at random where they are learned from; of conv
    memory_gb: Rate = 4.0  # that the images of each replay may take; of conv


class OffPolicyEvalSection(config.EvalSection):
    every_steps: Count | None = None  # ticks, and updates before the first tick; default: before and after only


class OffPolicyLogSection(config.LogSection):
    rows_every: Count = 500  # updates before the first tick; then each time that episodes have been played
    rollouts_every: Count = 5000  # ticks
    checkpoint_every: Count = 5000  # ticks, and updates before the first tick
    trackers: list[Tracker] = Field(default=[])


class OffPolicyConfig(Section):
    task: Plugin
    out: str
    seed: int = 0
    data: DataSection = DataSection()
    agent: Plugin = Component(name="rlpd")
    encoder: EncoderSection | None = None  # of the robot's images; none: agents see the state alone
    start: str | None = None  # a policy to start from, or to build on, as the agent says
    offline: list[Plugin] = Field(default=[])  # sources of transitions that are given
    updates: Whole = 0  # on these, before the first tick
    ticks: Whole = 20_000  # of the environment; 0: learns from what is given alone
    warmup_steps: Whole = 500  # first ticks, played by chance (or as the agent says) and not yet learned from
    episodes: Count = 2  # played between updates
    utd: Rate = 1.0  # updates a decision
    batch_size: Annotated[int, Field(ge=2)] = 256  # half of it given, half played, where there are both
    give_won: bool = False  # episodes that were won are also given: imitated, and half of each batch
    capacity: Count = 100_000  # transitions of each replay
    gamma: Annotated[float, Field(gt=0, le=1)] = 0.99  # a tick
    reward: RewardSection = RewardSection()
    threads: Count = 1  # of one process: small matrices gain nothing from more
    eval: OffPolicyEvalSection = OffPolicyEvalSection()
    log: OffPolicyLogSection = OffPolicyLogSection()


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
    if config.capacity < config.batch_size:
        raise UserError(f"capacity: below batch_size = {config.batch_size}")
    kind, encoder = registry.find("agent", config.agent.name), config.encoder
    if encoder and encoder.name == "conv" and encoder.frozen:
        raise UserError("encoder: conv begins from nothing: leave out frozen, or name a vision model")
    if encoder and encoder.name != "conv" and not encoder.frozen:
        raise UserError(f"encoder: {encoder.name} is not learned further: set frozen: true, or leave its name out")
    if encoder and not encoder.frozen and not kind.learns_images:
        raise UserError(
            f"encoder: agent ({config.agent.name}) learns none: name a vision model with frozen: true, or take rlpd"
        )
    requires = kind.requires
    if "offline" in requires and not config.offline:
        raise UserError(f"agent ({config.agent.name}) learns from what is given: add sources under offline")
    if "start" in requires and not config.start:
        raise UserError(f"agent ({config.agent.name}) builds on a policy: set start to its folder")


# Sources that are read for their states alone: by `vlrl preferences` and `vlrl pretrain`.


def passive_check(named: Sequence[tuple[str, Component, str]], sources: Sequence[Component]) -> None:
    """UserError unless (kind, component, key) and the sources under `offline` exist and have such options."""
    for kind, component, key in [*named, *(("source", each, f"offline.{i}") for i, each in enumerate(sources))]:
        registry.check_component(kind, component, key)


def passive_read(task: Any, sources: Sequence[Component], seed: int) -> Transitions:
    """What the sources give, together.

    Raises:
        UserError: nothing, states that are not finite, or of different robots.
    """
    parts = [registry.make("source", each, f"offline.{i}")(task, seed) for i, each in enumerate(sources)]
    for i, part in enumerate(parts):
        if not len(part) or not (np.isfinite(part.state).all() and np.isfinite(part.next_state).all()):
            raise UserError(f"offline.{i}: {sources[i].name} gave nothing, or states that are not finite")
    if len({(part.state.shape[1], part.action.shape[1:]) for part in parts}) > 1:
        raise UserError("offline: sources of different robots")
    return concat(parts)


# The YAML of `vlrl pretrain`. Imports no torch: a mistake is answered at once.


class SentenceSection(Section):
    """What may be said of a picture."""

    within: Rate  # distance up to which it is right, in units of the state; not read of the last one
    texts: Annotated[list[str], Field(min_length=1)]  # wordings of it


class ContrastSection(Section):
    """A small CLIP in the place of values of states: which sentence tells a picture (VLM-RM, arXiv 2310.12921)."""

    what: Annotated[list[str], Field(min_length=1)]  # numbers of the state whose distance to those under `where` tells
    where: Annotated[list[str], Field(min_length=1)]  # as many numbers of the state
    sentences: Annotated[list[SentenceSection], Field(min_length=2)]  # from the goal to the baseline
    image: Whole = 0  # which of the pictures of an observation
    pixels: Count = 64  # of a side
    patch: Count = 8  # pixels of its side
    width: Annotated[int, Field(gt=0, multiple_of=4)] = 64  # of both towers
    layers: Count = 3  # of each tower

    @model_validator(mode="after")
    def _fits(self) -> ContrastSection:
        limits = [each.within for each in self.sentences]
        if limits != sorted(set(limits)):
            raise ValueError("sentences: each should have a larger `within` than the one before")
        if self.pixels % self.patch:
            raise ValueError(f"pixels: {self.pixels} is no multiple of patch = {self.patch}")
        return self


class DiscriminateSection(Section):
    """A reward model in the place of values of states: are two answers one policy's (POLAR, arXiv 2507.05197)?"""

    policies: Annotated[list[PolicySection], Field(min_length=1)]  # each samples answers to the task's prompts
    gold: bool = True  # the task's right answers are one more policy's
    prompts: Annotated[int, Field(ge=10)] = 256  # of the training split; a fifth is held out
    answers: Annotated[int, Field(ge=2)] = 4  # of each policy to a prompt
    ranked: Whole = 1000  # of the updates, the last ones: which of two answers earns more of the task's reward
    embedder: Plugin = Component(name="hashed")  # of texts, as in `embedded_answer` (docs/open_answer.md); not trained

    @model_validator(mode="after")
    def _two(self) -> DiscriminateSection:
        if len(self.policies) + self.gold < 2:
            raise ValueError("policies: one policy cannot be told from others: add another one, or set gold: true")
        return self


class PretrainConfig(FitConfig):
    task: Plugin
    # sources, as in `vlrl offpolicy`; their actions are not read; none with `discriminate`
    offline: list[Plugin] = Field(default_factory=list)
    data: DataSection = DataSection()
    updates: Count = 5000
    hidden: Count = 256  # as the agent's
    layers: Count = 2  # as the agent's
    batch_size: Count = 256
    lr: Rate = 3e-4
    gamma: Annotated[float, Field(gt=0, lt=1)] = 0.95  # a decision
    expectile: Annotated[float, Field(ge=0.5, lt=1)] = 0.9
    tau: Annotated[float, Field(gt=0, le=1)] = 0.005
    # instead: updates, batch_size, lr are read; hidden, layers, gamma, expectile, tau are not
    contrast: ContrastSection | None = None
    # instead: hidden, updates, batch_size, lr are read; the task's prompts are answered, no sources are read
    discriminate: DiscriminateSection | None = None

    @model_validator(mode="after")
    def _fits(self) -> PretrainConfig:
        if not self.offline and not self.discriminate:
            raise ValueError("offline: is required: at least one source")
        if self.contrast and self.discriminate:
            raise ValueError("contrast, discriminate: one at a time")
        if self.discriminate and self.discriminate.ranked > self.updates:
            raise ValueError(f"discriminate.ranked: at most updates = {self.updates}")
        return self


def pretrain_config_load(path: str | Path, changes: Sequence[Change] = ()) -> PretrainConfig:
    """A YAML file and changes to it -> the checked configuration.

    Raises:
        UserError: as `load_as`; also for components and options that no plug-in has.
    """
    config = load_as(PretrainConfig, path, changes)
    try:
        passive_check([("task", config.task, "task")], config.offline)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return config
