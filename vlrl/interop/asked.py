"""A task's samples as other trainers carry them: a prompt, and a text that says how its completions are scored."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from itertools import islice
from typing import Any

from vlrl import registry
from vlrl.config import DataSection
from vlrl.decoders import parse_json
from vlrl.score import of_text
from vlrl.strict import Component
from vlrl.types import Frame, Observation, Sample, Score, Split, UserError

# what chat templates and other trainers' processors take for their own, or what a part of a prompt may begin of it
CONTROL = re.compile(r"<(?=\||(?:image|video)>|\Z)")
WORD_JOINER = "\u2060"  # shows nothing, and no special token holds it
KEPT = 512  # samples, whose pictures are costly to draw or open anew for each completion
Reader = Callable[[Observation], tuple[Frame, ...]]  # how a model writes coordinates on what it is shown


@dataclass(frozen=True)
class Key:
    """One sample by name: all that scoring a completion of it takes."""

    task: str
    split: Split
    index: int
    options: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)  # as a configuration's section
    frames: tuple[Mapping[str, Any], ...] = ()  # `vlrl.types.Frame` as plain data

    def text(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


@dataclass(frozen=True)
class Asked:
    """A sample and the text of its key."""

    sample: Sample
    key: str


def ask(
    task: str, split: Split, count: int | None = None, *,
    options: Mapping[str, Any] | None = None, data: Mapping[str, Any] | None = None, model: str | None = None,
) -> Iterator[Asked]:  # fmt: skip
    """The first `count` samples of a split, all by default.

    Args:
        task: a name of `vlrl list tasks`, or my_module:MyTask.
        options, data: as in a configuration.
        model: the folder or hub name of the model that will be asked, for the coordinates that it writes; default:
            pixels of the task's image.

    Raises:
        UserError: no such task, options it does not have, a task of several turns, videos.
    """
    options, data = dict(options or {}), dict(data or {})
    made = made_task(task, json.dumps(options, sort_keys=True), json.dumps(data, sort_keys=True))
    read = reader(model)
    for index, sample in enumerate(islice(made.samples(split), count)):
        if sample.prompt.videos:
            raise UserError(f"task: {task!r} shows videos, which other trainers cut into frames in their own ways")
        frames = tuple(asdict(frame) for frame in read(sample.prompt))
        shown = replace(sample, prompt=_as_plain_text(sample.prompt))
        yield Asked(shown, Key(task, split, index, options, data, frames).text())


def _as_plain_text(shown: Observation) -> Observation:
    """The prompt with its special tokens' spellings broken: other trainers read text, and take them for the tokens."""
    texts = (CONTROL.sub(f"<{WORD_JOINER}", part) if isinstance(part, str) else part for part in shown.content)
    return replace(shown, content=tuple(texts))


def scored(key: str, completion: str, step: int = 0) -> tuple[float, Score]:
    """The reward and the score of a completion; `step` counts training steps from 0, for rewards that grow stricter.

    Raises:
        UserError: the key was not made by `ask`.
    """
    task, sample, frames = _known(key)
    task.at_step(step)
    score = of_text(task, sample, completion, frames)
    return task.reward(score), score


def of_task(key: str) -> str:
    """The name of the task that a key is of."""
    return _read(key)["task"]


@lru_cache(maxsize=64)
def made_task(name: str, options: str, data: str) -> Any:
    """The task; options and data as JSON."""
    given = parse_json(options)
    section = argparse.Namespace(task=Component(**{**given, "name": name}), data=DataSection(**parse_json(data)))
    made, one = registry.make_task(section), registry.find("task base", "tasks.base:Task")
    if getattr(type(made), "environment", None) is not one.environment and given.get("turns") != 1:
        raise UserError(f"task: {name!r} takes several turns: other trainers' rewards see one completion")
    return made


@lru_cache(maxsize=KEPT)
def _known(key: str) -> tuple[Any, Sample, tuple[Frame, ...]]:
    about = _read(key)
    named = (json.dumps(about[name], sort_keys=True) for name in ("options", "data"))
    task = made_task(about["task"], *named)
    frames = tuple(Frame(each["space"], tuple(each["original"]), tuple(each["shown"])) for each in about["frames"])
    return task, task.samples(about["split"])[about["index"]], frames


def _read(key: str) -> dict[str, Any]:
    try:
        about = parse_json(key)
        Key(**about)
    except (ValueError, TypeError):
        raise UserError(f"sample: {str(key)[:60]!r}: no key of vlrl's; make the rows with vlrl.interop") from None
    return about


def reader(model: str | None) -> Reader:
    """How a model writes coordinates, from its configuration and processor; no model: in pixels of the task's image."""
    if model is None:
        return lambda shown: tuple(Frame("original_px", image.size, image.size) for image in shown.images)
    from transformers import AutoConfig, AutoProcessor

    from vlrl.policies.codecs import CODECS, resized
    from vlrl.policies.load import bundled, check_architecture, newest_checkpoint

    folder = newest_checkpoint(bundled(model))
    check_architecture(folder)
    config, processor = AutoConfig.from_pretrained(folder), AutoProcessor.from_pretrained(folder)
    space = getattr(config, "coordinate_space", None) or CODECS[config.model_type].space

    def read(shown: Observation) -> tuple[Frame, ...]:
        return tuple(Frame(space, image.size, resized(image, processor).size) for image in shown.images)

    return read
