"""Synthetic scenes: shapes, landscapes, photos, phrases that describe them, counts."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from rewards.parse import Object
from tasks.base import check
from tasks.data.images import BadRowError, checked_size, open_image
from tasks.rendering import figures, robot_scenes, screens
from tasks.rendering.figures import TRIES as FIGURES_TRIES
from tasks.rendering.figures import QuestionAnswer, Quiz, Rng, Size, dealt, draw_integer, held_out, one
from tasks.rendering.puzzles import PuzzleGrid
from tasks.rendering.screens import COLORS
from tasks.rendering.screens import SHAPES as SCREENS_SHAPES
from vlrl.types import BadRow, Data, Split, UserError, shallow

# Pictures without a download to cut puzzles from: drawn landscapes, which have an order, and noise, which has none.

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


def noise(rng: np.random.Generator, grid: PuzzleGrid) -> Image.Image:
    """Each piece a texture of its own, all drawn alike: no seam fits, no piece belongs anywhere.

    Whatever is learned of such puzzles comes from a leak.
    """
    image = Image.new("RGB", grid.size)
    for place in range(1, grid.rows * grid.columns + 1):
        x1, y1, x2, y2 = cell = grid.cell(place)
        grains = Image.fromarray(rng.integers(0, 256, (GRAINS, GRAINS, 3), dtype=np.uint8))
        image.paste(grains.resize((x2 - x1, y2 - y1), Image.Resampling.BICUBIC), cell)
    return image


# Photographs to cut puzzles from: real ones that scikit-image and scikit-learn ship, or folders of the user's.

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
class ImageSplits:
    """Files per split, and those that could not be decoded (row: place in the sorted folder, from 1)."""

    train: tuple[Path, ...]
    test: tuple[Path, ...]
    bad: tuple[BadRow, ...] = ()

    def of(self, split: Split) -> tuple[Path, ...]:
        return self.train if split == "train" else self.test


def find_photos(data: Data) -> ImageSplits:
    """The bundled photographs where `data` names no folder; else the images under its folders.

    With only `data.train`, a fifth of its files, chosen by their names, is kept for testing. UserError: no such folder,
    an unreadable image (`on_bad: stop`), a split without images, a photograph in both.
    """
    if data.train is None and data.test is None:
        return ImageSplits(_bundled(TRAIN_PHOTOS), _bundled(TEST_PHOTOS))
    if data.train is None:
        raise UserError("data.test is set but data.train is not: name the folder of training photographs too")
    train, bad = _folder(Path(data.train), data.on_bad_row)
    if data.test is None:
        kept = {file for file in train if _hashed(file.relative_to(data.train)) < TEST_SHARE}
        train, test = [file for file in train if file not in kept], sorted(kept)
    else:
        test, bad_test = _folder(Path(data.test), data.on_bad_row)
        bad += bad_test
    if not train or not test:
        raise UserError(
            f"{data.train}: {len(train)} photographs to train on and {len(test)} to test on; "
            "both need at least one: add images or set data.test to another folder"
        )
    if both := {file.resolve() for file in train} & {file.resolve() for file in test}:
        raise UserError(f"{min(both)}: in data.train and in data.test; keep the folders apart")
    return ImageSplits(tuple(train), tuple(test), tuple(bad))


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
                raise UserError(f"{problem}; remove it or set data.on_bad_row: skip") from problem
    return good, bad


@lru_cache(maxsize=128)
def load_photo(file: Path, short_side: int) -> Image.Image:
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


PATTERNS = ("plain", "stripes", "checks", "dots")
Look = tuple[Sequence[str], Sequence[str]]
TRIES = 60  # places that are tried for an object
NIGHT = 0.55  # what photographs keep of their contrast: objects should be seen


@dataclass(frozen=True)
class SceneObject:
    """One object of a scene; `box` is the smallest that holds its pixels: x1, y1, x2, y2, edges after the last."""

    shape: str
    color: str
    pattern: str
    box: tuple[int, int, int, int]

    @property
    def side(self) -> int:
        return max(self.box[2] - self.box[0], self.box[3] - self.box[1])


def draw(
    rng: np.random.Generator,
    split: Split,
    *,
    size: tuple[int, int],
    looks: Sequence[Look],
    patterns: Sequence[str],
    side: tuple[float, float],
    photo_share: float,
) -> tuple[Image.Image, tuple[SceneObject, ...]]:
    """A scene of `size` (width, height) with an object for each of `looks`, as far as there is room; at least one.

    A look is the shapes and the colours to choose from, `patterns` are those of all objects, `side` the objects'
    smallest and largest side as a share of the scene's shorter one, `photo_share` how many scenes lie on a
    photograph (of the split's own) instead of a plain ground. Objects do not overlap.
    """
    image = _ground(rng, split, size, photo_share)
    things: list[SceneObject] = []
    for shapes, colors in looks:
        shape, color, pattern = (options[int(rng.integers(len(options)))] for options in (shapes, colors, patterns))
        extent = _extent(rng, shape, side, min(size))
        place = _find_box(rng, size, extent, [thing.box for thing in things])
        if place:
            things.append(_draw_object(image, rng, SceneObject(shape, color, pattern, place)))
    return image, tuple(things)


def _ground(rng: np.random.Generator, split: Split, size: tuple[int, int], photo_share: float) -> Image.Image:
    """A random crop of a photograph, with less contrast; or a plain grey."""
    if rng.random() >= photo_share:
        return Image.new("RGB", size, (int(rng.integers(20, 236)),) * 3)
    files = _photographs(split)
    photo = load_photo(files[rng.integers(len(files))], 4 * max(size))
    edge = rng.uniform(0.3, 1.0) * min(photo.size)
    width, height = (edge * side / max(size) for side in size)
    x, y = rng.uniform(0, photo.width - width), rng.uniform(0, photo.height - height)
    crop = photo.resize(size, Image.Resampling.BILINEAR, box=(x, y, x + width, y + height), reducing_gap=1.5)
    if rng.random() < 0.5:
        crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return Image.blend(Image.new("RGB", size, (int(rng.integers(60, 196)),) * 3), crop, NIGHT)


@lru_cache(maxsize=2)
def _photographs(split: Split) -> tuple[Path, ...]:
    return find_photos(Data()).of(split)


def _extent(rng: np.random.Generator, shape: str, side: tuple[float, float], shorter: int) -> tuple[int, int]:
    """Width and height in pixels: a square but for bars."""
    longest = max(4, round(rng.uniform(*side) * shorter))
    return (longest, max(3, longest // 2)) if shape == "bar" else (longest, longest)


def _find_box(
    rng: np.random.Generator, size: tuple[int, int], extent: tuple[int, int], taken: Sequence[tuple[int, ...]]
) -> tuple[int, int, int, int] | None:
    """A random box that touches no other; the first is always placed."""
    for _ in range(TRIES):
        x, y = (int(rng.integers(0, max(1, size[i] - extent[i] + 1))) for i in (0, 1))
        right, low = x + extent[0], y + extent[1]
        if all(right < a or c < x or low < b or d < y for a, b, c, d in taken):
            return x, y, right, low
    return None


def _draw_object(image: Image.Image, rng: np.random.Generator, thing: SceneObject) -> SceneObject:
    """Draws the thing on the image; its box is what its pixels fill."""
    x1, y1, x2, y2 = thing.box
    mask = Image.new("L", (x2 - x1, y2 - y1), 0)
    _shape(ImageDraw.Draw(mask), thing.shape, mask.size)
    image.paste(_surface(rng, thing, mask.size), thing.box, mask)
    a, b, c, d = mask.getbbox()
    return SceneObject(thing.shape, thing.color, thing.pattern, (x1 + a, y1 + b, x1 + c, y1 + d))


def _shape(draw: ImageDraw.ImageDraw, shape: str, size: tuple[int, int]) -> None:
    width, height = size[0] - 1, size[1] - 1
    third = (width + 1) // 3
    if shape == "circle":
        draw.ellipse((0, 0, width, height), fill=255)
    elif shape == "triangle":
        draw.polygon(((0, height), (width, height), (width / 2, 0)), fill=255)
    elif shape == "ring":
        draw.ellipse((0, 0, width, height), outline=255, width=max(2, third * 2 // 3))
    elif shape == "cross":
        draw.rectangle((third, 0, width - third, height), fill=255)
        draw.rectangle((0, third, width, height - third), fill=255)
    else:  # square and bar fill their extent
        draw.rectangle((0, 0, width, height), fill=255)


def _surface(rng: np.random.Generator, thing: SceneObject, size: tuple[int, int]) -> Image.Image:
    """The thing's colour in its pattern; the other tone is the colour darkened."""
    color = np.asarray(COLORS[thing.color])
    y, x = np.mgrid[: size[1], : size[0]] + int(rng.integers(8))
    period = max(4, max(size) // 4)
    dark = {
        "plain": np.zeros_like(x, dtype=bool),
        "stripes": (x + y) % period < period // 2,
        "checks": (x // (period // 2) + y // (period // 2)) % 2 == 0,
        "dots": (x % period - period / 2) ** 2 + (y % period - period / 2) ** 2 < (period / 3) ** 2,
    }[thing.pattern]
    return Image.fromarray(np.where(dark[..., None], color * 0.45, color).astype(np.uint8))


# Pictures with labelled objects, drawn without a download: one function per source, all called alike.

PICTURES_COLORS = tuple(screens.COLORS)
Drawn = tuple[Image.Image, tuple[Object, ...]]


@dataclass(frozen=True)
class ObjectSource:
    """`draw(rng, split, labels, size, side)` shows an object of each label, as far as there is room."""

    labels: tuple[str, ...]
    draw: Callable[[np.random.Generator, Split, Sequence[str], tuple[int, int], tuple[float, float]], Drawn]


def _by_shape(rng, split, labels, size, side, *, patterns=PATTERNS) -> Drawn:
    looks = [((label,), PICTURES_COLORS) for label in labels]
    image, things = draw(rng, split, size=size, looks=looks, patterns=patterns, side=side, photo_share=0.8)
    return image, tuple(Object(thing.shape, tuple(map(float, thing.box))) for thing in things)


def _by_color(rng, split, labels, size, side) -> Drawn:
    looks = [(screens.SHAPES, (label,)) for label in labels]
    image, things = draw(rng, split, size=size, looks=looks, patterns=PATTERNS, side=side, photo_share=0.8)
    return image, tuple(Object(thing.color, tuple(map(float, thing.box))) for thing in things)


SOURCES: Mapping[str, ObjectSource] = {
    "scenes": ObjectSource(screens.SHAPES, _by_shape),
    "plain": ObjectSource(screens.SHAPES, partial(_by_shape, patterns=("plain",))),
    "colors": ObjectSource(PICTURES_COLORS, _by_color),
    "digits": ObjectSource(figures.LABELS, figures.mosaic),
    "robot": ObjectSource(robot_scenes.LABELS, robot_scenes.draw_scene),
}


def check_drawing(
    source: str, pool: int, held_out: int, size: tuple[int, int], objects: tuple[int, int], side: tuple[float, float]
) -> None:
    """UserError where an option of a task that draws pictures is out of range."""
    check(source in SOURCES, "source", source, f"one of {', '.join(SOURCES)}")
    check(pool > 0, "pool", pool, "at least 1")
    check(held_out > 0, "held_out", held_out, "at least 1")
    check(min(size) >= 32, "size", size, "at least 32 x 32 pixels")
    check(1 <= objects[0] <= objects[1] <= 50, "objects", objects, "a least and a largest number in 1 to 50")
    check(0.02 <= side[0] <= side[1] <= 1, "side", side, "a smallest and a largest share in 0.02 to 1")


def choose_labels(
    rng: np.random.Generator, labels: Sequence[str], objects: tuple[int, int], negatives: float
) -> tuple[str, list[str]]:
    """The label that is asked for, and the labels to draw: `objects` (least, most) in all, in random order.

    With the chance `negatives` none of them has the asked label; otherwise between one and all have.
    """
    label = labels[int(rng.integers(len(labels)))]
    total = int(rng.integers(objects[0], objects[1] + 1))
    count = 0 if rng.random() < negatives else int(rng.integers(1, total + 1))
    others = [other for other in labels if other != label]
    chosen_labels = [label] * count + [others[rng.integers(len(others))] for _ in range(total - count)]
    return label, [chosen_labels[i] for i in rng.permutation(total)]


# Scenes of shapes to be counted, drawn by tasks.rendering.scenes. Content, which splits never share: which shapes.
#
# A content is the scene's shapes, those of one kind together. Level 1 has up to three plain ones; 2 up to five in
# patterns over photographs (each split its own); 3 up to nine, and compares two kinds.

MOST = {1: 3, 2: 5, 3: 9}
COUNTED_SIDES = {1: (0.25, 0.4), 2: (0.2, 0.32), 3: (0.12, 0.2)}  # of objects, as shares of the picture's


def counted(rng: Rng, split: Split, size: Size, level: int) -> Quiz:
    kinds = dealt(split, lambda: _kinds(rng, level))
    source = SOURCES["plain" if level == 1 else "scenes"]
    mixed = [kinds[int(i)] for i in rng.permutation(len(kinds))]
    while True:  # until there was room for all
        image, objects = source.draw(rng, split, mixed, size, COUNTED_SIDES[level])
        if len(objects) == len(kinds):
            break
    counts = Counter(thing.label for thing in objects)
    name = one(rng, sorted(counts)) if rng.random() < 0.8 else one(rng, SCREENS_SHAPES)
    questions = [QuestionAnswer("counted/one", f"How many {plural(name)}?", "number", str(counts[name]))]
    if level > 1:
        questions.append(QuestionAnswer("counted/all", "How many shapes?", "number", str(len(objects))))
    if level == 3 and len(counts) > 1 and len({count for _, count in counts.most_common(2)}) == 2:
        (most, _), (other, _) = counts.most_common(2)
        options = tuple(sorted((most, other)))
        questions.append(
            QuestionAnswer(
                "counted/more", f"More {plural(options[0])} or {plural(options[1])}?", "choice", most, options
            )
        )
    return Quiz(image, questions, f"Shapes: {', '.join(thing.label for thing in objects)}.")


def _kinds(rng: Rng, level: int) -> tuple[str, ...]:
    """Of few kinds, so that there is something to be counted."""
    total, few = draw_integer(rng, 1, MOST[level]), [one(rng, SCREENS_SHAPES) for _ in range(3)]
    return tuple(sorted(one(rng, few) for _ in range(total)))


def plural(name: str) -> str:
    return f"{name}es" if name.endswith("s") else f"{name}s"


TOPICS = {"counted": counted}


# Scenes that one short sentence describes, in a fixed vocabulary: `two red circles left of a blue square`.
#
# What is described (`Content`) is chosen first, and the scene is drawn anew until it shows just that: so that no
# content
# is rarer for being harder to draw. Contents of two groups, of which there are many, are dealt to the splits by a hash
# (tasks/rendering/figures.py); those of one group are so few that both splits show all of them, in other places and
# sizes.

DESCRIBED_COLORS, SHAPES = tuple(screens.COLORS), screens.SHAPES
NUMBERS = {1: "a", 2: "two", 3: "three", 4: "four"}
OPPOSITE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}
DESCRIBED_SIDES = {1: (0.25, 0.4), 2: (0.18, 0.28)}  # groups -> sides of their things, as shares of the picture's
KINDS = ("color", "shape", "count", "relation")  # what a corruption changes


@dataclass(frozen=True)
class ObjectGroup:
    """Things that look alike."""

    count: int
    color: str
    shape: str

    @property
    def text(self) -> str:
        name = self.shape if self.count == 1 else plural(self.shape)
        return f"{NUMBERS[self.count]} {self.color} {name}".replace("a orange", "an orange")


@dataclass(frozen=True)
class Content:
    """One group, or two and how the first lies to the second."""

    first: ObjectGroup
    relation: str = ""
    second: ObjectGroup | None = None

    @property
    def groups(self) -> tuple[ObjectGroup, ...]:
        return (self.first,) if self.second is None else (self.first, self.second)

    @property
    def text(self) -> str:
        return self.first.text if self.second is None else f"{self.first.text} {self.relation} {self.second.text}"


def content(rng: np.random.Generator, split: Split, level: int, most: int) -> Content:
    """A content for the split: of one group at level 1, of two at level 2; `most` things in each."""
    return _content(rng, level, most) if level == 1 else dealt(split, lambda: _content(rng, level, most))


def pair(rng: np.random.Generator, split: Split, level: int, most: int) -> tuple[Content, Content, str]:
    """A content, another that differs in one thing, and in which (of KINDS). Both are for the split.

    Either might as well have been the other: seen over many pairs, the texts say nothing of which is shown.
    """
    kinds = KINDS if level > 1 else KINDS[:3]
    for _ in range(FIGURES_TRIES):
        right, kind = _content(rng, level, most), one(rng, kinds)
        wrong = _changed(rng, right, kind, most)
        if wrong and (level == 1 or held_out(right) == held_out(wrong) == (split == "test")):
            return right, wrong, kind
    raise RuntimeError(f"no pair of contents for {split} in {FIGURES_TRIES} tries")


def _content(rng: np.random.Generator, level: int, most: int) -> Content:
    while True:
        first, second = (
            ObjectGroup(draw_integer(rng, 1, most), one(rng, DESCRIBED_COLORS), one(rng, SHAPES)) for _ in range(2)
        )
        relation = one(rng, tuple(OPPOSITE))
        if level == 1:
            return Content(first)
        if (first.color, first.shape) != (second.color, second.shape):
            return Content(first, relation, second)


def _changed(rng: np.random.Generator, right: Content, kind: str, most: int) -> Content | None:
    """None where the change leads to nothing that can be drawn."""
    if kind == "relation":
        return replace(right, relation=OPPOSITE[right.relation])
    place = one(rng, ("first", "second")[: len(right.groups)])
    group = right.groups[("first", "second").index(place)]
    options: Sequence[str | int] = {"color": DESCRIBED_COLORS, "shape": SHAPES, "count": range(1, most + 1)}[kind]
    others = [each for each in options if each != shallow(group)[kind]]
    if not others:
        return None
    changed = replace(right, **{place: replace(group, **{kind: one(rng, others)})})
    looks = {(each.color, each.shape) for each in changed.groups}
    return changed if len(looks) == len(changed.groups) else None


def draw_described(
    rng: np.random.Generator, split: Split, shown: Content, size: tuple[int, int], pattern: str, photo_share: float
) -> tuple[Image.Image, tuple[str, ...]]:
    """A picture of the content, and every sentence that describes all of it: the content's own comes first."""
    looks = [((group.shape,), (group.color,)) for group in shown.groups for _ in range(group.count)]
    side = DESCRIBED_SIDES[len(shown.groups)]
    for _ in range(FIGURES_TRIES):
        image, things = draw(
            rng, split, size=size, looks=looks, patterns=(pattern,), side=side, photo_share=photo_share
        )
        if len(things) < len(looks):
            continue
        if shown.second is None:
            return image, (shown.text,)
        true_relations = _relations(things[: shown.first.count], things[shown.first.count :])
        if shown.relation in true_relations:
            relations = [shown.relation, *(each for each in true_relations if each != shown.relation)]
            return image, tuple(replace(shown, relation=each).text for each in relations)
    raise RuntimeError(f"no room for {shown.text} in {FIGURES_TRIES} tries")


def _relations(first: Sequence[SceneObject], second: Sequence[SceneObject]) -> list[str]:
    """How all of the first lie to all of the second."""

    def before(one: Sequence[SceneObject], other: Sequence[SceneObject], axis: int) -> bool:
        return max(thing.box[axis + 2] for thing in one) <= min(thing.box[axis] for thing in other)

    truth_of = {"left of": before(first, second, 0), "right of": before(second, first, 0),
             "above": before(first, second, 1), "below": before(second, first, 1)}  # fmt: skip
    return [relation for relation, holds in truth_of.items() if holds]


# Phrases that fit exactly one object of a drawn scene, by colour, pattern, size or place.

EXTREMES: dict[str, Callable[[SceneObject], float]] = {  # word -> what the object has least of
    "left": lambda thing: thing.box[0] + thing.box[2],
    "right": lambda thing: -thing.box[0] - thing.box[2],
    "top": lambda thing: thing.box[1] + thing.box[3],
    "bottom": lambda thing: -thing.box[1] - thing.box[3],
    "small": lambda thing: thing.side,
    "big": lambda thing: -thing.side,
}
CLEAR = 1.15  # a size must differ from the next one's by this factor, centres by half as many of the object's sides


def by_place(phrase: str) -> bool:
    """Whether a phrase tells its object by place or size, not by its look."""
    return phrase.split()[0] in EXTREMES


def fitting(things: Sequence[SceneObject], target: SceneObject) -> list[str]:
    """Every phrase that fits the target and no other thing; those with a look come first."""
    phrases = []
    for looks in (f"{target.color} {target.shape}", f"{target.pattern} {target.shape}", target.shape):
        same = [thing for thing in things if _fits(thing, looks)]
        if len(same) == 1:
            phrases.append(looks)
    same = [thing for thing in things if thing.shape == target.shape]
    phrases += [f"{word} {target.shape}" for word in EXTREMES if len(same) > 1 and _extreme(same, target, word)]
    return phrases


def _fits(thing: SceneObject, looks: str) -> bool:
    return looks in (thing.shape, f"{thing.color} {thing.shape}", f"{thing.pattern} {thing.shape}")


def _extreme(things: Sequence[SceneObject], target: SceneObject, word: str) -> bool:
    """Whether the target has clearly least of what the word measures."""
    others = [thing for thing in things if thing is not target]
    own, next_ = EXTREMES[word](target), min(map(EXTREMES[word], others))
    if word == "small":
        return own * CLEAR <= next_
    if word == "big":
        return own <= next_ * CLEAR
    return next_ - own >= target.side * CLEAR
