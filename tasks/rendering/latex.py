"""Synthetic LaTeX tables, tables as images (with Pillow, or typeset by LaTeX), and how alike they look."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageChops, ImageDraw

from rewards.tables import LEAST, Cell, HorizontalRule, Table, latex, ms_ssim
from tasks.rendering.figures import RGB, Rng, Size, dealt, draw_integer, font, one, paper, some
from vlrl.media import load_image
from vlrl.system.children import end_child, start_child
from vlrl.types import Split, UserError

# Typesets a table with an installed LaTeX, in a guarded process. Only LaTeX that `rewards.tables.latex` writes of a
# parsed table is run: what a model wrote never is. The process may read and write in its own folder only, starts no
# shell, and is bounded in CPU seconds, memory and size of files.

ENGINES = ("pdflatex", "tectonic")
DPI = 100
SECONDS = 120  # by the clock, for a process that hangs without computing
BOUNDS = {  # of what is run: CPU seconds, bytes of address space and of each file written, files open at a time
    "cpu": (resource.RLIMIT_CPU, 10),
    "as": (resource.RLIMIT_AS, 2 << 30),
    "fsize": (resource.RLIMIT_FSIZE, 16 << 20),
    "nofile": (resource.RLIMIT_NOFILE, 64),
    "core": (resource.RLIMIT_CORE, 0),
}
PREAMBLE = r"""\documentclass{standalone}
\usepackage[T1]{fontenc}
\usepackage[utf8]{inputenc}
\usepackage{amsmath,amssymb,bm,textcomp,booktabs,multirow,makecell}
\begin{document}
"""
SAFE = {"openin_any": "p", "openout_any": "p", "shell_escape": "f", "max_print_line": "1000", "TEXMFOUTPUT": "."}


def document(table: Table) -> str:
    """The whole source, its preamble included."""
    return f"{PREAMBLE}{latex(table)}\n\\end{{document}}\n"


def engine() -> str:
    """The engine that is installed. UserError: none, or no pdftoppm to make a picture of a page, or no prlimit."""
    name_of_engine = next((name for name in ENGINES if shutil.which(name)), None)
    if name_of_engine is None or not all(map(shutil.which, ("pdftoppm", "prlimit"))):
        need = "pdflatex or tectonic, pdftoppm and prlimit"
        raise UserError(f"task.renderer: latex: needs {need} on the PATH; install them or set task.renderer: drawn")
    return name_of_engine


def command(name: str) -> list[str]:
    """What typesets table.tex of the working folder: no shell, no questions, the first error ends it."""
    if name == "tectonic":
        return ["tectonic", "--untrusted", "--only-cached", "--keep-logs", "table.tex"]
    return ["pdflatex", "-no-shell-escape", "-interaction=nonstopmode", "-halt-on-error", "-no-parse-first-line",
            "table.tex"]  # fmt: skip


def environment(folder: Path) -> dict[str, str]:
    """Nothing of the caller's but where programs lie; TeX's own settings at their strictest."""
    return {"PATH": os.environ.get("PATH", ""), "HOME": str(folder), "TMPDIR": str(folder), **SAFE}


def limits() -> list[str]:
    """util-linux's prlimit, before a program: the bounds, or what this process may do itself where that is less."""
    hard = {name: resource.getrlimit(kind)[1] for name, (kind, _) in BOUNDS.items()}
    free = resource.RLIM_INFINITY
    least = {name: most if hard[name] == free else min(most, hard[name]) for name, (_, most) in BOUNDS.items()}
    return ["prlimit", *(f"--{name}={most}" for name, most in least.items())]


def typeset(table: Table) -> Image.Image | None:
    """Black on white, mode L, cut to what is printed; None where LaTeX refuses the table."""
    name = engine()
    with tempfile.TemporaryDirectory(prefix="table") as folder:
        (Path(folder) / "table.tex").write_text(document(table), encoding="utf-8")
        if not _run(command(name), Path(folder)):
            return None
        picture = ["pdftoppm", "-r", str(DPI), "-gray", "-singlefile", "-png", "table.pdf", "table"]
        if not _run(picture, Path(folder)):
            return None
        return _cut(load_image(Path(folder) / "table.png").convert("L"))


