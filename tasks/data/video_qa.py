"""Readers of video questions: ActivityNet, Charades, NExT-GQA, SEED-Bench-R1, Temporal-R1, Video-R1."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from os.path import isfile
from pathlib import Path
from typing import Any

from rewards.video import PROBLEMS
from tasks.data import files, records
from tasks.data import rows as data_rows
from tasks.data.images import BadRowError, leads_out
from tasks.data.records import OVERRUN, Clip, option_fields
from tasks.data.rows import Form, Place, text_field
from tasks.data.rows import tags as rows_tags

# ActivityNet Captions (1705.00754): one JSON object for all videos. Other sets are converted to this form, too.

ACTIVITYNET_KEYS = ("timestamps", "sentences")


def _rows(document: Mapping[str, Any]) -> list[Any]:
    """`{video: {duration, timestamps: [[start, end], ..], sentences}}` -> a row for each sentence, in order.

    A video whose lists do not fit is one row, which is bad. BadRowError: the file is not ActivityNet's.
    """
    if not any(isinstance(entry, Mapping) and set(ACTIVITYNET_KEYS) <= set(entry) for entry in document.values()):
        raise BadRowError("is one object, but none of its values has timestamps and sentences")
    return [row for video, entry in document.items() for row in _sentences(video, entry)]


def _sentences(video: str, entry: Any) -> list[dict[str, Any]]:
    listed = [entry.get(key) for key in ACTIVITYNET_KEYS] if isinstance(entry, Mapping) else []
    if not listed or not all(isinstance(each, list) for each in listed) or len(listed[0]) != len(listed[1]):
        return [{"problem": f"{video}: timestamps and sentences must be lists of one length"}]
    return [
        {"id": f"{video}/{i}", "video": video, "timestamp": timestamp, "sentence": sentence}
        for i, (timestamp, sentence) in enumerate(zip(*listed, strict=True), start=1)
    ]


def _activitynet_row(values: Mapping[str, Any], place: Place) -> Clip:
    """`duration` is not used: what the file itself lasts counts."""
    if "problem" in values:
        raise BadRowError(values["problem"])
    row = records.clip(values, "video", place, question=text_field(values, "sentence"))
    return records.spanned(row, values["timestamp"], f"timestamps of {values['id']}")


ACTIVITYNET_SPANS = {"activitynet": Form(frozenset(), _activitynet_row, rows=_rows)}


# Charades-STA (1705.02101): text files of a line for each sentence (github.com/jiyanggao/TALL).


def _line(values: Mapping[str, Any], place: Place) -> Clip:
    """`AO8RW 0.0 6.9##a person is putting a book on a shelf.`: video, start and end in seconds, sentence.

    Of the published rows 15 % end up to 1.5 s after the video; they are cut to it.
    """
    head, _, sentence = str(values["line"]).partition("##")
    parts = head.split()
    if len(parts) != 3 or not sentence.strip():
        raise BadRowError(f"{values['line']!r}: must be a line 'video start end##sentence'")
    row = records.clip({"video": parts[0]}, "video", place, question=sentence.strip())
    return records.spanned(row, parts[1:], "start, end", OVERRUN)


CHARADES_SPANS = {"charades_sta": Form(frozenset({"line"}), _line)}


# NExT-QA (2105.08276) and NExT-GQA (2309.01327): a csv of questions, and the spans of their answers beside it.
#
# Source: github.com/doc-doc/NExT-GQA, datasets/nextgqa.

OPTIONS = ("a0", "a1", "a2", "a3", "a4")


def _question(values: Mapping[str, Any], place: Place) -> Clip:
    """`video_id` (or `video`), `question`, `qid`, `type`, `a0` to `a4`, `answer`: one of them, or its number from 0."""
    values = {name: str(value) for name, value in values.items()}  # parquet files have numbers
    key = "video_id" if "video_id" in values else "video"
    listed = option_fields([values.get(each) for each in OPTIONS], "a0 to a4")
    answer = text_field(values, "answer")
    if answer not in listed and answer in "01234":
        answer = listed[int(answer)]
    named = {"id": f"{text_field(values, key)}/{text_field(values, 'qid')}", key: values[key]}
    more = {"question": text_field(values, "question"), "tags": rows_tags(values, "type")}
    return records.clip(named, key, place, **more, **records.chosen(listed, "a0 to a4", answer))


def _grounded(values: Mapping[str, Any], place: Place) -> Clip:
    row = _question(values, place)
    if values["location"] is None:
        raise BadRowError(f"{values['spans_file']} has no span of question {row.id.partition('/')[2]}")
    return records.spanned(row, values["location"], f"{values['spans_file']}: location")


def _located(rows: list[Any], file: Path) -> list[Any]:
    """The rows with `location`, their spans, of gsub_SPLIT.json beside SPLIT.csv: `{video: {location: {qid: ..}}}`."""
    name = f"gsub_{file.stem}.json"
    if not file.with_name(name).is_file():
        raise BadRowError(
            f"its spans are missing: put NExT-GQA's {name} beside it (datasets/nextgqa of its repository)"
        )
    file_decoded = files.decoded(file.with_name(name))
    if not isinstance(file_decoded, Mapping):
        raise BadRowError(f"{name} must be an object of videos")
    source = {"spans_file": name}
    return [
        {**row, **source, "location": _location(file_decoded, row)} if isinstance(row, Mapping) else row for row in rows
    ]


def _location(found: Mapping[str, Any], row: Mapping[str, Any]) -> Any:
    """The spans of the row's question, None where there are none."""
    video = found.get(str(row.get("video_id") or row.get("video")))
    spans = video.get("location") if isinstance(video, Mapping) else None
    return spans.get(str(row.get("qid"))) if isinstance(spans, Mapping) else None


