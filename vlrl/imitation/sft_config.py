"""A supervised start as typed, strict data. Loads no torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from vlrl.config import Count, DataSection, EvalSection, FitConfig, Plugin, Rate, Section


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
