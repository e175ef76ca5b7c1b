"""The latest episodes of a run, kept as plain rows and PNG: small in memory, and whole in a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from io import BytesIO
from typing import Any

from PIL.Image import Image

from vlrl.recorded import EpisodeRow, Recorded, image_name, row_of
from vlrl.types import Episode


class Memory:
    """At most `capacity` episodes; the oldest make room. What comes back is what `vlrl.recorded` keeps of an episode.

    Raises:
        UserError: an episode holds what `vlrl.recorded` does not keep.
    """

    def __init__(self, capacity: int):
        self.capacity = capacity
        self._rows: list[EpisodeRow] = []
        self._images: dict[str, bytes] = {}  # name -> PNG, each once

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, episodes: Sequence[Episode]) -> None:
        rows = [EpisodeRow.model_validate(row_of(episode, self._save)) for episode in episodes]
        self._keep([*self._rows, *rows][-self.capacity :])

    def drop(self, count: int) -> None:
        """Forgets the oldest ones."""
        self._keep(self._rows[count:])

    def episodes(self) -> Recorded:
        return Recorded("this run's memory", self._rows, self._images.__getitem__)

    def _keep(self, rows: Iterable[EpisodeRow]) -> None:
        """These rows, and the images that they show."""
        self._rows = list(rows)
        shown = {name for row in self._rows for name in row.images()}
        self._images = {name: png for name, png in self._images.items() if name in shown}

    def _save(self, image: Image) -> str:
        name = image_name(image)
        if name not in self._images:
            file = BytesIO()
            image.save(file, format="PNG")
            self._images[name] = file.getvalue()
        return name

    def state_dict(self) -> dict[str, Any]:
        import torch

        images = {name: torch.frombuffer(bytearray(png), dtype=torch.uint8) for name, png in self._images.items()}
        return {"rows": [row.model_dump() for row in self._rows], "images": images}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._rows = [EpisodeRow.model_validate(row) for row in state["rows"]]
        self._images = {name: png.numpy().tobytes() for name, png in state["images"].items()}
