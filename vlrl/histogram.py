"""A small bar chart as an image, drawn without further packages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 480, 300, 56, 20, 40, 48
BINS, GAP, FONT = 20, 2, 12
ALL, KEPT, INK = (190, 196, 204), (37, 99, 160), (50, 54, 60)


def histogram(values: Sequence[float], kept: Sequence[bool], label: str) -> Image.Image:
    """Counts of values >= 0 in equal bins from 0 to the largest; those that were kept in blue.

    Args:
        values: [N], at least one.
        kept: [N].
        label: of the horizontal axis.
    """
    top = max(values) or 1.0
    every, edges = np.histogram(values, bins=BINS, range=(0, top))
    blue, _ = np.histogram(np.asarray(values)[np.asarray(kept, bool)], bins=edges)
    image = Image.new("RGB", (WIDTH, HEIGHT), "white")
    draw, step = ImageDraw.Draw(image), (WIDTH - LEFT - RIGHT) / BINS
    floor, room = HEIGHT - BOTTOM, HEIGHT - BOTTOM - TOP
    for counts, colour in ((every, ALL), (blue, KEPT)):
        for i, count in enumerate(counts.tolist()):
            if count:
                corner = LEFT + i * step + GAP, floor - max(1, room * count / every.max())
                draw.rectangle((*corner, LEFT + (i + 1) * step - GAP, floor), fill=colour)
    draw.line((LEFT, floor, WIDTH - RIGHT, floor), fill=INK)
    font = ImageFont.load_default(FONT)
    for x, text, anchor in ((LEFT, "0", "ma"), (WIDTH - RIGHT, f"{top:.3g}", "ra")):
        draw.text((x, floor + 5), text, INK, font, anchor)
    draw.text(((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8), label, INK, font, "ms")
    draw.text((LEFT - 6, TOP), str(every.max()), INK, font, "rm")
    draw.text((LEFT, 10), f"{len(values)} samples, ", INK, font, "la")
    draw.text((LEFT + draw.textlength(f"{len(values)} samples, ", font), 10), f"{sum(kept)} kept", KEPT, font, "la")
    return image
