"""The report of a run as one HTML page."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from io import BytesIO
from pathlib import Path
from string import Template
from typing import Any

from PIL import Image

from vlrl.config import hidden
from vlrl.media import MediaError, load_image, read_image_header
from vlrl.report import run_reader
from vlrl.report.run_reader import ReadRow, RunFiles, read_run

# Which curves a report draws, from the rows of metrics.jsonl and timings.jsonl.

MAX_POINTS = 3000  # a curve; longer ones keep the lowest and highest point of each stretch, so spikes stay visible

Point = list[float | None]  # [step, value]; None is a gap


@dataclass(frozen=True)
class Panel:
    """One chart: the metrics that share it (metric -> name in the legend), or all those that start with `prefix`."""

    title: str
    keys: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""
    note: str = ""


LEARNING = (
    Panel("Reward", {"reward": "train", "eval/reward": "held out"}),
    Panel("Reward parts", prefix="reward/"),
    Panel("Training accuracy", {"accuracy": "train"}),
    Panel("Entropy", {"entropy": "entropy"}),
    Panel("KL", {"kl": "to the reference", "kl_teacher": "to the teacher"}),
    Panel("Clip share", {"clip_fraction": "share"}, note="units whose ratio was clipped"),
    Panel(
        "Zero-advantage share",
        {"zero_advantage": "share", "left_out": "left out of the update"},
        note="rollouts that teach nothing",
    ),
    Panel("Completion length", {"length": "units"}),
)
OPTIMISATION = (
    Panel("Loss", {"loss": "loss"}),
    Panel("Gradient norm", {"grad_norm": "norm"}),
    Panel("Learning rate", {"lr": "rate"}),
    Panel("Log-probability gap", {"logprob_gap": "gap"}, note="sampling against training"),
    Panel("Cut completions", {"cut": "share"}, note="stopped by the length limit"),
    Panel("Parse failures", prefix="parse_fail/", note="by reason"),
    Panel("Skipped updates", {"skipped": "skipped"}),
)
WORK = (  # the same things forwarded twice show as two curves apart
    Panel("Tokens forwarded", {"work/tokens": "all", "work/tokens_distinct": "different ones"}),
    Panel("Patches forwarded", {"work/patches": "all", "work/patches_distinct": "different ones"}),
    Panel("MFU", {"work/mfu": "share"}, note="of the device's peak, without repeated work"),
)
GLANCE = ("Held-out accuracy", "Reward", "Zero-advantage share", "Entropy", "Completion length")  # the first three
HELD_OUT = ("eval/accuracy", "eval/low", "eval/high", "eval/n")


def sections(metrics: list[ReadRow], timings: list[ReadRow]) -> list[dict[str, Any]]:
    """Sections of charts, each with at least one curve: [{title, fold, charts: [{title, note, wide, series}]}].

    The first holds what a reader looks at first, a folded last one what never changed.
    """
    curves = columns(metrics)
    used = set(HELD_OUT)
    learning = [held_out(metrics)] if curves.get("eval/accuracy") else []
    learning += run_reader.charts(curves, used)
    learning += [chart for panel in LEARNING if (chart := draw(panel, curves, used))]
    optimisation = [chart for panel in OPTIMISATION if (chart := draw(panel, curves, used))]
    other = [draw(Panel(key, {key: "value"}), curves, used) for key in sorted(curves) if key not in used]
    seconds = columns(timings)
    parts = {key: key.replace("seconds", "whole step") for key in seconds if not key.startswith("work/")}
    panels = (Panel("Seconds a step", parts), *WORK)
    time = [chart for panel in panels if (chart := draw(panel, seconds, set()))]
    first = [chart for title in GLANCE for chart in learning if chart["title"] == title][:3]
    named = {"Learning": learning, "Optimisation": optimisation, "Time": time, "Other": other}
    rest = {title: [chart for chart in charts if chart not in first] for title, charts in named.items()}
    still = [chart for charts in rest.values() for chart in charts if is_constant(chart)]
    rest = {title: [chart for chart in charts if chart not in still] for title, charts in rest.items()}
    listed = {"At a glance": first, **rest, "Never changed": still}
    return [{"title": title, "fold": charts is still, "charts": charts} for title, charts in listed.items() if charts]


def is_constant(chart: Mapping[str, Any]) -> bool:
    """Whether each curve of a chart has several points of one value."""
    curves = [[value for _, value in series["points"]] for series in chart["series"]]
    return all(len(values) > 1 and len(set(values)) == 1 for values in curves)


def columns(rows: Iterable[ReadRow]) -> dict[str, list[Point]]:
    """Every numeric key's points by step. A step that was written twice (a resumed run) keeps its last value."""
    values: dict[str, dict[float, float | None]] = {}
    for row in rows:
        step = row.get("step")
        if not isinstance(step, int | float):
            continue
        for key, value in row.items():
            if key != "step" and (value is None or isinstance(value, int | float)):
                values.setdefault(key, {})[step] = value
    points = {key: [[step, by_step[step]] for step in sorted(by_step)] for key, by_step in values.items()}
    return {key: thin(curve) for key, curve in points.items() if any(value is not None for _, value in curve)}


