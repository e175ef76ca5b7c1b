"""Sums of two digits from reasoning_gym as a taskset of verifiers 0.4, graded by reasoning_gym's own rule.

    vlrl warmstart configs/models/reasoning_gym_start.yaml
    PYTHONPATH=examples/environments vlrl train examples/environments/sums.yaml

The splits draw from seeds of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Literal

import verifiers.v1 as vf

from rewards import parse
from tasks.reasoning_gym import ASKS, TEST_SEEDS, make_dataset

SIZES = {"train": 10_000, "test": 600}


@cache
def sums(split: str) -> Any:
    """The data set of a split."""
    options = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    return make_dataset("chain_sum", options, TEST_SEEDS if split == "test" else 0, SIZES[split])


class SumData(vf.TaskData):
    split: str
    index: int
    answer: str


class SumTask(vf.Task[SumData]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        data, answer = sums(self.data.split), parse.answer(trace.last_reply, False, parse.nonempty)
        return 0.0 if answer.reason else data.score_answer(answer.value, data[self.data.index])


class SumsConfig(vf.TasksetConfig):
    split: Literal["train", "test"] = "train"


class Sums(vf.Taskset[SumTask, SumsConfig]):
    def load(self) -> Iterator[SumTask]:
        split = self.config.split
        for index, row in enumerate(sums(split)):
            prompt = f"{row['question'].strip()}\n{ASKS}"
            yield SumTask(SumData(prompt=prompt, split=split, index=index, answer=row["answer"]))
