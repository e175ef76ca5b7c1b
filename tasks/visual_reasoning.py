"""Visual reasoning: questions with open answers about pictures. Drawn here (charts, tables, figures, clocks, receipts,
scenes) with answers that the drawing knows, or read from files. Each answer is graded by its kind (rewards/text.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from rewards import parse
from rewards import text as rewards_text
from rewards.text import TEXTS, TextTruth, answer_text
from tasks import math_equivalence
from tasks.base import FORM, OWN_DATA, THINK, Task, answer_markup, check, check_weights, generator, rows_or_drawn
from tasks.data import questions
from tasks.data.images import open_image
from tasks.data.rows import checked, read
from tasks.metrics import accuracy_by, parse_failures
from tasks.rendering import figures, scenes
from tasks.rendering.figures import (
    CHARTS_TOPICS,
    CLOCKS_TOPICS,
    DOCUMENTS_TOPICS,
    TABLES_TOPICS,
    TRIES,
    QuestionAnswer,
    Quiz,
    Rng,
    Size,
)
from vlrl.types import Annotation, Data, Episode, Frame, Observation, Sample, Score, Split

DRAWN = {
    **CHARTS_TOPICS, **TABLES_TOPICS, **figures.TOPICS, **CLOCKS_TOPICS, **DOCUMENTS_TOPICS, **scenes.TOPICS
}  # fmt: skip
LEAST = {1: 48, 2: 96, 3: 128}  # level -> pixels of the shorter side, that its letters can be read
OBSERVE = (
    "First write what you see inside <observe> </observe>, then think inside <think> </think>, then answer inside "
    "<answer> </answer>."
)
ASKS = {
    "choice": "Answer with one option",
    "number": "Answer with the number alone, with its unit if it has one,",
    "math": "Answer with the formula alone",
    "text": "Answer with the text alone",
    "list": "Answer with the list, its items between commas,",
}
SEEN = 32  # pictures of a topic show all that it may be asked
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
WEIGHTS = {"accuracy": 1.0, **FORM}


class VisualReasoning(Task):
    """Samples: (picture, question) -> a `rewards.text.TextTruth`: a choice, a number, a formula, a text or a list.

    A split for which `data` names no file is drawn: `topics` (all of DRAWN where none is named) at `level` 1 to 3,
    `size` pixels, `per_picture` consecutive samples about one picture. `pies/smallest` in place of `pies` asks for
    nothing else. With the `medium` text the same is told in words in place of the picture (LMM-R1's first stage). What
    a test picture shows (its values, times, names) is in no training picture, see tasks/rendering/figures.py.
    `options` of a
    choice are shown with `letters`, or not at all (`none`), and either way may be answered by their text. Files:
    tasks/data/questions.py; their numbers may be off by `relative` where the row says nothing. Texts earn what
    `measure` says; correct are exact ones alone.
    Parts: `accuracy` in [0, 1] and `format`, 0 or 1: the tags are right and hold something.
    Raises UserError for options out of range, bad rows, and formulas without math-verify.
    """

    def __init__(
        self,
        *,
        data: Data = OWN_DATA,
        topics: tuple[str, ...] = (),
        level: Literal[1, 2, 3] = 1,
        pool: int = 100_000,
        held_out: int = 512,
        size: tuple[int, int] = (64, 64),
        per_picture: int = 1,
        medium: Literal["picture", "text"] = "picture",
        options: Literal["letters", "none"] = "letters",
        thinking: bool = False,
        observe: bool = False,
        template: Literal["short", "guided"] = "short",
        measure: Literal["exact", "token_f1", "rouge_l", "word_accuracy", "anls"] = "exact",
        relative: float = 0.0,
        weights: Mapping[str, float] = WEIGHTS,
        seed: int = 0,
    ):
        known = {topic.partition("/")[0] for topic in topics} <= set(DRAWN)
        check(known, "topics", topics, f"some of {', '.join(DRAWN)}, or one question of theirs: pies/smallest")
        check(level in LEAST, "level", level, "1, 2 or 3")
        check(min(size) >= LEAST[level], "size", size, f"at least {LEAST[level]} pixels each way at level {level}")
        check(min(pool, held_out, per_picture) > 0, "pool", pool, "at least 1, as held_out and per_picture")
        check(medium in ("picture", "text"), "medium", medium, "picture or text")
        check(options in ("letters", "none"), "options", options, "letters or none")
        check(thinking or not observe, "observe", observe, "false without task.thinking: it comes before the thoughts")
        check(template in ("short", "guided"), "template", template, "short or guided")
        check(measure in TEXTS, "measure", measure, f"one of {', '.join(TEXTS)}")
        check(0 <= relative < 1, "relative", relative, "in 0 to 1")
        check(seed >= 0, "seed", seed, "at least 0")
        self.weights = check_weights(weights, tuple(WEIGHTS))
        self.topics, self.level, self.seed, self.per_picture = tuple(topics) or tuple(DRAWN), level, seed, per_picture
        self.thinking, self.observe, self.template, self.options = thinking, observe, template, options
        self.measure, self.relative, self.medium = measure, relative, medium
        self._size, self._drawn = tuple(size), {"train": pool, "test": held_out}
        for topic in self.topics:
            _check_topic(topic, self._size, level)
        self._rows, self.bad_rows = read(data, questions.QUESTIONS)
        if any(row.truth.kind == "math" for rows in self._rows.values() for row in checked(rows)):
            math_equivalence.judge()  # or there is none: said now and not at the first answer

    def samples(self, split: Split) -> Sequence[Sample]:
        return rows_or_drawn(split, self._rows, self._from_file, self._drawn, self._from_seed)

    def _from_seed(self, split: Split, index: int) -> Sample:
        number, place = divmod(index, self.per_picture)
        quiz, question_answer = self._picture(split, number)
        question = question_answer[place % len(question_answer)]
        truth = TextTruth(question.kind, question.answer, question.options, absolute=question.absolute)
        tags = {"topic": question.topic.partition("/")[0], "skill": question.topic, "kind": question.kind}
        text = self._text(question.text, truth)
        prompt = Observation((f"{quiz.caption} {text}",) if self.medium == "text" else (quiz.image, text))
        return Sample(f"visual_reasoning/{split}/{index:06d}", prompt, truth, tags=tags)

    def _picture(self, split: Split, number: int) -> tuple[Quiz, list[QuestionAnswer]]:
        """A picture and what is asked about it, in random order."""
        rng = generator(self.seed, split, number)
        topic = self.topics[int(rng.integers(len(self.topics)))]
        quiz, question_answer = _draw_quiz(topic, rng, split, self._size, self.level)
        return quiz, [question_answer[int(i)] for i in rng.permutation(len(question_answer))]

    def _from_file(self, split: Split, index: int) -> Sample:
        row = self._rows[split][index]
        truth = row.truth if row.truth.relative or row.truth.absolute else replace(row.truth, relative=self.relative)
        prompt = Observation((*map(open_image, row.images), self._text(row.question, truth)))
        return Sample(row.id, prompt, truth, row.weight, {**row.tags, "kind": truth.kind})

    def _text(self, question: str, truth: TextTruth) -> str:
        options = truth.options if self.options == "letters" else ()
        pairs = list(zip(LETTERS, options, strict=False))
        if self.template == "short":
            text = question + "".join(f" ({letter}) {option}" for letter, option in pairs)
        else:
            listed = "".join(f"{letter}. {option}\n" for letter, option in pairs)
            text = f"{question}\n{listed}{ASKS[truth.kind]} inside <answer> </answer>."
        return f"{text} {OBSERVE if self.observe else THINK}" if self.thinking else text

    def truth(self, value: Any) -> TextTruth:
        """The truth in a file for `vlrl score`, as `questions.read_truth`."""
        return questions.read_truth(value)

    def score(self, episode: Episode) -> Score:
        """Parts `accuracy` and `format`; an answer outside the tags earns neither."""
        truth: TextTruth = episode.sample.answer
        completion = episode.completion
        parsed = answer_text(completion) if self.observe else parse.answer_text(completion, self.thinking)
        marks = (Annotation("truth", "text", label=truth.answer),)
        formatted = float(parsed.reason is None and bool(parsed.value.strip()))
        if parsed.reason:
            return Score({"accuracy": 0.0, "format": 0.0}, 0.0, reason=parsed.reason, marks=marks)
        same = math_equivalence.judge() if truth.kind == "math" else None
        grade = rewards_text.grade(parsed.value, truth, self.measure, same)
        parts = {"accuracy": grade.value, "format": formatted}
        if grade.reason:
            return Score(parts, 0.0, reason=grade.reason, marks=marks)
        annotation = Annotation("prediction", "text", label=parsed.value)
        return Score(parts, grade.correct, answer=parsed.value.strip(), marks=(*marks, annotation))

    def gold(self, sample: Sample, frames: Sequence[Frame]) -> str:
        """The completion with the highest reward."""
        truth: TextTruth = sample.answer
        answer = truth.answer
        if truth.options and self.options == "letters" and answer in truth.options:
            answer = LETTERS[truth.options.index(answer)]
        thought = "<observe>I see the image.</observe>\n" if self.observe else ""
        return thought + answer_markup(answer, self.thinking)

    def metrics(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Accuracy by kind, by topic and skill where they are known; the most frequent answer's; `parse_fail`."""
        truths = Counter(episode.sample.answer.answer for episode in episodes)
        accuracies = {key: accuracy_by(episodes, key) for key in ("kind", "topic", "skill")}
        return {
            **{f"{key}/{name}": value for key, values in accuracies.items() for name, value in values.items()},
            "most_frequent_answer": max(truths.values(), default=0) / max(len(episodes), 1),
            "parse_fail": parse_failures(episodes),
        }


def _draw_quiz(topic: str, rng: Rng, split: Split, size: Size, level: int) -> tuple[Quiz, list[QuestionAnswer]]:
    """A picture of the topic with what may be asked of it, or with the one question that the topic names."""
    name, _, skill = topic.partition("/")
    for _ in range(TRIES):
        quiz = DRAWN[name](rng, split, size, level)
        if fitting := [each for each in quiz.asked if not skill or each.topic == topic]:
            return quiz, fitting
    raise RuntimeError(f"no {topic} for {split} in {TRIES} tries")


def _check_topic(topic: str, size: Size, level: int) -> None:
    """UserError where pictures of this level are never asked what the topic names."""
    name, _, skill = topic.partition("/")
    if skill:
        rng = generator(0, "train", 0)
        topics = {each.topic for _ in range(SEEN) for each in DRAWN[name](rng, "train", size, level).asked}
        check(topic in topics, "topics", topic, f"at level {level}: {name}, {', '.join(sorted(topics))}")