def thin(curve: list[Point]) -> list[Point]:
    """At most about MAX_POINTS points."""
    if len(curve) <= MAX_POINTS:
        return curve
    stretch = -(-2 * len(curve) // MAX_POINTS)
    kept = [curve[0]]
    for start in range(1, len(curve) - 1, stretch):
        known = [point for point in curve[start : start + stretch] if point[1] is not None]
        ends: list[Callable] = [min, max]
        kept += sorted({tuple(end(known, key=lambda point: point[1])) for end in ends}) if known else []
    return [list(point) for point in kept if point[0] < curve[-1][0]] + [curve[-1]]


def draw(panel: Panel, curves: Mapping[str, list[Point]], used: set[str]) -> dict[str, Any] | None:
    """The panel with its curves, noting in `used` what it drew; None where the run has none of them."""
    keys = panel.keys or {key: key.removeprefix(panel.prefix) for key in sorted(curves) if key.startswith(panel.prefix)}
    present = {key: name for key, name in keys.items() if key in curves}
    used.update(present)
    series = [
        {"name": name, "points": curves[key], "smooth": not key.startswith("eval/")} for key, name in present.items()
    ]
    return {"title": panel.title, "note": panel.note, "wide": False, "series": series} if series else None


def held_out(metrics: list[ReadRow]) -> dict[str, Any]:
    """Accuracy on held-out samples with its interval: band is [step, low, high]."""
    curves = columns(metrics)
    counts = [int(value) for _, value in curves.get("eval/n", []) if value]
    note = f"with its interval, {counts[-1]:,} samples" if counts else "with its interval"
    series = run_reader.measured("held out", curves, "eval/")
    return {"title": "Held-out accuracy", "note": note, "wide": True, "series": [series]}


# What all pages have in common: the head, the top bar, the look, and what the browser may load. No network.

HERE = Path(__file__).parent
THEME = '<button type="button" id="theme" class="quiet" aria-label="Switch between light and dark">◐</button>'
LOADS = "default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'"
ASKS = "default-src 'none'; img-src 'self' data:; connect-src 'self'; style-src 'unsafe-inline'"


def frame(
    title: str, kind: str, main: str, links: Mapping[str, str], *, style: str = "",
    scripts: Sequence[str] = (), data: Any = None, served: bool = False,
) -> str:  # fmt: skip
    """A whole page.

    Args:
        title: as text.
        kind: of page, one word.
        main: HTML, all values in it escaped.
        links: id of a section -> its name in the top bar.
        style: CSS beyond the look that all pages share.
        scripts: names of files here, run one after the other; none: a page without any script.
        data: JSON for the scripts, as the element `data`.
        served: by `vlrl view`, which the page may ask for more; else it may load nothing at all.
    """
    script = "".join(frame_text(name) for name in scripts)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    held = f'<script type="application/json" id="data">{script_json(data)}</script>\n<script>{script}</script>'
    return Template(frame_text("frame.html")).substitute(
        policy=(ASKS if served else LOADS) + (f"; script-src 'sha256-{digest}'" if script else ""),
        title=escape(title),
        kind=escape(kind),
        links="".join(f'<a href="#{place}">{escape(name)}</a>' for place, name in links.items()),
        style=frame_text("look.css") + style,
        theme=THEME if script else "",
        main=main,
        scripts=held if script else "",
    )


def frame_text(name: str) -> str:
    """A file that lies here."""
    return (HERE / name).read_text(encoding="utf-8")


def fact_list(facts: Mapping[str, str]) -> str:
    """Names and values, escaped."""
    rows = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(fact)}</dd></div>" for name, fact in facts.items())
    return f'<dl class="facts">{rows}</dl>'


