"""Pictures without a download to cut puzzles from: drawn landscapes, which have an order, and noise, which has none."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw

from tasks.drawn.puzzles import Grid

GRAINS = 6  # colours along each side of a piece of noise


def landscape(rng: np.random.Generator, size: tuple[int, int]) -> Image.Image:
    """Sky over hills, lit from the left, both with clouds (1/f noise) on them; things that stand on the ground.

    `size`: (width, height) in pixels.
    """
    width, height = size
    ridge = _ridge(rng, size)
    rows = np.arange(height)[:, None]
    sky, ground = rng.uniform(110, 235, 3), rng.uniform(30, 150, 3)
    picture = np.where((rows < ridge)[..., None], sky, ground)
    light = rng.uniform(40, 100) * (0.5 - np.arange(width) / width) + rng.uniform(-40, 40) * (rows / height - 0.5)
    picture = picture + light[..., None] + rng.uniform(8, 25) * _clouds(rng, size)[..., None] * rng.uniform(0.4, 1.0, 3)
    image = Image.fromarray(picture.clip(0, 255).astype(np.uint8))
    for _ in range(rng.integers(1, 5)):
        _stand(ImageDraw.Draw(image), rng, size, float(ridge.mean()))
    return image


def _ridge(rng: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    """Where the sky ends, in pixels from above [width]: a slope with three waves on it."""
    width, height = size
    x = np.arange(width) / width
    waves = sum(rng.uniform(0, 0.12 / n) * np.sin(2 * np.pi * (n * x + rng.random())) for n in (1, 2, 3))
    return height * (rng.uniform(0.3, 0.7) + rng.uniform(-0.3, 0.3) * (x - 0.5) + waves)


def _clouds(rng: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    """Noise whose amplitude falls with frequency [height, width], mean 0, standard deviation 1."""
    width, height = size
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    frequency[0, 0] = np.inf  # no constant part
    spectrum = np.fft.rfft2(rng.standard_normal((height, width))) / frequency ** rng.uniform(0.8, 1.6)
    clouds = np.fft.irfft2(spectrum, (height, width))
    return clouds / clouds.std()


def _stand(draw: ImageDraw.ImageDraw, rng: np.random.Generator, size: tuple[int, int], horizon: float) -> None:
    """A trunk or wall with a crown or roof, its foot on the ground."""
    width, height = size
    foot = rng.uniform(horizon, height)
    tall, wide = rng.uniform(0.2, 0.6) * height, rng.uniform(0.08, 0.3) * width
    x, top = rng.uniform(0, width - wide), foot - tall
    body, crown = (tuple(rng.integers(0, 256, 3).tolist()) for _ in range(2))
    if rng.random() < 0.5:
        draw.rectangle((x + wide / 3, top + tall / 3, x + 2 * wide / 3, foot), fill=body)
        draw.ellipse((x, top, x + wide, top + tall / 2), fill=crown)
    else:
        draw.rectangle((x, top + tall / 4, x + wide, foot), fill=body)
        draw.polygon([(x, top + tall / 4), (x + wide / 2, top), (x + wide, top + tall / 4)], fill=crown)


def noise(rng: np.random.Generator, grid: Grid) -> Image.Image:
    """Each piece a texture of its own, all drawn alike: no seam fits, no piece belongs anywhere.

    Whatever is learned of such puzzles comes from a leak.
    """
    image = Image.new("RGB", grid.size)
    for place in range(1, grid.rows * grid.columns + 1):
        x1, y1, x2, y2 = cell = grid.cell(place)
        grains = Image.fromarray(rng.integers(0, 256, (GRAINS, GRAINS, 3), dtype=np.uint8))
        image.paste(grains.resize((x2 - x1, y2 - y1), Image.Resampling.BICUBIC), cell)
    return image
