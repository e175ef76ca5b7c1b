"""What `vlrl warmstart`, `vlrl clone` and `vlrl learn` read, as typed, strict data. Loads no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from vlrl.config import (
    Count,
    DataSection,
    EvalSection,
    FitConfig,
    MeasureSection,
    Plugin,
    Rate,
    RunLogSection,
    Section,
)

# A supervised start.


class ModelSection(Section):
    """The tiny model to build (vlrl/policies/tiny.py). Sizes are of qwen3_vl and qwen2_5_vl alone."""

    family: str = "qwen3_vl"  # any type that transformers maps to image-text-to-text
    hidden: Count = 128
    layers: Count = 3
    vision_hidden: Count = 64
    vision_layers: Count = 2
    patch: Count = 8
    space: str | None = "grid10"
    levels: Annotated[int, Field(ge=0)] = 0  # of a robot's controls, as tokens <a0>, <a1>, ... (`task.speech`)

    @model_validator(mode="after")
    def _sizes_of_known(self) -> ModelSection:
        sizes = self.model_dump(exclude_defaults=True, exclude={"family", "space"})
        if self.family not in ("qwen3_vl", "qwen2_5_vl") and sizes:
            raise ValueError(f"{', '.join(sizes)}: of qwen3_vl and qwen2_5_vl alone; leave it out for {self.family}")
        return self


class ResizeSection(Section):
    """What a tiny start becomes (`tiny.load_resized`)."""

    patch: Count  # side in pixels; an image that is enlarged as the patches are looks the same to it
    space: str  # its coordinates from now on


class Lesson(Section):
    task: Plugin | None = None
    # or a folder that `vlrl record` wrote: actions are gold answers, a conversation's turns are one sequence
    episodes: str | None = None
    share: Rate = 1.0  # of the questions, relative to the other lessons
    data: DataSection = DataSection()
    block: Count = 1  # consecutive samples that show one image and are asked together

    @model_validator(mode="after")
    def _one_source(self) -> Lesson:
        if (self.task is None) == (self.episodes is None):
            raise ValueError("should name a task or a folder of episodes, and not both")
        return self


class WarmstartConfig(FitConfig):
    steps: Count = 1000
    images: Count = 64  # a step, each with its lesson's block of questions
    lr: Rate = 3e-3
    lr_end: Annotated[float, Field(ge=0)] | None = None  # at the last step, linearly from `lr`; default: `lr`
    warmup_steps: Count = 20
    eval: EvalSection = EvalSection()
    max_pixels: Count | None = None  # of an image as shown
    start: str | None = None  # go on from this model folder, or from `embedded`; otherwise `model` is built
    resize: ResizeSection | None = None  # of a start: for larger images
    model: ModelSection = ModelSection()
    lessons: Annotated[list[Lesson], Field(min_length=1)]

    @model_validator(mode="after")
    def _resizes_a_start(self) -> WarmstartConfig:
        if self.resize and not self.start:
            raise ValueError("resize: of a start: name one, or set model.patch and model.space")
        return self


# Behaviour cloning.


class Recordings(Section):
    """A LeRobotDataset v3."""

    path: str
    weight: Rate = 1.0  # of each of its frames: how often it is drawn, beside those of the others


class NetworkSection(Section):
    """The policy to make (vlrl/policies/discrete.py, vlrl/policies/flow.py, vlrl/policies/lerobot_flow.py)."""

    kind: Literal["control", "flow", "smolvla", "act", "diffusion"] = "control"  # the last three: lerobot's
    hidden: Count = 128
    layers: Count = 2
    bins: Annotated[int, Field(ge=2)] = 21  # of kind control
    chunk: Count = 8  # ticks of a decision that is learned from data sets; a task's script has its own


class CloneConfig(FitConfig):
    task: Plugin | None = None  # to imitate its script, and to be evaluated on; none: `datasets` alone
    datasets: list[Recordings] = Field(default=[])  # to imitate instead of the script
    start: str | None = None  # a policy of this kind to go on from; none: a new one
    episodes: Count = 50
    noise: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.3  # in halves of the limits' width
    steps: Count = 500
    batch_size: Count = 256
    lr: Rate = 1e-3
    eval: EvalSection = EvalSection()
    policy: NetworkSection = NetworkSection()
    data: DataSection = DataSection()


# Learning while a robot runs.

Share = Annotated[float, Field(ge=0, le=1)]


class Shares(Section):
    """Of each group in a batch; one without examples leaves its share to the others in proportion."""

    demonstrations: Share = 0.5
    corrections: Share = 0.5
    successes: Share = 0.0  # docs/hil.md: it cost success where it was tried


class LearnConfig(Section):
    """Folders are LeRobotDatasets v3, or hold some."""

    out: str  # the policy, as checkpoints/step_N; `vlrl serve --policy OUT --watch` takes the newest
    start: str  # the policy to go on from
    episodes: Annotated[list[str], Field(min_length=1)]  # what the policy played, with or without a person
    corrections: list[str] = Field(default=[])  # what a person drove; none: the stretches within `episodes`
    demonstrations: list[str] = Field(default=[])
    every: Count = 5  # new episodes make a round
    rounds: Count | None = None  # after which it ends; none: when it is stopped
    shares: Shares = Shares()
    steps: Count = 200  # of a round
    batch_size: Count = 256
    lr: Rate = 5e-4
    poll_s: Rate = 2.0
    keep: Annotated[int, Field(ge=2)] = 3  # checkpoints
    seed: int = 0
    threads: Count = 1

    @property
    def eval(self) -> MeasureSection:
        return MeasureSection()

    @property
    def log(self) -> RunLogSection:
        return RunLogSection(checkpoint_every=1, keep_checkpoints=self.keep, trackers=[])