NEXTGQA_KEYS = frozenset({"video_id|video", "question", "answer", "qid", *OPTIONS})
NEXTGQA_VIDEO_QA = {"next_qa": Form(NEXTGQA_KEYS, _question)}
GROUNDED = {"next_gqa": Form(NEXTGQA_KEYS, _grounded, join=_located)}


# SEED-Bench-R1 (2503.24376): what to do next, after a video of what was done and an image of what is seen now.
#
# Source: github.com/TencentARC/SEED-Bench-R1, src/open_r1_egoplan/grpo.py.

CHOICES = ("choice_a", "choice_b", "choice_c", "choice_d")
NOW = "current_observation_basename"
DRAWN = 3  # of `negative_answers`
LEVEL = re.compile(r"(?<![A-Za-z0-9])[Ll]([123])(?![A-Za-z0-9])")


def _seed_bench_row(values: Mapping[str, Any], place: Place) -> Clip:
    """`{sample_id, question, answer, video_source, video_basename, current_observation_basename, ..}`.

    The video is shown where `task_progress_metadata` names steps. Validation has `choice_a` to `choice_d`, training
    `negative_answers`, of which three are drawn. The options' order is drawn by the sample's id.
    """
    if not isinstance(name := values.get("sample_id"), int | str):
        raise BadRowError("sample_id: a sample needs one")
    answer = data_rows.text_field(values, "answer")
    listed = _shuffled(_options(values, name, answer), name)
    image, _ = data_rows.image({**values, NOW: _image(values, place)}, NOW, place)
    row = Clip(
        records.identity({"id": name}, place), data_rows.text_field(values, "question"), images=(image,),
        tags=_tags(values, place), **records.chosen(listed, "options", answer),
    )  # fmt: skip
    if not values.get("task_progress_metadata"):
        return row
    inside = f"{data_rows.text_field(values, 'video_source')}/{data_rows.text_field(values, 'video_basename')}"
    file, duration = records.video({"video_basename": inside}, "video_basename", place)
    return replace(row, video=file, duration=duration)


def _options(values: Mapping[str, Any], name: int | str, answer: str) -> list[str]:
    """The four options, in any order."""
    if values.get("golden_choice_idx") is not None:
        listed = [data_rows.text_field(values, key) for key in CHOICES]
        golden = dict(zip("ABCD", listed, strict=True)).get(str(values["golden_choice_idx"]), answer)
        if golden != answer:
            raise BadRowError(f"golden_choice_idx: {values['golden_choice_idx']} is {golden!r}, but answer {answer!r}")
        return listed
    wrong = set(data_rows.texts(values.get("negative_answers"), "negative_answers")) - {answer}
    if len(wrong) < DRAWN:
        raise BadRowError(f"negative_answers: {len(wrong)} that differ; must be at least {DRAWN}")
    return [answer, *_shuffled(wrong, f"{name} negative")[:DRAWN]]


def _shuffled(texts: Iterable[str], seed: int | str) -> list[str]:
    """In an order drawn by the seed: the same on every machine, whatever the order was."""
    return sorted(texts, key=lambda text: hashlib.sha256(f"{seed}\n{text}".encode()).digest())


def _image(values: Mapping[str, Any], place: Place) -> str:
    """The image's place: images/SOURCE/NAME as published, else SOURCE/NAME or NAME."""
    name, source = data_rows.text_field(values, NOW), data_rows.text_field(values, "video_source")
    places = (Path("images", source, name), Path(source, name), Path(name))
    folder = place.images.folder
    inside = (each for each in places if not leads_out(folder, str(each)))
    member = next((each for each in inside if isfile(folder / each)), places[0])
    return member.as_posix()


def _tags(values: Mapping[str, Any], place: Place) -> dict[str, str]:
    """Source, domain, and L1, L2 or L3: by the file's name, else L1 for validation rows of Epic-Kitchens."""
    level_match = LEVEL.search(place.name)
    kitchen = "golden_choice_idx" in values and "epic" in data_rows.text_field(values, "video_source").lower()
    level = f"L{level_match[1]}" if level_match else "L1" if kitchen else ""
    tags = {"level": level, "source": data_rows.text_field(values, "video_source"), **data_rows.tags(values, "domain")}
    return {key: value for key, value in tags.items() if value}


SEED_BENCH_KEYS = frozenset({"sample_id", "question", "answer", "video_source", NOW})
SEED_BENCH_VIDEO_QA = {"seed_bench_r1": Form(SEED_BENCH_KEYS, _seed_bench_row)}


