"""A frozen policy whose chunks a small network corrects: what the agent `residual` learns (arXiv 2412.13630).

The base is asked at every decision, and the first K ticks of its chunk are carried out with corrections,

    a = clip(a_base + scale * c),    c in [-1, 1],

a control's limits being -1 and 1. So what is done is a function of the state alone, never further from the base than
`scale`. A correction may be held for some ticks. `vlrl.policies.residual` differs: it looks again for each correction
while a chunk of the base runs, and has no bound.

A folder of one holds the network, and the base's own folder as `base`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vlrl.policies import robot_common as common
from vlrl.policies.discrete import ControlPolicy, weights_into
from vlrl.policies.robot_common import Actor, ActorShape, physical
from vlrl.types import Decision, Episode, Observation, Sample, UserError

# The frozen policy under `vlrl.policies.corrected`: any that goes from a robot's state alone to chunks of controls.

NOBODY = Episode(Sample("", Observation(())), 0)  # the base needs no episode


@torch.no_grad()
def planned(base: Any, state: np.ndarray) -> Tensor:
    """The base's greedy chunks float32 [B, K, A] for states float32 [B, S], a control's limits being -1 and 1."""
    if isinstance(base, ControlPolicy):  # in one go: this is asked for at each update
        codes = base.model(torch.as_tensor(state, device=base.device), []).argmax(-1)
        return codes * (2 / (base.shape.bins - 1)) - 1
    shown = [Observation((), row) for row in state]
    chunks = np.stack([each.action for each in base.act([NOBODY] * len(shown), shown, greedy=True)])
    low, high = (np.array(limit, np.float32) for limit in (base.shape.low, base.shape.high))
    return torch.from_numpy((chunks - low) / (high - low) * 2 - 1)


FAMILY = "vlrl_corrected"
BASE = "base"


class CorrectedPolicy:
    """The policy (`vlrl.types.Policy`), which only acts.

    Args:
        shape: of the robot, with K ticks of a chunk, and of the network that corrects them.
        base: is frozen, and acts greedily from the state; its chunks have K ticks or more.
        scale: of a correction of 1, in halves of the limits' width.
        hold: ticks of a correction, of which K is a multiple.
        seed: of what it plays. First weights are drawn from the global generator.
    """

    def __init__(self, shape: ActorShape, base: Any, scale: float, hold: int, *, seed: int = 0):
        self.shape, self.base, self.scale, self.hold = shape, base, scale, hold
        self.model = Actor(correction_shape(shape, hold))
        self.generator = torch.Generator().manual_seed(seed)
        self._low, self._high = (np.array(limit, np.float32) for limit in (shape.low, shape.high))

    def check(self, sample: Sample) -> None:
        """UserError: who asks wants to train it with `vlrl train`."""
        raise UserError(f"policy.model: a {FAMILY} is not trained with `vlrl train`: `vlrl residual` makes one that is")

    def act(
        self, episodes: Sequence[Episode], observations: Sequence[Observation], greedy: bool = False, keep: bool = False
    ) -> list[Decision]:
        """One chunk, float32 [K, A], for each observation; `greedy` takes the middle of the corrections.

        Raises:
            UserError: the robot shows a state of another size.
        """
        return common.decisions(self.chunks(common.states(observations, self.shape), greedy))

    @torch.no_grad()
    def chunks(self, state: np.ndarray, greedy: bool) -> np.ndarray:
        """Chunks float32 [B, K, A] within the limits, for states float32 [B, S]."""
        if not greedy:
            return self.physical(self.draw(state, self.generator)[0])
        planned = self.planned(state)
        return self.physical(self._corrected(planned, self.model(self._network_inputs(state, planned))[0].tanh()))

    def draw(self, state: np.ndarray, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Chunks in [-1, 1] [B, K*A] and the log-densities [B] of their corrections, both with gradient."""
        planned = self.planned(state)
        correction, logp = self.model.draw(self._network_inputs(state, planned), generator)
        return self._corrected(planned, correction), logp

    def planned(self, state: np.ndarray) -> Tensor:
        """The base's own chunks in [-1, 1], float32 [B, K*A]."""
        return planned(self.base, state)[:, : self.shape.chunk].flatten(1).to(self.model.mean.device)

    def physical(self, unit: Tensor) -> np.ndarray:
        """Chunks [B, K*A] in [-1, 1] -> float32 [B, K, A] within the limits."""
        return physical(unit.cpu().numpy(), self._low, self._high)

    def save(self, folder: Path) -> None:
        """config.json, model.safetensors and the base's folder."""
        common.save(folder, common.make_config(FAMILY, self.shape, scale=self.scale, hold=self.hold), self.model)
        self.base.save(folder / BASE)

    def _network_inputs(self, state: np.ndarray, planned: Tensor) -> Tensor:
        return torch.cat([torch.as_tensor(state, device=planned.device), planned], 1)

    def _corrected(self, planned: Tensor, correction: Tensor) -> Tensor:
        held = correction.unflatten(1, (-1, len(self._low))).repeat_interleave(self.hold, 1).flatten(1)
        return (planned + self.scale * held).clamp(-1, 1)


def correction_shape(shape: ActorShape, hold: int) -> ActorShape:
    """Of the network that sees a state and the base's chunk, and gives a correction for each `hold` ticks."""
    one = (1.0,) * len(shape.low)
    return replace(
        shape, state=shape.state + shape.chunk * len(one), low=tuple(-x for x in one), high=one,
        chunk=shape.chunk // hold, names=(), units=(),
    )  # fmt: skip


def load_corrected(folder: Path, base: Any, *, seed: int, device: str = "cpu") -> CorrectedPolicy:
    """The policy that `save` wrote, around the base that lies in the folder's `BASE`.

    Raises:
        UserError: the folder holds something else.
    """
    shape, more = common.chunks_read(folder, FAMILY, ("scale", "hold"), "policy.model")
    try:
        scale, hold = float(more["scale"]), int(more["hold"])
        if not (0 < scale <= 2 and hold > 0 and 0 < shape.chunk <= base.shape.chunk) or shape.chunk % hold:
            raise ValueError(f"scale {scale}, hold {hold}, chunk {shape.chunk} of the base's {base.shape.chunk}")
        policy = CorrectedPolicy(shape, base, scale, hold, seed=seed)
    except (ValueError, TypeError) as error:
        told = str(error).splitlines()[0]
        raise UserError(f"policy.model: {folder / 'config.json'} describes no {FAMILY}: {told}") from None
    weights_into(policy.model, folder)
    policy.model.to(device)
    return policy
