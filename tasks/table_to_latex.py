"""A picture of a table -> its LaTeX. Drawn here, with tables that the drawing knows, or read from files.

What an answer says is compared as a table, cell by cell and span by span, never as a text of LaTeX. Source:
Table2LaTeX-RL (2509.17589), whose visual reward computed in eight-bit integers, which wrap; see docs/table_to_latex.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal

from rewards import parse
from rewards.tables import Table, compare, latex, read_table
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
from tasks.data.images import BadRowError, open_image
from tasks.data.questions import TABLES, TableTruth, latex_truth
from tasks.data.rows import read
from tasks.metrics import parse_failures
from tasks.rendering import latex as rendering_latex
from vlrl.types import Annotation, Data, Episode, Frame, Observation, Sample, Score, Split

LEAST = {1: 48, 2: 96, 3: 192}  # level -> pixels of the shorter side, that its letters can be read
TEMPLATES = {
    "short": "Write this table in LaTeX.",
    "guided": "Write this table in LaTeX, as one tabular environment and nothing else, inside <answer> </answer>.",
}
WEIGHTS = count_from(0.2, {"content_gain": 1.0, "structure": 0.0, "content": 0.0, **FORM})


class TableToLatex(Task):
    """Samples: (picture of a table) -> its LaTeX.

    A split for which `data` names no file is drawn at `level` 1 to 3, `size` pixels; no test table's texts are those of
    a training table (tasks/rendering/latex.py). Files: tasks/data/questions.py.
    Parts, in [0, 1]: `structure` (TEDS-Structure), `content` (TEDS, or the F1 of cells with `measure: cells`),
    `content_gain` (how far `content` is above that of the true table without its texts: 0 there, 1 at 1), `format`
    (one table that can be read) and, where it has a weight, `visual` (MS-SSIM of the pictures that `renderer` makes of
    answer and truth; with weight 0 none is made and it is 0).
    Correct: every cell has the right place, spans and text.
    Raises UserError for options out of range, bad rows, and `renderer: latex` without LaTeX.
    """

    def __init__(
        self,
        *,
        data: Data = OWN_DATA,
        level: Literal[1, 2, 3] = 1,
        pool: int = 100_000,
        held_out: int = 512,
        size: tuple[int, int] = (64, 64),
        thinking: bool = False,
        template: Literal["short", "guided"] = "short",
        measure: Literal["teds", "cells"] = "teds",
        renderer: Literal["drawn", "latex"] = "drawn",
        weights: Mapping[str, float] = WEIGHTS,
        seed: int = 0,
    ):
        check(level in LEAST, "level", level, "1, 2 or 3")
        check(min(size) >= LEAST[level], "size", size, f"at least {LEAST[level]} pixels each way at level {level}")
        check(min(pool, held_out) > 0, "pool", pool, "at least 1, as held_out")
        check(template in TEMPLATES, "template", template, f"one of {', '.join(TEMPLATES)}")
        check(measure in ("teds", "cells"), "measure", measure, "teds or cells")
        check(renderer in rendering_latex.RENDERERS, "renderer", renderer, "drawn or latex")
        check(seed >= 0, "seed", seed, "at least 0")
        self.weights = check_weights(weights, (*WEIGHTS, "visual"))
        self._parts = ("content_gain", "structure", "content", "format", *(["visual"] if "visual" in weights else []))
        self.level, self.seed, self.thinking, self.template, self.measure = level, seed, thinking, template, measure
        self._render = rendering_latex.renderer(renderer) if self.weights.get("visual") else None
        self._size, self._drawn = tuple(size), {"train": pool, "test": held_out}
        self._rows, self.bad_rows = read(data, TABLES)

    def samples(self, split: Split) -> Sequence[Sample]:
        return rows_or_drawn(split, self._rows, self._from_file, self._drawn, self._from_seed)

    def _from_seed(self, split: Split, index: int) -> Sample:
        rng = generator(self.seed, split, index)
        table = rendering_latex.table(rng, split, self.level)
        prompt = Observation((rendering_latex.picture(rng, table, self._size), self._text()))
        tags = {"rows": str(table.height), "columns": str(len(table.aligns))}
        return Sample(f"table_to_latex/{split}/{index:06d}", prompt, TableTruth(latex(table), table), tags=tags)

    def _from_file(self, split: Split, index: int) -> Sample:
        row = self._rows[split][index]
        return Sample(row.id, Observation((open_image(row.image), self._text())), row.truth, tags=row.tags)

    def _text(self) -> str:
        return f"{TEMPLATES[self.template]} {THINK}" if self.thinking else TEMPLATES[self.template]

    def truth(self, value: Any) -> TableTruth:
        """The truth in a file for `vlrl score`: LaTeX."""
        try:
            return latex_truth(value)
        except BadRowError as problem:
            raise ValueError(str(problem)) from None

    def score(self, episode: Episode) -> Score:
        """Parts `structure`, `content`, `format`, and `visual` where it has a weight."""
        right: TableTruth = episode.sample.answer
        parsed = parse.answer(episode.completion, self.thinking, read_table)
        marks = (Annotation("truth", "text", label=right.latex),)
        if parsed.reason:
            return Score(dict.fromkeys(self._parts, 0.0), 0.0, reason=parsed.reason, marks=marks)
        like = compare(parsed.value, right.table)
        content = like.content if self.measure == "teds" else like.cells
        empty = _empty_content(right.table, self.measure)
        gain = max(0.0, (content - empty) / (1 - empty)) if empty < 1 else content
        parts = {"content_gain": gain, "structure": like.structure, "content": content, "format": 1.0}
        if "visual" in self._parts:
            parts["visual"] = rendering_latex.looks(parsed.value, right.table, self._render) if self._render else 0.0
        source = latex(parsed.value)
        return Score(
            parts, float(like.same), answer=source, marks=(*marks, Annotation("prediction", "text", label=source))
        )

    def gold(self, sample: Sample, frames: Sequence[Frame]) -> str:
        """The completion with the highest reward."""
        return answer_markup(sample.answer.latex, self.thinking)

    def metrics(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Means of the parts, and `parse_fail`."""
        scores = [episode.score for episode in episodes if episode.score]
        names = sorted({name for score in scores for name in score.parts})
        means = {name: sum(score.parts[name] for score in scores) / len(scores) for name in names}
        return {**means, "parse_fail": parse_failures(episodes)}


@lru_cache(maxsize=1024)
def _empty_content(table: Table, measure: str) -> float:
    """What the table without its texts has of `content`: an answer of the right form that says nothing."""
    empty = replace(table, cells=tuple(replace(cell, text="", latex="") for cell in table.cells))
    like = compare(empty, table)
    return like.content if measure == "teds" else like.cells
