"""Rollout strategies: where a step's episodes come from.

Functions `(policy, task, samples, group_size, step, **act) -> episodes`, or classes made with `(policy, task, seed)`
whose objects are called so. `samples` are what the sampler drew, `step` counts from 0, `act` goes on to the policy.
Episodes of one group number are compared with each other. An object may have `metrics` (for the log), `played`
(episodes of the latest step, with those that it left out), `pool` (it is given the sampler's prompts) and a state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vlrl.methods import method
from vlrl.rollout import collect
from vlrl.strict import Count
from vlrl.types import Episode, Policy, Sample


@method(source="every episode is played anew by the present policy")
def plain(
    policy: Policy, task: Any, samples: Sequence[Sample], group_size: int, step: int, *, lanes: Count = 1, **act: Any
) -> list[Episode]:
    """`group_size` episodes of each sample, played by the policy.

    Args:
        lanes: so many parts of a step's episodes go on apart, so that an environment that takes long keeps those of its
            own lane waiting alone. The policy sees fewer at a time, which costs time where it is large.
    """
    return collect(policy, task, samples, group_size, lanes=lanes, **act)
