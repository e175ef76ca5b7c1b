"""Rollout response recomposition: short right and long wrong answers first, the others later."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from vlrl.methods import method
from vlrl.replays.remembered import Remembered, next_group, size
from vlrl.strict import Count
from vlrl.types import Lesson, Policy

Share = Annotated[float, Field(gt=0, le=1)]


@method(lacks=("group",), source="RoRecomp, arXiv 2509.25958; sizes and probability are a reconstruction")
class Rorecomp:
    """Brevity without a reward for it: which lessons are taught tells right from wrong and short from long at once.

    Of a step's right episodes the shortest `keep` and of its wrong ones the longest `keep`, rounded up, are taught (the
    priority batch); the others are remembered. Once `capacity` are, a step comes with probability `compensate` in which
    the oldest, as many as the step played, are taught as well (the compensation batch), so that long right answers are
    not unlearned. Length counts the units of all turns. What teaches nothing (A = 0) is not remembered.

    The numbers are ours; the paper's share and probability could not be found. There the compensation batch is an
    update of its own; here it joins the step's batch, which `train.minibatches` splits. Remembered lessons keep their
    advantage and the log-probabilities of the law that sampled them, each is a group of its own.

    Args:
        keep: share of the right, and of the wrong, episodes that is taught at once.
        compensate: probability, per step with a full memory.
        capacity: lessons to remember; they are in every checkpoint, images and all.
    """

    def __init__(
        self, policy: Policy, task: Any, seed: int, *,
        keep: Share = 0.5, compensate: Share = 0.5, capacity: Count = 512,
    ):  # fmt: skip
        self.seed, self.keep, self.compensate = seed, keep, compensate
        self.memory = Remembered(policy, capacity, "rorecomp")
        self.metrics: dict[str, float] = {}

    def __call__(self, lessons: Sequence[Lesson], step: int) -> list[Lesson]:
        first = set(self._first(lessons))
        others = [lesson for i, lesson in enumerate(lessons) if i not in first and size(lesson.credit)]
        past = self._compensation(len(lessons), next_group(lessons), step)
        self.memory.add(others, step)
        chosen = [lessons[i] for i in sorted(first)]
        self.metrics = {
            "rorecomp/priority": len(chosen) / len(lessons), "rorecomp/compensation": float(len(past)),
            "rorecomp/memory": float(len(self.memory)),
            "rorecomp/length": sum(map(length, chosen)) / len(chosen),
        }  # fmt: skip
        return [*chosen, *past]

    def _first(self, lessons: Sequence[Lesson]) -> list[int]:
        """Places of the shortest right and the longest wrong episodes."""
        lengths = [length(lesson) for lesson in lessons]
        right = [lesson.episode.score.is_correct for lesson in lessons]
        good = sorted((i for i, solved in enumerate(right) if solved), key=lambda i: lengths[i])
        bad = sorted((i for i, solved in enumerate(right) if not solved), key=lambda i: -lengths[i])
        return [i for side in (good, bad) for i in side[: math.ceil(self.keep * len(side))]]

    def _compensation(self, count: int, group: int, step: int) -> list[Lesson]:
        """The oldest lessons, which are then forgotten, where it is their turn."""
        full = len(self.memory) == self.memory.memory.capacity
        if not full or np.random.default_rng([self.seed, step]).random() >= self.compensate:
            return []
        count = min(count, len(self.memory))
        oldest = self.memory.lessons(range(count), group)
        self.memory.drop(count)
        return oldest

    def state_dict(self) -> dict[str, Any]:
        return self.memory.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.memory.load_state_dict(state)


rorecomp = Rorecomp


def length(lesson: Lesson) -> int:
    """Units that the policy wrote in all turns."""
    return sum(len(turn.decision.logprobs) for turn in lesson.episode.turns)
