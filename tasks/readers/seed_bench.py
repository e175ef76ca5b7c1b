"""SEED-Bench-R1 (2503.24376): what to do next, after a video of what was done and an image of what is seen now.

Source: github.com/TencentARC/SEED-Bench-R1, src/open_r1_egoplan/grpo.py.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from os.path import isfile
from pathlib import Path
from typing import Any

from tasks.readers import clip, fields, files
from tasks.readers import video_fields as timed
from tasks.readers.clip import Clip
from tasks.readers.rows import BadRowError, Form, Place

CHOICES = ("choice_a", "choice_b", "choice_c", "choice_d")
NOW = "current_observation_basename"
DRAWN = 3  # of `negative_answers`
LEVEL = re.compile(r"(?<![A-Za-z0-9])[Ll]([123])(?![A-Za-z0-9])")


def _row(values: Mapping[str, Any], place: Place) -> Clip:
    """`{sample_id, question, answer, video_source, video_basename, current_observation_basename, ..}`.

    The video is shown where `task_progress_metadata` names steps. Validation has `choice_a` to `choice_d`, training
    `negative_answers`, of which three are drawn. The options' order is drawn by the sample's id.
    """
    if not isinstance(name := values.get("sample_id"), int | str):
        raise BadRowError("sample_id: a sample needs one")
    answer = fields.text(values, "answer")
    listed = _shuffled(_options(values, name, answer), name)
    image, _ = fields.image({**values, NOW: _image(values, place)}, NOW, place)
    row = Clip(
        clip.identity({"id": name}, place), fields.text(values, "question"), images=(image,),
        tags=_tags(values, place), **clip.chosen(listed, "options", answer),
    )  # fmt: skip
    if not values.get("task_progress_metadata"):
        return row
    inside = f"{fields.text(values, 'video_source')}/{fields.text(values, 'video_basename')}"
    file, duration = timed.video({"video_basename": inside}, "video_basename", place)
    return replace(row, video=file, duration=duration)


def _options(values: Mapping[str, Any], name: int | str, answer: str) -> list[str]:
    """The four options, in any order."""
    if values.get("golden_choice_idx") is not None:
        listed = [fields.text(values, key) for key in CHOICES]
        golden = dict(zip("ABCD", listed, strict=True)).get(str(values["golden_choice_idx"]), answer)
        if golden != answer:
            raise BadRowError(f"golden_choice_idx: {values['golden_choice_idx']} is {golden!r}, but answer {answer!r}")
        return listed
    wrong = set(fields.texts(values.get("negative_answers"), "negative_answers")) - {answer}
    if len(wrong) < DRAWN:
        raise BadRowError(f"negative_answers: {len(wrong)} that differ; must be at least {DRAWN}")
    return [answer, *_shuffled(wrong, f"{name} negative")[:DRAWN]]


def _shuffled(texts: Iterable[str], seed: int | str) -> list[str]:
    """In an order drawn by the seed: the same on every machine, whatever the order was."""
    return sorted(texts, key=lambda text: hashlib.sha256(f"{seed}\n{text}".encode()).digest())


def _image(values: Mapping[str, Any], place: Place) -> str:
    """The image's place: images/SOURCE/NAME as published, else SOURCE/NAME or NAME."""
    name, source = fields.text(values, NOW), fields.text(values, "video_source")
    places = (Path("images", source, name), Path(source, name), Path(name))
    folder = place.images.folder
    inside = (each for each in places if not files.leads_out(folder, str(each)))
    found = next((each for each in inside if isfile(folder / each)), places[0])
    return found.as_posix()


def _tags(values: Mapping[str, Any], place: Place) -> dict[str, str]:
    """Source, domain, and L1, L2 or L3: by the file's name, else L1 for validation rows of Epic-Kitchens."""
    told = LEVEL.search(place.name)
    kitchen = "golden_choice_idx" in values and "epic" in fields.text(values, "video_source").lower()
    level = f"L{told[1]}" if told else "L1" if kitchen else ""
    tags = {"level": level, "source": fields.text(values, "video_source"), **fields.tags(values, "domain")}
    return {key: value for key, value in tags.items() if value}


KEYS = frozenset({"sample_id", "question", "answer", "video_source", NOW})
VIDEO_QA = {"seed_bench_r1": Form(KEYS, _row)}
