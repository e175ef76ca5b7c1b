"""The policy behind both servers of `costs`: lerobot's ACT with random weights, and stopwatches in it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from bridge_body import CAMERAS, CHUNK, JOINTS

Kind = Literal["act", "wait", "none"]
KINDS = {  # what the server has of the policy -> how the tables call it
    "act": "ACT",
    "wait": "ACT whose network is replaced by a wait",
    "none": "none: zeros are answered",
}


def save(folder: Path, height: int, width: int) -> None:
    """A tiny ACT for two pictures of this size, with its processors, as `lerobot-train` saves it."""
    import torch
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.act.modeling_act import ACTPolicy
    from lerobot.policies.factory import make_pre_post_processors

    size = len(JOINTS)
    seen = {f"observation.images.{name}": PolicyFeature(FeatureType.VISUAL, (3, height, width)) for name in CAMERAS}
    config = ACTConfig(
        input_features={"observation.state": PolicyFeature(FeatureType.STATE, (size,)), **seen},
        output_features={"action": PolicyFeature(FeatureType.ACTION, (size,))},
        chunk_size=CHUNK, n_action_steps=CHUNK, dim_model=32, n_heads=2, dim_feedforward=64, n_encoder_layers=1,
        use_vae=False, pretrained_backbone_weights=None, device="cpu", push_to_hub=False,
    )  # fmt: skip
    torch.manual_seed(0)
    ACTPolicy(config).save_pretrained(folder)
    flat = {"mean": torch.zeros(size), "std": torch.ones(size)}
    picture = {"mean": torch.full((3, 1, 1), 0.5), "std": torch.full((3, 1, 1), 0.25)}
    stats = {"observation.state": flat, "action": flat} | dict.fromkeys(seen, picture)
    for pipeline in make_pre_post_processors(config, dataset_stats=stats):
        pipeline.save_pretrained(folder)


class Watch:
    """Seconds of each request: in the network, and in all that makes a chunk of an observation."""

    def __init__(self, kind: Kind, wait_s: float = 0.0):
        self.kind, self._wait = kind, wait_s
        self.network: list[float] = []
        self.policy: list[float] = []

    def taken(self) -> dict[str, list[float]]:
        """Since the last call."""
        taken = {"network": self.network, "policy": self.policy}
        self.network, self.policy = [], []
        return taken

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, timed as `policy`."""

        def timed(*given: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*given, **named)
            finally:
                self.policy.append(time.perf_counter() - began)

        return timed

    def into(self, model: Any) -> None:
        """Times the network of a lerobot policy, or replaces it."""
        import torch

        predict = model.predict_action_chunk

        def timed(batch: Any, **named: Any) -> Any:
            began = time.perf_counter()
            if self.kind == "act":
                chunk = predict(batch, **named)
            else:
                time.sleep(self._wait)
                chunk = torch.zeros(1, CHUNK, len(JOINTS))
            self.network.append(time.perf_counter() - began)
            return chunk

        model.predict_action_chunk = timed
