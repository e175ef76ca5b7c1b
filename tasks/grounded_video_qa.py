"""Grounded video question answering: the right option, and when the video shows that it is right. Drawn, or files.

The answer has VideoChat-R1's form, `<answer>A</answer><glue>[(6.0, 12.0)]</glue>`, spans in seconds of the video.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from rewards.intervals import Interval, iop, set_iou
from rewards.text import choice, multiple_choice
from rewards.video import videochat_r1_grounded
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
from tasks.data import grounded
from tasks.data.records import Clip, format_seconds, span_marks, span_text, viewer
from tasks.metrics import (
    accuracy_by,
    best_constant_interval,
    grounded_qa,
    most_frequent_letter,
    parse_failures,
    score_full_video,
)
from tasks.rendering.videos import FILM, Stories, VideoOptions
from tasks.video_qa import lettered
from vlrl.types import Data, Episode, Frame, Observation, Sample, Score, Split

KINDS = {  # what one event shows
    "clips": ("first", "direction", "color", "actor"),
    "robot": ("first", "order"),
}
TEMPLATES = {
    "short": ("{question}{options} When?", " ({letter}) {option}"),
    "guided": (
        "The video lasts {duration:.1f} seconds. {question}\n{options}Answer with the option's letter, then with the "
        "seconds in which the video shows it, as <answer>A</answer><glue>[(6.0, 12.5)]</glue>.",
        "{letter}. {option}\n",
    ),
}
WEIGHTS = count_from(0.7, {"accuracy": 1.0, "iou": 1.0, **FORM})


class GroundedVideoQa(Task):
    """Samples: (video, question) -> the right option's letter and the spans (start, end), in seconds, that show it.

    A split for which `data` names no file is made as `film` says, with questions of `kinds`, by default all. Files are
    sampled at `fps`, at most `frames` frames and `total_pixels` pixels.
    Parts: `accuracy` 0 or 1, `iou` of the times that the spans cover, in [0, 1], `format` 0 or 1. Correct, as
    Acc@GQA: the letter is right and the first span lies in a true one for half its length or more.
    Raises UserError for options out of range and for bad rows.
    """

    def __init__(
        self,
        *,
        data: Data = OWN_DATA,
        film: VideoOptions = FILM,
        kinds: tuple[str, ...] = (),
        fps: float = 2.0,
        frames: int = 64,
        total_pixels: int = 2048 * 28 * 28,
        thinking: bool = False,
        template: Literal["short", "guided"] = "short",
        weights: Mapping[str, float] = WEIGHTS,
        seed: int = 0,
    ):
        known = KINDS[film.source]
        check(set(kinds) <= set(known), "kinds", kinds, f"some of {', '.join(known)}")
        check(template in TEMPLATES, "template", template, f"one of {', '.join(TEMPLATES)}")
        check(seed >= 0, "seed", seed, "at least 0")
        self.weights = check_weights(weights, tuple(WEIGHTS))
        self.kinds, self.seed, self.thinking, self.template = tuple(kinds) or known, seed, thinking, template
        self._stories, self._viewer = Stories(film, seed), viewer(fps, frames, total_pixels)
        self._rows, self.bad_rows = grounded(data)

    def samples(self, split: Split) -> Sequence[Sample]:
        return rows_or_drawn(split, self._rows, self._from_file, self._stories.lengths, self._from_seed)

    def _from_seed(self, split: Split, index: int) -> Sample:
        rng = generator(self.seed + 1, split, index)
        question = self._stories.ask(rng, split, index, self.kinds)
        film = question.video
        assert film is not None  # a story is always filmed
        row = Clip(
            "",
            question.text,
            options=question.options,
            answer=question.letter,
            spans=question.spans,
            duration=film.duration,
        )
        prompt = Observation((film, self._text(row)))
        return Sample(f"grounded_video_qa/{split}/{index:06d}", prompt, row, tags=question.tags)

    def _from_file(self, split: Split, index: int) -> Sample:
        row = self._rows[split][index]
        return Sample(row.id, Observation((*self._viewer.see(row), self._text(row))), row, row.weight, row.tags)

    def _text(self, row: Clip) -> str:
        whole, one = TEMPLATES[self.template]
        options = lettered(row.options, one)
        text = whole.format(question=row.question, options=options, duration=row.duration)
        return f"{text} {THINK}" if self.thinking else text

    def score(self, episode: Episode) -> Score:
        """Parts `accuracy`, `iou` and `format`; an answer without readable spans earns none of them."""
        row: Clip = episode.sample.answer
        marks = span_marks("truth", _format_answer(row.answer, row.spans), row.spans)
        parsed = videochat_r1_grounded(episode.completion, self.thinking)
        if parsed.reason:
            return Score(dict.fromkeys(("accuracy", "iou", "format"), 0.0), 0.0, reason=parsed.reason, marks=marks)
        text, spans = parsed.value
        accuracy, overlap = multiple_choice(text, row.answer), set_iou(spans, row.spans)
        within = max((iop(spans[0], truth) for truth in row.spans), default=0.0) if spans else 0.0
        return Score(
            {"accuracy": accuracy, "iou": overlap, "format": 1.0},
            correct=accuracy * (within >= 0.5),
            answer=(choice(text) or text, spans),
            marks=(*marks, *span_marks("prediction", _format_answer(text, spans), spans)),
        )

    def gold(self, sample: Sample, frames: Sequence[Frame]) -> str:
        """The completion with the highest reward."""
        row: Clip = sample.answer
        spans = ", ".join(f"({format_seconds(start)}, {format_seconds(end)})" for start, end in row.spans)
        return f"{answer_markup(row.answer, self.thinking)}<glue>[{spans}]</glue>"

    def metrics(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """NExT-GQA's numbers, those by kind, and what the most frequent letter and constant spans would score."""
        rows: list[Clip] = [episode.sample.answer for episode in episodes]
        read = [episode.score.answer for episode in episodes]
        spans = [answer[1][0] if answer and answer[1] else None for answer in read]
        truths, durations = [row.spans for row in rows], [row.duration for row in rows]
        right = [episode.score.parts["accuracy"] == 1 for episode in episodes]
        firsts = [spans[0] for spans in truths]
        letter, _ = most_frequent_letter([row.answer for row in rows])
        return {
            **grounded_qa(spans, truths, right),
            **{f"by/{kind}": value for kind, value in accuracy_by(episodes, "kind").items()},
            "most_frequent_letter": letter,
            "whole_video": score_full_video(firsts, durations)["miou"],
            "best_constant": best_constant_interval(firsts, durations)[0]["miou"],
            "parse_fail": parse_failures(episodes),
        }


def _format_answer(answer: str, spans: Sequence[Interval]) -> str:
    return f"{answer}, {'; '.join(map(span_text, spans))}"