# Grounding as Temporal-R1 (github.com/appletea233/Temporal-R1) and Time-R1 (2503.13377) train and test on it.
#
# Sources: Temporal-R1, verl/utils/dataset_video.py; github.com/xiaomi-research/time-r1, dataset/timer1/annotations.

MARK = "<video>"


def _temporal_r1(values: Mapping[str, Any], place: Place) -> Clip:
    """`{dataset, video, problem, solution: [start, end] as shares of video_length}`; the problem asks in a sentence."""
    question = data_rows.text_field(values, "problem").replace(MARK, "").strip()
    length = records.number(values.get("video_length"), "video_length")
    shares = records.pair(values.get("solution"), "solution")
    if not 0 <= shares[0] < shares[1] <= 1:
        raise BadRowError(f"solution: {list(shares)}: must be [start, end] as shares of the video, 0 to 1")
    row = records.clip(values, "video", place, question=question, tags=data_rows.tags(values, "dataset"))
    return records.spanned(row, [share * length for share in shares], "solution x video_length", records.OVERRUN)


def _time_r1(values: Mapping[str, Any], place: Place) -> Clip:
    """`{video, sentence, timestamp, duration, qid?, video_start?, video_end?}`; times count from `video_start`."""
    source = str(values.get("qid")).split("|")
    tags = {"source": source[1]} if len(source) > 2 else {}
    row = records.clip(values, "video", place, question=data_rows.text_field(values, "sentence"), tags=tags)
    cut = values.get("video_start"), values.get("video_end")
    return _cut(row, values, cut, records.pair(values.get("timestamp"), "timestamp"), "timestamp")


def _tvgbench(values: Mapping[str, Any], place: Place) -> Clip:
    """`{path, question, answer: "13.4-28.1", duration, start, end, dataset_name, qsemtype}`."""
    parts = data_rows.text_field(values, "answer").split("-")
    tags = data_rows.tags(values, "dataset_name", "qsemtype")
    row = records.clip(values, "path", place, question=data_rows.text_field(values, "question"), tags=tags)
    return _cut(row, values, (values.get("start"), values.get("end")), records.pair(parts, "answer"), "answer")


def _cut(row: Clip, values: Mapping[str, Any], cut: tuple[Any, Any], span: tuple[float, float], of: str) -> Clip:
    """The row with its span, which counts from where the clip starts, unless the file is that clip already."""
    length = records.number(values.get("duration"), "duration")
    whole = abs(row.duration - length) <= records.MARGIN
    if None not in cut and not whole:
        bounds = records.read_bounds({"start": cut[0], "end": cut[1]}, row.duration)
        span = span[0] + bounds["start"], span[1] + bounds["start"]
        row = replace(row, **bounds)
    elif row.duration < length - records.OVERRUN:
        raise BadRowError(f"duration: {length:g}, but the video has {row.duration:.2f} s; is it another one?")
    return records.spanned(row, span, of, records.OVERRUN)


TEMPORAL_R1_SPANS = {
    "temporal_r1": Form(frozenset({"video", "problem", "solution", "video_length"}), _temporal_r1),
    "time_r1": Form(frozenset({"video", "sentence", "timestamp", "duration"}), _time_r1),
    "tvgbench": Form(frozenset({"path", "question", "answer", "duration", "start", "end"}), _tvgbench),
}


# Video-R1's JSON (2503.21776; github.com/tulerfeng/Video-R1, src/open_r1/grpo.py): videos and images, any problem.

MEDIA = ("image", "video")


def _video_r1_row(values: Mapping[str, Any], place: Place) -> Clip:
    """`{problem_id, problem, problem_type, data_type, options, solution, path, data_source}`.

    `solution` is `<answer>B</answer>`; `process`, a worked answer, is not read.
    """
    kind = data_rows.one_of(values, "problem_type", tuple(PROBLEMS))
    answer = data_rows.text_field(values, "solution").replace("<answer>", "").replace("</answer>", "").strip()
    chosen = kind == Clip.kind
    fields = records.chosen(values.get("options"), "options", answer) if chosen else records.judged(kind, answer)
    tags = data_rows.tags(values, "problem_type", "data_type", "data_source")
    return replace(_read_image(values, place), question=data_rows.text_field(values, "problem"), tags=tags, **fields)


def _read_image(values: Mapping[str, Any], place: Place) -> Clip:
    named = {**values, "id": values.get("problem_id")}
    media = data_rows.one_of(values, "data_type", MEDIA)
    if media == "video":
        return records.clip(named, "path", place, question="")
    if not media:
        raise BadRowError(f"data_type: must be one of {', '.join(MEDIA)}")
    image, _ = data_rows.image(values, "path", place)
    return Clip(records.identity(named, place), "", images=(image,))


VIDEO_R1_KEYS = frozenset({"problem", "problem_type", "data_type", "solution", "path"})
VIDEO_R1_VIDEO_QA = {"video_r1": Form(VIDEO_R1_KEYS, _video_r1_row)}
