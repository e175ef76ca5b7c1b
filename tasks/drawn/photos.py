"""Photographs to cut puzzles from: real ones that scikit-image and scikit-learn ship, or folders of the user's."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image

from tasks.readers import BadRowError, checked_size, open_image
from vlrl.types import BadRow, Data, Split, UserError

# (package, file). No photograph and no scene is in both lists; the two motorcycles are one stereo scene.
TRAIN_PHOTOS = (
    ("skimage", "data/astronaut.png"),
    ("skimage", "data/rocket.jpg"),
    ("skimage", "data/motorcycle_left.png"),
    ("skimage", "data/motorcycle_right.png"),
    ("skimage", "data/hubble_deep_field.jpg"),
    ("skimage", "data/retina.jpg"),
    ("skimage", "data/ihc.png"),
    ("sklearn", "datasets/images/flower.jpg"),
)
TEST_PHOTOS = (
    ("skimage", "data/coffee.png"),
    ("skimage", "data/chelsea.png"),
    ("sklearn", "datasets/images/china.jpg"),
)
ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
TEST_SHARE = 0.2  # of a user's only folder


@dataclass(frozen=True)
class Album:
    """Files per split, and those that could not be decoded (row: place in the sorted folder, from 1)."""

    train: tuple[Path, ...]
    test: tuple[Path, ...]
    bad: tuple[BadRow, ...] = ()

    def of(self, split: Split) -> tuple[Path, ...]:
        return self.train if split == "train" else self.test


def find(data: Data) -> Album:
    """The bundled photographs where `data` names no folder; else the images under its folders.

    With only `data.train`, a fifth of its files, chosen by their names, is kept for testing. UserError: no such folder,
    an unreadable image (`on_bad: stop`), a split without images, a photograph in both.
    """
    if data.train is None and data.test is None:
        return Album(_bundled(TRAIN_PHOTOS), _bundled(TEST_PHOTOS))
    if data.train is None:
        raise UserError("data.test is set but data.train is not: name the folder of training photographs too")
    train, bad = _folder(Path(data.train), data.on_bad)
    if data.test is None:
        kept = {file for file in train if _hashed(file.relative_to(data.train)) < TEST_SHARE}
        train, test = [file for file in train if file not in kept], sorted(kept)
    else:
        test, bad_test = _folder(Path(data.test), data.on_bad)
        bad += bad_test
    if not train or not test:
        raise UserError(
            f"{data.train}: {len(train)} photographs to train on and {len(test)} to test on; "
            "both need at least one: add images or set data.test to another folder"
        )
    if both := {file.resolve() for file in train} & {file.resolve() for file in test}:
        raise UserError(f"{min(both)}: in data.train and in data.test; keep the folders apart")
    return Album(tuple(train), tuple(test), tuple(bad))


def _hashed(file: Path) -> float:
    """A number in [0, 1) that hangs on the name only, so that new files move no old one to the other split."""
    return zlib.crc32(file.as_posix().encode()) / 2**32


def _bundled(photos: tuple[tuple[str, str], ...]) -> tuple[Path, ...]:
    files = []
    for package, file in photos:
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            raise UserError(f"bundled photographs need {package}: install scikit-image and scikit-learn, or set data")
        files.append(Path(spec.origin).parent / file)
    return tuple(files)


def _folder(folder: Path, on_bad: str) -> tuple[list[Path], list[BadRow]]:
    if not folder.is_dir():
        problem = "a file" if folder.exists() else "no such folder"
        raise UserError(f"{folder}: {problem}; set data.train and data.test to folders of images")
    good, bad = [], []
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in ENDINGS)
    for number, file in enumerate(files, start=1):
        try:
            checked_size(file)
            good.append(file)
        except BadRowError as problem:
            bad.append(BadRow(str(file), number, str(problem)))
            if on_bad == "stop":
                raise UserError(f"{problem}; remove it or set data.on_bad: skip") from problem
    return good, bad


@lru_cache(maxsize=128)
def load(file: Path, short_side: int) -> Image.Image:
    """The photograph as RGB, shrunk (never enlarged) until its shorter side is `short_side` pixels."""
    image = open_image(file)
    scale = short_side / min(image.size)
    if scale >= 1:
        return image
    return image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.LANCZOS)


def crop(
    rng: np.random.Generator, photo: Image.Image, scale: tuple[float, float], size: tuple[int, int]
) -> Image.Image:
    """A random square of `scale` (smallest, largest) times the shorter side, resized to `size` (width, height)."""
    side = rng.uniform(*scale) * min(photo.size)
    x, y = rng.uniform(0, photo.width - side), rng.uniform(0, photo.height - side)
    return photo.resize(size, Image.Resampling.BILINEAR, box=(x, y, x + side, y + side), reducing_gap=1.5)


def varied(rng: np.random.Generator, image: Image.Image, recolour: bool) -> Image.Image:
    """Mirrored half of the time; `recolour`: channels permuted, contrast and each channel's level changed.

    Few photographs must not be learned by heart.
    """
    if rng.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if not recolour:
        return image
    pixels = np.asarray(image)[..., rng.permutation(3)].astype(np.float32)
    pixels = (pixels - 128) * rng.uniform(0.6, 1.3) + 128 + rng.uniform(-30, 30, size=3)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
