"""Jigsaw puzzles of real photographs, after Jigsaw-R1 (github.com/zifuwanggg/Jigsaw-R1).

`full`: write, for every place of the shuffled image, the place of its piece in the original (`backward`: for every
place of the original, where its piece lies now). `pair`: say how two pieces lay to each other in the original. Places
are numbered from 1, row by row, or named in words. All permutations are equally likely, the identity included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal

import numpy as np
from PIL import Image

from rewards import order, parse
from tasks.base import FORM, OWN_DATA, Rendered, Task, answer_markup, check, check_weights, count_from, generator
from tasks.metrics import accuracy_by, mean, parse_failures
from tasks.rendering import puzzles, scenes
from tasks.rendering.puzzles import Answer, PuzzleGrid, Questions
from vlrl.types import Annotation, Data, Episode, Frame, Observation, Sample, Score, Split, UserError

WEIGHTS = {"accuracy": 1.0, **FORM}
Size = tuple[int, int]  # rows, columns


class Jigsaw(Task):
    """Samples: (shuffled image, question) -> places (tuple of 1..mn) or, for `pair`, the right option's letter.

    `pool` training puzzles and `held_out` others of `rows` x `columns` pieces; `turned`: half of them turned round.
    `curriculum` gives training puzzles other sizes: step -> (rows, columns) from it on; test puzzles stay as they are.
    The image is about `size` pixels wide and high, cut from a random square of `scale` (smallest, largest) times the
    photograph's shorter side; `recolour` changes the training puzzles' colours, and a share `drawn` of them are drawn
    landscapes, so that few photographs are not learned by heart. `source`: photographs, drawn landscapes alone, or
    noise, of which nothing can be learned. `mask` blackens that share of a piece's side at the image's border and half
    of it on either side of a seam.
    Reward parts: `accuracy` in [0, 1] (share of right places; `pair`: 0 or 1), `format` 0 or 1. Correct: all right.
    An order must name each place once; `reward: published` also pays one that does not, as Jigsaw-R1 does.
    Raises UserError for options out of range and for folders of photographs that cannot be used.
    """

    def __init__(
        self,
        *,
        data: Data = OWN_DATA,
        rows: int = 2,
        columns: int = 2,
        turned: bool = False,
        curriculum: Mapping[int, Size] | None = None,
        kind: Literal["full", "pair"] = "full",
        backward: bool = False,
        places: Literal["numbers", "words"] = "numbers",
        source: Literal["photos", "landscapes", "noise"] = "photos",
        drawn: float = 0.0,
        size: int = 64,
        mask: float = 0.0,
        scale: tuple[float, float] = (0.2, 1.0),
        recolour: bool = True,
        pool: int = 100_000,
        held_out: int = 512,
        reward: Literal["permutation", "published"] = "permutation",
        thinking: bool = False,
        template: Literal["short", "jigsaw_r1"] = "short",
        weights: Mapping[str, float] | None = None,
        seed: int = 0,
    ):
        _check_size("rows", (rows, columns))
        for step, other in (curriculum or {}).items():
            check(step >= 0, "curriculum", step, "steps from 0")
            _check_size(f"curriculum.{step}", other)
        check(source in ("photos", "landscapes", "noise"), "source", source, "photos, landscapes or noise")
        check(0 <= drawn <= 1, "drawn", drawn, "a share in 0 to 1")
        check(size >= 16, "size", size, "at least 16 pixels")
        check(0 <= mask < 0.5, "mask", mask, "at least 0 and under 0.5")
        check(0.05 <= scale[0] <= scale[1] <= 1, "scale", scale, "a smallest and a largest share in 0.05 to 1")
        check(seed >= 0, "seed", seed, "at least 0")
        check(pool > 0, "pool", pool, "at least 1")
        check(held_out > 0, "held_out", held_out, "at least 1")
        check(reward in ("permutation", "published"), "reward", reward, "permutation or published")
        self.questions = Questions(kind, backward, places, reward == "published", thinking, template)
        self.thinking, self.seed = thinking, seed
        self._grid, self._side, self._turned = PuzzleGrid.near(rows, columns, size), size, turned
        self._stages = {step: PuzzleGrid.near(*other, size) for step, other in (curriculum or {}).items()}
        self._trained = self._grid  # outside training the tested size
        own = WEIGHTS if kind == "pair" else count_from(1 / self._grid.pieces, WEIGHTS)  # places right by chance
        self.weights = check_weights(own if weights is None else weights, tuple(WEIGHTS))
        self._source, self._drawn, self._mask = source, drawn, mask
        self._scale, self._recolour = tuple(scale), recolour
        self._lengths = {"train": pool, "test": held_out}
        if source != "photos" and (data.train or data.test):
            raise UserError(f"data: task.source {source} shows no photographs: set it to photos or remove data")
        self._photos = scenes.find_photos(data) if source == "photos" else scenes.ImageSplits((), ())
        self._short_side = round(2 * size / scale[0])  # keeps the smallest crop at twice the size of the puzzle
        self.bad_rows = self._photos.bad

    def samples(self, split: Split) -> Sequence[Sample]:
        return Rendered(self._lengths[split], partial(self._sample, split))

    def at_step(self, step: int) -> None:
        """Training samples made from now on have this step's size; their ids say so."""
        starts = [start for start in self._stages if start <= step]
        self._trained = self._stages[max(starts)] if starts else self._grid

    def _sample(self, split: Split, index: int) -> Sample:
        rng = generator(self.seed, split, index)
        grid = self._trained if split == "train" else self._grid
        if self._turned and rng.random() < 0.5:
            grid = grid.turned
        picture = self._picture(rng, split, grid)
        origins = tuple((rng.permutation(grid.pieces) + 1).tolist())
        image = puzzles.shuffle(picture, grid, origins, self._mask)
        question, answer, relation = self.questions.ask(rng, grid, origins)
        tags = {"size": str(grid)} | ({"relation": relation} if relation else {})
        return Sample(f"jigsaw/{split}/{grid}/{index:06d}", Observation((image, question)), answer, tags=tags)

    def _picture(self, rng: np.random.Generator, split: Split, grid: PuzzleGrid) -> Image.Image:
        if self._source == "noise":
            return scenes.noise(rng, grid)
        train = split == "train"
        if self._source == "landscapes" or (train and self._drawn and rng.random() < self._drawn):
            return scenes.landscape(rng, grid.size)
        files = self._photos.of(split)
        photo = scenes.load_photo(files[rng.integers(len(files))], self._short_side)
        crop = scenes.crop(rng, photo, self._scale, grid.size)
        return scenes.varied(rng, crop, self._recolour) if train else crop

    def _cut(self, sample: Sample) -> PuzzleGrid:
        """How the sample's picture was cut; rows that are scored offline have the task's size."""
        size = sample.tags.get("size")
        return PuzzleGrid.near(*map(int, size.split("x")), self._side) if size else self._grid

    def score(self, episode: Episode) -> Score:
        """Parts `accuracy` and `format`; an answer that does not parse earns nothing."""
        truth, grid = episode.sample.answer, self._cut(episode.sample)
        parsed = parse.answer(episode.completion, self.thinking, partial(self.questions.read, grid))
        accuracy = 0.0 if parsed.reason else order.index_accuracy(parsed.value, truth)
        return Score(
            {"accuracy": accuracy, "format": float(parsed.reason is None)},
            correct=0.0 if parsed.reason else order.exact(parsed.value, truth),
            answer=parsed.value,
            reason=parsed.reason,
            marks=self._marks(grid, truth, parsed.value),
        )

    def _marks(self, grid: PuzzleGrid, truth: Answer, answer: Answer | None) -> tuple[Annotation, ...]:
        texts = [Annotation("truth", "text", label=self.questions.format_answer(grid, truth))]
        if answer is not None:
            texts.append(Annotation("prediction", "text", label=self.questions.format_answer(grid, answer)))
        if self.questions.kind == "pair":
            return tuple(texts)
        origins = enumerate(self.questions.origins(truth), start=1)
        return (*texts, *(Annotation("truth", "box", grid.cell(place), str(origin)) for place, origin in origins))

    def gold(self, sample: Sample, frames: Sequence[Frame]) -> str:
        """The completion with the highest score."""
        return answer_markup(self.questions.format_answer(self._cut(sample), sample.answer), self.thinking)

    def metrics(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Share of right places, what chance and the best constant answer get right, the share of completions that
        could not be read; accuracy by size where there are two, and for `pair` by relation."""
        samples = [episode.sample for episode in episodes]
        sizes, relations = accuracy_by(episodes, "size"), accuracy_by(episodes, "relation")
        answers = Counter((s.tags["size"], s.tags.get("relation", s.answer)) for s in samples)
        best = {size: max(n for (other, _), n in answers.items() if other == size) for size in sizes}
        return {
            **(sizes if len(sizes) > 1 else {}),
            **relations,
            **({} if relations else {"places": mean([e.score.parts["accuracy"] for e in episodes])}),
            "chance": mean([self.questions.chance(self._cut(sample)) for sample in samples]),
            "best_constant": sum(best.values()) / len(samples),
            "parse_fail": parse_failures(episodes),
        }


def _check_size(key: str, size: Size) -> None:
    fits = all(1 <= side <= 4 for side in size)
    check(fits, key, size, "1 to 4 rows and columns")
    check(size[0] * size[1] >= 2, key, size, "at least two pieces: more rows or columns")
