"""reasoning_gym's generators of puzzles, by name: asked as text, or as a picture of it, graded by their own rules.

Needs `reasoning-gym` (`pip install 'vlrl[environments]'`). A question and its answer are made when they are asked for.
"""

from __future__ import annotations

import inspect
import json
import re
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib import metadata
from typing import Any, Literal

from PIL import Image, ImageDraw

from rewards import parse
from rewards.parse import Parsed
from robot.sim.gym import Generators
from tasks.base import FORM, Rendered, Task, answer_markup, check, check_weights, format_question
from tasks.metrics import accuracy_by, parse_failures
from tasks.rendering.screens import font
from vlrl.types import Annotation, Episode, Frame, Observation, Sample, Score, Split, UserError, first_line, suggest

WEIGHTS = {"correct": 1.0, "score": 0.0, **FORM}  # some graders pay a little for whatever has the right form
TEST_SEEDS = 2**30  # from here on
ASKS = "Answer inside <answer> </answer>."
READ = "Solve the problem in the picture."
# Some graders evaluate what a model wrote, sympy's even what stands in its strings: they get what can be no program.
EVALUATES = re.compile(r"(?<![_a-z])(eval|exec|parse_expr|sympify)\(")
WORD = re.compile(r"[\w\s]{1,1000}")  # without a call or a dot nothing happens
ARITHMETIC = re.compile(r"[\w\s+\-*/^().,=]{1,500}", re.ASCII)  # Python takes other alphabets' letters for these
FUNCTIONS = frozenset(("sin", "cos", "tan", "asin", "acos", "atan", "exp", "log", "ln", "sqrt", "pi"))
# what would take hours: other exponents than 1 to 99, powers of powers or of more than two brackets, a bracket within a
# function's; and members, calls of anything else
HUGE = re.compile(
    r"(\*\*|\^)(?!\s*(\d{1,2}\b|\(-?\d{1,2}(/\d{1,2})?\)))|(\*\*|\^)\s*\d+\s*(\*\*|\^)|(\)\s*(\*\*|\^).*){3}|\d{13}"
    r"|[A-Za-z]\s*\.|\.\s*[A-Za-z]|\b[A-Za-z_]\s*\(|[a-z]{2}\s*\([^()]*\(|\)\s*\("
)
UNSOLVED = ("example_answer", "example_correct_answer", "possible_answer")  # where metadata tell of one of many answers


