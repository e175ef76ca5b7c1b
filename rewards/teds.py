"""How alike two tables are: tree edit distances (TEDS, TEDS-Structure) and an F1 of cells.

A table is the tree table > tr > td. To insert or delete a node costs 1, to rename td of other spans, or td to tr, too.
To rename td of equal spans costs the edit distance of their texts over the longer one's length, nothing in
TEDS-Structure. TEDS is 1 - distance / nodes of the larger tree.
Source: Zhong, ShafieiBavani, Jimeno Yepes 2020 (1911.10683), section 4; Table2LaTeX-RL (2509.17589) for TEDS-Structure.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from rewards import tabular
from rewards.table import Table
from rewards.text_distances import normalised
from rewards.total import total
from rewards.tree import distance


@dataclass(frozen=True)
class Likeness:
    """`structure` TEDS-Structure, `content` TEDS, `cells` the F1 of cells, each in [0, 1]; `same`: every cell is."""

    structure: float
    content: float
    cells: float
    same: bool


def compare(predicted: Table, truth: Table) -> Likeness:
    """All measures at once. Same cells are 1.0 exactly in each."""
    same = predicted.cells == truth.cells and predicted.height == truth.height
    if same:
        return Likeness(1.0, 1.0, 1.0, True)
    spans = np.array([[(a.rows, a.columns) != (b.rows, b.columns) for b in truth.cells] for a in predicted.cells])
    costs = spans.reshape(len(predicted.cells), len(truth.cells)).astype(np.float64)
    texts = normalised([cell.text for cell in predicted.cells], [cell.text for cell in truth.cells])
    return Likeness(
        _teds(predicted, truth, costs), _teds(predicted, truth, np.maximum(costs, texts)), _f1(predicted, truth), False
    )


def _teds(predicted: Table, truth: Table, costs: np.ndarray) -> float:
    nodes = max(1 + table.height + len(table.cells) for table in (predicted, truth))
    return float(max(0.0, 1 - distance(predicted.shape, truth.shape, costs) / nodes))


def _f1(predicted: Table, truth: Table) -> float:
    ours, theirs = Counter(predicted.cells), Counter(truth.cells)
    return 2 * (ours & theirs).total() / (ours.total() + theirs.total())


@total()
def structure(predicted: str, truth: str) -> float:
    """TEDS-Structure of two LaTeX tables, in [0, 1]; 0 where one cannot be read (`rewards.tabular`). Never raises."""
    return _read(predicted, truth).structure


@total()
def content(predicted: str, truth: str) -> float:
    """TEDS of two LaTeX tables, in [0, 1]; 0 where either cannot be read (`rewards.tabular`). Never raises."""
    return _read(predicted, truth).content


@total()
def cells(predicted: str, truth: str) -> float:
    """F1 of the cells with the same place, spans and text, in [0, 1]; 0 where a table cannot be read. Never raises."""
    return _read(predicted, truth).cells


def _read(predicted: str, truth: str) -> Likeness:
    ours, theirs = tabular.read(predicted), tabular.read(truth)
    if ours.reason or theirs.reason:
        return Likeness(0.0, 0.0, 0.0, False)
    return compare(ours.value, theirs.value)
