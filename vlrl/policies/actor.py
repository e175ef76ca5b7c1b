"""A small robot policy that off-policy agents learn: a network from the state to a chunk of controls, continuous.

The law is a normal one squashed by tanh to the limits (SAC, arXiv 1801.01290). It acts, is evaluated and is served;
`vlrl train` needs probabilities, which `vlrl.policies.control` has.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from vlrl.decoders import load_json
from vlrl.policies.actor_network import Actor, ActorShape
from vlrl.types import Decision, Episode, Observation, Sample, UserError

FAMILY = "vlrl_actor"


class ActorPolicy:
    """The policy (`vlrl.types.Policy`), which only acts."""

    def __init__(self, model: Actor, *, seed: int = 0):
        self.model, self.shape = model, model.shape
        self.generator = torch.Generator().manual_seed(seed)
        self._low = np.array(self.shape.low, np.float32)
        self._high = np.array(self.shape.high, np.float32)

    def check(self, sample: Sample) -> None:
        """UserError: who asks wants to train it with `vlrl train`."""
        raise UserError(
            "policy.model: an actor has no probabilities to train with: go on with `vlrl offpolicy` and start=FOLDER, "
            "or start from a policy that `vlrl clone` makes"
        )

    def act(
        self, episodes: Sequence[Episode], observations: Sequence[Observation], greedy: bool = False, keep: bool = False
    ) -> list[Decision]:
        """One chunk, float32 [K, A], for each observation; `greedy` takes the law's middle.

        Log-probabilities and entropies are unknown, so NaN [K].

        Raises:
            UserError: the robot shows a state of another size.
        """
        chunks = self.chunks(np.stack([self._state(shown) for shown in observations]), greedy)
        unknown = torch.full((self.shape.chunk,), math.nan)
        return [Decision(chunk, unknown, unknown, False) for chunk in chunks]

    @torch.no_grad()
    def chunks(self, state: np.ndarray, greedy: bool) -> np.ndarray:
        """Chunks float32 [B, K, A] within the limits, for states float32 [B, S]."""
        seen = torch.as_tensor(state, device=self.model.mean.device)
        unit = self.model(seen)[0].tanh() if greedy else self.model.draw(seen, self.generator)[0]
        return physical(unit.cpu().numpy(), self._low, self._high)

    def draw(self, state: np.ndarray, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Chunks in (-1, 1) [B, K*A] for states float32 [B, S], and their log-densities [B], both with gradient."""
        return self.model.draw(torch.as_tensor(state), generator)

    def save(self, folder: Path) -> None:
        """config.json and model.safetensors."""
        folder.mkdir(parents=True, exist_ok=True)
        about = {"model_type": FAMILY, **asdict(self.shape)}
        (folder / "config.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        weights = {name: value.detach().cpu().contiguous() for name, value in self.model.state_dict().items()}
        save_file(weights, folder / "model.safetensors")

    def _state(self, shown: Observation) -> np.ndarray:
        size = 0 if shown.state is None else len(shown.state)
        if size != self.shape.state:
            raise UserError(f"policy.model: made for a state of {self.shape.state} numbers, but the robot shows {size}")
        return np.asarray(shown.state, np.float32)


def physical(unit: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Numbers of [-1, 1] [B, K*A] -> chunks float32 [B, K, A] within the limits [A]."""
    chunks = unit.reshape(len(unit), -1, len(low))
    return (low + (chunks + 1) / 2 * (high - low)).clip(low, high).astype(np.float32)


def load_actor(folder: Path, *, seed: int, device: str = "cpu", key: str = "policy.model") -> ActorPolicy:
    """The policy that `save` wrote.

    Args:
        key: of the configuration that names the folder.

    Raises:
        UserError: the folder holds something else.
    """
    try:
        about = load_json(folder / "config.json", finite=False)
        if about.pop("model_type") != FAMILY:
            raise ValueError("it is of another family")
        lists = {name: tuple(about.pop(name)) for name in ("controls", "low", "high", "names", "units")}
        model = Actor(ActorShape(**lists, **about))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{key}: {folder / 'config.json'} describes no actor: {error}") from None
    try:
        model.load_state_dict(load_file(folder / "model.safetensors"))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise UserError(f"{key}: {folder}: {str(error).strip().splitlines()[0]}") from None
    return ActorPolicy(model.to(device), seed=seed)
