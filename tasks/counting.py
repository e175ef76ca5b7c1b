"""Counting: how many objects of a label are there? Drawn pictures, or detection files whose boxes are counted.

The answer is one whole number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from rewards import parse
from rewards.boxes import closeness, exact_count
from rewards.parse import Object
from tasks.base import FORM, OWN_DATA, THINK, Task, answer_markup, check, check_weights, generator, rows_or_drawn
from tasks.data import scenes
from tasks.data.images import open_image
from tasks.data.rows import every_row
from tasks.metrics import accuracy_by, counting, parse_failures
from tasks.rendering import scenes as rendering_scenes
from vlrl.types import Annotation, Data, Episode, Frame, Observation, Sample, Score, Split

TEMPLATES = {
    "short": "Count every {label}.",
    "guided": "How many objects are there of: {label}? Answer with one whole number inside <answer> </answer>.",
}
THOUGHTS = {"fixed": "I look at the image.", "listed": "{listed}", "checked": "{listed}; check: {listed}"}
WEIGHTS = {"exact": 1.0, "closeness": 0.0, **FORM}


def _list_objects(objects: Sequence[Object]) -> str:
    """Their names from left to right; of equal left edges the upper one first."""
    return " ".join(each.label for each in sorted(objects, key=lambda each: each.box))


class Counting(Task):
    """Samples: (picture, label) -> how many objects of the label it shows.

    Pictures are drawn as `detection` draws them, with as many of the label as of all counts alike from 0 to the most.
    With `data`, each row of a detection file asks for one of its labels, crowds left out.
    Parts: `exact` 0 or 1; `closeness` in [0, 1], 1 - error / truth (weight 0 unless given one); `format`.
    Correct: exact. Raises UserError for options out of range and for bad rows.

    Args:
        thoughts: of gold answers, with `thinking`: a fixed sentence, the names of all objects from left to right, or
            these twice, so that a model that imitates both can be taught to be brief.
    """

    def __init__(
        self,
        *,
        data: Data = OWN_DATA,
        source: Literal["scenes", "plain", "colors", "digits", "robot"] = "scenes",
        pool: int = 100_000,
        held_out: int = 512,
        size: tuple[int, int] = (64, 64),
        objects: tuple[int, int] = (2, 5),
        side: tuple[float, float] = (0.2, 0.32),
        thinking: bool = False,
        thoughts: Literal["fixed", "listed", "checked"] = "fixed",
        template: Literal["short", "guided"] = "short",
        weights: Mapping[str, float] = WEIGHTS,
        seed: int = 0,
    ):
        rendering_scenes.check_drawing(source, pool, held_out, size, objects, side)
        check(template in TEMPLATES, "template", template, f"one of {', '.join(TEMPLATES)}")
        check(thoughts in THOUGHTS, "thoughts", thoughts, f"one of {', '.join(THOUGHTS)}")
        check(thinking or thoughts == "fixed", "thoughts", thoughts, "fixed without task.thinking: nothing is thought")
        check(seed >= 0, "seed", seed, "at least 0")
        self.weights = check_weights(weights, tuple(WEIGHTS))
        self.seed, self.thinking, self.thoughts, self.template = seed, thinking, thoughts, template
        self._source, self._objects = rendering_scenes.SOURCES[source], tuple(objects)
        self._size, self._side = tuple(size), tuple(side)
        self._drawn = {"train": pool, "test": held_out}
        rows, self.bad_rows = scenes(data)
        self._questions = {
            split: [(row, label) for row in every_row(split_rows) for label in row.labels]
            for split, split_rows in rows.items()
        }

    def samples(self, split: Split) -> Sequence[Sample]:
        return rows_or_drawn(split, self._questions, self._from_file, self._drawn, self._from_seed)

    def _from_seed(self, split: Split, index: int) -> Sample:
        rng = generator(self.seed, split, index)
        label, labels = rendering_scenes.choose_labels(
            rng, self._source.labels, self._objects, negatives=1 / (self._objects[1] + 1)
        )
        image, objects = self._source.draw(rng, split, labels, self._size, self._side)
        count = sum(thing.label == label for thing in objects)
        prompt = Observation((image, self._text(label)))
        tags = {"count": str(count), "listed": _list_objects(objects)}
        return Sample(f"counting/{split}/{index:06d}", prompt, count, tags=tags)

    def _from_file(self, split: Split, index: int) -> Sample:
        row, label = self._questions[split][index]
        crowd = row.crowd or (False,) * len(row.objects)
        single = [each for each, many in zip(row.objects, crowd, strict=True) if not many]
        count = sum(each.label == label for each in single)
        prompt = Observation((*map(open_image, row.images), self._text(label)))
        tags = {**row.tags, "count": str(count), "listed": _list_objects(single)}
        return Sample(f"{row.id}/{label}", prompt, count, weight=row.weight, tags=tags)

    def _text(self, label: str) -> str:
        text = TEMPLATES[self.template].format(label=label)
        return f"{text} {THINK}" if self.thinking else text

    def score(self, episode: Episode) -> Score:
        """Parts `exact`, `closeness` and `format`."""
        truth = episode.sample.answer
        parsed = parse.answer(episode.completion, self.thinking, parse.count)
        formatted = float(parsed.reason is None)
        marks = (Annotation("truth", "text", label=str(truth)),)
        if parsed.reason:
            return Score({"exact": 0.0, "closeness": 0.0, "format": formatted}, 0.0, reason=parsed.reason, marks=marks)
        exact, close = exact_count(parsed.value, truth), closeness(parsed.value, truth)
        return Score(
            {"exact": exact, "closeness": close, "format": formatted},
            correct=exact,
            answer=parsed.value,
            marks=(*marks, Annotation("prediction", "text", label=str(parsed.value))),
        )

    def gold(self, sample: Sample, frames: Sequence[Frame]) -> str:
        thought = THOUGHTS[self.thoughts].format(listed=sample.tags.get("listed", ""))
        return answer_markup(str(sample.answer), self.thinking, thought)

    def metrics(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Exact share, mean absolute and root mean square error, accuracy by count, the best constant's exact share."""
        truths = [episode.sample.answer for episode in episodes]
        return {
            **counting([episode.score.answer for episode in episodes], truths),
            **{f"by/{count}": value for count, value in accuracy_by(episodes, "count").items()},
            "best_constant": max(Counter(truths).values(), default=0) / max(len(truths), 1),
            "parse_fail": parse_failures(episodes),
        }
