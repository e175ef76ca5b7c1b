"""One run as typed, strict data (`vlrl.strict`): YAML file, `base:` chain and command-line overrides -> `Config`.

Components (`{name: ..., options}`) are checked against the signature of what they name.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import Field

from vlrl.strict import Change, Component, Count, Plugin, Rate, Section, load_as
from vlrl.types import MAX_PIXELS, PILLOW_PIXELS, Data


class Lora(Section):
    rank: Count = 16
    alpha: Count = 32
    targets: str | list[str] = "all-linear"


class PolicySection(Section):
    """The model and how it samples."""

    model: str = "embedded"  # embedded, embedded_push, embedded_lift, a folder, or a name on the hub
    max_tokens: Count = 64  # of a completion
    max_prompt: Count | None = None  # default: what the model takes
    temperature: Rate = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0  # of what is drawn; log-probabilities are those of the whole law
    top_k: Count | None = None
    stop: list[Annotated[str, Field(min_length=1)]] = []  # texts that end a completion and belong to it
    slots: Count | None = None  # completions written at once; default: all of a step
    cuda_graphs: bool = False  # a token's operations recorded and replayed; not yet exercised on a GPU
    min_pixels: Count | None = None  # of an image as shown; default: the processor's
    max_pixels: Count | None = None
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: bfloat16 compute on a GPU, float32 on a CPU
    lora: Lora | None = None
    freeze: list[Literal["vision", "projector", "language"]] = []
    gradient_checkpointing: bool = False
    level: Literal["token", "action", "chunk"] = "token"  # of a robot policy's log-probabilities
    teacher: str | None = None  # a model of the same tokens, whose log-probabilities methods of distillation read
    engine: Plugin = Component(name="local")  # who writes completions: local, server or vllm (docs/engines.md)


class TrainSection(Section):
    """Sizes and optimisation of one run."""

    steps: Count = 100
    prompts: Count = 16  # a step
    group_size: Count = 8  # completions of a prompt
    minibatches: Count = 1  # optimizer steps a step
    epochs: Count = 1  # passes over a step's rollouts
    target_kl: Rate | None = None  # after a pass whose mean KL from the law that sampled is above, no further one
    microbatch: Count | None = None  # prompts in one forward; default: the whole minibatch
    shared_prefix: bool = True  # a prompt is forwarded once per group
    skip_zero: bool = True  # groups without advantages are left out of updates that they would not change
    # muon: for models trained whole; 8 bit: states of a quarter of the size (vlrl/optimizers.py)
    optimizer: Literal["adamw", "muon", "adamw_8bit", "paged_adamw_8bit"] = "adamw"
    lr: Rate = 1e-6
    lr_end: Annotated[float, Field(ge=0)] | None = None  # linear from lr to here; default: constant
    warmup: Annotated[int, Field(ge=0)] = 0  # steps of linear rise
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    betas: Annotated[list[float], Field(min_length=2, max_length=2)] = [0.9, 0.999]
    max_grad_norm: Rate = 1.0
    max_bad_updates: Count = 5  # non-finite updates in a row before the run stops
    reward_s: Rate | None = None  # seconds for one episode's reward, else it gives no credit; default: no limit
    # steps that the weights which play may be older than those that learn; above 0 both go on at the same time
    # (docs/asynchronous.md). 0: each step is played by the weights that it trains
    staleness: Annotated[int, Field(ge=0)] = 0


class EvalSection(Section):
    every: Count | None = None  # steps; default: before and after only
    samples: Count | None = None  # default: the whole test split
    batch: Count = 128


class LogSection(Section):
    rollouts_every: Count = 25  # steps
    rollouts: Count = 16  # kept each time
    checkpoint_every: Count = 50
    keep: Count = 2  # newest checkpoints, beside the best
    trackers: list[Literal["tensorboard", "wandb", "trackio"]] = ["tensorboard"]


class DataSection(Section):
    train: str | None = None
    test: str | None = None
    format: str = "auto"
    images: str | None = None
    on_bad: Literal["stop", "skip"] = "stop"
    max_pixels: Annotated[int, Field(ge=1, le=PILLOW_PIXELS)] = MAX_PIXELS

    def plain(self) -> Data:
        return Data(**self.model_dump())


class Config(Section):
    task: Plugin
    out: str
    seed: int = 0
    data: DataSection = DataSection()
    policy: PolicySection = PolicySection()
    train: TrainSection = TrainSection()
    eval: EvalSection = EvalSection()
    log: LogSection = LogSection()
    sampler: Plugin = Component(name="shuffled")
    rollouts: Plugin = Component(name="plain")
    process: list[Plugin] = []  # rewards of steps, beside the outcome
    shaping: list[Plugin] = []  # of rewards, before `advantages`
    advantages: list[Plugin] = [Component(name="group")]
    replay: list[Plugin] = []  # what a step learns from, beside or instead of what was played
    losses: list[Plugin] = [Component(name="ppo_clip")]
    weighing: Plugin = Component(name="token_mean")
    hooks: list[Plugin] = []  # what happens between steps: schedules, references reset, supervised steps


def load(path: str | Path, changes: Sequence[Change] = ()) -> Config:
    """A YAML file and changes to it -> the checked configuration.

    Raises:
        UserError: as `load_as`; also for components and options that no plug-in has.
    """
    config = load_as(Config, path, changes)
    from vlrl import engines, registry

    registry.check(config, str(path))
    engines.check(config.policy, str(path))
    return config


def dump(config: Config) -> str:
    """The resolved configuration as YAML that `load` reads back."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, width=120)
