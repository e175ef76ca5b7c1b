"""Questions about videos, and images, with one right answer: an option's letter, a number, a text. Drawn, or files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rewards import parse
from rewards.text import choice, multiple_choice
from rewards.video import PROBLEMS, seed_bench_r1_option, video_r1_exact
from tasks.base import FORM, OWN_DATA, THINK, Task, answer_markup, check, check_weights, generator, rows_or_drawn
from tasks.data import video_questions
from tasks.data.records import LETTERS, Clip, viewer
from tasks.metrics import accuracy_by, mean, most_frequent_letter, parse_failures
from tasks.rendering.robot_videos import StoryQuestion
from tasks.rendering.videos import FILM, FILM_KINDS, Stories, VideoOptions
from vlrl.types import Annotation, Data, Episode, Frame, Observation, Sample, Score, Split

TEMPLATES = {
    "short": ("{question}{options}", " ({letter}) {option}"),
    "guided": (
        "{question}\n{options}{ask} inside <answer> </answer>.",
        "{letter}. {option}\n",
    ),
    # SEED-Bench-R1's tail, byte for byte (its grpo.py).
    "seed_bench_r1": (
        "{question}\n{options}\nOutput the thinking process in <think> </think> and final answer in <answer> </answer> "
        "tags, i.e., <think> reasoning process here </think><answer> answer here </answer>. ",
        "{letter}. {option}\n",
    ),
    "video_r1": (
        "{question}\n{options}Think about the question step by step inside <think> </think>, then answer inside "
        "<answer> </answer>.{tail}",
        "{letter}. {option}\n",
    ),
}
# Video-R1's end for questions with options, byte for byte; for the others in our words.
TAILS = {
    "multiple choice": (
        " Please provide only the single option letter (e.g., A, B, C, D, etc.) within the <answer> </answer> tags."
    ),
    "numerical": " Give only the number.",
    "regression": " Give only the number.",
    "relative accuracy": " Give only the number.",
    "OCR": " Give only the text that is shown.",
    "free-form": " Answer in your own words.",
}
JUDGES = {"default": multiple_choice, "seed_bench_r1": seed_bench_r1_option, "video_r1": video_r1_exact}
WEIGHTS = {"accuracy": 1.0, **FORM}


def lettered(options: Sequence[str], form: str) -> str:
    """All options, each as `form` writes its `{letter}` and `{option}`."""
    return "".join(form.format(letter=letter, option=option) for letter, option in zip(LETTERS, options, strict=False))


def _choices(asked: StoryQuestion) -> Clip:
    return Clip("", asked.text, options=asked.options, answer=asked.letter)


def _open(asked: StoryQuestion) -> Clip:
    return Clip("", asked.text, answer=asked.options[asked.answer], kind="free-form")


OPTIONS = {"shuffled": _choices, "alphabetical": lambda asked: _choices(asked.alphabetical()), "none": _open}


class VideoQa(Task):
    """Samples: (video or images, question) -> the right option's letter, or a text judged by its kind.

    A split for which `data` names no file is made as `film` says; `per_video` consecutive samples ask about one video,
    questions of `kinds`, by default all of its source, with `options` in random order, sorted or none. Files are
    sampled at `fps`, at most `frames` frames and `total_pixels` pixels.
    Parts: `accuracy` in [0, 1], of letters as `judge` says, else by kind (`rewards.video.PROBLEMS`), and `format`, 0
    or 1: the tags are right.
    Raises UserError for options out of range and for bad rows.
    """

    def __init__(
        self,
        *,
        data: Data = OWN_DATA,
        film: VideoOptions = FILM,
        kinds: tuple[str, ...] = (),
        options: Literal["shuffled", "alphabetical", "none"] = "shuffled",
        per_video: int = 1,
        fps: float = 2.0,
        frames: int = 16,
        total_pixels: int = 2048 * 28 * 28,
        thinking: bool = False,
        template: Literal["short", "guided", "seed_bench_r1", "video_r1"] = "short",
        judge: Literal["default", "seed_bench_r1", "video_r1"] = "default",
        weights: Mapping[str, float] = WEIGHTS,
        seed: int = 0,
    ):
        known = FILM_KINDS[film.source]
        check(set(kinds) <= set(known), "kinds", kinds, f"some of {', '.join(known)}")
        check(per_video > 0, "per_video", per_video, "at least 1")
        check(template in TEMPLATES, "template", template, f"one of {', '.join(TEMPLATES)}")
        check(options in OPTIONS, "options", options, f"one of {', '.join(OPTIONS)}")
        check(judge in JUDGES, "judge", judge, f"one of {', '.join(JUDGES)}")
        check(seed >= 0, "seed", seed, "at least 0")
        self.weights = check_weights(weights, tuple(WEIGHTS))
        self.kinds, self.per_video, self.seed = tuple(kinds) or known, per_video, seed
        self.thinking, self.template, self.judge, self.options = thinking, template, judge, options
        self._stories, self._viewer = Stories(film, seed), viewer(fps, frames, total_pixels)
        self._rows, self.bad_rows = video_questions(data)

    def samples(self, split: Split) -> Sequence[Sample]:
        return rows_or_drawn(split, self._rows, self._from_file, self._stories.lengths, self._from_seed)

    def _from_seed(self, split: Split, index: int) -> Sample:
        rng = generator(self.seed + 1, split, index)
        question_answer = self._stories.ask(rng, split, index // self.per_video, self.kinds)
        row = OPTIONS[self.options](question_answer)
        return Sample(
            f"video_qa/{split}/{index:06d}",
            Observation((*question_answer.media, self._text(row))),
            row,
            tags=question_answer.tags,
        )

    def _from_file(self, split: Split, index: int) -> Sample:
        row = self._rows[split][index]
        prompt = Observation((*self._viewer.see(row), self._text(row)))
        return Sample(row.id, prompt, row, row.weight, row.tags)

    def _text(self, row: Clip) -> str:
        whole, one = TEMPLATES[self.template]
        options = lettered(row.options, one)
        ask = "Answer with the option's letter" if row.options else "Answer"
        text = whole.format(question=row.question, options=options, ask=ask, tail=TAILS[row.kind])
        return f"{text} {THINK}" if self.thinking and "<think>" not in text else text

    def truth(self, value: Any) -> Clip:
        """`{answer}` with `options`, of which it is a letter, or `kind`; a letter alone is of options A to Z."""
        held = value if isinstance(value, Mapping) else {"answer": value, "options": LETTERS}
        kind = held.get("kind", Clip.kind)
        if kind not in PROBLEMS or not isinstance(held["answer"], str):
            raise ValueError(f"answer must be a text, and kind one of {', '.join(PROBLEMS)}")
        return Clip("", "", options=tuple(held.get("options") or ()), answer=held["answer"], kind=kind)

    def score(self, episode: Episode) -> Score:
        """Parts `accuracy` and `format`; an answer outside the tags earns neither."""
        row: Clip = episode.sample.answer
        parsed = parse.answer(episode.completion, self.thinking, parse.nonempty)
        marks = (Annotation("truth", "text", label=row.answer),)
        if parsed.reason:
            return Score({"accuracy": 0.0, "format": 0.0}, 0.0, reason=parsed.reason, marks=marks)
        judge = JUDGES[self.judge] if row.options else PROBLEMS[row.kind]
        accuracy = judge(parsed.value, row.answer)
        annotation = Annotation("prediction", "text", label=parsed.value)
        answer = (choice(parsed.value) if row.options else None) or parsed.value
        return Score({"accuracy": accuracy, "format": 1.0}, accuracy, answer=answer, marks=(*marks, annotation))

    def gold(self, sample: Sample, frames: Sequence[Frame]) -> str:
        """The completion with the highest reward."""
        return answer_markup(sample.answer.answer, self.thinking)

    def metrics(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Accuracy by what the tags say, the mean over each tag's values, the most frequent answer's accuracy."""
        truths = [episode.sample.answer.answer for episode in episodes]
        tags = {key for episode in episodes for key in episode.sample.tags}
        accuracies = {key: accuracy_by(episodes, key) for key in sorted(tags & set(TAGS))}
        return {
            **{f"{key}/{name}": value for key, values in accuracies.items() for name, value in values.items()},
            **{f"mean_{key}": mean(list(values.values())) for key, values in accuracies.items()},
            "most_frequent_answer": most_frequent_letter(truths)[0],
            "parse_fail": parse_failures(episodes),
        }


TAGS = ("kind", "task", "type", "level", "domain", "duration", "source")  # what accuracy is broken down by
