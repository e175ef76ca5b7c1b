"""What could be turned when a run does not fit, and what each turn gives: tried one by one by the same model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vlrl.config import Config, Lora
from vlrl.plan.geometry import Geometry
from vlrl.plan.model import Model


@dataclass(frozen=True)
class Knob:
    """told: as a user writes it; shrunk: the share of visual tokens that is left."""

    told: str
    config: Config
    gpus: int
    shrunk: float = 1.0

    @property
    def key(self) -> str:
        return self.told.split("=")[0].split(" ")[0]


def knobs(config: Config, gpus: int, model: Model, visual: float) -> Iterator[Knob]:
    """Every single change that can make a step smaller, the mildest first."""
    policy, train = config.policy, config.train
    if not policy.gradient_checkpointing:
        yield Knob("policy.gradient_checkpointing=true", _policy(config, gradient_checkpointing=True), gpus)
    share = train.microbatch or -(-train.prompts // gpus // train.minibatches)
    if share > 1:
        fewer = max(1, share // 4)
        yield Knob(f"train.microbatch={fewer}", _train(config, microbatch=fewer), gpus)
    if "vision" not in policy.freeze:
        frozen = [*policy.freeze, "vision"]
        yield Knob(f"policy.freeze=[{', '.join(frozen)}]", _policy(config, freeze=frozen), gpus)
    if policy.lora is None:
        lora = Lora()
        yield Knob(f"policy.lora.rank={lora.rank}", _policy(config, lora=lora), gpus)
    pixels = round(visual / 2) * _area(model.geometry)
    if pixels > (policy.min_pixels or model.pixels[0]):
        yield Knob(f"policy.max_pixels={pixels}", _policy(config, max_pixels=pixels), gpus, 0.5)
    if train.prompts > train.minibatches:
        half = max(train.minibatches, train.prompts // 2)
        yield Knob(f"train.prompts={half}", _train(config, prompts=half), gpus)
    yield Knob(f"--gpus {2 * gpus}", config, 2 * gpus)


def _area(geometry: Geometry) -> int:
    """Pixels of one visual token."""
    return geometry.tower.patch**2 * geometry.tower.merge


def _policy(config: Config, **changes: object) -> Config:
    return config.model_copy(update={"policy": config.policy.model_copy(update=changes)})


def _train(config: Config, **changes: object) -> Config:
    return config.model_copy(update={"train": config.train.model_copy(update=changes)})
