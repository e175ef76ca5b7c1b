"""Proves that a task can be trained on: what `vlrl check-task` prints, its contract, and what constant answers earn."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any, get_args

import numpy as np
from PIL import Image

from tasks.base import Task
from vlrl.plugins import SHAPES, refuse_instance
from vlrl.types import BASELINE, Decision, Environment, Episode, Frame, Observation, Sample, Score, Split, Turn

SPACES = ("original_px", "resized_px", "rel1000", "rel1", "rel1000_yx")  # coordinates that model families write
SHOWN = 0.9  # the size of the image as shown, in `resized_px`, relative to the task's image
ROUNDING = 1e-9
FEW = 1  # sample of each split, where environments are slow
RIGHT_BY_CHANCE = 0.9  # at most this share of samples may be answered by another sample's gold
JUNK = ("", " ", "?", "<answer></answer>", "<answer>[]</answer>", "<think></think><answer>none</answer>", "[0, 0]")
PLACEHOLDER = re.compile(r"\{\w*\}")  # braces around anything else may be the form of an answer
LETTERS = np.array(list("ABCDabcd0123456789[](){},.:'\" \n"))


@dataclass(frozen=True)
class CheckResult:
    """One thing that was checked, and the first problem met (None: it holds)."""

    claim: str
    problem: str | None


def prove(task: Task, samples: int = 32) -> list[CheckResult]:
    """Checks samples of each split; changes nothing. UserError from the task's own files passes through.

    They lie evenly between the first and the last: a folder per class begins with many samples of one answer.

    Where few environments may be open at a time (`max_parallel_envs`), playing costs seconds, and only FEW are checked.
    """
    samples = samples if task.max_parallel_envs is None else FEW
    listed = [(split, task.samples(split)) for split in get_args(Split)]
    chosen = [sample for _, split in listed for sample in spread(split, samples)]
    return [CheckResult(claim, next(check(task, chosen), None)) for claim, check in CLAIMS.items()] + [
        CheckResult("no sample is in both splits", next(_shared(listed, samples), None))
    ]


def spread(split: Sequence[Sample], most: int) -> list[Sample]:
    """At most `most` of the samples, evenly between the first and the last."""
    places = np.linspace(0, len(split) - 1, min(most, len(split)))
    return [split[int(place)] for place in places]


def _gold(task: Task, samples: Sequence[Sample]) -> Iterator[str]:
    for sample, observation in _starts(task, samples):
        for space in SPACES if observation.images else SPACES[:1]:
            score, completion = play(task, sample, None, space)
            if task.reward(score) < compute_maximum(task) - ROUNDING or score.correct != 1.0 or score.reason:
                yield f"{sample.id}: {completion!r} in {space} scores {dict(score.parts)}, reason {score.reason}"


def _junk(task: Task, samples: Sequence[Sample]) -> Iterator[str]:
    """What says the same as the gold answer is not junk: an empty list where there is nothing to be found."""
    rng = np.random.default_rng(0)
    for sample, _ in _starts(task, samples):
        soup = ["".join(rng.choice(LETTERS, size=n)) for n in (3, 30)]
        gold, _ = play(task, sample, None, SPACES[0])
        for completion in (*JUNK, *soup, *(f"<answer>{text}</answer>" for text in soup)):
            score, _ = play(task, sample, completion, SPACES[0])
            paid = score.correct or task.reward(score) >= compute_maximum(task) - ROUNDING
            if paid and (score.answer is None or score.answer != gold.answer):
                yield f"{sample.id}: {completion!r} scores {dict(score.parts)}, correct {score.correct:g}"


def _guess(task: Task, samples: Sequence[Sample]) -> Iterator[str]:
    samples = [samples[i] for i in np.random.default_rng(0).permutation(len(samples))]  # neighbours may be of one class
    golds = [play(task, sample, None, SPACES[0])[1] for sample in samples]
    if len(set(map(str, golds))) < 2:
        return
    pairs = zip(samples, golds[1:] + golds[:1], strict=True)
    right = sum(play(task, sample, gold, SPACES[0])[0].correct for sample, gold in pairs)
    if right > RIGHT_BY_CHANCE * len(samples):
        yield f"another sample's gold is right for {right:g} of {len(samples)} samples"


def _prompt(task: Task, samples: Sequence[Sample]) -> Iterator[str]:
    for sample, observation in _starts(task, samples):
        if not observation.text.strip():
            yield f"{sample.id}: the prompt has no text"
        if any(isinstance(part, str) and PLACEHOLDER.search(part) for part in observation.content):
            yield f"{sample.id}: a {{placeholder}} is left in {observation.text!r}"


def _images(task: Task, samples: Sequence[Sample]) -> Iterator[str]:
    for sample, observation in _starts(task, samples):
        for image in observation.images:
            if not isinstance(image, Image.Image) or image.mode != "RGB" or min(image.size) < 1:
                yield f"{sample.id}: {image!r} is no RGB image"
            else:
                image.load()


def _coordinates(task: Task, samples: Sequence[Sample]) -> Iterator[str]:
    rng = np.random.default_rng(0)
    for sample, observation in _starts(task, samples):
        for space in SPACES:
            for frame in _frames(observation.images, space):
                xy = rng.uniform(0, 1, 2) * frame.original
                again = frame.to_original(*frame.from_original(*xy))
                if np.any(np.abs(again - xy) > _step(frame)):
                    yield f"{sample.id}: {xy.tolist()} comes back from {space} as {list(again)}"


def _step(frame: Frame) -> np.ndarray:
    """What the smallest difference that a model can write measures in the task's image, in pixels (x, y)."""
    return np.subtract(frame.to_original(frame.step, frame.step), frame.to_original(0, 0))


