"""Observations as lerobot's policies take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vlrl.types import Episode, Observation, UserError

RESIZES = ("resize_imgs_with_padding", "image_resolution")  # a configuration with one of them takes any pictures


@dataclass(frozen=True)
class Inputs:
    """What a policy sees. The state goes to each of its states, the k-th picture to its k-th camera."""

    past: int  # observations, the present one included
    states: Mapping[str, int]  # key -> numbers
    cameras: Mapping[str, tuple[int, int] | None]  # key -> width and height; None: any

    @classmethod
    def of(cls, config: Any) -> Inputs:
        """Those of a lerobot policy's configuration."""
        states, cameras = {}, {}
        resizes = any(hasattr(config, name) for name in RESIZES)
        for key, feature in config.input_features.items():
            if feature.type.name in ("STATE", "ENV"):
                states[key] = feature.shape[0]
            elif feature.type.name == "VISUAL" and "empty_camera" not in key:
                cameras[key] = None if resizes else (feature.shape[2], feature.shape[1])
        return cls(int(getattr(config, "n_obs_steps", 1)), states, cameras)

    def seen(self, episode: Episode, shown: Observation) -> list[Observation]:
        """The last `past` observations; before an episode's first there was always the same."""
        turns = episode.turns[max(0, len(episode.turns) - self.past + 1) :]
        seen = [*(turn.observation for turn in turns), shown]
        return [seen[0]] * (self.past - len(seen)) + seen

    def batch(self, seen: Sequence[Sequence[Observation]]) -> dict[str, Any]:
        """As lerobot's data loader gives it: values [B, ...], or [B, past, ...] where that is above 1.

        Raises:
            UserError: the robot shows something else than the policy was made for.
        """
        for shown in (each for past in seen for each in past):
            self._check(shown)
        batch: dict[str, Any] = {"task": [past[-1].text for past in seen]}
        for key in self.states:
            batch[key] = self._stacked([[torch.tensor(shown.state) for shown in past] for past in seen])
        for number, key in enumerate(self.cameras):
            batch[key] = self._stacked([[_pixels(shown.images[number]) for shown in past] for past in seen])
        return batch

    def _check(self, shown: Observation) -> None:
        size, sizes = 0 if shown.state is None else len(shown.state), [image.size for image in shown.images]
        wanted = list(self.cameras.values())
        fits = len(sizes) == len(wanted) and all(want in (None, size) for want, size in zip(wanted, sizes, strict=True))
        if not fits or any(size != each for each in self.states.values()):
            raise UserError(
                f"policy.model: made for {_told(list(self.states.values()), wanted)}, but the robot shows "
                f"{_told([size], sizes)}"
            )

    def _stacked(self, values: list[list[Tensor]]) -> Tensor:
        stacked = torch.stack([torch.stack(past) for past in values])
        return stacked if self.past > 1 else stacked[:, 0]


def _told(states: Sequence[int], cameras: Sequence[tuple[int, int] | None]) -> str:
    pictures = ", ".join("x".join(map(str, size)) if size else "any size" for size in cameras)
    return f"a state of {' and '.join(map(str, states)) or 0} numbers and {len(cameras)} pictures" + (
        f" ({pictures})" if pictures else ""
    )


def _pixels(image: Any) -> Tensor:
    """float32 [3, height, width], 0 to 1."""
    return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).float() / 255
