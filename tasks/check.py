"""Proves that a task can be trained on: what `vlrl check-task` prints, and a contract that every task is tested by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
from PIL import Image

from tasks.base import Task
from vlrl.types import Decision, Episode, Frame, Sample, Score, Split, Turn

SPACES = ("original_px", "resized_px", "rel1000", "rel1")  # coordinates that model families write
SHOWN = 0.9  # the size of the image as shown, in `resized_px`, relative to the task's image
RIGHT_BY_CHANCE = 0.9  # at most this share of samples may be answered by another sample's gold
JUNK = ("", " ", "?", "<answer></answer>", "<answer>[]</answer>", "<think></think><answer>none</answer>", "[0, 0]")
LETTERS = np.array(list("ABCDabcd0123456789[](){},.:'\" \n"))


@dataclass(frozen=True)
class Finding:
    """One thing that was checked, and the first problem met (None: it holds)."""

    claim: str
    problem: str | None


def prove(task: Task, samples: int = 32) -> list[Finding]:
    """Checks the first samples of each split; changes nothing. UserError from the task's own files passes through."""
    listed = [(split, task.samples(split)) for split in get_args(Split)]
    chosen = [sample for _, split in listed for sample in split[:samples]]
    return [Finding(claim, next(check(task, chosen), None)) for claim, check in CLAIMS.items()] + [
        Finding("no sample is in both splits", next(_shared(listed, samples), None))
    ]


def _gold(task: Task, samples: Sequence[Sample]) -> Iterator[str]:
    for sample in samples:
        for space in SPACES if sample.prompt.images else SPACES[:1]:
            frames = _frames(sample, space)
            completion = task.gold(sample, frames)
            score = _score(task, sample, completion, frames)
            if task.reward(score) < _most(task) or score.correct != 1.0 or score.reason:
                yield f"{sample.id}: {completion!r} in {space} scores {dict(score.parts)}, reason {score.reason}"


def _junk(task: Task, samples: Sequence[Sample]) -> Iterator[str]:
    rng = np.random.default_rng(0)
    for sample in samples:
        soup = ["".join(rng.choice(LETTERS, size=n)) for n in (3, 30)]
        for completion in (*JUNK, *soup, *(f"<answer>{text}</answer>" for text in soup)):
            score = _score(task, sample, completion, _frames(sample, SPACES[0]))
            if score.correct or task.reward(score) >= _most(task):
                yield f"{sample.id}: {completion!r} scores {dict(score.parts)}, correct {score.correct:g}"


def _guess(task: Task, samples: Sequence[Sample]) -> Iterator[str]:
    golds = [task.gold(sample, _frames(sample, SPACES[0])) for sample in samples]
    if len(set(golds)) < 2:
        return
    pairs = zip(samples, golds[1:] + golds[:1], strict=True)
    right = sum(_score(task, sample, gold, _frames(sample, SPACES[0])).correct for sample, gold in pairs)
    if right > RIGHT_BY_CHANCE * len(samples):
        yield f"the next sample's gold is right for {right:g} of {len(samples)} samples"


def _prompt(task: Task, samples: Sequence[Sample]) -> Iterator[str]:
    for sample in samples:
        if not sample.prompt.text.strip():
            yield f"{sample.id}: the prompt has no text"
        if any(isinstance(part, str) and ("{" in part and "}" in part) for part in sample.prompt.content):
            yield f"{sample.id}: a {{placeholder}} is left in {sample.prompt.text!r}"


def _images(task: Task, samples: Sequence[Sample]) -> Iterator[str]:
    for sample in samples:
        for image in sample.prompt.images:
            if not isinstance(image, Image.Image) or image.mode != "RGB" or min(image.size) < 1:
                yield f"{sample.id}: {image!r} is no RGB image"
            else:
                image.load()


def _coordinates(task: Task, samples: Sequence[Sample]) -> Iterator[str]:
    rng = np.random.default_rng(0)
    for sample in samples:
        for space in SPACES:
            for frame in _frames(sample, space):
                xy = rng.uniform(0, 1, 2) * frame.original
                again = frame.to_original(*frame.from_original(*xy))
                if np.any(np.abs(again - xy) > _step(frame)):
                    yield f"{sample.id}: {xy.tolist()} comes back from {space} as {list(again)}"


def _step(frame: Frame) -> np.ndarray:
    """What the smallest difference that a model can write measures in the task's image, in pixels (x, y)."""
    smallest = 1e-4 if frame.space == "rel1" else 1.0
    return np.subtract(frame.to_original(smallest, smallest), frame.to_original(0, 0))


CLAIMS: dict[str, Callable[[Task, Sequence[Sample]], Iterator[str]]] = {
    "gold scores the maximum in all coordinates": _gold,
    "empty and junk completions are not right": _junk,
    "other samples' answers are not right": _guess,
    "prompts render": _prompt,
    "images load": _images,
    "coordinates round-trip": _coordinates,
}


def _shared(splits: Sequence[tuple[str, Sequence[Sample]]], samples: int) -> Iterator[str]:
    seen: set[str] = set()
    for split, listed in splits:
        ids = [sample.id for sample in listed[:samples]]
        if len(set(ids)) < len(ids) or seen & set(ids):
            yield f"{split}: an id is used twice"
        seen |= set(ids)


def _most(task: Task) -> float:
    return sum(weight for weight in task.weights.values() if weight > 0) - 1e-9


def _frames(sample: Sample, space: str) -> tuple[Frame, ...]:
    share = SHOWN if space == "resized_px" else 1.0
    sizes = [image.size for image in sample.prompt.images]
    return tuple(Frame(space, size, (round(size[0] * share), round(size[1] * share))) for size in sizes)


def _score(task: Task, sample: Sample, completion: str, frames: tuple[Frame, ...]) -> Score:
    """The score of one turn that no policy took."""
    environment = task.environment(sample)
    decision = Decision(completion, logprobs=None, entropy=None, cut=False, frames=frames)
    turn = Turn(environment.reset(), decision, environment.step(completion))
    environment.close()
    return task.score(Episode(sample, 0, [turn]))