def _run(program: list[str], folder: Path) -> bool:
    """Runs a program inside the limits; whether it succeeded."""
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    process = start_child([*limits(), *program], cwd=folder, env=environment(folder), **pipes)
    try:
        return process.wait(SECONDS) == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        end_child(process)


def _cut(image: Image.Image) -> Image.Image:
    printed = ImageChops.invert(image).getbbox()
    return image.crop(printed) if printed else image


# Draws a table that was read, with Pillow: its texts, alignments, spans, rules and bars. No LaTeX is needed.
#
# Formulas are drawn as the plain text that `rewards.latex` makes of them.

LETTER = 16  # pixels
MOST = 1536  # pixels of a side; what lies beyond is cut off
MARGIN = 0.4  # of a letter, around the table
PAD = 0.45  # of a letter, left and right of a text
LINE = 1.5  # letters a row
ANCHORS = {"l": "lm", "c": "mm", "r": "rm"}
HEAVY = ("toprule", "bottomrule")


@dataclass(frozen=True)
class Layout:
    """Edges in pixels: `across` (columns + 1) and `down` (rows + 1)."""

    across: np.ndarray
    down: np.ndarray
    letter: int

    @property
    def size(self) -> tuple[int, int]:
        """Width and height with the margins."""
        margin = 2 * MARGIN * self.letter
        return int(self.across[-1] + margin) + 1, int(self.down[-1] + margin) + 1


def layout(table: Table, letter: int = LETTER) -> Layout:
    """Columns as wide as their widest text; the last column under a wide spanning text is widened."""
    widths = np.full(len(table.aligns), letter * 0.8)
    for cell in sorted(table.cells, key=lambda cell: cell.columns):
        last = cell.column + cell.columns
        lacking = _length(cell.text, letter) + 2 * PAD * letter - widths[cell.column : last].sum()
        widths[last - 1] += max(0.0, lacking)
    heights = np.full(table.height, LINE * letter)
    return Layout(np.concatenate([[0], widths.cumsum()]), np.concatenate([[0], heights.cumsum()]), letter)


def _length(text: str, letter: int) -> float:
    return font(letter).getlength(text) if text else 0.0


def render_table(table: Table) -> Image.Image:
    """Black on white, in its natural size, mode L; at most MOST pixels a side."""
    page = layout(table)
    image = Image.new("L", (min(page.size[0], MOST), min(page.size[1], MOST)), 255)
    draw(ImageDraw.Draw(image), table, page, (MARGIN * page.letter, MARGIN * page.letter), 0)
    return image


def fitted(table: Table, size: tuple[int, int]) -> Layout:
    """The layout with the largest letters that fits a picture's size, LETTER * 2 at most; of 7 pixels at least."""
    shares = np.divide(size, layout(table).size)  # widths grow nearly as the letters do
    most = min(2 * LETTER, int(LETTER * shares.min()) + 2)
    fits = (layout(table, letter) for letter in range(most, 7, -1))
    return next((picture for picture in fits if np.less_equal(picture.size, size).all()), layout(table, 7))


def draw(pen: ImageDraw.ImageDraw, table: Table, made: Layout, corner: tuple[float, float], ink: RGB | int) -> None:
    """Draws a table whose upper left corner is at `corner`."""
    place = _shifted(made, corner)
    for cell in table.cells:
        _write(pen, table, cell, made, place, ink)
    for rule in table.rules:
        trim = 0.2 * made.letter if rule.name == "cmidrule" else 0.0
        (x1, y), (x2, _) = place(rule.first, rule.row), place(rule.last, rule.row)
        pen.line((x1 + trim, y, x2 - trim, y), fill=ink, width=_thickness(rule.name, made.letter))
    inside = _crossed(table)
    for column, count in enumerate(table.bars):
        for row in range(table.height if count else 0):
            if (row, column) not in inside:
                _bar(pen, place(column, row), place(column, row + 1), ink, count)