CLAIMS: dict[str, Callable[[Task, Sequence[Sample]], Iterator[str]]] = {
    "gold scores the maximum in all coordinates": _gold,
    "empty and junk completions are not right": _junk,
    "other samples' answers are not right": _guess,
    "prompts render": _prompt,
    "images load": _images,
    "coordinates round-trip": _coordinates,
}


def _shared(splits: Sequence[tuple[str, Sequence[Sample]]], samples: int) -> Iterator[str]:
    other_ids: set[str] = set()
    for split, listed in splits:
        ids = [sample.id for sample in listed[:samples]]
        if len(set(ids)) < len(ids) or other_ids & set(ids):
            yield f"{split}: an id is used twice"
        other_ids |= set(ids)


def compute_maximum(task: Task) -> float:
    """The reward of an answer that earns every part in full."""
    return sum(weight for weight in task.weights.values() if weight > 0) + task.weights.get(BASELINE, 0.0)


def _starts(task: Task, samples: Sequence[Sample]) -> Iterator[tuple[Sample, Observation]]:
    """Each sample and what its episodes begin with."""
    for sample in samples:
        with closing(task.environment(sample)) as environment:
            observation = environment.reset()
        yield sample, observation  # when it is closed: a task may open one at a time


def _frames(images: Sequence[Image.Image], space: str) -> tuple[Frame, ...]:
    share = SHOWN if space == "resized_px" else 1.0
    sizes = [image.size for image in images]
    return tuple(Frame(space, size, (round(size[0] * share), round(size[1] * share))) for size in sizes)


def play(task: Task, sample: Sample, completion: str | None, space: str) -> tuple[Score, str]:
    """The score of an episode that no policy took, and its last completion: the one given, or (None) gold ones."""
    turns: list[Turn] = []
    environment = task.environment(sample)
    if not isinstance(environment, Environment):
        refuse_instance(environment, Environment, "task: its environment", SHAPES["task"].guide)
    with closing(environment):
        gold: Callable[..., Any] = environment.gold if environment.has_script else partial(task.gold, sample)
        observation, images = environment.reset(), []
        while not turns or not (turns[-1].step.terminated or turns[-1].step.truncated):
            images = [*(images if observation.messages and not observation.restart else []), *observation.images]
            frames = _frames(images, space)
            text: Any = completion if completion is not None else gold(frames)
            decision = Decision(text, logprobs=None, entropy=None, truncated=False, frames=frames)
            turns.append(Turn(observation, decision, environment.step(text, frames)))
            observation = turns[-1].step.observation
    return task.score(Episode(sample, 0, turns)), text


# What a task pays for answers that do not look at their sample: the table of `vlrl check-task --table`.

