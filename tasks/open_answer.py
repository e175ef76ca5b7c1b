"""Open answers: what a picture shows, in free words. Drawn scenes, whose facts are known, or files with right answers.

What is scored here is scored by rules. Judges and embeddings score as well, beside them: docs/open_answer.md.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rewards import parse
from rewards.text import exact_match, rouge_l, squad_f1
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
from tasks.data import questions
from tasks.data.images import BadRowError, open_image
from tasks.data.rows import checked, read
from tasks.metrics import parse_failures
from tasks.rendering import figures, scenes
from tasks.rendering.scenes import DESCRIBED_COLORS, NUMBERS, SHAPES, content, draw_described, plural
from vlrl.types import Annotation, Data, Episode, Frame, Observation, Sample, Score, Split

# What a description claims of a drawn scene, fact by fact, and how much of it is true. The vocabulary is that of
# tasks/rendering/scenes.py and a few words that say nothing. A text with any other word is not read: nothing is
# guessed, and what it may mean (`no red circle`) is not taken for a claim.

MOST = 1_000  # characters
COUNTS = {**{word: n for n, word in NUMBERS.items()}, "an": 1, "one": 1, **{str(n): n for n in NUMBERS}}
NAMES = {**{shape: (shape, False) for shape in SHAPES}, **{plural(shape): (shape, True) for shape in SHAPES}}
RELATIONS = ("left", "right", "above", "below")
SAYS_NOTHING = frozenset(
    ("and", "are", "contains", "i", "image", "in", "is", "it", "of", "on", "picture", "see", "shows", "side", "that",
     "the", "there", "this", "to", "with")
)  # fmt: skip
_WORD = re.compile(r"[a-z0-9]+|[^a-z0-9\s.,;]")
Fact = tuple[str | int, ...]
Look = tuple[str, str]


@dataclass(frozen=True)
class Claims:
    """What a text says there is (one fact each for shape, colour and number), and how it lies."""

    objects: tuple[Fact, ...]
    relations: tuple[Fact, ...]


def read_claims(text: str) -> Claims | None:
    """None where it is no whole description in the vocabulary, or longer than MOST characters."""
    if len(text) > MOST:
        return None
    objects: list[Fact] = []
    relations: list[Fact] = []
    before: Look | None = None  # what was named last
    count: int | None = None
    color = relation = ""
    for word in _WORD.findall(text.lower()):
        if word in COUNTS and count is None and not color:
            count = COUNTS[word]
        elif word in DESCRIBED_COLORS and not color:
            color = word
        elif word in NAMES:
            shape, many = NAMES[word]
            objects += _object(shape, color, count or (None if many else 1))
            if relation:
                relations.append(_relation(relation, before, (color, shape)))
            before, count, color, relation = (color, shape), None, "", ""
        elif word in RELATIONS and before and not relation and count is None and not color:
            relation = word
        elif word not in SAYS_NOTHING:
            return None
    whole = objects and count is None and not color and not relation
    return Claims(tuple(objects), tuple(relations)) if whole else None


def _object(shape: str, color: str, count: int | None) -> list[Fact]:
    facts: list[Fact] = [("shape", shape)]
    if color:
        facts.append(("color", color, shape))
    if color and count:
        facts.append(("count", count, color, shape))
    return facts


def _relation(word: str, one: Look, other: Look) -> Fact:
    """The same for `A right of B` and `B left of A`."""
    if word in ("right", "below"):
        word, one, other = {"right": "left", "below": "above"}[word], other, one
    return (word, *one, *other)


def facts_f1(predicted: str, rights: Sequence[str]) -> float:
    """F1 of the facts that a text claims, in [0, 1]; 0 where it is not read. Never raises; linear in the text.

    What is claimed twice is surplus the second time. Of how things lie one true fact is enough, and every false one
    is surplus.

    Args:
        rights: sentences that each describe the same things, and together all the ways in which they lie.
    """
    claims_made, whole = read_claims(predicted), [claims for text in rights if (claims := read_claims(text))]
    if claims_made is None or not whole:
        return 0.0
    things, lie = Counter(whole[0].objects), {fact for claims in whole for fact in claims.relations}
    matches, placed = (Counter(claims_made.objects) & things).total(), len(lie & set(claims_made.relations))
    precision = (matches + placed) / (len(claims_made.objects) + len(claims_made.relations))
    recall = (matches + min(1, placed)) / (things.total() + min(1, len(lie)))
    return 2 * precision * recall / (precision + recall) if matches + placed else 0.0


ASKS = "Describe the picture."
VOCABULARY = (
    f"Say how many there are ({', '.join(NUMBERS.values())}), of which color ({', '.join(DESCRIBED_COLORS)}) "
    f"and shape ({', '.join(SHAPES)}), and how they lie (left of, right of, above, below), as in: two red "
    "circles left of a blue square."
)
WHERE = "Answer inside <answer> </answer>."
NAMES_IT = "Before all else write what kind of image it is as a tag, such as <{example}>."
WEIGHTS = count_from(0.15, {"facts": 1.0, "token_f1": 0.0, "rouge_l": 0.0, **FORM})
PARTS = (*WEIGHTS, "modality")
_TAG = re.compile(r"\s*<([A-Za-z0-9_]{1,40})>")  # linear: it starts at a fixed place


@dataclass(frozen=True)
class OpenTruth:
    """Texts that are right, each alone."""

    answers: tuple[str, ...]
    modality: str = ""  # of the image, '' where nobody is asked for it
    facts: bool = False  # the answers are descriptions in the vocabulary of `read_claims`


class OpenAnswer(Task):
    """Samples: (picture, question) -> `OpenTruth`.

    A split for which `data` names no file is drawn: `pool` scenes to train on, `held_out` others to test on, of `size`
    pixels. At `level` 1 they show one group of up to `most` things that look alike, at 2 two groups; `photo_share` of
    them lie on photographs. What a test scene of level 2 shows is in no training scene; at level 1 there is too little
    to show. Files: tasks/data/questions.py.

    Parts by rules, each in [0, 1]: `facts`, F1 of what is claimed of a drawn scene (`facts_f1`); `token_f1` and
    `rouge_l`, with the right text that fits best; `format`, the tags are right and hold something. With `modality`
    (MediX-R1) the kind of image is named first, as a tag, `<STRIPES>`; part `modality`. Of drawn scenes it is the
    pattern of the things. Correct: all facts and none but these; of files, one of the right texts.

    Raises UserError for options out of range, for bad rows, and for `facts` that files do not have.
    """

    def __init__(
        self,
        *,
        data: Data = OWN_DATA,
        level: Literal[1, 2] = 2,
        most: int = 2,
        pool: int = 100_000,
        held_out: int = 512,
        size: tuple[int, int] = (64, 64),
        photo_share: float = 0.0,
        thinking: bool = False,
        modality: bool = False,
        template: Literal["short", "guided"] = "short",
        weights: Mapping[str, float] | None = None,
        seed: int = 0,
    ):
        check(level in (1, 2), "level", level, "1 or 2")
        check(1 <= most <= 4, "most", most, "in 1 to 4")
        check(pool > 0 and held_out > 0, "pool", pool, "at least 1, as held_out")
        check(min(size) >= 48, "size", size, "at least 48 pixels each way")
        check(0 <= photo_share <= 1, "photo_share", photo_share, "between 0 and 1")
        check(template in ("short", "guided"), "template", template, "short or guided")
        check(seed >= 0, "seed", seed, "at least 0")
        own = WEIGHTS | ({"modality": 0.5} if modality else {})
        self.weights = check_weights(own if weights is None else weights, PARTS if modality else tuple(WEIGHTS))
        self.level, self.most, self.seed, self.photo_share = level, most, seed, photo_share
        self.thinking, self.modality, self.template = thinking, modality, template
        self._size, self._drawn = tuple(size), {"train": pool, "test": held_out}
        self._rows, self.bad_rows = read(data, questions.OPEN)
        check(not (self._rows and self.weights.get("facts")), "weights.facts", self.weights.get("facts"),
              "0 where data names files: only drawn scenes have facts (use token_f1, rouge_l or a judge)")  # fmt: skip
        open_rows = (row for rows in self._rows.values() for row in checked(rows))
        lacking = modality and next((row.id for row in open_rows if not row.modality), "")
        check(not lacking, "modality", modality, f"false: row {lacking} does not tell its modality")

    def samples(self, split: Split) -> Sequence[Sample]:
        return rows_or_drawn(split, self._rows, self._from_file, self._drawn, self._from_seed)

    def _from_seed(self, split: Split, index: int) -> Sample:
        rng = generator(self.seed, split, index)
        scene = content(rng, split, self.level, self.most)
        pattern = figures.one(rng, scenes.PATTERNS) if self.modality else "plain"
        image, sentences = draw_described(rng, split, scene, self._size, pattern, self.photo_share)
        truth = OpenTruth(sentences, pattern.upper() if self.modality else "", facts=True)
        question = ASKS if self.template == "short" else f"{ASKS} {VOCABULARY} {WHERE}"
        prompt = Observation((image, self._text(question, "PLAIN")))
        return Sample(f"open_answer/{split}/{index:06d}", prompt, truth)

    def _from_file(self, split: Split, index: int) -> Sample:
        row = self._rows[split][index]
        question = row.question if self.template == "short" else f"{row.question} {WHERE}"
        prompt = Observation((*map(open_image, row.images), self._text(question, "X_RAY")))
        truth = OpenTruth(row.answers, row.modality if self.modality else "")
        return Sample(row.id, prompt, truth, row.weight, row.tags)

    def _text(self, question: str, example: str) -> str:
        lines = [question, THINK if self.thinking else "", NAMES_IT.format(example=example) if self.modality else ""]
        return " ".join(filter(None, lines))

    def truth(self, value: Any) -> OpenTruth:
        """The truth in a file for `vlrl score`: a text, several, or the fields of an OpenTruth."""
        fields = dict(value) if isinstance(value, Mapping) else {"answers": value}
        try:
            result = OpenTruth(**{**fields, "answers": questions.answers(fields.get("answers"), "answers")})
        except BadRowError as problem:
            raise ValueError(str(problem)) from None
        if result.facts and facts_f1(result.answers[0], result.answers) < 1:
            raise ValueError("its answers describe no drawn scene")
        return result

    def truths(self, sample: Sample) -> tuple[str, ...]:
        """The texts that are right, for rewards that compare answers themselves."""
        return sample.answer.answers

    def score(self, episode: Episode) -> Score:
        """An answer outside the tags earns nothing but its modality."""
        truth: OpenTruth = episode.sample.answer
        kind, completion = self._split(episode.completion)
        parsed = parse.answer_text(completion, self.thinking)
        reason = parsed.reason or (None if parsed.value.strip() else "empty_answer")
        named = float(bool(kind) and kind.upper() == truth.modality)
        parts = {**dict.fromkeys(("facts", "token_f1", "rouge_l", "format"), 0.0), "modality": named}
        marks = (Annotation("truth", "text", label=truth.answers[0]),)
        if reason:
            return Score(self._weighed(parts), 0.0, reason=reason, marks=marks)
        answer = parsed.value.strip()
        parts |= {
            "facts": facts_f1(answer, truth.answers) if truth.facts else 0.0,
            "token_f1": max(squad_f1(answer, right) for right in truth.answers),
            "rouge_l": max(rouge_l(answer, right) for right in truth.answers),
            "format": 1.0,
        }
        right = parts["facts"] == 1 if truth.facts else any(exact_match(answer, each) for each in truth.answers)
        marks = (*marks, Annotation("prediction", "text", label=answer))
        return Score(self._weighed(parts), float(right), answer=answer, marks=marks)

    def _weighed(self, parts: Mapping[str, float]) -> dict[str, float]:
        return {name: value for name, value in parts.items() if name == "format" or name in self.weights}

    def _split(self, completion: str) -> tuple[str, str]:
        """The modality that a completion begins with, and the rest; '' where none is named or asked for."""
        match = _TAG.match(completion) if self.modality else None
        if not match or match[1].lower() in ("think", "answer"):
            return "", completion
        return match[1], completion[match.end() :]

    def gold(self, sample: Sample, frames: Sequence[Frame]) -> str:
        """The completion with the highest reward."""
        truth: OpenTruth = sample.answer
        named = f"<{truth.modality}>" if self.modality else ""
        return named + answer_markup(truth.answers[0], self.thinking)

    def metrics(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """`parse_fail`; of drawn scenes `unread`: answers in other words than the vocabulary's."""
        answers = [e.score.answer for e in episodes if e.score.answer is not None and e.sample.answer.facts]
        unread = sum(read_claims(text) is None for text in answers) / max(1, len(answers))
        return {"parse_fail": parse_failures(episodes), "unread": unread}
