"""How alike tables and their pictures are: against plain references, by hand, and for what must not be paid."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewards import tables
from rewards.tables import distance, ms_ssim


def zhang_shasha(first, second, rename):
    """The edit distance of any two ordered trees (label, children), as Zhang and Shasha (1989) wrote it."""

    def indexed(tree):
        nodes, leftmost = [], []

        def walk(node):
            label, children = node
            lefts = [walk(child) for child in children]
            nodes.append(label)
            leftmost.append(lefts[0] if lefts else len(nodes) - 1)
            return leftmost[-1]

        walk(tree)
        roots = [i for i, left in enumerate(leftmost) if left not in leftmost[i + 1 :]]
        return nodes, leftmost, roots

    (a, la, roots_a), (b, lb, roots_b) = indexed(first), indexed(second)
    trees = np.zeros((len(a), len(b)))
    for i in roots_a:
        for j in roots_b:
            forest = {(la[i] - 1, lb[j] - 1): 0.0}
            for x in range(la[i], i + 1):
                forest[x, lb[j] - 1] = forest[x - 1, lb[j] - 1] + 1
            for y in range(lb[j], j + 1):
                forest[la[i] - 1, y] = forest[la[i] - 1, y - 1] + 1
            for x in range(la[i], i + 1):
                for y in range(lb[j], j + 1):
                    whole = la[x] == la[i] and lb[y] == lb[j]
                    kept = forest[x - 1, y - 1] + rename(a[x], b[y]) if whole else (
                        forest[la[x] - 1, lb[y] - 1] + trees[x, y]
                    )  # fmt: skip
                    forest[x, y] = min(forest[x - 1, y] + 1, forest[x, y - 1] + 1, kept)
                    if whole:
                        trees[x, y] = forest[x, y]
    return trees[-1, -1]


def tree(rows, numbers):
    """The tree of a table: its leaves are numbered."""
    return "table", [("tr", [(next(numbers), []) for _ in range(count)]) for count in rows]


ROWS = st.lists(st.integers(0, 4), min_size=1, max_size=4)


@settings(max_examples=80, deadline=None)
@given(ROWS, ROWS, st.integers(0, 2**32 - 1))
def test_the_distance_is_that_of_zhang_and_shasha(first, second, seed):
    """Whole costs, as spans have, exactly; shares of texts to rounding: a shortcut that is wrong pays wrong tables."""
    rng = np.random.default_rng(seed)
    shape = (sum(first), sum(second))
    for costs in (rng.integers(0, 2, shape).astype(float), rng.random(shape), np.zeros(shape)):

        def rename(a, b, costs=costs):
            both = isinstance(a, int) and isinstance(b, int)
            return costs[a, b] if both else float(a != b)

        plain = zhang_shasha(tree(first, iter(range(shape[0]))), tree(second, iter(range(shape[1]))), rename)
        assert distance(first, second, costs) == pytest.approx(plain, abs=1e-9)


def table(*rows, spec="cc"):
    return f"\\begin{{tabular}}{{{spec}}}{' '.join(f'{row} \\\\' for row in rows)}\\end{{tabular}}"


@given(*(st.lists(st.text(alphabet="ab上", max_size=9), min_size=4, max_size=4) for _ in range(2)))
def test_texts_of_cells_are_compared_one_by_one(first, second):
    """All pairs at once must be the plain edit distance of each pair over the longer text's length."""

    def edits(a, b):
        row = list(range(len(b) + 1))
        for i, x in enumerate(a, start=1):
            corner, row[0] = row[0], i
            for j, y in enumerate(b, start=1):
                corner, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, corner + (x != y))
        return row[-1]

    costs = np.array([[edits(a, b) / max(len(a), len(b), 1) for b in second] for a in first])
    written = [table(" & ".join(texts[:2]), " & ".join(texts[2:])) for texts in (first, second)]
    assert tables.content(*written) == pytest.approx(1 - distance((2, 2), (2, 2), costs) / 7)


