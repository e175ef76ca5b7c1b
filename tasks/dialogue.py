"""Dialogues: conversations of several user messages with images in any of them, whose end can be checked.

Files of messages (tasks/data/dialogues.py); or drawn: two pictures, one after the other, and what is gone from the
first, which the second turn must remember.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from PIL import Image, ImageDraw

from rewards import parse
from rewards import text as rewards_text
from rewards.text import TextTruth
from tasks.base import FORM, OWN_DATA, THINK, Task, answer_markup, check, check_weights, generator, rows_or_drawn
from tasks.context import FULL, ContextStrategy, with_context
from tasks.data.dialogues import DIALOGUES
from tasks.data.questions import read_truth
from tasks.data.rows import read
from tasks.metrics import accuracy_by, parse_failures
from tasks.rendering import scenes, screens
from vlrl.types import Annotation, Data, Environment, Episode, Frame, Message, Observation, Sample, Score, Split, Step

if TYPE_CHECKING:
    import numpy as np

LETTERS = "ABCDEFGHIJ"
REMEMBER = "Remember this picture. Say what you see."
GONE = "One thing is gone from it. Which one? Its color and shape."
ASKS = "Answer inside <answer> </answer>."
WEIGHTS = {"accuracy": 1.0, **FORM}
Shape = Literal["circle", "square", "triangle", "cross", "ring", "bar"]


@dataclass(frozen=True)
class DialogueTruth:
    """What is right at a conversation's end, what is shown after each earlier reply, and replies that fit."""

    text: TextTruth
    later: tuple[Observation, ...] = ()
    script: tuple[str, ...] = ()


