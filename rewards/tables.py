"""LaTeX tables: parsing, tree edit distances (TEDS), F1 of cells, structural similarity of images."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from rapidfuzz.distance import Levenshtein
from rapidfuzz.process import cdist
from scipy.ndimage import correlate1d

from rewards import parse
from rewards.latex import SWITCHES, UnreadableLatexError, argument, optional, plain, source, stripped, tokens
from rewards.parse import total

# Multi-scale structural similarity of two grey pictures, in floats of 0 to 1.
#
# Source: Wang, Simoncelli, Bovik 2003 (Asilomar, "Multiscale structural similarity for image quality assessment").

WEIGHTS = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)  # of the scales, finest first
C1, C2 = 0.01**2, 0.03**2
WINDOW, SIGMA = 11, 1.5  # pixels
LEAST = WINDOW * 2 ** (len(WEIGHTS) - 1)  # pixels of the shorter side: 176


@total()
def ms_ssim(first: np.ndarray, second: np.ndarray) -> float:
    """How alike two pictures of one size are, in [0, 1]; 1 for equal ones. Never raises.

    (H, W) each, H and W at least LEAST, any real numbers in 0 to 1. Anything else is worth 0. Where a scale's mean
    contrast and structure is negative, it is 0, as is then the whole.
    """
    one, other = _usable(first), _usable(second)
    if one is None or other is None or one.shape != other.shape:
        return 0.0
    total = 1.0
    for scale, weight in enumerate(WEIGHTS):
        if scale:
            one, other = _half(one), _half(other)
        luminance, structure = _terms(one, other)
        last = scale == len(WEIGHTS) - 1
        mean = float((luminance * structure).mean() if last else structure.mean())
        total *= max(mean, 0.0) ** weight
    return min(total, 1.0)


def _usable(picture: np.ndarray) -> np.ndarray | None:
    if not isinstance(picture, np.ndarray) or picture.ndim != 2 or picture.dtype.kind not in "fiub":
        return None
    if min(picture.shape) < LEAST or not (np.isfinite(picture).all() and picture.min() >= 0 and picture.max() <= 1):
        return None
    return picture.astype(np.float64)


def _terms(one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Luminance, and contrast times structure, of each whole window."""
    mean, mean_other = _blurred(one), _blurred(other)
    variance = _blurred(one * one) - mean**2
    variance_other = _blurred(other * other) - mean_other**2
    covariance = _blurred(one * other) - mean * mean_other
    luminance = (2 * mean * mean_other + C1) / (mean**2 + mean_other**2 + C1)
    return luminance, (2 * covariance + C2) / (variance + variance_other + C2)


def _blurred(picture: np.ndarray) -> np.ndarray:
    """Gaussian means of the windows that lie inside."""
    places = np.arange(WINDOW) - WINDOW // 2
    kernel = np.exp(-(places**2) / (2 * SIGMA**2))
    kernel /= kernel.sum()
    edge = WINDOW // 2
    for axis in (0, 1):
        picture = correlate1d(picture, kernel, axis=axis, mode="reflect")
    return picture[edge:-edge, edge:-edge]