def _shifted(made: Layout, corner: tuple[float, float]) -> Callable[[int, int], tuple[float, float]]:
    return lambda column, row: (corner[0] + made.across[column], corner[1] + made.down[row])


def _thickness(name: str, letter: int) -> int:
    return max(2, round(letter / 7)) if name in HEAVY else max(1, round(letter / 16))


def _write(pen, table: Table, cell: Cell, made: Layout, place, ink: RGB | int) -> None:
    (left, top), (right, bottom) = (
        place(cell.column, cell.row), place(cell.column + cell.columns, cell.row + cell.rows)
    )  # fmt: skip
    align = cell.align or table.aligns[cell.column]
    pad = PAD * made.letter
    x = {"l": left + pad, "c": (left + right) / 2, "r": right - pad}[align]
    if cell.text:
        pen.text((x, (top + bottom) / 2), cell.text, fill=ink, font=font(made.letter), anchor=ANCHORS[align])


def _bar(pen, upper: tuple[float, float], lower: tuple[float, float], ink: RGB | int, count: int) -> None:
    """A piece of a vertical line, or of two, one row high."""
    for i in range(count):
        pen.line((upper[0] + 2 * i, upper[1], lower[0] + 2 * i, lower[1]), fill=ink)


def _crossed(table: Table) -> set[tuple[int, int]]:
    """(row, column) of which the left border lies inside a cell."""
    return {(i, j) for cell in table.cells if cell.columns > 1 for i, j in cell.slots if j > cell.column}


# Tables with their LaTeX. Content, which splits never share: the texts of the body, row by row.
#
# Level 1 has 2 x 2 digits; 2 up to 3 x 3 numbers below 100 under a head, ruled or with booktabs; 3 up to 5 x 4 with
# named rows, decimals and percents, heads over several columns and names of several rows.