def note_lines(notes: Sequence[str]) -> str:
    return "".join(f'<p class="note">{escape(note)}</p>' for note in notes)


def config_section(config: str) -> str:
    """The configuration, folded."""
    return (
        '<section id="config" aria-label="Configuration"><details><summary>Configuration</summary>'
        f'<pre tabindex="0" aria-label="configuration">{escape(hidden(config))}</pre></details></section>'
    )


def script_json(value: Any) -> str:
    """JSON that is safe inside a script element: without `<`, no completion can close it or open a comment."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


# The rollouts a report shows: what each card holds, and the images embedded once however many cards share one.

MAX_FILE = 24_000  # bytes: a larger file is embedded as a WebP thumbnail
MAX_SIDE = 448  # pixels of that thumbnail's longer side
MAX_IMAGES = 7_000_000  # characters of all data URIs; once reached, older steps' cards say that their image is left out
MAX_TEXTS = (6_000, 1_000)  # characters of a prompt, completion or answer; the second where a card is still too large
MAX_CARD = 40_000  # bytes of a card in the page
MAX_BARS = 96  # that a turn's log-probabilities are drawn as

MIME = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp", "GIF": "image/gif"}
COPIED = ("step", "sample_id", "group", "why", "parts", "reward", "correct", "reason", "advantage", "split")
NUMBERS_OF = {"point": 2, "box": 4, "span": 2, "text": 0}  # xy of each kind of mark


@dataclass
class Album:
    """Images by their place in `items`: {src: data URI, size: [w, h]}."""

    folder: Path
    items: list[dict[str, Any]] = field(default_factory=list)
    places: dict[str, int | None] = field(default_factory=dict)  # path -> place; None: missing, broken or no room
    characters: int = 0

    def add_image(self, name: str) -> int | None:
        """Where the image at `name` (relative to the run folder) lies, embedding it the first time."""
        if name not in self.places:
            item = embed(self.folder, name) if self.characters < MAX_IMAGES else None
            self.places[name] = len(self.items) if item else None
            if item:
                self.items.append(item)
                self.characters += len(item["src"])
        return self.places[name]


def gallery(folder: Path, rows: Iterable[ReadRow]) -> dict[str, list]:
    """{cards, images} with the newest step first; a card's `images` are places in `images`, None for one not shown."""
    album = Album(folder)
    newest = sorted(rows, key=lambda row: row["step"] if gallery_is_number(row.get("step")) else -1, reverse=True)
    return {"cards": [card(row, album) for row in newest], "images": album.items}


def card(row: ReadRow, album: Album) -> dict[str, Any]:
    """One rollout as the page draws it, with shorter texts where it would take too much of the page."""
    content = _card(row, album, MAX_TEXTS[0])
    large = len(script_json(content).encode("utf-8", errors="replace")) > MAX_CARD
    return _card(row, album, MAX_TEXTS[1]) if large else content


def _card(row: ReadRow, album: Album, most: int) -> dict[str, Any]:
    images = row.get("images")
    places = [album.add_image(name) for name in images if isinstance(name, str)] if isinstance(images, list) else []
    size = row.get("image_size")
    if not is_size(size):
        size = album.items[places[0]]["size"] if places and places[0] is not None else None
    answer = row.get("answer")
    marks = row.get("marks")
    return {
        **{key: row.get(key) for key in COPIED},
        "step": row["step"] if gallery_is_number(row.get("step")) else None,
        "parts": row["parts"] if isinstance(row.get("parts"), dict) else {},
        "images": places,
        "image_size": size,
        "image_sizes": sizes(row.get("image_sizes"), len(places)),
        "strips": strips(row.get("strips"), len(places)),
        "prompt": shorten(row.get("prompt"), most),
        "completion": shorten(row.get("completion"), most),
        "answer": None if answer is None else shorten(answer if isinstance(answer, str) else json.dumps(answer), most),
        "marks": [mark for mark in marks if is_mark(mark)] if isinstance(marks, list) else [],
        "turns": turn_views(row.get("turns"), len(places), most),
    }


