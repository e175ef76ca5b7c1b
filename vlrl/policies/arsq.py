"""A small robot policy that soft Q-learning gives: a distribution over chunks, number after number (agent `arsq`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from vlrl.policies import robot_common as common
from vlrl.policies.discrete import weights_into
from vlrl.policies.robot_common import FAR, ActorShape, physical
from vlrl.types import Decision, Episode, Observation, Policy, Sample, UserError

# The network of `vlrl.policies.arsq`: soft advantages of a chunk's numbers, one after the other, coarse to fine.
#
# A chunk of N = K*A numbers in [-1, 1] is N*L choices of one of `bins`: first the coarse bin of each number, then, of
# each, the bin within that bin, and so on (coarse-to-fine Q-network, arXiv 2407.07787). The advantage of a choice hangs
# on the state and on all choices before it. Prefixes are sums of embeddings (NADE, arXiv 1605.02226), so that the
# advantages of all choices of given chunks take one pass; ARSQ's own network is not known to us.


@dataclass(frozen=True)
class Grid:
    """Numbers [B, N] in [-1, 1] as codes int64 [B, L*N] and back: level by level, the numbers in order in each."""

    numbers: int  # N
    levels: int = 2  # L
    bins: int = 5

    def __post_init__(self):
        if min(self.numbers, self.levels) < 1 or self.bins < 2:
            raise ValueError(f"{self}: numbers and levels at least 1, bins at least 2")

    @property
    def choices(self) -> int:
        return self.numbers * self.levels

    def codes(self, unit: Tensor) -> Tensor:
        """The bins that hold the numbers."""
        total = self.bins**self.levels
        fine = ((unit.double() + 1) / 2 * total).floor().long().clamp(0, total - 1)
        return torch.cat([fine // self.bins**level % self.bins for level in reversed(range(self.levels))], 1)

    def unit(self, codes: Tensor) -> Tensor:
        """The middles of the finest bins, float32."""
        fine = torch.zeros_like(codes[:, : self.numbers])
        for level in codes.unflatten(1, (self.levels, self.numbers)).unbind(1):
            fine = fine * self.bins + level
        return (((fine + 0.5) / self.bins**self.levels) * 2 - 1).float()


class Advantages(nn.Module):
    """Soft advantages [B, D, bins] of each of D choices after those before it; alpha logsumexp(A / alpha) of each is 0.

    So exp(A / alpha) is a distribution, and the sum over the choices of a chunk is alpha times its log-probability.
    """

    def __init__(self, shape: ActorShape, grid: Grid, alpha: float):
        super().__init__()
        self.shape, self.grid, self.alpha = shape, grid, alpha
        self.register_buffer("mean", torch.zeros(shape.state))
        self.register_buffer("spread", torch.ones(shape.state))
        widths = [shape.state, *[shape.hidden] * shape.layers]
        layers = (layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.LayerNorm(b), nn.ReLU()))
        self.trunk = nn.Sequential(*layers)
        choices, bins, hidden = grid.choices, grid.bins, shape.hidden
        # as large as what is known of the state, summed over all choices
        self.chosen = nn.Parameter(torch.randn(choices, bins, hidden) * choices**-0.5)
        self.place = nn.Parameter(torch.zeros(choices, hidden))
        self.norm = nn.LayerNorm(hidden)
        self.heads = nn.Parameter(torch.zeros(choices, hidden, bins))  # begins with the uniform distribution
        self.offsets = nn.Parameter(torch.zeros(choices, bins))

    def begin(self, state: Tensor) -> Tensor:
        """What is known before the first choice, [B, H], of states [B, S] in physical units."""
        return self.trunk(((state - self.mean) / self.spread).clamp(-FAR, FAR))

    def after(self, known: Tensor, choice: int, code: Tensor) -> Tensor:
        """What is known once a choice fell on a bin int64 [B]."""
        return known + self.chosen[choice, code]

    def next(self, known: Tensor, choice: int) -> Tensor:
        """Advantages [B, bins] of a choice."""
        hidden = self.norm(known + self.place[choice]).relu()
        return self._normal(hidden @ self.heads[choice] + self.offsets[choice])

    def forward(self, state: Tensor, codes: Tensor) -> Tensor:
        """Advantages [B, D, bins] after the choices before each of codes int64 [B, D], in one pass."""
        picked = self.chosen[torch.arange(self.grid.choices), codes]  # [B, D, H]
        before = picked.cumsum(1) - picked
        hidden = self.norm(self.begin(state)[:, None] + before + self.place).relu()
        raw = torch.bmm(hidden.transpose(0, 1), self.heads).transpose(0, 1)
        return self._normal(raw + self.offsets)

    def _normal(self, raw: Tensor) -> Tensor:
        """What learns is in units of alpha, as log-probabilities are: else each step is many times alpha."""
        return self.alpha * raw.log_softmax(-1)


FAMILY = "vlrl_arsq"


class ArsqPolicy(Policy):
    """The policy (`vlrl.types.Policy`), which only acts."""

    def __init__(self, model: Advantages, *, seed: int = 0):
        self.model, self.shape = model, model.shape
        self.generator = torch.Generator().manual_seed(seed)
        self._low, self._high = (np.array(limit, np.float32) for limit in (self.shape.low, self.shape.high))

    def check(self, sample: Sample) -> None:
        """UserError: who asks wants to train it with `vlrl train`."""
        raise UserError(
            f"policy.model: a {FAMILY} is not trained with `vlrl train`: start from a policy that `vlrl clone` makes"
        )

    def act(
        self, episodes: Sequence[Episode], observations: Sequence[Observation], greedy: bool = False, keep: bool = False
    ) -> list[Decision]:
        """One chunk, float32 [K, A], for each observation; `greedy` takes the likeliest bin of each choice.

        Raises:
            UserError: the robot shows a state of another size.
        """
        return common.decisions(self.chunks(common.states(observations, self.shape), greedy))

    def chunks(self, state: np.ndarray, greedy: bool) -> np.ndarray:
        """Chunks float32 [B, K, A] within the limits, for states float32 [B, S]."""
        codes = self.codes(torch.as_tensor(state, device=self.model.mean.device), greedy)
        return physical(self.model.grid.unit(codes).cpu().numpy(), self._low, self._high)

    @torch.no_grad()
    def codes(self, state: Tensor, greedy: bool) -> Tensor:
        """Choices int64 [B, D], one after the other, for states [B, S]."""
        model, chosen = self.model, []
        known = model.begin(state)
        for choice in range(model.grid.choices):
            value = model.next(known, choice)
            code = value.argmax(-1) if greedy else self._sample_bins((value / model.alpha).exp())
            known = model.after(known, choice, code)
            chosen.append(code)
        return torch.stack(chosen, 1)

    def save(self, folder: Path) -> None:
        """config.json and model.safetensors."""
        grid = self.model.grid
        sizes = {"levels": grid.levels, "bins": grid.bins, "alpha": self.model.alpha}
        common.save(folder, common.make_config(FAMILY, self.shape, **sizes), self.model)

    def _sample_bins(self, law: Tensor) -> Tensor:
        return torch.multinomial(law.cpu(), 1, generator=self.generator)[:, 0].to(law.device)


def load_arsq(folder: Path, *, seed: int, device: str = "cpu", key: str = "policy.model") -> ArsqPolicy:
    """The policy that `save` wrote.

    Args:
        key: of the configuration that names the folder.

    Raises:
        UserError: the folder holds something else.
    """
    shape, more = common.chunks_read(folder, FAMILY, ("levels", "bins", "alpha"), key)
    try:
        grid, alpha = Grid(shape.chunk * len(shape.low), more["levels"], more["bins"]), float(more["alpha"])
        if not 0 < alpha < math.inf:
            raise ValueError(f"alpha: {alpha} is not above 0")
    except (ValueError, TypeError) as error:
        raise UserError(f"{key}: {folder / 'config.json'} describes no {FAMILY}: {error}") from None
    model = Advantages(shape, grid, alpha)
    weights_into(model, folder)
    return ArsqPolicy(model.to(device), seed=seed)
