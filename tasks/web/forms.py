"""Drawn forms, pages that need no browser: rows of colored options, and a button that ends the episode.

Their instructions are texts whose difficulty is known, for curricula: Learning to Navigate the Web, arXiv 1812.09195,
and WebRL, arXiv 2411.02337. `form-N` asks for an option of each of N rows. `walk-N` asks for what a random walk over
the page has left behind, so that the walk is a demonstration of it: the paper's generator of goals (INET) in miniature,
where a rule reads the instruction off the page that a trained network reads there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from tasks.agent_actions import AgentScreen, ScreenAction, ScreenService, Status
from tasks.base import generator
from tasks.rendering.screens import COLORS
from vlrl.types import Split

MOST_ROWS, COLUMNS = 3, 3
SIZE = (64, 80)  # of the screen in pixels
SIDE, PITCH, MARGIN = 14, 19, 6  # of an option, from one to the next, and around them, in pixels
BUTTON = (6, 63, 58, 77)  # x1, y1, x2, y2
ANY = "any"  # of a row that the instruction leaves open


class Option(NamedTuple):
    """A place in the form."""

    row: int
    column: int

    @property
    def center(self) -> tuple[float, float]:
        """In pixels of the screen."""
        return MARGIN + self.column * PITCH + SIDE / 2, MARGIN / 2 + self.row * PITCH + SIDE / 2


@dataclass(frozen=True)
class Form:
    """What a page shows and asks for.

    colors: [rows][COLUMNS], names. target: [rows], the column that is asked for; None: any. walk: the random clicks
    that led to the target; () of a `form-N`.
    """

    colors: tuple[tuple[str, ...], ...]
    target: tuple[int | None, ...]
    walk: tuple[Option, ...] = ()

    @property
    def instruction(self) -> str:
        names = (ANY if c is None else row[c] for row, c in zip(self.colors, self.target, strict=True))
        return f"Choose {', '.join(names)}."

    def is_fulfilled(self, chosen: Sequence[int | None]) -> bool:
        return all(want is None or want == have for want, have in zip(self.target, chosen, strict=True))


def list_pages() -> tuple[str, ...]:
    return tuple(f"{kind}-{rows}" for kind in ("form", "walk") for rows in range(1, MOST_ROWS + 1))


def make_form(page: str, seed: str, split: Split) -> Form:
    """The page's form of this seed, the same everywhere."""
    kind, _, rows = page.partition("-")
    rng = generator(len(page), split, int.from_bytes(f"{page}/{seed}".encode()))
    names = np.array(list(COLORS))
    colors = tuple(tuple(rng.permutation(names)[:COLUMNS].tolist()) for _ in range(int(rows)))
    if kind == "form":
        return Form(colors, tuple(rng.integers(COLUMNS, size=len(colors)).tolist()))
    walk = [
        Option(*map(int, rng.integers((len(colors), COLUMNS)))) for _ in range(rng.integers(1, 2 * len(colors) + 1))
    ]
    chosen = choose(len(colors), walk)
    return Form(colors, chosen, tuple(walk))


def choose(rows: int, clicks: Sequence[Option]) -> tuple[int | None, ...]:
    """[rows]: the column that is chosen after these clicks; the last one of a row counts."""
    last = {click.row: click.column for click in clicks}
    return tuple(last.get(row) for row in range(rows))


class DrawnForms(AgentScreen):
    """One form after the other. A click on an option chooses it, a click on the button ends the episode."""

    NAME, PAGE, SOLVED = "drawn screen", "a drawn page", list_pages()
    SERVICE = f"{__name__}:FormService"
    list_pages = staticmethod(list_pages)

    def __init__(self):
        self._form, self._chosen, self._is_over = Form((), ()), [], False

    @staticmethod
    def describe(page: str, seed: str, split: Split) -> str:
        """The instruction."""
        return make_form(page, seed, split).instruction

    @property
    def pages(self) -> Collection[str]:
        return self.SOLVED

    def begin(self, page: str, seed: str, split: Split) -> None:
        self._form = make_form(page, seed, split)
        self._chosen, self._is_over = [None] * len(self._form.colors), False

    def status(self) -> Status:
        is_right = self._is_over and self._form.is_fulfilled(self._chosen)
        return Status(self._is_over, float(is_right), self._form.instruction)

    def look(self) -> Image.Image:
        """The screen, RGB, SIZE pixels; a chosen option has a dark frame and a light core."""
        image = Image.new("RGB", SIZE, (245, 245, 245))
        draw = ImageDraw.Draw(image)
        for row, names in enumerate(self._form.colors):
            for column, name in enumerate(names):
                x, y = (number - SIDE / 2 for number in Option(row, column).center)
                is_chosen = self._chosen[row] == column
                box = (x, y, x + SIDE - 1, y + SIDE - 1)
                draw.rectangle(box, COLORS[name], (0, 0, 0) if is_chosen else COLORS[name], 2)
                if is_chosen:
                    draw.rectangle((x + 5, y + 5, x + SIDE - 6, y + SIDE - 6), (255, 255, 255))
        draw.rectangle(BUTTON, (90, 90, 90))
        return image

    def act(self, action: ScreenAction) -> None:
        if action.kind != "click" or self._is_over:
            return
        x, y = action.points[0]
        self._is_over = BUTTON[0] <= x <= BUTTON[2] and BUTTON[1] <= y <= BUTTON[3]
        for row in range(len(self._form.colors)):
            for column in range(COLUMNS):
                middle = Option(row, column).center
                if max(abs(x - middle[0]), abs(y - middle[1])) <= SIDE / 2:
                    self._chosen[row] = column

    def gold(self) -> ScreenAction:
        """The first row's option that is not as it should be, then the button."""
        for row, (want, have) in enumerate(zip(self._form.target, self._chosen, strict=True)):
            if want is not None and want != have:
                return ScreenAction("click", (Option(row, want).center,))
        return ScreenAction("click", (((BUTTON[0] + BUTTON[2]) / 2, (BUTTON[1] + BUTTON[3]) / 2),))

    def quit(self) -> None:
        """Nothing was started."""


class FormService(ScreenService):
    """A worker's forms."""

    make_screen = DrawnForms