def turn_views(listed: Any, images: int, most: int) -> list[dict[str, Any]]:
    """A conversation's turns as the page draws them; [] where there is none, or its rows cannot be read."""
    most = max(200, most // max(1, len(listed))) if isinstance(listed, list) else most
    try:
        return [_turn_view(turn, images, most) for turn in listed or ()]
    except (AttributeError, KeyError, TypeError, ValueError, StopIteration):
        return []


def _turn_view(turn: dict[str, Any], images: int, most: int) -> dict[str, Any]:
    content = [part if isinstance(part, str) else part["image"] for part in turn["content"]]
    if any(part not in range(images) for part in content if not isinstance(part, str)):
        raise ValueError("an image that the rollout does not show")
    rows, parts = turn.get("messages") or [{"role": "user", "parts": len(content), "tool_calls": []}], iter(content)
    messages = [
        {"role": str(row["role"]),
         "content": [shorten(p, most) if isinstance(p, str) else p for p in itertools.islice(parts, row["parts"])],
         "calls": [shorten(json.dumps(call), most) for call in row["tool_calls"]]}
        for row in rows
    ]  # fmt: skip
    logprobs = [value for value in turn.get("logprobs") or () if gallery_is_number(value)]
    return {
        "messages": messages,
        "action": shorten(turn["action"], most),
        "tools": [str(tool["function"]["name"]) for tool in turn.get("tools") or ()],
        **{key: turn.get(key) for key in ("restart", "cut", "tokens", "entropy", "advantage")},
        "logprob": sum(logprobs) / len(logprobs) if logprobs else None,
        "bars": _bars(logprobs),
    }


def _bars(logprobs: Sequence[float]) -> list[float]:
    """Log-probabilities in at most MAX_BARS stretches, each by its lowest."""
    width = -(-len(logprobs) // MAX_BARS) or 1
    return [min(logprobs[i : i + width]) for i in range(0, len(logprobs), width)]


def sizes(listed: Any, images: int) -> list[Any]:
    """The images' own sizes, in whose pixels marks are; None for one that is not known."""
    known = listed if isinstance(listed, list) else []
    return [size if is_size(size) else None for size in (*known[:images], *[None] * (images - len(known)))]


def strips(listed: Any, images: int) -> list[Any]:
    """The videos' strips {image, grid, times, axis} (see vlrl.logging); None for one that cannot be drawn."""
    return [one if is_strip(one, images) else None for one in listed] if isinstance(listed, list) else []


def is_strip(one: Any, images: int) -> bool:
    if not isinstance(one, dict) or one.get("image") not in range(images) or not is_size(one.get("grid")):
        return False
    times, axis = one.get("times"), one.get("axis")
    known = isinstance(times, list) and isinstance(axis, list) and len(axis) == 2
    return known and all(map(gallery_is_number, (*times, *axis))) and axis[0] < axis[1]


def is_size(size: Any) -> bool:
    return isinstance(size, list) and len(size) == 2 and all(gallery_is_number(side) and side > 0 for side in size)


def gallery_is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def is_mark(mark: Any) -> bool:
    """Whether a mark can be drawn: infinities that a model wrote were read as None and cannot."""
    if not isinstance(mark, dict) or mark.get("kind") not in NUMBERS_OF:
        return False
    if mark["kind"] == "text":
        return isinstance(mark.get("label"), str)
    xy = mark.get("xy")
    return (
        isinstance(xy, list) and len(xy) == NUMBERS_OF[mark["kind"]] and all(gallery_is_number(value) for value in xy)
    )


def shorten(text: Any, most: int) -> str:
    text = "" if text is None else str(text)
    return text if len(text) <= most else f"{text[:most]}\n… {len(text) - most:,} more characters"


def embed(folder: Path, name: str) -> dict[str, Any] | None:
    """An image file as {src, size of the file in pixels}; None where it is missing, broken or outside the folder."""
    path = (folder / name).resolve()
    if not path.is_relative_to(folder) or not path.is_file():
        return None
    content = path.read_bytes()
    try:
        header = read_image_header(content)
        mime = MIME.get(header.format)
        if len(content) > MAX_FILE or mime is None:
            content, mime = thumbnail(load_image(content)), "image/webp"
    except MediaError:  # broken or half-written
        return None
    return {"src": f"data:{mime};base64,{base64.b64encode(content).decode()}", "size": list(header.size)}


def thumbnail(image: Image.Image) -> bytes:
    small = image.convert("RGBA" if "A" in image.getbands() else "RGB")
    small.thumbnail((MAX_SIDE, MAX_SIDE))
    out = BytesIO()
    small.save(out, "WEBP", quality=80, method=2)  # faster than the default for some 3 % more bytes
    return out.getvalue()


# The top of a report: what was trained, what it gained, and the key facts. Returns HTML with all values escaped.

TASK = re.compile(r"^task:[ \t]*(?:\{.*?\bname:[ \t]*|\n(?:[ \t]+.*\n)*?[ \t]+name:[ \t]*)?[\"']?([\w.:-]+)", re.M)
FACTS = {  # summary key -> label, in this order; other scalars follow under their own names
    "seed": "Seed",
    "steps": "Steps",
    "rollouts": "Rollouts",
    "updates": "Updates",
    "wall_s": "Wall time",
    "cpu_s": "CPU time",
    "bad_rows": "Bad rows",
}
OUT = re.compile(r"^out:[ \t]*(?:\"(.+)\"|'(.+)'|([^\s#].*?))[ \t]*$", re.M)
NOT_FACTS = {"metric", "before", "after", "task", "run", "name"}

Measured = Mapping[str, Any]  # value, low, high, n


def title(files: RunFiles) -> str:
    """The task's name, from the summary or the config; the folder's name where neither says."""
    match = TASK.search(files.config)
    task = files.summary.get("task") or (match.group(1) if match else "")
    return str(task) if task else files.folder.name


def name_folder(files: RunFiles) -> str:
    """The run's folder as its configuration names it, a path of whoever trained; else its name alone."""
    match = OUT.search(files.config)
    return next(filter(None, match.groups())) if match else files.folder.name


def view_command(folders: Sequence[str]) -> str:
    """What shows these runs live; with `--write` it makes their reports again."""
    return f"vlrl view {shlex.join(folders)}"


def gain(files: RunFiles) -> str:
    """Before -> after as two dots with intervals on one axis; '' before the first evaluation."""
    ends = measured(files)
    if not ends:
        return ""
    low, high = axis([item for _, item in ends])
    rows = "".join(interval(label, item, low, high) for label, item in ends)
    metric = escape(metric_name(files))
    change = f'<span class="change">{ends[1][1]["value"] - ends[0][1]["value"]:+.3f}</span>' if len(ends) == 2 else ""
    return (
        f'<section class="gain" aria-label="Before and after"><h2>{metric} {change}</h2>{rows}'
        f'<div class="interval scale" aria-hidden="true"><span></span><span class="ends"><span>{number(low)}</span>'
        f"<span>{number(high)}</span></span><span></span></div></section>"
    )


def metric_name(files: RunFiles) -> str:
    return str(files.summary.get("metric") or "held-out accuracy").replace("_", " ")


def last_step(files: RunFiles) -> float | None:
    return max((row["step"] for row in files.metrics if header_is_number(row.get("step"))), default=None)


def story(files: RunFiles) -> str:
    """What happened, in a sentence; '' before the second evaluation."""
    ends = measured(files)
    if len(ends) < 2:
        return ""
    (_, before), (_, after) = ends
    metric = metric_name(files)
    change = f"from {number(before['value'])} to {number(after['value'])}"
    bounds = [item.get(key) for item in (before, after) for key in ("low", "high")]
    verb = "went"
    if all(map(header_is_number, bounds)):
        low, high, later_low, later_high = bounds
        verb = "rose" if later_low > high else "fell" if later_high < low else "went, within its intervals,"
    step = last_step(files)
    taken = "" if step is None else f" in {step:,} steps"
    if header_is_number(files.summary.get("cpu_s")):
        taken += f" and {duration(files.summary['cpu_s'])} of CPU time"
    return f'<p class="story">{escape(f"{metric[:1].upper()}{metric[1:]} {verb} {change}{taken}.")}</p>'


def measured(files: RunFiles) -> list[tuple[str, Measured]]:
    """Up to two measurements: the summary's before and after, or a running run's first and latest evaluation."""
    ends = [("before", files.summary.get("before")), ("after", files.summary.get("after"))]
    known = [(label, item) for label, item in ends if isinstance(item, dict) and header_is_number(item.get("value"))]
    if len(known) == 2:
        return known
    evaluations = [row for row in files.metrics if header_is_number(row.get("eval/accuracy"))]
    items = [
        {"value": row["eval/accuracy"], **{key: row.get(f"eval/{key}") for key in ("low", "high", "n")}}
        for row in evaluations
    ]
    return [("first", items[0]), ("latest", items[-1])][: len(items)] if items else known


def axis(items: list[Measured]) -> tuple[float, float]:
    """The span that holds all intervals with some room, kept within [0, 1] where the values are shares."""
    values = [item[key] for item in items for key in ("value", "low", "high") if header_is_number(item.get(key))]
    low, high = min(values), max(values)
    room = 0.15 * (high - low) or 0.1
    if low >= 0 and high <= 1:
        return max(0.0, low - room), min(1.0, high + room)
    return low - room, high + room


def interval(label: str, item: Measured, low: float, high: float) -> str:
    """One row: label, dot on its interval, and the numbers in words."""

    def percent(value: float) -> str:
        return f"{100 * (value - low) / (high - low):.2f}%"

    text, bar = number(item["value"]), ""
    if header_is_number(item.get("low")) and header_is_number(item.get("high")):
        text += f" <small>[{number(item['low'])}, {number(item['high'])}]</small>"
        width = f"{100 * (item['high'] - item['low']) / (high - low):.2f}%"
        bar = f'<i class="bar" style="left:{percent(item["low"])};width:{width}"></i>'
    if header_is_number(item.get("n")):
        text += f" <small>n = {item['n']:,}</small>"
    track = f'<span class="track">{bar}<i class="dot" style="left:{percent(item["value"])}"></i></span>'
    return f'<div class="interval {label}"><span>{label}</span>{track}<span class="said">{text}</span></div>'


def facts(files: RunFiles) -> str:
    """The key facts as a definition list; steps fall back on the last row of the metrics."""
    step = last_step(files)
    summary = {} if step is None else {"steps": step}
    summary |= {key: len(value) if isinstance(value, list) else value for key, value in files.summary.items()}
    extra = [key for key in summary if key not in FACTS and key not in NOT_FACTS]
    known = [(label, key) for key, label in FACTS.items()]
    known += [(f"{key[:1].upper()}{key[1:]}".replace("_", " "), key) for key in extra]
    lines = [(label, say(key, summary[key])) for label, key in known if is_scalar(summary.get(key))]
    if not files.summary:
        lines.insert(0, ("State", "running or stopped early"))
    return fact_list(dict(lines))


def notes(files: RunFiles) -> str:
    """What was left out of the page, and what a resumed run changed, if anything."""
    return note_lines([
        *(f"{name}: {count} unreadable line{'s' * (count > 1)} left out." for name, count in files.unreadable.items()),
        *(f"From step {row.get('step')} on, {text}." for row in files.metrics if (text := _changes(row))),
    ])  # fmt: skip


def _changes(row: ReadRow) -> str:
    """What a resumed run's configuration changed."""
    changes = row.get("changes")
    pairs = changes.items() if isinstance(changes, dict) else ()
    return ", ".join(f"{key} {' -> '.join(map(str, pair))}" for key, pair in pairs if isinstance(pair, list))


def say(key: str, value: Any) -> str:
    if key.endswith("_s") and header_is_number(value):
        return duration(value)
    return number(value) if header_is_number(value) and key != "seed" else str(value)


def duration(seconds: float) -> str:
    """For people: 0.4 s, 12 s, 3 min 5 s, 2 h 10 min."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60} min"


def number(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.3f}" if value == 0 or 0.001 <= abs(value) < 1000 else f"{value:.3g}"


def header_is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def is_scalar(value: Any) -> bool:
    return isinstance(value, int | float | str)


# What a task measures on held-out samples beside accuracy, with its baselines: first evaluation to last.

OWN = ("accuracy", "low", "high", "n", "reward", "length")  # shown elsewhere, as are reward parts and parse failures
ELSEWHERE = ("reward/", "parse_fail/")
OF_TASKS = ("low", "high", "n", "reward")  # of a mixture's tasks: said beside their accuracy, or drawn


def measures(files: RunFiles) -> str:
    """A definition list, each name with `first -> last`, or one number where it never changed; '' without any."""
    rows = [row for row in files.metrics if header_is_number(row.get("eval/accuracy"))]
    names = [key.removeprefix("eval/") for key in (rows[-1] if rows else {}) if key.startswith("eval/")]
    names = [name for name in names if name not in OWN and not name.startswith(ELSEWHERE)]
    names = [name for name in names if not (name.startswith("task/") and name.split("/", 2)[2] in OF_TASKS)]
    tiles = "".join(
        _row(name, rows[0].get(f"eval/{name}"), rows[-1][f"eval/{name}"], _interval(name, rows[-1])) for name in names
    )
    if not tiles:
        return ""
    return f'<section aria-label="Held-out metrics"><h2>Held out</h2><dl class="facts">{tiles}</dl></section>'


def _interval(name: str, row: ReadRow) -> str:
    """The interval of a task's accuracy and its samples; '' of anything else."""
    prefix = f"eval/{name.removesuffix('accuracy')}"
    bounds = [row.get(f"{prefix}{key}") for key in ("low", "high", "n")]
    if not (name.startswith("task/") and name.endswith("/accuracy") and all(map(header_is_number, bounds))):
        return ""
    return f" <small>[{number(bounds[0])}, {number(bounds[1])}] n = {bounds[2]:,}</small>"


def _row(name: str, first: object, last: object, interval: str) -> str:
    if not header_is_number(last):
        return ""
    text = number(last) if first == last or not header_is_number(first) else f"{number(first)} → {number(last)}"
    return f"<div><dt>{escape(name.replace('_', ' '))}</dt><dd>{text}{interval}</dd></div>"


# The report of a training run: one HTML file that needs no network, no server and no other file.

CARDS = ("pictures.js", "timeline.js", "conversation.js", "card.js")
CURVES = ("scale.js", "chart.js", "curves.js")
SCRIPTS = ("dom.js", "keys.js", *CURVES, *CARDS, "gallery.js", "page.js")


def write_report(run: Path) -> Path:
    """Writes `run/report.html` in one move, so that a reader never sees half a page, and returns its path.

    Reads config.yaml, summary.json, metrics.jsonl, timings.jsonl and rollouts/step_*.jsonl, each where present.
    At most `read.MAX_ROLLOUTS` rollouts are embedded. Raises UserError where `run` is no folder.
    """
    files = read_run(run)
    return write_page(files.folder / "report.html", render(files))


def format_frame(run: Path, only: str = "", height: int = 640) -> str:
    """The page, or one section of it, as HTML that stands inside another page, such as a notebook.

    Args:
        height: pixels.
    """
    page, style = escape(render(read_run(run), only)), f"width: 100%; height: {height}px; border: 0"
    return f'<iframe srcdoc="{page}" title="{escape(run.name)}" style="{style}"></iframe>'


REPLY = 512  # tokens that a person waits for, at most


def render_playground(name: str, most: int, has_token: bool) -> str:
    """The page of `vlrl serve-model`, where a person asks the model; most: tokens of a reply."""
    main = Template(frame_text("playground.html")).substitute(name=escape(name), token="" if has_token else " hidden")
    scripts, style, data = ("dom.js", "playground.js"), frame_text("playground.css"), {"most": min(most, REPLY)}
    return frame(f"Ask {name}", "serve", main, {}, style=style, scripts=scripts, data=data, served=True)


def write_page(target: Path, page: str) -> Path:
    """The file whole or not at all."""
    handle, name = tempfile.mkstemp(prefix=".report-", suffix=".html", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(page.encode("utf-8", errors="replace"))
        os.chmod(name, 0o644)  # mkstemp's 0600 would keep colleagues on a shared disk from reading it
        os.replace(name, target)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
    return target


def render(files: RunFiles, only: str = "") -> str:
    """The page as text; `only`: the id of the one section that shows."""
    examples = gallery(files.folder, files.rollouts)
    main = Template(frame_text("run.html")).substitute(
        title=escape(title(files)),
        run=escape(files.folder.name),
        command=escape(view_command([name_folder(files)])),
        story=story(files),
        gain=gain(files),
        measures=measures(files),
        facts=facts(files),
        notes=notes(files),
        curves=frame_text("curves.html"),
        rollouts=frame_text("rollouts.html"),
        config=config_section(files.config or "No config.yaml in this run folder."),
    )
    return frame(
        f"{title(files)} · {files.folder.name}",
        "train",
        main,
        {"curves": "Curves", "rollouts": "Rollouts", "config": "Config"},
        style=frame_text("page.css") + (f".topbar, main > :not(#{only}) {{ display: none }}" if only else ""),
        scripts=SCRIPTS,
        data={"sections": sections(files.metrics, files.timings), **examples, "shown": files.shown},
    )
