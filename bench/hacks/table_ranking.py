"""Does the reward of `table_to_latex` rank a lesser corruption of a table above a greater one?

`python bench/hacks.py table_ranking [PAIRS]`: of 1,000 drawn tables (levels 2 and 3), each corrupted twice, the share
of pairs in the right order, by part of the reward, and the CPU seconds of grading. Nested: 1 to 3 edits, and 1 to 3
more on top, each of what no edit has touched before. Apart: 1 and 4 edits, both of the true table.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from rewards.tables import Cell, Table, latex
from tasks.table_to_latex import TableToLatex
from vlrl.types import Decision, Episode, Sample, Step, Turn

SIZES = {2: (96, 96), 3: (192, 192)}
WEIGHTS = {"structure": 0.5, "content": 1.0, "format": 0.5, "visual": 0.5}
Rng = np.random.Generator


def rebuilt(table: Table, cells: list[Cell], height: int, aligns: tuple[str, ...]) -> Table:
    """Of other cells; rules that leave the table are dropped, bars are those of its width."""
    rules = tuple(rule for rule in table.rules if rule.row <= height and rule.last <= len(aligns))
    ordered = tuple(sorted(cells, key=lambda cell: (cell.row, cell.column)))
    return Table(aligns, height, ordered, rules, table.bars[: len(aligns) + 1])


def fresh(cell: Cell) -> bool:
    """Whether no edit has touched it: those that one has end in {}, which shows nothing."""
    return not cell.latex.endswith("{}")


def touched(cell: Cell, **changes: object) -> Cell:
    made = replace(cell, **changes)
    return replace(made, latex=made.latex + "{}")


def changed(rng: Rng, table: Table) -> Table | None:
    """One cell says something else: a number of three digits, which no drawn cell has."""
    places = [i for i, each in enumerate(table.cells) if fresh(each)]
    if not places:
        return None
    at, said = places[int(rng.integers(len(places)))], str(int(rng.integers(100, 1000)))
    new = touched(table.cells[at], text=said, latex=said)
    return rebuilt(table, [*table.cells[:at], new, *table.cells[at + 1 :]], table.height, table.aligns)


def swapped(rng: Rng, table: Table) -> Table | None:
    """Two cells of equal spans have changed places."""
    pairs = [(a, b) for a in table.cells for b in table.cells
             if fresh(a) and fresh(b) and a.text < b.text and (a.rows, a.columns) == (b.rows, b.columns)]  # fmt: skip
    if not pairs:
        return None
    a, b = pairs[int(rng.integers(len(pairs)))]
    texts = {a: touched(a, text=b.text, latex=b.latex), b: touched(b, text=a.text, latex=a.latex)}
    return rebuilt(table, [texts.get(each, each) for each in table.cells], table.height, table.aligns)


def without_row(rng: Rng, table: Table) -> Table | None:
    if table.height < 3:
        return None
    gone, cells = int(rng.integers(table.height)), []
    for each in table.cells:
        rows = each.rows - (each.row <= gone < each.row + each.rows)
        if rows and rows < each.rows and not fresh(each):
            return None
        if rows:
            cells.append(replace(each, row=each.row - (each.row > gone), rows=rows))
    return rebuilt(table, cells, table.height - 1, table.aligns)


def without_column(rng: Rng, table: Table) -> Table | None:
    if len(table.aligns) < 3:
        return None
    gone, cells = int(rng.integers(len(table.aligns))), []
    for each in table.cells:
        columns = each.columns - (each.column <= gone < each.column + each.columns)
        if columns and columns < each.columns and not fresh(each):
            return None
        if columns:
            cells.append(replace(each, column=each.column - (each.column > gone), columns=columns))
    return rebuilt(table, cells, table.height, table.aligns[:gone] + table.aligns[gone + 1 :])


def merged(rng: Rng, table: Table) -> Table | None:
    """A cell reaches over its right neighbour, which is lost."""
    after = {(c.row, c.column): c for c in table.cells}
    pairs = [(c, after.get((c.row, c.column + c.columns))) for c in table.cells]
    pairs = [(c, right) for c, right in pairs if right and right.rows == c.rows and fresh(c) and fresh(right)]
    if not pairs:
        return None
    kept, lost = pairs[int(rng.integers(len(pairs)))]
    wide = touched(kept, columns=kept.columns + lost.columns, align="c")
    cells = [wide if each is kept else each for each in table.cells if each is not lost]
    return rebuilt(table, cells, table.height, table.aligns)


EDITS: tuple[Callable[[Rng, Table], Table | None], ...] = (changed, swapped, without_row, without_column, merged)


def corrupted(rng: Rng, table: Table | None, edits: int) -> Table | None:
    """So many edits, each of a random kind and of what no other has touched; None where the table has no room."""
    for _ in range(100 * edits):
        if table is None or not edits:
            break
        made = EDITS[int(rng.integers(len(EDITS)))](rng, table)
        if made is not None and made.cells != table.cells:
            table, edits = made, edits - 1
    return None if edits else table


def scored(task: TableToLatex, sample: Sample, table: Table) -> dict[str, float]:
    """The parts of the reward, and `reward`, of an answer that is a table's LaTeX."""
    decision = Decision(f"<answer>{latex(table)}</answer>", logprobs=None, entropy=None, truncated=False, frames=())
    turn = Turn(sample.prompt, decision, Step(sample.prompt, terminated=True))
    score = task.score(Episode(sample, 0, [turn]))
    if score.reason:
        raise RuntimeError(f"{score.reason}:\n{latex(table)}")
    return {**score.parts, "reward": task.reward(score)}


def ranked(pairs: int, nested: bool = True, weights: dict[str, float] = WEIGHTS) -> dict[str, np.ndarray]:
    """(pairs) for each part and the whole: the lesser corruption's value less the greater one's."""
    options = {"held_out": 2 * pairs + 10, "weights": weights}
    pools = [(task, task.samples("test")) for task in (TableToLatex(level=n, size=SIZES[n], **options) for n in SIZES)]
    found: dict[str, list[float]] = {}
    number = 0
    while len(found.get("reward", ())) < pairs:
        rng, (task, samples) = np.random.default_rng([7, number]), pools[number % 2]
        sample, number = samples[number], number + 1
        few, more = (int(rng.integers(1, 4)), int(rng.integers(1, 4))) if nested else (1, 4)
        lesser = corrupted(rng, sample.answer.table, few)
        greater = corrupted(rng, lesser if nested else sample.answer.table, more)
        if lesser is None or greater is None:
            continue
        good, bad = scored(task, sample, lesser), scored(task, sample, greater)
        for name, value in good.items():
            found.setdefault(name, []).append(value - bad[name])
    return {name: np.array(values) for name, values in found.items()}


def main(pairs: int) -> None:
    for title, nested in (("nested", True), ("apart", False)):
        for name, weights in (("without pictures", {**WEIGHTS, "visual": 0.0}), ("with pictures", WEIGHTS)):
            start = time.process_time()
            found = ranked(pairs, nested, weights)
            used = time.process_time() - start
            print(f"{title}, {name}: {pairs} pairs, {used:.1f} CPU seconds")
            for part, values in found.items():
                print(f"  {part:<10} right {np.mean(values > 0):.1%}  equal {np.mean(values == 0):.1%}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", nargs="?", type=int, default=1000)
    main(parser.parse_args().pairs)