class ReasoningGym(Task):
    """Samples: puzzles of reasoning_gym's generators, those of training and of testing from other seeds.

    Parts: `score`, what the generator's own `score_answer` gives in [0, 1], `correct`, whether that is 1, and `format`.
    Some generators know few puzzles, so that a puzzle may come again. Raises UserError for a generator that does not
    exist, for options that it refuses, and for a question that it fails to generate.

    Args:
        generators: by their names, such as `leg_counting`; several take turns
        options: of each, by its name: {leg_counting: {max_animals: 3}}
        shows: `text` asks in words; `image` draws them as a picture
        width: of the picture, in pixels
        letter: height of its letters, in pixels
    """

    def __init__(
        self,
        *,
        generators: Sequence[str] = ("leg_counting",),
        options: Mapping[str, Mapping[str, Any]] | None = None,
        shows: Literal["text", "image"] = "text",
        width: int = 448,
        letter: int = 14,
        pool: int = 100_000,
        held_out: int = 512,
        thinking: bool = False,
        weights: Mapping[str, float] = WEIGHTS,
        seed: int = 0,
    ):
        check(min(pool, held_out) > 0, "pool, held_out", (pool, held_out), "at least 1")
        check(32 <= width <= 4096 and 6 <= letter <= 64, "width, letter", (width, letter), "32 to 4096 and 6 to 64")
        check(0 <= seed < TEST_SEEDS - pool, "seed", seed, "at least 0, and far below 2**30")
        check(bool(generators), "generators", generators, "one or more names")
        for name in options or {}:
            check(name in generators, f"options.{name}", name, f"one of {', '.join(generators)}")
        self.weights = check_weights(weights, tuple(WEIGHTS))
        self.thinking, self._shows, self._width, self._letter = thinking, shows, width, letter
        self._names, self._sizes = tuple(generators), {"train": pool, "test": held_out}
        self._seeds = {"train": seed, "test": TEST_SEEDS + seed}
        self._datasets = {
            (name, split): make_dataset(name, (options or {}).get(name, {}), self._seeds[split], self._sizes[split])
            for name in self._names
            for split in self._sizes
        }
        self._evaluates = {name: does_evaluate(self._datasets[name, "test"]) for name in self._names}

    def samples(self, split: Split) -> Sequence[Sample]:
        return Rendered(self._sizes[split], partial(self._sample, split))

    def _sample(self, split: Split, index: int) -> Sample:
        name = self._names[index % len(self._names)]
        generators = Generators()
        generators.seed(self._seeds[split] + index)  # some draw from the process' own, whatever their seed
        place = index // len(self._names)
        with generators.lent():
            try:
                entry = self._datasets[name, split][place]
            except Exception as error:  # generators raise what they like
                problem = f"no question of seed {self._seeds[split] + place}: {first_line(error)}"
                raise UserError(
                    f"task.generators: {name}: {problem}; choose another task.seed, or other task.options.{name}"
                ) from error
        question = entry["question"].strip()
        if self._shows == "image":
            content = (draw_text(question, self._width, self._letter), format_question(f"{READ} {ASKS}", self.thinking))
        else:
            content = (format_question(f"{question}\n{ASKS}", self.thinking),)
        return Sample(
            f"reasoning_gym/{name}/{split}/{index:06d}", Observation(content), (name, entry), tags={"by": name}
        )

    def score(self, episode: Episode) -> Score:
        """Parts `correct`, `score` and `format`. Reasons: `rewards.parse`'s, and not_plain, where code would be run."""
        name, entry = episode.sample.answer
        marks = (Annotation("truth", "text", label=str(entry["answer"])),)
        parsed = parse.answer(episode.completion, self.thinking, parse.nonempty)
        if not parsed.reason and self._evaluates[name]:
            parsed = read_plain(parsed.value)
        if parsed.reason:
            return Score({"correct": 0.0, "score": 0.0, "format": 0.0}, 0.0, reason=parsed.reason, marks=marks)
        try:
            score = float(self._datasets[name, "test"].score_answer(parsed.value, entry))
        except Exception:  # graders raise what they like at what a model writes
            score = 0.0
        score = min(max(score, 0.0), 1.0) if score == score else 0.0
        marks = (*marks, Annotation("prediction", "text", label=parsed.value))
        correct = float(score == 1.0)
        return Score({"correct": correct, "score": score, "format": 1.0}, correct, answer=parsed.value, marks=marks)

    def gold(self, sample: Sample, frames: Sequence[Frame]) -> str:
        """The generator's answer; where it knows none, what it tells of one, which may be nothing."""
        entry = sample.answer[1]
        known = [entry["answer"], *(entry["metadata"].get(key) for key in UNSOLVED)]
        answer = next((each for each in known if each is not None), "")
        return answer_markup(answer if isinstance(answer, str) else json.dumps(answer), self.thinking)

    def metrics(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Accuracy of each generator, parse failures."""
        return {
            **{f"by/{name}": value for name, value in accuracy_by(episodes, "by").items() if len(self._names) > 1},
            "parse_fail": parse_failures(episodes),
        }

    def facts(self, episodes: Sequence[Episode]) -> dict[str, str]:
        """The version of the generators and their graders."""
        return {"reasoning-gym": metadata.version("reasoning-gym")}


def make_dataset(name: str, options: Mapping[str, Any], seed: int, size: int) -> Any:
    """A generator's data set.

    Raises:
        UserError: reasoning_gym is missing, has no such generator, or it refuses its options.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its sources, when first compiled
            from reasoning_gym.factory import DATASETS, create_dataset
    except ImportError as error:
        raise UserError(f"task.name: reasoning_gym: pip install 'vlrl[environments]' ({first_line(error)})") from None
    if name not in DATASETS:
        raise UserError(f"task.generators: no generator {name!r}{suggest(name, list(DATASETS))}")
    try:
        return create_dataset(name, seed=seed, size=size, **options)
    except (TypeError, ValueError, AssertionError) as error:
        known = ", ".join(key for key in inspect.signature(DATASETS[name][1]).parameters if key not in ("seed", "size"))
        raise UserError(f"task.options.{name}: {first_line(error)}; it takes {known}") from None


def does_evaluate(dataset: Any) -> bool:
    """Whether a generator's grader may run what a model wrote; so do those whose source cannot be read."""
    try:
        return EVALUATES.search(inspect.getsource(type(dataset).score_answer)) is not None
    except (OSError, TypeError):
        return True


def read_plain(text: str) -> Parsed:
    """Words, arithmetic of numbers, single letters and a few functions, or a literal of such. Reason: not_plain."""
    literal = parse.literal(text)
    is_literal = not literal.reason and "\\" not in text and all(map(is_plain, strings_of(literal.value)))
    if is_plain(text) or is_literal:
        return Parsed(text)
    return Parsed(reason="not_plain")


def is_plain(text: str) -> bool:
    """Whether no call, loop or long computation is written in a text that is evaluated."""
    names = re.findall(r"[A-Za-z_]\w*", text)
    is_arithmetic = ARITHMETIC.fullmatch(text) and all(len(name) == 1 or name in FUNCTIONS for name in names)
    return not text or bool(WORD.fullmatch(text) or (is_arithmetic and not HUGE.search(text)))


def strings_of(value: Any) -> Iterator[str]:
    """The strings in a literal, bytes as Python writes them: sympy evaluates each."""
    if isinstance(value, str | bytes):
        yield str(value)
    elif isinstance(value, Mapping):
        yield from strings_of([*value.items()])
    elif isinstance(value, list | tuple | set):
        for each in value:
            yield from strings_of(each)


def draw_text(text: str, width: int, letter: int) -> Image.Image:
    """Text in black on white, as wide as asked and as tall as it needs."""
    face, border = font(letter), letter // 2
    per_line = max(8, int((width - 2 * border) / face.getlength("n")))
    lines = [
        part for line in text.splitlines() for part in textwrap.wrap(line, per_line, drop_whitespace=False) or [""]
    ]
    step = round(1.3 * letter)
    image = Image.new("RGB", (width, 2 * border + step * len(lines)), "white")
    pen = ImageDraw.Draw(image)
    for place, line in enumerate(lines):
        pen.text((border, border + place * step), line, fill="black", font=face)
    return image
