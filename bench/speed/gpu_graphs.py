"""That replayed steps write what the loop writes: for `gpu_check.py`."""

from __future__ import annotations

import torch
from gpu_small import Small, gap, rollout, sampled

from vlrl.policies.generation import Nucleus
from vlrl.policies.vlm import VLM


def recorded(policy: VLM) -> bool:
    """That steps were replayed.

    Raises:
        AssertionError: they were not, and why.
    """
    assert policy.graphs.recorded and not policy.graphs.off, f"no graphs: {policy.graphs.off or 'too few tokens'}"
    return True


def graphs_against_loop(device: torch.device, group: int = 3, **options) -> float:
    """Log-probabilities of replayed steps beside those of the loop, before and after the weights change.

    Raises:
        AssertionError: other tokens were written, or no steps replayed.
    """
    small, gaps = Small("qwen2_5_vl", device), []
    loop, replayed = (small.policy(cuda_graphs=way, **options) for way in (False, True))
    for _ in range(2):
        one, other = (rollout(policy, small.episodes(group)) for policy in (loop, replayed))
        assert [loop.ids(a) for a in one] == [loop.ids(b) for b in other], "other tokens"
        gaps.append(gap(sampled(one), sampled(other)))
        with torch.no_grad():
            small.model.lm_head.weight.mul_(1.5)
    assert recorded(replayed)
    return max(gaps)


def in_few_slots(device: torch.device) -> float:
    """The same where rows come and go at different times, and not all tokens may be drawn."""
    return graphs_against_loop(device, tokens=60, stop=True, slots=6, nucleus=Nucleus(top_p=0.95, top_k=100))
