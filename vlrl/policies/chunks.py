"""What policies have in common that go from a robot's state to chunks of controls and only act."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from vlrl.decoders import load_json
from vlrl.policies.actor_network import ActorShape
from vlrl.types import Decision, Observation, UserError

LISTS = ("controls", "low", "high", "names", "units")


def states(observations: Sequence[Observation], shape: ActorShape) -> np.ndarray:
    """float32 [B, S]. UserError where the robot shows a state of another size."""
    for shown in observations:
        size = 0 if shown.state is None else len(shown.state)
        if size != shape.state:
            raise UserError(f"policy.model: made for a state of {shape.state} numbers, but the robot shows {size}")
    return np.stack([np.asarray(shown.state, np.float32) for shown in observations])


def decisions(chunks: np.ndarray) -> list[Decision]:
    """Chunks [B, K, A] as decisions; log-probabilities and entropies are unknown, so NaN [K]."""
    unknown = torch.full((chunks.shape[1],), math.nan)
    return [Decision(chunk, unknown, unknown, False) for chunk in chunks]


def save(folder: Path, about: Mapping[str, Any], model: nn.Module, dtype: torch.dtype = torch.float32) -> None:
    """config.json and model.safetensors, the parameters in `dtype`; buffers, such as scales, as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    weights = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    learned = {name: weights[name].to(dtype) for name, _ in model.named_parameters()}
    save_file(weights | learned, folder / "model.safetensors")


def told(family: str, shape: ActorShape, **more: float) -> dict[str, Any]:
    """A config.json."""
    return {"model_type": family, **more, **asdict(shape)}


def read(folder: Path, family: str, more: Sequence[str], key: str) -> tuple[ActorShape, dict[str, Any]]:
    """The shape that a folder's config.json tells, and the values of `more`.

    Args:
        key: of the configuration that names the folder.

    Raises:
        UserError: it tells of another family, or is no such description.
    """
    try:
        about = load_json(folder / "config.json", finite=False)
        if (found := about.pop("model_type")) != family:
            raise ValueError(f"it is of the family {found!r}")
        extra = {name: about.pop(name) for name in more}
        return ActorShape(**{name: tuple(about.pop(name)) for name in LISTS}, **about), extra
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{key}: {folder / 'config.json'} describes no {family}: {error}") from None
