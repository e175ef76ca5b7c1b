"""The prompts that a strategy may take others from."""

from __future__ import annotations

from vlrl.rollout import SamplePool
from vlrl.types import Observation, Sample


class Split(list):
    """As many samples as positions; tells which of its samples were made."""

    def __init__(self, n: int):
        super().__init__(range(n))
        self.made: list[int] = []

    def __getitem__(self, index: int) -> Sample:
        self.made.append(index)
        return Sample(str(index), Observation(("?",)), None)


def test_a_pool_makes_the_samples_that_are_asked_for():
    """Made at once, the pictures of a data set would all be decoded, and held, before the first step."""
    split = Split(1_000_000)
    pool = SamplePool(split, range(10, 1_000_000, 2))
    assert (len(pool), split.made) == (499_995, [])
    assert [pool[0].id, pool[-1].id, pool[2:4][1].id] == ["10", "999998", "16"]
    assert split.made == [10, 999_998, 16]
