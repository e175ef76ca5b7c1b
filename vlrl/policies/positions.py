"""Rotary positions in three dimensions, of prompts that hold text, images and videos."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor


def positions_of(types: Tensor, grids: Sequence[tuple[int, int, int]], ticks: Sequence[Sequence[int]]) -> Tensor:
    """Rotary positions (time, height, width) of a prompt, as the Qwen2.5-VL report (2502.13923, 2.1.3) has them.

    Text counts on; a medium starts where the text before it ends, and what follows starts behind its largest position.
    (transformers 5 lets the text behind a Qwen2.5-VL video start amid the video's times, unlike 4 and the model.)

    Args:
        types: [P], 0 text, 1 placeholder. A medium's layers may stand apart, with text between them.
        grids: tokens (time, height, width) of each medium.
        ticks: by how much each layer of a medium lies behind its first one, where they stand together.

    Returns:
        int64 [3, P]
    """
    places = [
        torch.stack(torch.meshgrid(torch.tensor(given), torch.arange(h), torch.arange(w), indexing="ij")).flatten(1)
        for (_, h, w), given in zip(grids, ticks, strict=True)
    ]
    shown = torch.cat(places, 1) if places else torch.empty((3, 0), dtype=torch.int64)
    parts, start = [], 0
    for kind, run in groupby(types.tolist()):
        length = len(list(run))
        if kind:
            part, shown = shown[:, :length], shown[:, length:]
        else:
            part = torch.arange(length).expand(3, -1)
        parts.append(part - part[:, :1] + start)
        start = int(parts[-1].max()) + 1
    return torch.cat(parts, 1)