class Dialogue(Task):
    """Samples: the beginning of a conversation -> a `DialogueTruth`.

    A split for which `data` names no file is drawn: `objects` of `shapes` on a picture of `size` pixels, then the same
    without one of them, which the answer names. No two look alike. Files: `DIALOGUES`.
    Parts: `accuracy` in [0, 1] and `format`, 0 or 1, of the last reply; it must stand in answer tags.

    Args:
        replies: who writes the assistant's earlier messages: `policy`, which answers each user's message in turn, or
            `file`, whose messages are shown as they are
        context: what of the conversation is shown: full, last_images or summary (tasks/context.py)
        shapes: those that are drawn; with a single one only colors differ
        measure: how texts are graded
        system: a system message, where a conversation has none

    Raises UserError for options out of range and bad rows.
    """

    def __init__(
        self,
        *,
        data: Data = OWN_DATA,
        pool: int = 100_000,
        held_out: int = 512,
        size: tuple[int, int] = (64, 64),
        objects: tuple[int, int] = (2, 4),
        shapes: Sequence[Shape] = screens.SHAPES,
        side: tuple[float, float] = (0.2, 0.32),
        replies: Literal["policy", "file"] = "policy",
        context: ContextStrategy = FULL,
        measure: Literal["exact", "token_f1", "rouge_l", "word_accuracy", "anls"] = "exact",
        system: str = "",
        thinking: bool = False,
        weights: Mapping[str, float] = WEIGHTS,
        seed: int = 0,
    ):
        scenes.check_drawing("plain", pool, held_out, size, objects, side)
        most = len(set(shapes)) * len(screens.COLORS)
        check(objects[1] <= most, "objects", objects, f"looks that differ: {most} at most")
        check(seed >= 0, "seed", seed, "at least 0")
        self.weights = check_weights(weights, tuple(WEIGHTS))
        self.replies, self.context, self.measure, self.system = replies, context, measure, system
        self.thinking, self.seed = thinking, seed
        self._draw = partial(draw_gone, size=tuple(size), objects=tuple(objects), shapes=shapes, side=tuple(side))
        self._drawn = {"train": pool, "test": held_out}
        self._rows, self.bad_rows = read(data, DIALOGUES)

    def samples(self, split: Split) -> Sequence[Sample]:
        return rows_or_drawn(split, self._rows, self._from_file, self._drawn, self._from_seed)

    def _from_seed(self, split: Split, index: int) -> Sample:
        before, after, look = self._draw(generator(self.seed, split, index), split)
        messages = [
            Message("user", (before, REMEMBER)),
            Message("assistant", ("I do.",)),
            Message("user", (after, GONE)),
        ]
        return self._sample(f"dialogue/{split}/{index:06d}", messages, TextTruth("text", look))

    def _from_file(self, split: Split, index: int) -> Sample:
        row = self._rows[split][index]
        return self._sample(row.id, [message.open() for message in row.messages], row.truth, row.weight, row.tags)

    def _sample(
        self, name: str, messages: Sequence[Message], truth: TextTruth, weight: float = 1.0,
        tags: Mapping[str, str] | None = None,
    ) -> Sample:  # fmt: skip
        """The prompt is the messages up to the first reply of the policy's."""
        if self.system and messages[0].role != "system":
            messages = [Message("system", (self.system,)), *messages]
        listed = "".join(f"({letter}) {option} " for letter, option in zip(LETTERS, truth.options, strict=False))
        ends = (f"{listed}{ASKS} {THINK}" if self.thinking else f"{listed}{ASKS}",)
        messages = [*messages[:-1], Message(messages[-1].role, (*messages[-1].content, *ends))]
        parts: list[list[Message]] = [[]]
        script: list[str] = []
        for message in messages:
            if message.role != "assistant" or self.replies == "file":
                parts[-1].append(message)
            elif parts[-1]:
                script.append(" ".join(part for part in message.content if isinstance(part, str)))
                parts.append([])
        first, *later = map(Observation.from_messages, parts)
        return Sample(name, first, DialogueTruth(truth, tuple(later), tuple(script)), weight, {**(tags or {})})

    def environment(self, sample: Sample) -> Environment:
        truth: DialogueTruth = sample.answer
        inner = ScriptedEnvironment(sample.prompt, truth.later, (*truth.script, self.gold(sample, ())))
        return with_context(inner, self.context)

    def score(self, episode: Episode) -> Score:
        """Parts `accuracy` and `format` of the last reply; one outside the tags earns neither."""
        truth: TextTruth = episode.sample.answer.text
        marks = (Annotation("truth", "text", label=truth.answer),)
        parsed = parse.answer(episode.completion, self.thinking, parse.nonempty)
        if parsed.reason:
            return Score({"accuracy": 0.0, "format": 0.0}, 0.0, reason=parsed.reason, marks=marks)
        grade = rewards_text.grade(parsed.value, truth, self.measure)
        parts = {"accuracy": grade.value, "format": 1.0}
        if grade.reason:
            return Score(parts, 0.0, reason=grade.reason, marks=marks)
        annotation = Annotation("prediction", "text", label=parsed.value)
        return Score(parts, grade.correct, answer=parsed.value, marks=(*marks, annotation))

    def truth(self, value: Any) -> DialogueTruth:
        """The truth from JSON, as `questions.read_truth`."""
        return DialogueTruth(read_truth(value))

    def gold(self, sample: Sample, frames: Sequence[Frame]) -> str:
        """The last reply."""
        truth: TextTruth = sample.answer.text
        answer = LETTERS[truth.options.index(truth.answer)] if truth.answer in truth.options else truth.answer
        return answer_markup(answer, self.thinking)

    def metrics(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Turns, accuracy by category, parse failures of the last reply."""
        return {
            "turns": sum(len(episode.turns) for episode in episodes) / max(1, len(episodes)),
            **{f"category/{name}": value for name, value in accuracy_by(episodes, "category").items()},
            "parse_fail": parse_failures(episodes),
        }


class ScriptedEnvironment(Environment):
    """Shows what comes next, whatever the policy replied; the reply to the last ends the episode."""

    def __init__(self, prompt: Observation, later: Sequence[Observation], script: Sequence[str]):
        self._observations, self._script = (prompt, *later), script
        self._turn: int | None = None

    def reset(self) -> Observation:
        if self._turn is not None:
            raise RuntimeError("an environment is made for one episode: make a new one")
        self._turn = 0
        return self._observations[0]

    def step(self, action: str | np.ndarray, frames: Sequence[Frame] = ()) -> Step:
        if self._turn is None or self._turn == len(self._observations):
            raise RuntimeError("a step comes after a reset and before the episode's end")
        self._turn += 1
        over = self._turn == len(self._observations)
        return Step(self._observations[self._turn - over], terminated=over)

    def gold(self, frames: Sequence[Frame]) -> str | None:
        """What the script says of this turn."""
        return self._script[self._turn or 0]


def draw_gone(
    rng: np.random.Generator, split: Split, *, size: tuple[int, int], objects: tuple[int, int],
    shapes: Sequence[str], side: tuple[float, float],
) -> tuple[Image.Image, Image.Image, str]:  # fmt: skip
    """A scene of shapes, the same without one of them, and its look (`red circle`)."""
    looks = [(shape, color) for shape in dict.fromkeys(shapes) for color in screens.COLORS]
    count = int(rng.integers(objects[0], objects[1] + 1))
    chosen = [looks[int(i)] for i in rng.permutation(len(looks))[:count]]
    before, things = scenes.draw(
        rng, split, size=size, looks=[((shape,), (color,)) for shape, color in chosen], patterns=("plain",), side=side,
        photo_share=0.0,
    )  # fmt: skip
    thing = things[int(rng.integers(len(things)))]
    after = before.copy()
    ground = max(before.getcolors(size[0] * size[1]) or [(0, (0, 0, 0))], key=lambda each: each[0])[1]
    x1, y1, x2, y2 = thing.box
    ImageDraw.Draw(after).rectangle((x1, y1, x2 - 1, y2 - 1), fill=ground)
    return before, after, f"{thing.color} {thing.shape}"
