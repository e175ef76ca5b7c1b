"""Jigsaw puzzles of real photographs, after Jigsaw-R1 (github.com/zifuwanggg/Jigsaw-R1).

`full`: write, for every place of the shuffled image, the place of its piece in the original. `pair`: say how two pieces
lay to each other in the original. Places are numbered from 1, row by row. All permutations are equally likely, the
identity included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal

import numpy as np
from PIL import Image

from rewards import order, parse
from tasks.base import OWN_DATA, THINK, Rendered, Task, answer_markup, check, check_weights, generator
from tasks.drawn import photos, puzzles
from vlrl.types import Data, Episode, Frame, Mark, Observation, Sample, Score, Split

WEIGHTS = {"accuracy": 1.0, "format": 0.5}
QUESTIONS = {
    "full": "For each place of the shuffled image, row by row, give the index of the place its piece came from.",
    "pair": "In the original image, where was the piece now at place {a}, seen from the one now at {b}? {options}",
}
TEMPLATES = {
    "short": {"full": "Solve the {rows}x{columns} jigsaw.", "pair": "Where is {a} from {b}? {options}"},
    "jigsaw_r1": {
        kind: "The image was cut into {rows}x{columns} pieces, which were shuffled. " + question
        for kind, question in QUESTIONS.items()
    },
}
# The ends of Jigsaw-R1's prompts, byte for byte (its utils/prompt.py).
TAIL_THINK = (
    "First, output the thinking process within <think> </think> tags. "
    "Then, provide the final answer within <answer> </answer> tags. "
)
TAIL_DIRECT = "Directly output the final answer. "
TAILS = {
    "full": "The final answer should be the position indexes arranged in a {rows}x{columns} grid.",
    "pair": "The final answer should be a single letter.",
}
# (down, right) of the first piece as seen from the second -> words.
RELATIONS = {
    (-1, 0): "above",
    (1, 0): "below",
    (0, -1): "left",
    (0, 1): "right",
    (-1, -1): "above left",
    (-1, 1): "above right",
    (1, -1): "below left",
    (1, 1): "below right",
}


class Jigsaw(Task):
    """Samples: (shuffled image, question) -> the origins (tuple of 1..mn) or, for `pair`, the right option's letter.

    `pool` training puzzles and `held_out` others of `rows` x `columns` pieces; the image is about `size` pixels wide
    and high, cut from a random square of `scale` (smallest, largest) times the photograph's shorter side; `recolour`
    changes the training puzzles' colours, so that few photographs are not learned by heart. `mask`
    blackens that share of a piece's side at the image's border and half of it on either side of a seam.
    Reward parts: `accuracy` in [0, 1] (share of right indices; `pair`: 0 or 1), `format` 0 or 1. Correct: all right.
    Raises UserError for options out of range and for folders of photographs that cannot be used.
    """

    def __init__(
        self,
        *,
        data: Data = OWN_DATA,
        rows: int = 2,
        columns: int = 2,
        kind: Literal["full", "pair"] = "full",
        size: int = 64,
        mask: float = 0.0,
        scale: tuple[float, float] = (0.2, 1.0),
        recolour: bool = True,
        pool: int = 100_000,
        held_out: int = 512,
        thinking: bool = False,
        template: Literal["short", "jigsaw_r1"] = "short",
        weights: Mapping[str, float] = WEIGHTS,
        seed: int = 0,
    ):
        check(1 <= rows <= 4, "rows", rows, "1 to 4")
        check(1 <= columns <= 4, "columns", columns, "1 to 4")
        check(rows * columns >= 2, "rows", rows, "such that there are at least two pieces: raise rows or columns")
        check(kind in QUESTIONS, "kind", kind, "full or pair")
        check(size >= 16, "size", size, "at least 16 pixels")
        check(0 <= mask < 0.5, "mask", mask, "at least 0 and under 0.5")
        check(0.05 <= scale[0] <= scale[1] <= 1, "scale", scale, "a smallest and a largest share in 0.05 to 1")
        check(seed >= 0, "seed", seed, "at least 0")
        check(pool > 0, "pool", pool, "at least 1")
        check(held_out > 0, "held_out", held_out, "at least 1")
        check(template in TEMPLATES, "template", template, f"one of {', '.join(TEMPLATES)}")
        self.weights = check_weights(weights, tuple(WEIGHTS))
        self.rows, self.columns, self.kind, self.seed = rows, columns, kind, seed
        self.mask, self.scale, self.thinking, self.template = mask, tuple(scale), thinking, template
        self.recolour = recolour
        self._grid = puzzles.Grid(rows, columns, (round(size / columns) * columns, round(size / rows) * rows))
        self._lengths = {"train": pool, "test": held_out}
        self._photos = photos.find(data)
        self._short_side = round(2 * size / scale[0])  # keeps the smallest crop at twice the size of the puzzle
        self.bad_rows = self._photos.bad

    def samples(self, split: Split) -> Sequence[Sample]:
        return Rendered(self._lengths[split], partial(self._sample, split))

    def _sample(self, split: Split, index: int) -> Sample:
        rng = generator(self.seed, split, index)
        crop = self._crop(rng, split)
        origins = tuple((rng.permutation(self.rows * self.columns) + 1).tolist())
        image = puzzles.shuffle(crop, self._grid, origins, self.mask)
        question, answer = self._pair(rng, origins) if self.kind == "pair" else (self._text(), origins)
        return Sample(f"jigsaw/{split}/{index:06d}", Observation((image, question)), answer)

    def _crop(self, rng: np.random.Generator, split: Split) -> Image.Image:
        files = self._photos.of(split)
        photo = photos.load(files[rng.integers(len(files))], self._short_side)
        side = rng.uniform(*self.scale) * min(photo.size)
        x, y = rng.uniform(0, photo.width - side), rng.uniform(0, photo.height - side)
        crop = photo.resize(
            self._grid.size, Image.Resampling.BILINEAR, box=(x, y, x + side, y + side), reducing_gap=1.5
        )
        if split == "test":
            return crop
        if rng.random() < 0.5:
            crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return _recoloured(rng, crop) if self.recolour else crop

    def _pair(self, rng: np.random.Generator, origins: tuple[int, ...]) -> tuple[str, str]:
        """The question about two places, and the letter of the right option."""
        a, b = rng.choice(len(origins), size=2, replace=False).tolist()
        truth = RELATIONS[self._grid.direction(origins[a], origins[b])]
        options = [self._relations()[i] for i in rng.permutation(len(self._relations()))]
        listed = " ".join(f"({chr(ord('A') + i)}) {option}" for i, option in enumerate(options))
        return self._text(a=a + 1, b=b + 1, options=listed), chr(ord("A") + options.index(truth))

    def _relations(self) -> list[str]:
        if self.rows == 1:
            return ["left", "right"]
        return ["above", "below"] if self.columns == 1 else list(RELATIONS.values())

    def _text(self, **named: object) -> str:
        text = TEMPLATES[self.template][self.kind]
        if self.template == "jigsaw_r1":
            tags = "" if self.thinking else " Write it within <answer> </answer> tags."
            text += f"{tags} {TAIL_THINK if self.thinking else TAIL_DIRECT}{TAILS[self.kind]}"
        elif self.thinking:
            text += f" {THINK}"
        return text.format(rows=self.rows, columns=self.columns, **named)

    def _read(self, text: str) -> parse.Parsed:
        """The origins or the letter inside the answer tags."""
        if self.kind == "pair":
            return parse.letter(text, len(self._relations()))
        places = self.rows * self.columns
        parsed = parse.integers(text, 1, places)
        return parsed if parsed.reason or len(parsed.value) == places else parse.Parsed(reason="wrong_count")

    def score(self, episode: Episode) -> Score:
        """Parts `accuracy` and `format`; an answer that does not parse earns nothing."""
        truth = episode.sample.answer
        parsed = parse.answer(episode.completion, self.thinking, self._read)
        accuracy = 0.0 if parsed.reason else order.index_accuracy(parsed.value, truth)
        return Score(
            {"accuracy": accuracy, "format": float(parsed.reason is None)},
            correct=0.0 if parsed.reason else order.exact(parsed.value, truth),
            answer=parsed.value,
            reason=parsed.reason,
            marks=self._marks(truth, parsed.value),
        )

    def _marks(self, truth: tuple[int, ...] | str, answer: tuple[int, ...] | str | None) -> tuple[Mark, ...]:
        texts = [Mark("truth", "text", label=_written(truth))]
        if answer is not None:
            texts.append(Mark("prediction", "text", label=_written(answer)))
        if self.kind == "pair":
            return tuple(texts)
        cells = (Mark("truth", "box", self._grid.cell(place), str(origin)) for place, origin in enumerate(truth, 1))
        return (*texts, *cells)

    def gold(self, sample: Sample, frames: Sequence[Frame]) -> str:
        """The completion with the highest score."""
        return answer_markup(_written(sample.answer), self.thinking)


def _written(answer: tuple[int, ...] | str) -> str:
    return answer if isinstance(answer, str) else " ".join(map(str, answer))


def _recoloured(rng: np.random.Generator, image: Image.Image) -> Image.Image:
    """Channels permuted, contrast and each channel's level changed: few photographs must not be learned by heart."""
    pixels = np.asarray(image)[..., rng.permutation(3)].astype(np.float32)
    pixels = (pixels - 128) * rng.uniform(0.6, 1.3) + 128 + rng.uniform(-30, 30, size=3)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
