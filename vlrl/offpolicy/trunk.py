"""The trunk that pre-training leaves behind: it is kept in a folder, and agents' networks begin with it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from vlrl.decoders import load_json
from vlrl.offpolicy import icvf
from vlrl.offpolicy.agent import About
from vlrl.offpolicy.networks import Critics
from vlrl.policies.actor_network import Actor
from vlrl.types import UserError

FAMILY = "vlrl_trunk"


@dataclass(frozen=True)
class Shape:
    """What a trunk sees, and its size."""

    state: int  # S numbers
    names: tuple[str, ...] = ()  # of them; (): not known
    hidden: int = 256
    layers: int = 2


def save(folder: Path, shape: Shape, network: nn.Sequential, mean: np.ndarray, spread: np.ndarray) -> None:
    """config.json and model.safetensors, with the scale [S] of the states that it saw."""
    folder.mkdir(parents=True, exist_ok=True)
    scale = {"mean": torch.from_numpy(mean), "spread": torch.from_numpy(spread)}
    save_file({name: value.contiguous() for name, value in network.state_dict().items()} | scale,
              folder / "model.safetensors")  # fmt: skip
    about = {"model_type": FAMILY, **asdict(shape)}
    (folder / "config.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def load(folder: str | Path, about: About) -> nn.Sequential:
    """The trunk that `save` wrote, for states in the agent's scale instead of its own.

    Raises:
        UserError: the folder holds something else, or a trunk for another state.
    """
    folder = Path(folder)
    try:
        told = load_json(folder / "config.json", finite=False)
        if told.pop("model_type", None) != FAMILY:
            raise ValueError("another kind of model")
        shape = Shape(**told | {"names": tuple(told["names"])})
        tensors = load_file(folder / "model.safetensors")
        mean, spread = tensors.pop("mean"), tensors.pop("spread")
        network = icvf.trunk(shape.state, shape.hidden, shape.layers)
        network.load_state_dict(tensors)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, SafetensorError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"agent.init: {folder}: no trunk of `vlrl pretrain`: {reason}") from None
    if shape.state != about.state or (shape.names and about.names and shape.names != about.names):
        raise UserError(f"agent.init: {folder} was made for other states than this robot's")
    with torch.no_grad():  # W ((x * own + offset - mean) / spread) + b, written as W' x + b'
        first, own, offset = network[0], torch.as_tensor(about.spread), torch.as_tensor(about.mean)
        first.bias += first.weight @ ((offset - mean) / spread)
        first.weight *= own / spread
    return network


@torch.no_grad()
def begin(folder: str | Path, about: About, *networks: Actor | Critics) -> None:
    """Gives networks the trunk's layers; what they see beside the state, and their heads, stay as they are.

    Args:
        networks: actors, and critics whose inputs begin with the S numbers of the state in the agent's scale.

    Raises:
        UserError: as `load`; or their layers are others than the trunk's.
    """
    made = load(folder, about)
    layers = [made[place : place + 2] for place in range(0, len(made), 3)]
    for network in networks:
        actor = isinstance(network, Actor)
        widths = [part.out_features for part in network.trunk[::3]] if actor else [b.shape[2] for b in network.biases]
        if widths != [linear.out_features for linear, _ in layers]:
            raise UserError(
                f"agent.init: {folder} has {len(layers)} layers of {layers[0][0].out_features}, the agent "
                f"{len(widths)} of {widths[0]}: set hidden and layers alike"
            )
        if actor:
            network.trunk.load_state_dict(made.state_dict())
            continue
        for number, (linear, norm) in enumerate(layers):
            network.weights[number][:, : linear.in_features] = linear.weight.T
            network.biases[number][:] = linear.bias
            network.gains[number][:], network.shifts[number][:] = norm.weight, norm.bias
