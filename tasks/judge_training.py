"""Training a judge: which of two answers is better? The policy judges, and is paid for being right.

Drawn scenes with a true description and one with a single thing wrong, or files of preferences. R1-Reward (2505.02835),
Think-RM (2505.16265).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from rewards import parse
from tasks.base import FORM, OWN_DATA, THINK, Rendered, Task, check, check_weights, generator
from tasks.data import rows
from tasks.data.images import open_image
from tasks.data.questions import COMPARED
from tasks.metrics import accuracy_by, parse_failures
from tasks.rendering import scenes
from tasks.rendering.figures import one as pick
from vlrl.types import MALFORMED, Annotation, Data, Episode, Frame, Observation, Sample, Score, Split

ASKS = "Describe the picture."
TEMPLATES = {
    "short": "{question} (1) {one} (2) {two} Which is better?",
    "claim": "{question} {one} (1) right {kind} (2) wrong {kind} Which is it?",
    "r1_reward": "You judge two answers to a question about the image. Compare how right and how helpful they are; "
    "neither their order nor their length counts.\nQuestion: {question}\nAnswer 1: {one}\nAnswer 2: {two}\n"
    "Which is better? Write 1 or 2 inside <answer> </answer>.",
}
CLAIMED = {"shape": "existence", "color": "attribute", "count": "attribute", "relation": "relation"}  # by what is wrong
COMPARE = "First compare them inside <think> </think>, and end with which is better."
WEIGHTS = {"accuracy": 1.0, **FORM}
THINKING_WEIGHTS = {"accuracy": 0.5, "consistency": 1.0, **FORM}
LINES = 3  # of the thoughts, the last ones, in which a verdict is looked for; R1-Reward's judge is shown as many
_NAMED = re.compile(r"\b(?:answer|response|number)s?\s*\(?([12])\b|\b(first|second)\b")
_TURNED = re.compile(r"\b(?:not|n't|worse|wrong|neither|both|equal|same)\b|n't\b")


@dataclass(frozen=True)
class PairTruth:
    """Which of the two is better, and the name of the pair: it is asked in both orders."""

    better: str  # 1 or 2
    pair: str = ""


class JudgeTraining(Task):
    """Samples: (picture, question, two answers) -> `PairTruth`. Each pair is asked twice in a row, in both orders.

    With `template: claim` a sample is one description, and one kind of claim in it (FGAIF's existence, attribute and,
    at level 2, relation): 1 for right, 2 for wrong. Half are right; the description may be wrong in another kind.

    A split for which `data` names no file is drawn (tasks/rendering/scenes.py, with `level`, `most`, `size` and
    `photo_share` as in `open_answer`): the true description and one with another color, shape, number or relation;
    `pool` and `held_out` questions, even numbers. Either text is as often the true one: neither place, length nor words
    tell which. Files: tasks/data/questions.py.

    Parts: `format`, 0 or 1: `1` or `2` and no more inside the tags; `accuracy`, 0 or 1. With `thinking` also
    `consistency`, `accuracy (1 + k) / 2`, k = 1 where the thoughts end with the verdict that is given, -1 where they
    end with the other one, 0 where they tell none. With the weights 0.5 for `format`, 0.5 and 1 the reward is
    R1-Reward's `0.5 format + accuracy (1 + 0.5 k)`, in [0, 2]. There a language model decides on k; here a rule: the
    last of the last three lines that names just one of the two, without `not`, `worse` or the like, is the verdict.

    Raises UserError for options out of range and for bad rows.
    """

    def __init__(
        self,
        *,
        data: Data = OWN_DATA,
        level: Literal[1, 2] = 1,
        most: int = 2,
        pool: int = 100_000,
        held_out: int = 512,
        size: tuple[int, int] = (64, 64),
        photo_share: float = 0.0,
        thinking: bool = False,
        template: Literal["short", "r1_reward", "claim"] = "short",
        weights: Mapping[str, float] | None = None,
        seed: int = 0,
    ):
        check(level in (1, 2), "level", level, "1 or 2")
        check(1 <= most <= 4, "most", most, "in 1 to 4")
        for key, number in (("pool", pool), ("held_out", held_out)):
            check(number > 0 and number % 2 == 0, key, number, "even and at least 2: each pair is asked in both orders")
        check(min(size) >= 48, "size", size, "at least 48 pixels each way")
        check(0 <= photo_share <= 1, "photo_share", photo_share, "between 0 and 1")
        check(template in TEMPLATES, "template", template, f"one of {', '.join(TEMPLATES)}")
        check(seed >= 0, "seed", seed, "at least 0")
        claims = template == "claim"
        check(not (claims and (thinking or data.train or data.test)), "template", template,
              "without thinking and files: claims are drawn")  # fmt: skip
        own = THINKING_WEIGHTS if thinking else WEIGHTS
        self.weights = check_weights(own if weights is None else weights, tuple(own))
        self._parts = [name for name in own if name == "format" or (name in self.weights and name != MALFORMED)]
        self.level, self.most, self.seed, self.photo_share = level, most, seed, photo_share
        self.thinking, self.template = thinking, template
        self._size, self._drawn = tuple(size), {"train": pool, "test": held_out}
        self._rows, self.bad_rows = rows.read(data, COMPARED)

    def samples(self, split: Split) -> Sequence[Sample]:
        if split in self._rows:
            return Rendered(2 * len(self._rows[split]), partial(self._from_file, split))
        draw = self._claim_from_seed if self.template == "claim" else self._from_seed
        return Rendered(self._drawn[split], partial(draw, split))

    def _claim_from_seed(self, split: Split, index: int) -> Sample:
        """Odd numbers are wrong in the kind that is asked about; others not, and half of them in another one."""
        rng, wrong = generator(self.seed, split, index), index % 2 == 1
        kind = pick(rng, ("existence", "attribute", "relation")[: self.level + 1])
        other = not wrong and bool(rng.integers(2))
        while True:
            content, twin, changed = scenes.pair(rng, split, self.level, self.most)
            if (CLAIMED[changed] == kind) != other:
                break
        image, _ = scenes.draw_described(rng, split, content, self._size, "plain", self.photo_share)
        text = (twin if wrong or other else content).text
        prompt = Observation((image, TEMPLATES["claim"].format(question=ASKS, one=text, kind=kind)))
        name = f"judge_training/claim/{split}/{index:06d}"
        return Sample(name, prompt, PairTruth("2" if wrong else "1", name), tags={"kind": kind})

    def _from_seed(self, split: Split, index: int) -> Sample:
        rng = generator(self.seed, split, index // 2)
        right, wrong, kind = scenes.pair(rng, split, self.level, self.most)
        image, _ = scenes.draw_described(rng, split, right, self._size, "plain", self.photo_share)
        first = (int(rng.integers(2)) + index) % 2  # the place of the better one
        pair = f"judge_training/{split}/{index // 2:06d}"
        text = self._text(ASKS, right.text, wrong.text, first)
        name = f"judge_training/{split}/{index:06d}"
        return Sample(name, Observation((image, text)), PairTruth(str(first + 1), pair), tags={"kind": kind})

    def _from_file(self, split: Split, index: int) -> Sample:
        row = self._rows[split][index // 2]
        first = index % 2
        text = self._text(row.question, row.better, row.worse, first)
        prompt = Observation((*map(open_image, row.images), text))
        return Sample(f"{row.id}/{index % 2 + 1}", prompt, PairTruth(str(first + 1), row.id), row.weight, row.tags)

    def _text(self, question: str, better: str, worse: str, first: int) -> str:
        one, two = (worse, better) if first else (better, worse)
        text = TEMPLATES[self.template].format(question=question, one=one, two=two)
        return f"{text} {THINK} {COMPARE}" if self.thinking else text

    def truth(self, value: Any) -> PairTruth:
        """The truth in a file for `vlrl score`: 1 or 2."""
        if value not in (1, 2, "1", "2"):
            raise ValueError("must be 1 or 2")
        return PairTruth(str(value))

    def score(self, episode: Episode) -> Score:
        """Reasons: those of `parse.answer_text`, and not_a_verdict."""
        truth: PairTruth = episode.sample.answer
        parsed = parse.answer(episode.completion, self.thinking, _verdict)
        marks = (Annotation("truth", "text", label=truth.better),)
        if parsed.reason:
            return Score(dict.fromkeys(self._parts, 0.0), 0.0, reason=parsed.reason, marks=marks)
        right = float(parsed.value == truth.better)
        parts = {"format": 1.0, "accuracy": right}
        if self.thinking:
            parts["consistency"] = right * (1 + agreement(episode.completion, parsed.value)) / 2
        marks = (*marks, Annotation("prediction", "text", label=parsed.value))
        return Score({name: parts[name] for name in self._parts}, right, answer=parsed.value, marks=marks)

    def gold(self, sample: Sample, frames: Sequence[Frame]) -> str:
        """The completion with the highest reward."""
        better = sample.answer.better
        thoughts = f"<think>I compare them. Answer {better} is better.</think>\n" if self.thinking else ""
        return f"{thoughts}<answer>{better}</answer>"

    def metrics(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Accuracy by what is wrong; `first_chosen`, the share of verdicts for the first place (0.5 is unbiased);
        `swap_agreement`, the share of pairs for which both orders chose the same answer, of those with two verdicts."""
        verdicts = [(e.sample.answer, e.score.answer) for e in episodes if e.score.answer]
        chosen: dict[str, dict[str, bool]] = defaultdict(dict)
        for truth, verdict in verdicts:
            chosen[truth.pair][truth.better] = verdict == truth.better
        both = [set(orders.values()) for orders in chosen.values() if len(orders) == 2]
        agreed = sum(len(each) == 1 for each in both)
        return {
            **{f"kind/{name}": value for name, value in accuracy_by(episodes, "kind").items()},
            "first_chosen": sum(verdict == "1" for _, verdict in verdicts) / max(1, len(verdicts)),
            **({} if self.template == "claim" else {"swap_agreement": agreed / max(1, len(both))}),
            "parse_fail": parse_failures(episodes),
        }


def agreement(completion: str, verdict: str) -> int:
    """k: whether the thoughts end with the verdict (1), the other one (-1) or none that can be read (0)."""
    lines = [line for line in completion.partition("</think>")[0].lower().splitlines() if line.strip()][-LINES:]
    sentences = [sentence for line in lines for sentence in re.split(r"[.!?;]", line)]
    for sentence in reversed(sentences):
        named = {digit or {"first": "1", "second": "2"}[word] for digit, word in _NAMED.findall(sentence)}
        if named:
            return 0 if len(named) == 2 or _TURNED.search(sentence) else 1 if named == {verdict} else -1
    return 0


def _verdict(text: str) -> parse.Parsed:
    answer = text.strip()
    return parse.Parsed(answer) if answer in ("1", "2") else parse.Parsed(reason="not_a_verdict")
