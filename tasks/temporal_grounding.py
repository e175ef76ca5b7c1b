"""Temporal grounding: say from when to when a video shows what a sentence describes. Drawn clips, or files.

The answer is one span in seconds of the video: `6.0 to 12.5`, or an object with `start_time` and `end_time`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal

from rewards import parse
from rewards.intervals import Notation, interval, tiou
from tasks.base import (
    FORM,
    OWN_DATA,
    THINK,
    Task,
    answer_markup,
    check,
    check_weights,
    count_from,
    generator,
    rows_or_drawn,
)
from tasks.data import spans
from tasks.data.records import format_seconds, span_marks, span_text, viewer
from tasks.metrics import best_constant_interval, by_category, grounding, parse_failures, score_full_video
from tasks.rendering.videos import FILM, Stories, VideoOptions
from vlrl.types import Data, Episode, Frame, Observation, Sample, Score, Split

TEMPLATES = {
    "short": "When: {query}?",
    "guided": (
        "The video lasts {duration:.1f} seconds. From when to when does it show this: {query}? "
        "Give start and end in seconds as <answer>6.0 to 12.5</answer>."
    ),
    # The question is the paper's, byte for byte (its evaluation); what it says of the keys is not published.
    "temporal_r1": (
        'Give the query: "{query}", when does the described content occur in the video?. '
        'Answer with "start_time" and "end_time", both seconds in quotes.'
    ),
}
TEMPORAL_R1_THINK = (
    "First think in <think> </think> tags, then give the final answer in <answer> </answer> tags. "
    "Output the final answer in JSON format."
)
WEIGHTS = count_from(0.3, {"iou": 1.0, **FORM})
CORRECT = 0.5  # R1@0.5


class TemporalGrounding(Task):
    """Samples: (video, sentence) -> (start, end) in seconds.

    A split for which `data` names no file is made as `film` says; `per_video` consecutive samples ask about one video.
    Files are sampled at `fps`, at most `frames` frames and `total_pixels` pixels.
    Parts: `iou`, the temporal IoU in [0, 1], and `format`, 0 or 1. Correct: IoU of at least 0.5.
    Raises UserError for options out of range and for bad rows.
    """

    def __init__(
        self,
        *,
        data: Data = OWN_DATA,
        film: VideoOptions = FILM,
        per_video: int = 1,
        fps: float = 2.0,
        frames: int = 64,
        total_pixels: int = 2048 * 28 * 28,
        thinking: bool = False,
        template: Literal["short", "guided", "temporal_r1"] = "short",
        notation: Notation = "any",
        weights: Mapping[str, float] = WEIGHTS,
        seed: int = 0,
    ):
        check(1 <= per_video <= film.events, "per_video", per_video, "1 to the number of film.events")
        check(template in TEMPLATES, "template", template, f"one of {', '.join(TEMPLATES)}")
        check(seed >= 0, "seed", seed, "at least 0")
        self.weights = check_weights(weights, tuple(WEIGHTS))
        self.per_video, self.thinking, self.template, self.notation = per_video, thinking, template, notation
        self._stories, self._viewer = Stories(film, seed), viewer(fps, frames, total_pixels)
        self._rows, self.bad_rows = spans(data)

    def samples(self, split: Split) -> Sequence[Sample]:
        return rows_or_drawn(split, self._rows, self._from_file, self._stories.lengths, self._from_seed)

    def _from_seed(self, split: Split, index: int) -> Sample:
        number, question = divmod(index, self.per_video)
        story = self._stories.tell(split, number)
        first = int(generator(self._stories.seed + 1, split, number).integers(len(story.events)))
        event = story.events[(first + question) % len(story.events)]
        prompt = Observation((story.video, self._text(self._stories.film.say(event.description), story.video.duration)))
        level = story.facts.get("level")
        tags = {"kind": event.action.split()[0]} | ({"level": level} if level else {})
        span = round(event.span[0], 3), round(event.span[1], 3)  # as exact as answers are: the simulator's are not
        return Sample(f"temporal_grounding/{split}/{index:06d}", prompt, (span,), tags=tags)

    def _from_file(self, split: Split, index: int) -> Sample:
        row = self._rows[split][index]
        prompt = Observation((*self._viewer.see(row), self._text(row.question, row.duration)))
        return Sample(row.id, prompt, row.spans, row.weight, row.tags)

    def _text(self, query: str, duration: float) -> str:
        """The sentence in the template's words; a data set's own question stays as it is."""
        own = "?" in query
        text = query if own else TEMPLATES[self.template].format(query=query.strip().rstrip("."), duration=duration)
        if not self.thinking:
            return text
        return f"{text} {TEMPORAL_R1_THINK if self.template == 'temporal_r1' else THINK}"

    def score(self, episode: Episode) -> Score:
        """Parts `iou` and `format`; of several true spans the best counts."""
        truths = episode.sample.answer
        parsed = parse.answer(episode.completion, self.thinking, partial(interval, notation=self.notation))
        marks = span_marks("truth", ", ".join(map(span_text, truths)), truths)
        formatted = float(parsed.reason is None)
        if parsed.reason:
            return Score({"iou": 0.0, "format": formatted}, 0.0, reason=parsed.reason, marks=marks)
        overlap = max(tiou(parsed.value, truth) for truth in truths)
        marks += span_marks("prediction", span_text(parsed.value), [parsed.value])
        parts = {"iou": overlap, "format": formatted}
        return Score(parts, float(overlap >= CORRECT), answer=parsed.value, marks=marks)

    def gold(self, sample: Sample, frames: Sequence[Frame]) -> str:
        """The completion with the highest reward."""
        start, end = map(format_seconds, sample.answer[0])
        if self.template == "temporal_r1" or self.notation in ("object", "quoted"):
            return answer_markup(f'{{"start_time": "{start}", "end_time": "{end}"}}', self.thinking)
        return answer_markup(f"{start} to {end}", self.thinking)

    def metrics(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """mIoU and R1 at three bars, mIoU by kind and level, what the whole video and the best constant span score."""
        truths = [episode.sample.answer[0] for episode in episodes]
        durations = [episode.sample.prompt.videos[0].duration for episode in episodes]
        tagged = {
            key: by_category((e.sample.tags.get(key, ""), e.score.parts["iou"]) for e in episodes)
            for key in ("kind", "level")
        }
        constant, _ = best_constant_interval(truths, durations)
        return {
            **grounding([episode.score.answer for episode in episodes], truths),
            **{f"{key}/{name}": value for key, values in tagged.items() for name, value in values.items()},
            "whole_video": score_full_video(truths, durations)["miou"],
            "best_constant": constant["miou"],
            "parse_fail": parse_failures(episodes),
        }
