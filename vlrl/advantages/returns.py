"""Sums along episodes, whose steps (tokens or turns) stand one behind the other: columns [M], a flag at each end."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def ends(episode: Tensor, mask: Tensor) -> Tensor:
    """bool [M]: which of the M units inside the mask [B, T], row by row, is its episode's last."""
    owner = episode[:, None].expand(mask.shape)[mask]
    return owner.diff(append=owner[-1:] + 1) != 0


def returns(rewards: Tensor, last: Tensor, gamma: float) -> Tensor:
    """[M]: `G_t = r_t + gamma G_(t+1)`, with nothing behind each episode's last step."""
    total, running = [], 0.0
    for reward, end in zip(reversed(rewards.tolist()), reversed(last.tolist()), strict=True):
        running = reward + (0.0 if end else gamma * running)
        total.append(running)
    return rewards.new_tensor(total[::-1])


def generalized(
    values: Tensor, rewards: Tensor, last: Tensor, gamma: float, lam: float, *, cut: bool = False
) -> Tensor:
    """Generalised advantages [M] (GAE, arXiv 1506.02438): the discounted sum, by gamma lam, of

        delta_t = r_t + gamma V_(t+1) - V_t

    over what is left of each episode. Behind the end V is 0, or with `cut` that of the last step: the episodes were
    broken off and would have gone on (T-PPO's EGAE, arXiv 2506.15050).
    """
    following = values.roll(-1).where(~last, values if cut else values.new_zeros(()))
    return returns(rewards + gamma * following - values, last, gamma * lam)