ANSWERS = ("gold", "another's gold", "constant", "whole", "random", "empty")  # the columns of the table
FORMS = ("{}", "<answer>{}</answer>", "<think>I look at the image.</think>\n<answer>{}</answer>")
EMPTY = ("", " ")  # inside the tags
FIXED = ("[]", "None", "0", "1", "A", "yes", "?")  # inside the tags; constants besides the gold answers
GOLDS = 16  # gold answers that are tried as constants
SEEDS = 4  # random answers to each sample


@dataclass(frozen=True)
class Payoff:
    """Means over samples: the reward as a share of the maximum, and `correct`."""

    reward: float
    correct: float


def compute_payoffs(task: Any, samples: int = 64) -> dict[str, Payoff]:
    """What each of ANSWERS earns on training samples; those that a task does not have are left out.

    `another's gold` is another sample's; `constant` the best paid of GOLDS gold answers and FIXED; `whole` the span
    of all the video or the box of all the image, the better one; `random` letters and digits; `empty` nothing, with
    and without tags, the best paid. Of environments of several turns the same text is the answer in each turn.
    """
    chosen = spread(task.samples("train"), samples if task.max_parallel_envs is None else FEW)
    chosen = [chosen[i] for i in np.random.default_rng(0).permutation(len(chosen))]  # neighbours may be of one class
    golds = [play(task, sample, None, SPACES[0])[1] for sample in chosen]
    payoffs = {"gold": [_measure(task, chosen, [None] * len(chosen))]}
    if len(chosen) > 1:
        payoffs["another's gold"] = [_measure(task, chosen, golds[1:] + golds[:1])]
    gold_texts = (gold for gold in golds[:GOLDS] if isinstance(gold, str))  # no numbers of a robot
    constants = dict.fromkeys([*gold_texts, *(form.format(text) for text in FIXED for form in FORMS)])
    payoffs["constant"] = [_measure(task, chosen, [text] * len(chosen)) for text in constants]
    payoffs["whole"] = [_measure(task, chosen, texts) for texts in _wholes(chosen)]
    payoffs["random"] = [_measure(task, chosen, texts) for texts in _soups(len(chosen))]
    payoffs["empty"] = [_measure(task, chosen, [form.format(t)] * len(chosen)) for t in EMPTY for form in FORMS]
    best = {name: max(tried, key=lambda payoff: payoff.reward) for name, tried in payoffs.items() if tried}
    return {name: best[name] for name in ANSWERS if name in best}


def print_row(name: str, task: Any, first: bool) -> bool:
    """Prints the task's row of the table in Markdown, below the table's head if it is the first."""
    if first:
        print(f"| task | {' | '.join(ANSWERS)} |", "| --- |" + " --- |" * len(ANSWERS), sep="\n")
    paid = compute_payoffs(task)
    cells = [f"{paid[answer].reward:.2f} ({paid[answer].correct:.2f})" if answer in paid else "" for answer in ANSWERS]
    print(f"| `{name}` | {' | '.join(cells)} |", flush=True)
    return True


def _wholes(samples: Sequence[Sample]) -> Iterator[list[str]]:
    """The span of each sample's video and the box of its image, in all forms."""
    if all(sample.prompt.videos for sample in samples):
        yield from _in_forms([f"0 to {sample.prompt.videos[0].duration}" for sample in samples])
    elif all(sample.prompt.images for sample in samples):
        yield from _in_forms(["[0, 0, {}, {}]".format(*sample.prompt.images[0].size) for sample in samples])


def _soups(count: int) -> Iterator[list[str]]:
    rng = np.random.default_rng(0)
    for _ in range(SEEDS):
        yield from _in_forms(["".join(rng.choice(LETTERS, size=rng.integers(1, 12))) for _ in range(count)])


def _in_forms(texts: Sequence[str]) -> Iterator[list[str]]:
    return ([form.replace("{}", text) for text in texts] for form in FORMS)


def _measure(task: Any, samples: Sequence[Sample], completions: Sequence[str | None]) -> Payoff:
    scores = [play(task, s, text, SPACES[0])[0] for s, text in zip(samples, completions, strict=True)]
    return Payoff(fmean(map(task.reward, scores)) / compute_maximum(task), fmean(score.correct for score in scores))
