"""A frozen flow policy whose noise a small network chooses: what the agents `dsrl_sac` and `dsrl_na` learn.

A folder of one holds the network, and the flow's own folder as `base`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from vlrl.decoders import load_json
from vlrl.policies import chunks as common
from vlrl.policies.actor import ActorPolicy
from vlrl.policies.actor_network import Actor, ActorShape
from vlrl.policies.control import weights_into
from vlrl.policies.flow import FlowPolicy, load_flow
from vlrl.types import Decision, Episode, Observation, Sample, UserError

FAMILY = "vlrl_steered"
BASE = "base"


def noise_shape(shape: ActorShape, bound: float, hidden: int, layers: int) -> ActorShape:
    """Of the network whose "controls" are a flow's noise, each within -bound and bound."""
    limits = (bound,) * len(shape.low)
    return replace(shape, low=tuple(-limit for limit in limits), high=limits, units=(), hidden=hidden, layers=layers)


class SteeredPolicy:
    """The policy (`vlrl.types.Policy`), which only acts.

    Args:
        steering: gives noise [B, K, A] for states (`noise_shape`).
    """

    def __init__(self, steering: ActorPolicy, base: FlowPolicy):
        self.steering, self.base, self.shape = steering, base, base.shape
        base.model.requires_grad_(False)

    def check(self, sample: Sample) -> None:
        """UserError: who asks wants to train it with `vlrl train`."""
        self.base.check(sample)

    def act(
        self, episodes: Sequence[Episode], observations: Sequence[Observation], greedy: bool = False, keep: bool = False
    ) -> list[Decision]:
        """One chunk, float32 [K, A], for each observation; `greedy` takes the middle of the noise's law.

        Raises:
            UserError: the robot shows a state of another size.
        """
        return common.decisions(self.chunks(common.states(observations, self.shape), greedy))

    def chunks(self, state: np.ndarray, greedy: bool) -> np.ndarray:
        """Chunks float32 [B, K, A] within the limits, for states float32 [B, S]."""
        return self.base.chunks(state, self.steering.chunks(state, greedy))

    def save(self, folder: Path) -> None:
        """config.json, model.safetensors and the flow's folder."""
        shape = self.steering.shape
        about = {"model_type": FAMILY, "bound": shape.high[0], "hidden": shape.hidden, "layers": shape.layers}
        common.save(folder, about, self.steering.model)
        self.base.save(folder / BASE)


def load_steered(folder: Path, *, seed: int, device: str = "cpu") -> SteeredPolicy:
    """The policy that `save` wrote.

    Raises:
        UserError: the folder holds something else.
    """
    base = load_flow(folder / BASE, seed=seed, device=device)
    try:
        about = load_json(folder / "config.json", finite=False)
        bound, hidden, layers = float(about["bound"]), int(about["hidden"]), int(about["layers"])
        if not (0 < bound < math.inf and hidden > 0 and layers > 0):
            raise ValueError(f"bound {bound}, hidden {hidden}, layers {layers}: each must be above 0")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"policy.model: {folder / 'config.json'} describes no {FAMILY}: {error}") from None
    steering = Actor(noise_shape(base.shape, bound, hidden, layers))
    weights_into(steering, folder)
    return SteeredPolicy(ActorPolicy(steering.to(device), seed=seed), base)
