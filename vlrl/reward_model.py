"""Success seen in pictures: a classifier that tells a robot whether its job is done (HIL-SERL, arXiv 2410.21845).

A folder holds config.json, model.safetensors and report.json, what was measured on episodes held out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from robot.serving.spec import Asked, Feature, Picture, Spec
from vlrl.decoders import load_json
from vlrl.policies.reward_network import RewardNetwork, RewardShape, factor_of
from vlrl.types import UserError

FAMILY = "vlrl_reward"


class RewardModel:
    """The classifier. It is sure of success from `threshold` on."""

    def __init__(self, network: RewardNetwork, threshold: float = 0.5):
        self.network, self.shape, self.threshold = network.eval(), network.shape, threshold

    @torch.no_grad()
    def probability(self, pixels: Sequence[Tensor], state: Tensor) -> Tensor:
        """float32 [B] of pictures uint8 [B, 3, height, width] each, shrunk as `pixels_of` does, and states [B, S]."""
        return self.network(pixels, state).sigmoid()

    def compute_reward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """1 where the job is done, else 0, float32 [B]: lerobot's interface of reward models.

        Args:
            batch: `observation.images.NAME` [B, 3, height, width], uint8 or 0..1, and `observation.state` [B, S].
        """
        pixels = []
        for name, width, height in self.shape.cameras:
            picture = batch[f"observation.images.{name}"]
            picture = picture.float() if picture.dtype == torch.uint8 else picture.float() * 255
            factor = factor_of(width, height)
            pixels.append(functional.avg_pool2d(picture, factor, ceil_mode=True) if factor > 1 else picture)
        state = batch.get("observation.state", torch.zeros(len(pixels[0]), len(self.shape.names)))
        return (self.probability(pixels, state.float()) >= self.threshold).float()

    def save(self, folder: Path) -> None:
        """config.json and model.safetensors."""
        folder.mkdir(parents=True, exist_ok=True)
        about = {"model_type": FAMILY, "threshold": self.threshold, **asdict(self.shape)}
        (folder / "config.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        save_file({name: value.contiguous() for name, value in self.network.state_dict().items()},
                  folder / "model.safetensors")  # fmt: skip


def load(folder: str | Path) -> RewardModel:
    """The model that `save` wrote.

    Raises:
        UserError: the folder holds something else.
    """
    folder = Path(folder)
    try:
        about = load_json(folder / "config.json", finite=False)
        if about.pop("model_type", None) != FAMILY:
            raise ValueError("another kind of model")
        threshold = float(about.pop("threshold"))
        cameras = tuple((str(name), int(width), int(height)) for name, width, height in about.pop("cameras"))
        lists = {name: tuple(about.pop(name)) for name in ("names", "seen")}
        network = RewardNetwork(RewardShape(cameras, **lists, **about))
        network.load_state_dict(load_file(folder / "model.safetensors"))
    except (OSError, ValueError, TypeError, KeyError, SafetensorError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{folder}: no reward model: {reason}") from None
    return RewardModel(network, threshold)


def pixels_of(image: Image.Image | np.ndarray) -> Tensor:
    """A picture as the network takes it: uint8 [3, height, width], shrunk where it is large."""
    image = Image.fromarray(image) if isinstance(image, np.ndarray) else image.convert("RGB")
    factor = factor_of(*image.size)
    return torch.from_numpy(np.array(image.reduce(factor) if factor > 1 else image)).permute(2, 0, 1)


class RewardServer:
    """A reward model behind `vlrl serve` (`robot.serving.spec.Servable`): its action is the probability of success."""

    name = "reward model"

    def __init__(self, model: RewardModel, version: str):
        self.model, self.version, shape = model, version, model.shape
        self.spec = Spec(
            tuple(Feature(name) for name in shape.names),
            tuple(Picture(name, height, width) for name, width, height in shape.cameras),
            (Feature("success probability", ""),), hz=0.0, chunk=1,
        )  # fmt: skip

    def infer(self, asked: Sequence[Asked]) -> list[np.ndarray]:
        """One chunk float32 [1, 1] for each observation.

        Raises:
            UserError: a picture is missing or of another size.
        """
        pixels = [
            torch.stack([pixels_of(_picture(each, *camera)) for each in asked]) for camera in self.model.shape.cameras
        ]
        state = torch.from_numpy(np.stack([np.asarray(each.state, np.float32) for each in asked]))
        return [np.float32([[value]]) for value in self.model.probability(pixels, state).tolist()]

    def forget(self, session: str) -> None:
        """It remembers nobody."""


def servable(folder: str | Path) -> RewardServer:
    """The reward model of a folder, to be served.

    Raises:
        UserError: the folder holds something else.
    """
    model = load(folder)
    digest = hashlib.sha256((Path(folder) / "model.safetensors").read_bytes()).hexdigest()
    return RewardServer(model, digest[:16])


def _picture(asked: Asked, name: str, width: int, height: int) -> np.ndarray:
    picture = asked.images.get(name)
    if picture is None or picture.shape != (height, width, 3):
        shown = "none" if picture is None else f"{picture.shape[1]}x{picture.shape[0]}"
        raise UserError(f"picture {name}: {shown}; the reward model sees {width}x{height}")
    return picture
