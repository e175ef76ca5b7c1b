"""The YAML of `vlrl learn`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from vlrl.strict import Count, Rate, Section

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
    batch: Count = 256
    lr: Rate = 5e-4
    poll_s: Rate = 2.0
    keep: Annotated[int, Field(ge=2)] = 3  # checkpoints
    seed: int = 0
    threads: Count = 1
