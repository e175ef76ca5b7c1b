"""A reward model that was learned from preferences: how near to its goal a moment looks, by the mean of an ensemble.

A folder holds config.json, model.safetensors and report.json, what was measured on episodes held out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from vlrl import checkpoint, encoders
from vlrl.decoders import load_json
from vlrl.preferences.network import Ensemble, Shape
from vlrl.types import Decision, Episode, Observation, Sample, Step, Turn, UserError

FAMILY = "vlrl_preference"
BATCH = 4096  # moments at a time
ENCODER = "encoder/"  # before the names of its tensors


class PreferenceModel:
    """The networks, and the encoder where they see more than states."""

    def __init__(self, network: Ensemble, shape: Shape, encoder: Any = None):
        self.network, self.shape, self.encoder = network, shape, encoder

    def value(self, moments: Sequence[Observation]) -> np.ndarray:
        """Rewards float32 [N]: the members' mean."""
        return self.members(moments).mean(0)

    @torch.no_grad()
    def members(self, moments: Sequence[Observation]) -> np.ndarray:
        """Each member's rewards, float32 [E, N]."""
        inputs = inputs_of(moments, self.shape, self.encoder)
        return torch.cat([self.network(part) for part in inputs.split(BATCH)], 1).numpy()

    def compute_reward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Rewards float32 [B]: lerobot's interface of reward models, as `vlrl.reward_model.RewardModel` has it.

        Args:
            batch: `observation.state` [B, S] and, where there is an encoder of pictures, `observation.images.NAME`
                [B, 3, height, width], uint8 or 0..1, in the order in which they were shown.
        """
        cameras = [value for name, value in batch.items() if name.startswith("observation.images.")]
        states = batch["observation.state"].float().cpu().numpy()
        shown = zip(*(map(_picture, camera) for camera in cameras), strict=True) if cameras else [()] * len(states)
        moments = [Observation(tuple(pictures), state) for pictures, state in zip(shown, states, strict=True)]
        return torch.from_numpy(self.value(moments))

    def save(self, folder: Path) -> None:
        """config.json and model.safetensors."""
        folder.mkdir(parents=True, exist_ok=True)
        fitted: dict[str, Tensor] = {}
        state = checkpoint.flatten(self.encoder.state_dict(), fitted) if hasattr(self.encoder, "state_dict") else None
        about = {"model_type": FAMILY, **asdict(self.shape), "encoder_state": state}
        tensors = {name: value.contiguous() for name, value in self.network.state_dict().items()}
        save_file(tensors | {ENCODER + name: value for name, value in fitted.items()}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def load(folder: str | Path) -> PreferenceModel:
    """The model that `save` wrote.

    Raises:
        UserError: the folder holds something else.
    """
    folder = Path(folder)
    try:
        about = load_json(folder / "config.json", finite=False)
        if about.pop("model_type", None) != FAMILY:
            raise ValueError("another kind of model")
        state, lists = about.pop("encoder_state"), {name: tuple(about.pop(name)) for name in ("names", "seen")}
        shape = Shape(**lists, **about)
        tensors = load_file(folder / "model.safetensors")
        fitted = {name.removeprefix(ENCODER): tensors.pop(name) for name in list(tensors) if name.startswith(ENCODER)}
        network = Ensemble(shape)
        network.load_state_dict(tensors)
        encoder = encoders.make(shape.encoder, f"{folder}: encoder") if shape.encoder else None
        if state is not None:
            encoder.load_state_dict(checkpoint.unflatten(state, fitted))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, SafetensorError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{folder}: no preference model: {reason}") from None
    return PreferenceModel(network, shape, encoder)


def inputs_of(moments: Sequence[Observation], shape: Shape, encoder: Any) -> Tensor:
    """What the networks see of moments, float32 [N, D].

    Raises:
        UserError: the states have another number of numbers, or there is nothing that the encoder could read.
    """
    states = np.stack([np.asarray(shown.state, np.float32) for shown in moments])
    if states.shape[1] != len(shape.names):
        raise UserError(f"preference model: made for states of {len(shape.names)} numbers, not {states.shape[1]}")
    parts = [states[:, list(shape.seen)]] + ([] if encoder is None else [vectors_of(moments, encoder)])
    return torch.from_numpy(np.concatenate(parts, 1))


def vectors_of(moments: Sequence[Observation], encoder: Any) -> np.ndarray:
    """The encoder's vectors of moments by themselves, as of episodes in which nothing happens: float32 [N, D]."""
    nothing = Decision("", None, None, False)
    episodes = [Episode(Sample("", shown), 0, [Turn(shown, nothing, Step(shown))]) for shown in moments]
    return np.stack([vectors[0] for vectors in encoder.encode(episodes)])


def _picture(pixels: Tensor) -> Image.Image:
    """[3, height, width], uint8 or 0..1."""
    whole = pixels if pixels.dtype == torch.uint8 else (pixels * 255).round().to(torch.uint8)
    return Image.fromarray(whole.permute(1, 2, 0).contiguous().cpu().numpy())
