"""The YAML of `vlrl reward-model`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from vlrl.learning.labels import Spans
from vlrl.strict import Count, Rate, Section

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class RewardConfig(Section):
    out: str
    datasets: Annotated[list[str], Field(min_length=1)]  # LeRobotDatasets v3 with pictures and `next.success`
    state: list[str] = Field(default=[])  # numbers of the state that it may see beside the pictures, by name
    false_successes: Annotated[float, Field(gt=0, lt=1)] = 0.02  # of episodes: the share wanted; sets the threshold
    held_out: Annotated[float, Field(gt=0, lt=0.8)] = 0.4  # of episodes: half for the threshold, half to measure on
    near_s: Seconds = 0.1  # see vlrl.learning.labels.Spans
    unsure_s: Seconds = 0.4
    hard_s: Seconds = 1.0
    steps: Count = 400
    batch: Annotated[int, Field(ge=4)] = 64
    lr: Rate = 1e-3
    seed: int = 0
    threads: Count = 1

    @property
    def spans(self) -> Spans:
        return Spans(self.near_s, self.unsure_s, self.hard_s)