def _half(picture: np.ndarray) -> np.ndarray:
    """Means of 2 x 2 pixels; an odd last row or column is dropped."""
    height, width = (side // 2 * 2 for side in picture.shape)
    return picture[:height, :width].reshape(height // 2, 2, width // 2, 2).mean(axis=(1, 3))


# A table as a grid of cells with spans, and the LaTeX of one.


@dataclass(frozen=True)
class Cell:
    """Where a cell stands (from 0), how many rows and columns it spans, what it shows."""

    row: int
    column: int
    text: str
    rows: int = 1
    columns: int = 1
    align: str = field(default="", compare=False)  # of a \multicolumn, else ''
    latex: str = field(default="", compare=False)  # as written, of known commands only

    @property
    def slots(self) -> list[tuple[int, int]]:
        """All (row, column) that it covers."""
        rows = range(self.row, self.row + self.rows)
        return [(i, j) for i in rows for j in range(self.column, self.column + self.columns)]


@dataclass(frozen=True)
class HorizontalRule:
    """A line above a row (`row` = height: below the last), from column `first` up to before `last`."""

    row: int
    first: int
    last: int
    name: str  # hline, cline, toprule, midrule, bottomrule, cmidrule


@dataclass(frozen=True)
class Table:
    """Its cells row by row, without those that another one covers; every slot is covered once."""

    aligns: tuple[str, ...]  # of each column: l, c or r
    height: int
    cells: tuple[Cell, ...]
    rules: tuple[HorizontalRule, ...] = ()
    bars: tuple[int, ...] = ()  # vertical lines left of each column and right of the last

    @property
    def shape(self) -> tuple[int, ...]:
        """How many cells begin in each row."""
        counts = [0] * self.height
        for cell in self.cells:
            counts[cell.row] += 1
        return tuple(counts)


def latex(table: Table) -> str:
    """Its LaTeX in one form, which `rewards.tables.read_table` reads back to an equal table."""
    bars = table.bars or (0,) * (len(table.aligns) + 1)
    spec = "|" * bars[0] + "".join(a + "|" * n for a, n in zip(table.aligns, bars[1:], strict=True))
    lines = [rf"\begin{{tabular}}{{{spec}}}"]
    for row in range(table.height):
        lines += _rules(table, row)
        lines.append(" & ".join(_row(table, row)) + r" \\")
    return "\n".join([*lines, *_rules(table, table.height), r"\end{tabular}"])


def _rules(table: Table, row: int) -> list[str]:
    partly = ("cline", "cmidrule")
    return [
        rf"\{rule.name}{{{rule.first + 1}-{rule.last}}}" if rule.name in partly else rf"\{rule.name}"
        for rule in table.rules
        if rule.row == row
    ]


def _row(table: Table, row: int) -> list[str]:
    """The cells that begin in a row, and empty ones under those that reach down into it."""
    pieces = []
    for cell in sorted((c for c in table.cells if c.row <= row < c.row + c.rows), key=lambda c: c.column):
        text = cell.latex if cell.row == row else ""
        if cell.rows > 1 and cell.row == row:
            text = rf"\multirow{{{cell.rows}}}{{*}}{{{text}}}"
        if cell.columns > 1 or (cell.align and cell.row == row):
            text = rf"\multicolumn{{{cell.columns}}}{{{cell.align or 'c'}}}{{{text}}}"
        pieces.append(text)
    return pieces


# Column specifications of LaTeX tables: `l c r`, `p{2cm}`, `|`, `@{}`, `>{\bfseries}`, `*{3}{c}`, S and X.

MAX_COLUMNS = 50
MAX_STEPS = 1000  # of a specification; *{n}{..} repeats
_ALIGNS = {**dict.fromkeys("lXpmb", "l"), "c": "c", "S": "c", "r": "r"}
_WITH_WIDTH = "pmb"
_BETWEEN = {r"\extracolsep", r"\fill", r"\quad", r"\hskip", r"\hspace", r"\tabcolsep", " "}


def columns(spec: Sequence[str], one: bool = False) -> tuple[tuple[str, ...], tuple[int, ...]]:
    r"""Alignment of each column (l, c, r), and how many lines stand left of each and right of the last.

    `one`: exactly one column, as in \multicolumn. RefusedError: bad_columns.
    """
    if len(spec) > MAX_STEPS:
        raise UnreadableLatexError("bad_columns")
    aligns: list[str] = []
    bars = [0]
    left = list(reversed(spec))
    for _ in range(MAX_STEPS):
        if not left:
            break
        part = left.pop()
        if part == "|":
            bars[-1] += 1
        elif part in _ALIGNS:
            aligns.append(_ALIGNS[part])
            bars.append(0)
            if part in _WITH_WIDTH:
                _taken(left)
        elif part == "*":
            _repeat(left)
        elif part in ("@", "!", ">", "<"):
            _decoration(_taken(left), part)
        elif part != " ":
            raise UnreadableLatexError("bad_columns")
    if left or not aligns or len(aligns) > MAX_COLUMNS or max(bars) > 2 or (one and len(aligns) != 1):
        raise UnreadableLatexError("bad_columns")
    return tuple(aligns), tuple(bars)


def _taken(left: list[str]) -> list[str]:
    """The argument at the end of `left`, which is reversed; it is removed."""
    forward = left[::-1]
    inside, end = argument(forward, 0)
    left[:] = forward[end:][::-1]
    return list(inside)


def _repeat(left: list[str]) -> None:
    times, inside = "".join(_taken(left)).strip(), _taken(left)
    if not (times.isascii() and times.isdigit() and len(times) <= 2):
        raise UnreadableLatexError("bad_columns")
    if int(times) * len(inside) + len(left) > MAX_STEPS:
        raise UnreadableLatexError("bad_columns")
    left += (inside * int(times))[::-1]


def _decoration(inside: Sequence[str], kind: str) -> None:
    """What stands between columns or before each cell shows nothing: space, or how letters look."""
    if kind in "<>":
        shows = [part for part in inside if part not in SWITCHES | {" "}]
    else:
        length = "".join(part for part in inside if part not in _BETWEEN)
        shows = [char for char in length if not (char.isascii() and (char.isdigit() or char in "{}.ptemxincm"))]
    if shows:
        raise UnreadableLatexError("bad_columns")


# The edit distance of two ordered trees of depth three, root > rows > leaves: that of Zhang and Shasha (1989).
#
# Their recursion over forests, with what the depth fixes written out and one side of each table of distances as a numpy
# row: time and memory are a small constant times the product of the numbers of nodes.

GAP = 1.0  # to insert or delete a node, and at most to rename one


def distance(first: Sequence[int], second: Sequence[int], costs: np.ndarray) -> np.float64:
    """The least cost to turn one tree into the other.

    Args:
        first, second: how many leaves each row has.
        costs: (leaves of the first, leaves of the second), in [0, 1], to rename a leaf; a row and a leaf cost 1, two
            rows or the two roots 0. The roots stay matched, which never costs more.
    """
    trees = _subtrees(first, second, costs)
    left, right = _leftmost(first), _leftmost(second)
    count = np.arange(len(right) + 1, dtype=np.float64)
    done = np.empty((len(left) + 1, len(right) + 1))  # distance of the forests of the first i and j nodes
    done[0] = count * GAP
    for i, start in enumerate(left):
        best = done[i] + GAP
        best[1:] = np.minimum(best[1:], done[start, right] + trees[i])
        done[i + 1] = _with_insertions(best)
    return done[-1, -1]


def _leftmost(rows: Sequence[int]) -> np.ndarray:
    """For each node in postorder, without the root, how many nodes come before its subtree."""
    before, first_leaves = 0, []
    for leaves in rows:
        first_leaves += [*range(before, before + leaves), before]
        before += leaves + 1
    return np.array(first_leaves, dtype=np.intp)


def _is_row(rows: Sequence[int]) -> np.ndarray:
    """(nodes) bool in postorder."""
    return np.array([flag for leaves in rows for flag in [False] * leaves + [True]], dtype=bool)


def _subtrees(first: Sequence[int], second: Sequence[int], costs: np.ndarray) -> np.ndarray:
    """The distance of each node's subtree from each other one's, in postorder."""
    ours, theirs = _is_row(first), _is_row(second)
    distances = np.empty((len(ours), len(theirs)))
    distances[np.ix_(~ours, ~theirs)] = costs
    distances[np.ix_(~ours, theirs)] = _leaf_to_row(costs, second)
    distances[np.ix_(ours, ~theirs)] = _leaf_to_row(costs.T, first).T
    distances[np.ix_(ours, theirs)] = _rows(first, second, costs)
    return distances


def _leaf_to_row(costs: np.ndarray, rows: Sequence[int]) -> np.ndarray:
    """(leaves, rows): a leaf becomes the row or the nearest of its leaves; the rest is inserted."""
    ends = np.cumsum(rows, dtype=np.intp)
    distances = np.empty((len(costs), len(rows)))
    for j, (leaves, end) in enumerate(zip(rows, ends, strict=True)):
        nearest = costs[:, end - leaves : end].min(axis=1, initial=GAP)
        distances[:, j] = leaves * GAP + nearest
    return distances


def _rows(first: Sequence[int], second: Sequence[int], costs: np.ndarray) -> np.ndarray:
    """(rows, rows): the edit distance of two sequences of leaves, one row with all of the other tree's at a time."""
    counts = np.asarray(second, dtype=np.intp)
    widest = max(second, default=0)
    padded = np.full((len(costs), len(second), widest), GAP)
    padded[:, np.arange(widest) < counts[:, None]] = costs
    empty = np.tile(np.arange(widest + 1, dtype=np.float64) * GAP, (len(second), 1))
    distances, at = np.empty((len(first), len(second))), 0
    for i, leaves in enumerate(first):
        done = empty
        for renamed in padded[at : at + leaves]:
            best = done + GAP
            best[:, 1:] = np.minimum(best[:, 1:], done[:, :-1] + renamed)
            done = _with_insertions(best)
        distances[i] = done[np.arange(len(second)), counts]
        at += leaves
    return distances


def _with_insertions(best: np.ndarray) -> np.ndarray:
    """Each entry, or an earlier one of its row and an insertion for each step between, whichever is less."""
    steps = np.arange(best.shape[-1], dtype=np.float64) * GAP
    return np.minimum.accumulate(best - steps, axis=-1) + steps


# Which slots of a grid each cell covers.


@dataclass(frozen=True)
class CellContent:
    """What a row holds in a column, before it is known whether another row's cell lies over it."""

    row: int
    column: int
    text: str = ""
    rows: int = 1
    columns: int = 1
    align: str = ""
    latex: str = ""

    @property
    def cell(self) -> Cell:
        return Cell(self.row, self.column, self.text, self.rows, self.columns, self.align, self.latex)


def placed(pieces: Sequence[CellContent], height: int, width: int) -> tuple[Cell, ...]:
    """The cells that remain, row by row: what lies under a cell of several rows must be empty and is gone.

    RefusedError: bad_span (a cell leaves the grid), overlap.
    """
    taken: set[tuple[int, int]] = set()
    kept = []
    for piece in sorted(pieces, key=lambda piece: piece.rows == 1):
        cell = piece.cell
        if piece.row < 0 or piece.row + piece.rows > height or piece.column + piece.columns > width:
            raise UnreadableLatexError("bad_span")
        slots = cell.slots
        free = [slot for slot in slots if slot not in taken]
        if not free and piece.rows == 1 and not piece.text:
            continue
        if len(free) < len(slots):
            raise UnreadableLatexError("overlap")
        taken.update(slots)
        kept.append(cell)
    return tuple(sorted(kept, key=lambda cell: (cell.row, cell.column)))


# The rows of a LaTeX table: where cells end, rules between rows, cells that span several columns or rows.

MAX_CELLS = 1000  # rows times columns
MAX_CELL_CHARS = 500
MAX_RULES = 4  # more than columns, above one row
WHOLE = (r"\hline", r"\toprule", r"\midrule", r"\bottomrule")
PARTLY = (r"\cline", r"\cmidrule")
_LENGTH = re.compile(r"\d*\.?\d+(pt|ex|em|mm|cm|in)")
_WIDTH = re.compile(r"\*|=|(\d*\.?\d*)(pt|ex|em|mm|cm|in|\\(line|text|column)width)")
_NUMBER = re.compile(r"-?[0-9]{1,4}")
_FROM_TO = re.compile(r"([0-9]{1,3})-([0-9]{1,3})")


def grid(body: Sequence[str], aligns: tuple[str, ...], bars: tuple[int, ...], math: bool) -> Table:
    rows, width = _split(body), len(aligns)
    rules: list[HorizontalRule] = []
    for number, row in enumerate(rows):
        row[0] = _ruled(row[0], number, width, rules)
    if len(rows[-1]) == 1 and not stripped(rows[-1][0]):
        rows.pop()
    if not rows:
        raise UnreadableLatexError("no_table")
    if len(rows) * width > MAX_CELLS:
        raise UnreadableLatexError("too_many_cells")
    pieces = [piece for number, row in enumerate(rows) for piece in _pieces(row, number, width, math)]
    return Table(aligns, len(rows), placed(pieces, len(rows), width), tuple(rules), bars)


def _split(body: Sequence[str]) -> list[list[list[str]]]:
    """Rows of cells of tokens; at most MAX_CELLS rows are told apart."""
    rows: list[list[list[str]]] = [[[]]]
    at = depth = 0
    while at < len(body):
        part = body[at]
        depth += (part == "{") - (part == "}")
        at += 1
        if depth == 0 and part == "&":
            rows[-1].append([])
        elif depth == 0 and part in ("\\\\", r"\tabularnewline"):
            at = _row_end(body, at)
            rows.append([[]])
        else:
            rows[-1][-1].append(part)
    return rows


def _row_end(body: Sequence[str], at: int) -> int:
    at += at < len(body) and body[at] == "*"
    space, at = optional(body, at)
    if space and not _LENGTH.fullmatch(space):
        raise UnreadableLatexError("not_latex")
    return at


def _ruled(parts: Sequence[str], row: int, width: int, rules: list[HorizontalRule]) -> list[str]:
    """The first cell of a row without the rules above it, which are added to `rules`."""
    parts, count = stripped(parts), 0
    while parts and parts[0] in (*WHOLE, *PARTLY, r"\addlinespace"):
        count += 1
        name, at = parts[0], 1
        thickness, at = optional(parts, at)
        if thickness and not _LENGTH.fullmatch(thickness):
            raise UnreadableLatexError("bad_rule")
        if name in WHOLE:
            rules.append(HorizontalRule(row, 0, width, name[1:]))
        elif name in PARTLY:
            rule, at = _partly(parts, at, row, width, name[1:])
            rules.append(rule)
        parts = stripped(parts[at:])
        if count > width + MAX_RULES:
            raise UnreadableLatexError("bad_rule")
    return parts


def _partly(parts: Sequence[str], at: int, row: int, width: int, name: str) -> tuple[HorizontalRule, int]:
    if name == "cmidrule":
        _, at = optional(parts, at, "(", ")")
    inside, at = argument(parts, at)
    match = _FROM_TO.fullmatch("".join(inside).replace(" ", ""))
    first, last = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= first <= last <= width:
        raise UnreadableLatexError("bad_rule")
    return HorizontalRule(row, first - 1, last, name), at


def _pieces(row: Sequence[Sequence[str]], number: int, width: int, math: bool) -> list[CellContent]:
    """What stands in a row; columns that it does not reach hold empty pieces."""
    pieces, column = [], 0
    for parts in row:
        piece = _piece(stripped(parts), number, column, math)
        column += piece.columns
        if column > width:
            raise UnreadableLatexError("too_wide_row")
        pieces.append(piece)
    return pieces + [CellContent(number, place) for place in range(column, width)]


def _piece(parts: list[str], row: int, column: int, math: bool) -> CellContent:
    across, down, align = 1, 1, ""
    if parts[:1] == [r"\multicolumn"]:
        count, at = argument(parts, 1)
        spec, at = argument(parts, at)
        inside, at = argument(parts, at)
        across, align = _count(count), columns(spec, one=True)[0][0]
        parts = _alone(inside, parts[at:])
    if parts[:1] == [r"\multirow"]:
        _, at = optional(parts, 1)
        count, at = argument(parts, at)
        _, at = optional(parts, at)
        wide, at = argument(parts, at)
        _, at = optional(parts, at)
        inside, at = argument(parts, at)
        if not _WIDTH.fullmatch("".join(wide)):
            raise UnreadableLatexError("bad_span")
        down = _count(count, negative=True)
        parts = _alone(inside, parts[at:])
    text = plain(parts, math)
    if len(text) > MAX_CELL_CHARS:
        raise UnreadableLatexError("too_long_cell")
    start = row + down + 1 if down < 0 else row
    source_text = source(parts)
    return CellContent(
        start, column, text, abs(down), across, align, f"${source_text}$" if math and source_text else source_text
    )


def _count(parts: Sequence[str], negative: bool = False) -> int:
    text = "".join(parts).strip()
    if not _NUMBER.fullmatch(text) or int(text) == 0 or (int(text) < 0 and not negative):
        raise UnreadableLatexError("bad_span")
    return int(text)


def _alone(inside: Sequence[str], after: Sequence[str]) -> list[str]:
    """What a span holds; nothing may stand beside it in its cell."""
    if stripped(after):
        raise UnreadableLatexError("misplaced")
    return stripped(inside)


# Reads LaTeX tables: one tabular, tabular*, tabularx or array, with booktabs' rules, \multicolumn and \multirow.
#
# The strict parser of `rewards.latex` first: what it does not know is refused and never run.

ENVIRONMENTS = ("tabular", "tabular*", "tabularx", "array")


def read_table(text: str) -> parse.Parsed:
    """One table and nothing else -> `rewards.tables.Table`. Never raises; linear time. A ``` fence is removed.

    Reasons: too_long, no_table, many_tables (or one in another), outside_table, not_closed, bad_columns,
    too_many_cells, too_long_cell, too_wide_row, bad_span, overlap, bad_rule, misplaced, unbalanced, too_deep,
    unknown_command, not_in_math, hidden_text, not_latex.
    """
    if len(text) > parse.MAX_CHARS:
        return parse.Parsed(reason="too_long")
    try:
        return parse.Parsed(_table(_bare(tokens(_unfenced(text.strip())))))
    except UnreadableLatexError as problem:
        return parse.Parsed(reason=str(problem))


def _unfenced(text: str) -> str:
    if text.startswith("```") and text.endswith("```") and len(text) >= 6:
        return text[3:-3].removeprefix("latex").removeprefix("tex")
    return text


def _bare(parts: list[str]) -> list[str]:
    """Without white space around, nor the marks of a formula, which an array stands in."""
    text = stripped(parts)
    for opens, closes in (("$", "$"), (r"\[", r"\]")):
        if len(text) > 1 and text[0] == opens and text[-1] == closes and r"\begin" in text:
            return stripped(text[1:-1])
    return text


def _table(parts: list[str]) -> Table:
    begins, ends = parts.count(r"\begin"), parts.count(r"\end")
    if begins != 1:
        raise UnreadableLatexError("many_tables" if begins else "no_table")
    if parts[0] != r"\begin":
        raise UnreadableLatexError("outside_table")
    if ends != 1:
        raise UnreadableLatexError("not_closed")
    name, at = _name(parts, 1)
    stop = parts.index(r"\end")
    closed, after = _name(parts, stop + 1)
    if after != len(parts):
        raise UnreadableLatexError("outside_table")
    if closed != name or name not in ENVIRONMENTS:
        raise UnreadableLatexError("no_table" if name not in ENVIRONMENTS else "not_closed")
    position, at = optional(parts, at)
    if name in ("tabular*", "tabularx"):
        width, at = argument(parts, at)
        if not _WIDTH.fullmatch("".join(width)):
            raise UnreadableLatexError("bad_columns")
    if position not in ("", "t", "b", "c"):
        raise UnreadableLatexError("not_latex")
    spec, at = argument(parts, at)
    aligns, bars = columns(spec)
    return grid(parts[at:stop], aligns, bars, name == "array")


def _name(parts: Sequence[str], at: int) -> tuple[str, int]:
    inside, end = argument(parts, at)
    return "".join(inside).strip(), end


# How alike two tables are: tree edit distances (TEDS, TEDS-Structure) and an F1 of cells.
#
# A table is the tree table > tr > td. To insert or delete a node costs 1, to rename td of other spans, or td to tr,
# too.
# To rename td of equal spans costs the edit distance of their texts over the longer one's length, nothing in
# TEDS-Structure. TEDS is 1 - distance / nodes of the larger tree.
# Source: Zhong, ShafieiBavani, Jimeno Yepes 2020 (1911.10683), section 4; Table2LaTeX-RL (2509.17589) for
# TEDS-Structure.


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
    ours, theirs = ([cell.text for cell in table.cells] for table in (predicted, truth))
    texts = cdist(ours, theirs, scorer=Levenshtein.normalized_distance, dtype=np.float64)
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
    """TEDS-Structure of two LaTeX tables, in [0, 1]; 0 where one cannot be read (`rewards.tables`). Never raises."""
    return _read(predicted, truth).structure


@total()
def content(predicted: str, truth: str) -> float:
    """TEDS of two LaTeX tables, in [0, 1]; 0 where either cannot be read (`rewards.tables`). Never raises."""
    return _read(predicted, truth).content


@total()
def cells(predicted: str, truth: str) -> float:
    """F1 of the cells with the same place, spans and text, in [0, 1]; 0 where a table cannot be read. Never raises."""
    return _read(predicted, truth).cells


def _read(predicted: str, truth: str) -> Likeness:
    ours, theirs = read_table(predicted), read_table(truth)
    if ours.reason or theirs.reason:
        return Likeness(0.0, 0.0, 0.0, False)
    return compare(ours.value, theirs.value)