HEADS = ("Ann", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hal")
NAMES = ("Lens", "Bolt", "Cable", "Motor", "Wheel", "Panel", "Screw", "Frame")
GROUPS = ("Spring", "Autumn", "North", "South", "Train", "Test")
HEIGHTS = {1: (2, 2), 2: (2, 3), 3: (3, 5)}  # level -> least and most rows of the body
WIDTHS = {1: (2, 2), 2: (2, 3), 3: (2, 4)}
STYLES = ("plain", "ruled", "booktabs")
Texts = tuple[tuple[str, ...], ...]


@dataclass
class _Maker:
    """A table being made, row by row."""

    cells: list[Cell]
    rules: list[HorizontalRule]
    height: int = 0

    def row(self, texts: tuple[str, ...], first: int = 0) -> None:
        self.cells += [cell(self.height, first + j, text) for j, text in enumerate(texts)]
        self.height += 1


def cell(row: int, column: int, text: str, rows: int = 1, columns: int = 1, align: str = "") -> Cell:
    """A cell of plain text, escaped for LaTeX."""
    return Cell(row, column, text, rows, columns, align, "".join(f"\\{c}" if c in "%&_#$" else c for c in text))


def table(rng: Rng, split: Split, level: int) -> Table:
    """A table of the split."""
    body = dealt(split, lambda: _body(rng, level))
    if level == 1:
        return Table(("c", "c"), 2, tuple(cell(i, j, text) for i, row in enumerate(body) for j, text in enumerate(row)))
    maker, style, named = _Maker([], []), one(rng, STYLES), level == 3
    width = len(body[0]) + named
    grouped = named and width > 2 and rng.random() < 0.6
    if grouped:
        _groups(rng, maker, width)
    maker.row(("",) * named + some(rng, HEADS, width - named))
    head = maker.height
    _rows(rng, maker, body, named)
    whole_lines = _lines(style, head, maker.height, width)
    bars = (1,) * (width + 1) if style == "ruled" else (0,) * (width + 1)
    align = one(rng, ("c", "r", "l"))
    cells = tuple(sorted(maker.cells, key=lambda cell: (cell.row, cell.column)))
    return Table(("l",) * named + (align,) * (width - named), maker.height, cells, (*whole_lines, *maker.rules), bars)


def _body(rng: Rng, level: int) -> Texts:
    height, width = draw_integer(rng, *HEIGHTS[level]), draw_integer(rng, *WIDTHS[level])
    return tuple(tuple(_number(rng, level) for _ in range(width)) for _ in range(height))


def _number(rng: Rng, level: int) -> str:
    if level < 3:
        return str(draw_integer(rng, 0, 9 if level == 1 else 99))
    return one(rng, ("{}", "{}.{}", "-{}", "{}%")).format(draw_integer(rng, 0, 99), draw_integer(rng, 0, 9))


def _groups(rng: Rng, made: _Maker, width: int) -> None:
    """A row of heads over the columns behind the names, each over at least one."""
    cut = draw_integer(rng, 2, width) if width > 3 else width
    names = some(rng, GROUPS, 2)
    made.cells.append(cell(0, 0, ""))
    for first, last, name in ((1, cut, names[0]), (cut, width, names[1])):
        if last > first:
            made.cells.append(cell(0, first, name, 1, last - first, "c" if last > first + 1 else ""))
            made.rules.append(HorizontalRule(1, first, last, "cmidrule"))
    made.height = 1


def _rows(rng: Rng, made: _Maker, body: Texts, named: bool) -> None:
    """The body, with names on its left where wanted; the first name may hold for two rows."""
    names, both = some(rng, NAMES, len(body)), named and rng.random() < 0.5
    for i, texts in enumerate(body):
        if named and not (both and i == 1):
            made.cells.append(cell(made.height, 0, names[i], 2 if both and i == 0 else 1))
        made.row(texts, int(named))


def _lines(style: str, head: int, height: int, width: int) -> list[HorizontalRule]:
    if style == "plain":
        return [HorizontalRule(head, 0, width, "hline")]
    names = ("hline",) * 3 if style == "ruled" else ("toprule", "midrule", "bottomrule")
    return [HorizontalRule(row, 0, width, name) for row, name in zip((0, head, height), names, strict=True)]


def picture(rng: Rng, shown: Table, size: Size) -> Image.Image:
    """The table somewhere on light or dark paper, its letters as large as fit."""
    image, pen, ink = paper(rng, size)
    page = fitted(shown, size)
    spare = [max(0.0, whole - used) for whole, used in zip(size, (page.across[-1], page.down[-1]), strict=True)]
    draw(pen, shown, page, tuple(rng.uniform(0.3, 0.7) * room for room in spare), ink)
    return image


# Pictures of tables and how alike they look. Two renderers of one interface: a table -> a grey picture, or None.

Renderer = Callable[[Table], Image.Image | None]
RENDERERS: dict[str, Renderer] = {"drawn": render_table, "latex": typeset}


def renderer(name: str) -> Renderer:
    """The renderer of a name. It is chosen, never guessed: a reward must not hang on what a machine has installed.

    Raises:
        UserError: `latex` where no LaTeX is installed.
    """
    if name == "latex":
        engine()
    return RENDERERS[name]


def looks(predicted: Table, truth: Table, render: Renderer) -> float:
    """MS-SSIM of the two tables' pictures, in [0, 1], laid over each other by their upper left corners.

    Both on white of the larger width and height, enlarged by one factor until the window of every scale fits.
    """
    pictures = [render(table) for table in (predicted, truth)]
    pictures = [picture for picture in pictures if picture is not None]
    if len(pictures) < 2:
        return 0.0
    width, height = (min(MOST, max(picture.size[side] for picture in pictures)) for side in (0, 1))
    times = -(-LEAST // min(width, height))
    first, second = (_laid(picture, (width, height), times) for picture in pictures)
    return ms_ssim(first, second)


def _laid(picture: Image.Image, size: tuple[int, int], times: int) -> np.ndarray:
    """(H, W) in 0 to 1: white paper with the picture in its corner, `times` as large."""
    paper = Image.new("L", size, 255)
    paper.paste(picture, (0, 0))
    paper = paper.resize((min(size[0] * times, 2 * MOST), min(size[1] * times, 2 * MOST)), Image.Resampling.BILINEAR)
    return np.asarray(paper, dtype=np.float64) / 255