def test_golden_values_by_hand():
    """The tree of 2 x 2 cells has 1 + 2 + 4 = 7 nodes."""
    truth = table("10 & 20", "30 & 40")
    assert tables.content(table("10 & 20", "30 & 47"), truth) == pytest.approx(1 - 0.5 / 7)  # one of two letters
    assert tables.structure(table("10 & 20", "30 & 47"), truth) == 1.0
    assert tables.cells(table("10 & 20", "30 & 47"), truth) == 3 / 4
    assert tables.content(table("10 & 20"), truth) == pytest.approx(1 - 3 / 7)  # a row and its cells
    assert tables.cells(table("10 & 20"), truth) == pytest.approx(2 * 2 / (2 + 4))
    wide = table(r"\multicolumn{2}{c}{10}", "30 & 40")
    assert tables.structure(wide, truth) == pytest.approx(1 - 2 / 7)  # a cell renamed, one inserted
    assert tables.content(wide, truth) == pytest.approx(1 - 2 / 7)
    assert tables.content(table("10", "20", "30", "40", spec="c"), truth) == pytest.approx(
        1 - 6 / 9
    )  # for each row one deleted, two inserted
    assert tables.structure("no table", truth) == tables.content(truth, "") == 0.0


def test_filling_and_emptying_do_not_pay():
    """A flood of empty cells, or no content in the right grid, must stay below half of an honest try."""
    truth = table(*(" & ".join(f"{10 * i + j + 10}" for j in range(4)) for i in range(4)), spec="cccc")
    honest = table(*(" & ".join(f"{10 * i + j + 11 * (j == 3)}" for j in range(4)) for i in range(4)), spec="cccc")
    flood = table(*["&" * 19] * 50, spec="*{20}{c}")
    assert tables.structure(flood, truth) < 0.05 and tables.content(flood, truth) < 0.05
    blank = table(*["&&&"] * 4, spec="cccc")
    assert (
        tables.content(blank, truth) < 0.25 < 0.5 * tables.content(honest, truth) and tables.cells(blank, truth) == 0.0
    )


# ---- pictures


def plain_ms_ssim(one, other):
    """Wang et al. 2003, window by window."""
    offsets = np.arange(11) - 5
    kernel = np.exp(-(offsets[:, None] ** 2 + offsets[None] ** 2) / (2 * 1.5**2))
    kernel /= kernel.sum()

    def mean(picture):
        return (np.lib.stride_tricks.sliding_window_view(picture, (11, 11)) * kernel).sum(axis=(2, 3))

    total = 1.0
    for scale, weight in enumerate((0.0448, 0.2856, 0.3001, 0.2363, 0.1333)):
        if scale:
            one, other = ((p[0::2, 0::2] + p[1::2, 0::2] + p[0::2, 1::2] + p[1::2, 1::2]) / 4 for p in (one, other))
        mx, my = mean(one), mean(other)
        vx, vy, cov = mean(one**2) - mx**2, mean(other**2) - my**2, mean(one * other) - mx * my
        values = (2 * cov + 0.0009) / (vx + vy + 0.0009)
        if scale == 4:
            values = values * (2 * mx * my + 0.0001) / (mx**2 + my**2 + 0.0001)
        total *= max(values.mean(), 0) ** weight
    return total


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.3, 1.0])
def test_similarity_is_that_of_wang_simoncelli_and_bovik(noise):
    """Equal pictures are 1, and more noise is less alike."""
    rng = np.random.default_rng(3)
    smooth = np.add.outer(np.sin(np.arange(192) / 9), np.cos(np.arange(208) / 7)) / 4 + 0.5
    noisy = np.clip(smooth + noise * rng.standard_normal(smooth.shape), 0, 1)
    found = ms_ssim(smooth, noisy)
    assert found == pytest.approx(plain_ms_ssim(smooth, noisy), abs=1e-9)
    assert found == ms_ssim(noisy, smooth)
    assert (found == 1.0) == (noise == 0.0)


def test_a_blank_page_is_not_like_a_ruled_one():
    """H17: in eight-bit integers that wrap, published code finds 0.994 for both pairs."""
    blank, lines = np.ones((256, 256)), np.ones((256, 256))
    lines[::24] = 0
    assert ms_ssim(blank, lines) < 0.5
    assert ms_ssim(lines, lines.T) < 0.5
    assert ms_ssim(lines, lines) == 1.0


@pytest.mark.parametrize(
    "picture",
    [np.ones((175, 300)), np.full((200, 200), np.nan), np.full((200, 200), 2.0), np.ones((200, 200, 3)),
     np.full((200, 200), "a"), np.zeros((0, 0)), np.ones((200, 201))],
)  # fmt: skip
def test_what_is_no_pair_of_pictures_is_worth_nothing(picture):
    """Too small for the coarsest window, eight-bit numbers, colours, other sizes."""
    assert ms_ssim(picture, np.ones((200, 200))) == ms_ssim(np.ones((200, 200)), picture) == 0.0
    assert tables.LEAST == 176
