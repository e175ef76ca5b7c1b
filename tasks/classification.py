"""Classification: name the picture's class. Real handwritten digits, or a folder per class (tasks/readers).

The answer is one of the classes' names. With and without thoughts, base-to-new and few-shot, as CLS-RL has them.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol, get_args

from PIL import Image

from rewards.parse import Parsed, answer
from tasks.base import FORM, OWN_DATA, THINK, Rendered, Task, answer_markup, check, check_weights
from tasks.data import labelled, records
from tasks.data.images import open_image
from tasks.metrics import classification, parse_failures
from tasks.rendering import figures
from vlrl.types import Annotation, BadRow, Data, Episode, Frame, Observation, Sample, Score, Split, UserError

DIGITS = "Which digit is this?"
TEMPLATES = {
    "short": ("{question}", "{question} " + THINK),
    "guided": (
        "{question} Choose one of: {classes}. Give it inside <answer> </answer>.",
        "{question} Choose one of: {classes}. " + THINK,
    ),
    "cls_rl": (  # github.com/minglllli/CLS-RL: No-Thinking-CLS-RL, CLS-RL
        "{question}\n Please directly output the answer.",
        "{question}\n Please output the thinking process in <think> </think> and final answer in <answer> </answer> "
        "tags.",
    ),
}  # template -> text without and with thoughts
WEIGHTS = {"accuracy": 1.0, **FORM}


@dataclass(frozen=True)
class LabelledPicture:
    """A picture of a known class."""

    id: str
    answer: str
    question: str
    load: Callable[[], Image.Image]
    weight: float = 1.0


class Classification(Task):
    """Samples: (picture, question) -> the class's name.

    Without `data`: scikit-learn's handwritten digits, `size` pixels each way. `shots`: that many training pictures of
    each class, chosen by `seed`; 0: all. `classes` `base`: training and test pictures of the first half of the sorted
    classes; `new`: trains on those and tests on the other half (CoOp's base-to-new); `all`: everything.
    Template `cls_rl` without thoughts wants the bare name, as No-Thinking-CLS-RL does; else it stands in answer tags.
    Parts: `accuracy` (the right name; case, underscores and a final dot do not count) and `format` (one of the names).
    Raises UserError for options out of range and for bad rows.
    """

    def __init__(
        self,
        *,
        data: Data = OWN_DATA,
        size: int = 64,
        shots: int = 0,
        classes: Literal["all", "base", "new"] = "all",
        thinking: bool = False,
        template: Literal["short", "guided", "cls_rl"] = "short",
        weights: Mapping[str, float] = WEIGHTS,
        seed: int = 0,
    ):
        check(size >= 16, "size", size, "at least 16 pixels")
        check(shots >= 0, "shots", shots, "at least 0")
        check(classes in ("all", "base", "new"), "classes", classes, "all, base or new")
        check(template in TEMPLATES, "template", template, f"one of {', '.join(TEMPLATES)}")
        check(seed >= 0, "seed", seed, "at least 0")
        self.weights = check_weights(weights, tuple(WEIGHTS))
        self.thinking, self.template = thinking, template
        pictures, self.bad_rows = _pictures(data, size)
        names = sorted({picture.answer for listed in pictures.values() for picture in listed})
        base, new = halves(names)
        splits = {"all": (names, names), "base": (base, base), "new": (base, new)}[classes]
        self._pictures = {
            split: [picture for picture in pictures[split] if picture.answer in kept]
            for split, kept in zip(("train", "test"), splits, strict=True)
        }
        self._names = {"train": tuple(splits[0]), "test": tuple(splits[1])}
        self._known = {normal(name): name for name in names}
        if shots:
            self._pictures["train"] = choose_shots(self._pictures["train"], shots, seed)

    def samples(self, split: Split) -> Sequence[Sample]:
        return Rendered(len(self._pictures[split]), partial(self._sample, split))

    def _sample(self, split: Split, index: int) -> Sample:
        picture = self._pictures[split][index]
        template = TEMPLATES[self.template][self.thinking]
        text = template.format(question=picture.question, classes=", ".join(self._names[split]))
        prompt = Observation((picture.load(), text))
        return Sample(picture.id, prompt, picture.answer, weight=picture.weight, tags={"class": picture.answer})

    def score(self, episode: Episode) -> Score:
        """Parts `accuracy` and `format`."""
        truth, parsed = episode.sample.answer, self._read(episode.completion)
        right = float(parsed.value == truth)
        marks = (Annotation("truth", "text", label=truth),)
        if parsed.reason:
            return Score({"accuracy": 0.0, "format": 0.0}, 0.0, reason=parsed.reason, marks=marks)
        marks += (Annotation("prediction", "text", label=parsed.value),)
        return Score({"accuracy": right, "format": 1.0}, correct=right, answer=parsed.value, marks=marks)

    def _read(self, completion: str) -> Parsed:
        if self.template == "cls_rl" and not self.thinking:
            return self._class(completion)
        return answer(completion, self.thinking, self._class)

    def _class(self, text: str) -> Parsed:
        name = self._known.get(normal(text))
        return Parsed(name) if name else Parsed(reason="not_a_class")

    def gold(self, sample: Sample, frames: Sequence[Frame]) -> str:
        bare = self.template == "cls_rl" and not self.thinking
        return sample.answer if bare else answer_markup(sample.answer, self.thinking)

    def metrics(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Top-1, the mean over classes, each class (those without a hit stay), the best constant, parse failures."""
        truths = [episode.sample.answer for episode in episodes]
        return {
            **classification([episode.score.answer for episode in episodes], truths),
            "best_constant": max(Counter(truths).values(), default=0) / max(len(truths), 1),
            "parse_fail": parse_failures(episodes),
        }


def normal(name: str) -> str:
    """A class's name without case, underscores, a final dot and needless space; '' for what is too long to be one."""
    return " ".join(name.replace("_", " ").casefold().split()).removesuffix(".") if len(name) <= 200 else ""


def _pictures(data: Data, size: int) -> tuple[dict[Split, list[LabelledPicture]], Sequence[BadRow]]:
    if data.train is None and data.test is None:
        return {"train": _digits("train", size), "test": _digits("test", size)}, ()
    rows, bad = labelled(data)
    question = "What is this?"
    pictures = {split: [_from_row(row, question) for row in rows.get(split, ())] for split in get_args(Split)}
    return pictures, bad


def _digits(split: Split, size: int) -> list[LabelledPicture]:
    return [
        LabelledPicture(
            f"digits/{split}/{place}", str(label), DIGITS, partial(figures.single, int(place), (size, size))
        )
        for place, label in zip(*figures.digits_of(split), strict=True)
    ]


def _from_row(row: records.LabelledScene, asked: str) -> LabelledPicture:
    load = partial(open_image, row.images[0])
    return LabelledPicture(row.id, row.answer, row.question or asked, load, row.weight)


# The protocols of few-shot classification as CoOp (2109.01134) set them and CLS-RL (2503.16188) uses them.


class Labelled(Protocol):
    """What is drawn from: `answer` is the class."""

    @property
    def id(self) -> str: ...

    @property
    def answer(self) -> str: ...


def choose_shots[P: Labelled](pictures: Sequence[P], k: int, seed: int = 0) -> list[P]:
    """`k` pictures of each class, in their order. UserError where a class has fewer.

    Chosen by a hash of seed and id: the same on every machine and in any order, and a picture that is added takes the
    place of one other at most.
    """
    classes: dict[str, list[P]] = {}
    for picture in pictures:
        classes.setdefault(picture.answer, []).append(picture)
    if few := [f"{name} ({len(listed)})" for name, listed in sorted(classes.items()) if len(listed) < k]:
        raise UserError(f"task.shots: {k}: more than there are of {', '.join(few)}; take fewer or add images")
    shots = [sorted(listed, key=lambda picture: _draw(picture.id, seed))[:k] for listed in classes.values()]
    chosen = {picture.id for listed in shots for picture in listed}
    return [picture for picture in pictures if picture.id in chosen]


def _draw(name: str, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}/{name}".encode()).digest()


def halves(classes: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(base, new): the first half of the sorted names, the larger one where they are odd, and the rest."""
    names = sorted(set(classes))
    middle = math.ceil(len(names) / 2)
    return tuple(names[:middle]), tuple(names[middle:])
