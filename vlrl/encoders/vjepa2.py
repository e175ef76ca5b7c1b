"""V-JEPA 2 (arXiv 2506.09985) as an encoder of what episodes showed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from vlrl.encoders.base import seen, shown
from vlrl.methods import method
from vlrl.strict import Count
from vlrl.types import Episode, UserError

if TYPE_CHECKING:
    from torch import Tensor


@method(source="V-JEPA 2: arXiv 2506.09985, as SRPO reads it: github.com/sii-research/siiRL")
class VJEPA2:
    """The mean over all tokens of the video encoder, of a whole episode or of single pictures.

    An episode is `frames` pictures evenly over its time; a shorter one is repeated from its beginning until there are
    as many. A single picture is shown as a video that stands still, as long as one of the model's steps in time.

    Args:
        model: a folder, or a name on the hub, for example facebook/vjepa2-vitg-fpc64-384, which SRPO uses.
        image: which of the pictures of an observation.
        batch: videos at a time; of single pictures `frames` times as many.

    Raises:
        UserError: there is no such model; an episode shows no such picture.
    """

    def __init__(self, *, model: str, frames: Count = 64, image: Annotated[int, Field(ge=0)] = 0, batch: Count = 4):
        import torch

        self.frames, self.image, self.batch = frames, image, batch
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self._processor, self._model = _pretrained(model)
        self._model = self._model.eval().requires_grad_(False).to(device)

    def encode(self, episodes: Sequence[Episode]) -> list[np.ndarray]:
        """float32 [turns + 1, hidden] of each episode."""
        still = self._model.config.tubelet_size
        pictures = [picture for e in episodes for picture in self._pictures(e)]
        vectors = self._vectors([[picture] * still for picture in pictures], self.batch * self.frames)
        return np.split(vectors, np.cumsum([len(e.turns) + 1 for e in episodes])[:-1])

    def whole(self, episodes: Sequence[Episode]) -> np.ndarray:
        """float32 [N, hidden]."""
        videos = []
        for episode in episodes:
            pictures = self._pictures(episode)
            videos.append([pictures[i] for i in spread(len(pictures), self.frames)])
        return self._vectors(videos, self.batch)

    def _pictures(self, episode: Episode) -> list[np.ndarray]:
        """uint8 [height, width, 3] of everything that the episode showed."""
        try:
            return [np.asarray(seen(observation, self.image)) for observation in shown(episode)]
        except IndexError:
            raise UserError(f"encoder vjepa2: the episodes show no picture {self.image} (its option `image`)") from None

    def _vectors(self, videos: Sequence[Sequence[np.ndarray]], batch: int) -> np.ndarray:
        import torch

        made: list[Tensor] = []
        for start in range(0, len(videos), batch):
            given = [np.stack(video) for video in videos[start : start + batch]]
            pixels = self._processor(given, return_tensors="pt", do_sample_frames=False)["pixel_values_videos"]
            with torch.no_grad():
                tokens = self._model.get_vision_features(pixels.to(self._model.device))
            made.append(tokens.float().mean(1).cpu())
        return torch.cat(made).numpy()


vjepa2 = VJEPA2


def spread(length: int, frames: int) -> np.ndarray:
    """Which `frames` of `length` pictures a video is made of, int64 [frames]: as SRPO's released code takes them."""
    if length >= frames:
        return np.linspace(0, length - 1, num=frames, dtype=int)
    return np.resize(np.arange(length), frames)


def _pretrained(source: str) -> tuple[Any, Any]:
    """Processor and model in float32; UserError where they cannot be loaded, or would be random in part."""
    import torch
    from transformers import AutoVideoProcessor, VJEPA2Model

    try:
        model, info = VJEPA2Model.from_pretrained(
            source, dtype=torch.float32, output_loading_info=True, use_safetensors=True
        )
        processor = AutoVideoProcessor.from_pretrained(source)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"encoder vjepa2: cannot load the model {source!r}: {reason}") from None
    if odd := [*info["missing_keys"], *info["mismatched_keys"]]:
        raise UserError(f"encoder vjepa2: {source!r} is no V-JEPA 2 model: {len(odd)} weights are missing")
    return processor, model
