"""Draws screens of widgets (icons and text buttons), and questions about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from rewards.gui import PLACED
from rewards.parse import Object
from rewards.text import DIRECTIONS
from tasks.base import generator
from tasks.data.records import LabelledScene
from tasks.gui_formats import GuiTruth
from vlrl.types import Split

RGB = tuple[int, int, int]
Box = tuple[int, int, int, int]  # x1, y1, x2, y2 in pixels; x2 and y2 are the edges after the last pixel

COLORS: dict[str, RGB] = {
    "red": (222, 48, 44),
    "green": (32, 160, 66),
    "blue": (42, 92, 232),
    "yellow": (238, 190, 20),
    "purple": (150, 60, 200),
    "orange": (246, 126, 26),
}
SHAPES = ("circle", "square", "triangle", "cross", "ring", "bar")
WORDS = ("Save", "Open", "Send", "Play", "Stop", "Back", "Next", "Edit", "Help", "Copy", "Find", "Exit")


@dataclass(frozen=True)
class Theme:
    """Colours of a screen, and where its window has its bar."""

    ground: RGB
    bar: RGB
    detail: RGB  # lines of text and window buttons that nobody asks for
    side: str  # top, left or bottom


THEMES = {
    "light": Theme((244, 244, 246), (214, 216, 222), (196, 198, 206), "top"),
    "dark": Theme((34, 36, 42), (58, 60, 68), (82, 84, 94), "top"),
    "blue": Theme((206, 220, 238), (168, 188, 216), (150, 170, 200), "left"),
    "sepia": Theme((240, 230, 208), (216, 202, 172), (198, 182, 150), "bottom"),
    "contrast": Theme((0, 0, 0), (255, 255, 255), (96, 96, 96), "left"),
}
BAR_SHARE = 0.09  # of the side that the bar takes from


@dataclass(frozen=True)
class Widget:
    """What can be clicked. `name` is the shape of an icon or the word on a button."""

    kind: str  # icon or text
    name: str
    color: str
    box: Box


def render(
    rng: np.random.Generator,
    *,
    size: tuple[int, int],
    objects: int,
    text_share: float,
    theme: str,
    widget: tuple[float, float],
) -> tuple[Image.Image, list[Widget]]:
    """A screen of `size` (width, height) in pixels, and its widgets: at most `objects`, at least one.

    No two widgets overlap or share kind, name and colour. `widget` bounds their side as a share of the shorter side of
    the screen. Where there is no room for all, there are fewer.
    """
    image = Image.new("RGB", size, THEMES[theme].ground)
    draw = ImageDraw.Draw(image)
    area = _chrome(draw, rng, THEMES[theme], size)
    widgets: list[Widget] = []
    for kind, name, color in _looks(rng, objects, text_share):
        side = rng.uniform(*widget) * min(size)
        box = _find_box(rng, area, _extent(kind, name, side), [other.box for other in widgets])
        if box:
            widgets.append(Widget(kind, name, color, box))
            _draw_widget(draw, widgets[-1])
    return image, widgets


def _looks(rng: np.random.Generator, objects: int, text_share: float) -> list[tuple[str, str, str]]:
    """Distinct (kind, name, colour), in random order."""
    texts = int(rng.binomial(objects, text_share))
    colors = list(COLORS)
    looks = []
    for kind, names, count in (("text", WORDS, texts), ("icon", SHAPES, objects - texts)):
        picked = rng.choice(len(names) * len(colors), size=count, replace=False)
        looks += [(kind, names[i // len(colors)], colors[i % len(colors)]) for i in picked]
    return [looks[i] for i in rng.permutation(objects)]


def _extent(kind: str, name: str, side: float) -> tuple[int, int]:
    """Width and height in pixels."""
    if kind == "icon":
        width = max(3, round(side))
        return width, width
    height = max(10, round(0.6 * side))
    return round(font(height).getlength(name)) + height // 2, height


def _find_box(rng: np.random.Generator, area: Box, extent: tuple[int, int], taken: list[Box]) -> Box | None:
    """A random box inside the area, a pixel away from the taken ones; None when 60 tries found none."""
    left, top, right, bottom = area
    width, height = extent
    if width > right - left or height > bottom - top:
        return None
    xs = rng.integers(left, right - width, size=60, endpoint=True).tolist()
    ys = rng.integers(top, bottom - height, size=60, endpoint=True).tolist()
    for x, y in zip(xs, ys, strict=True):
        if all(x + width < a or c < x or y + height < b or d < y for a, b, c, d in taken):
            return x, y, x + width, y + height
    return None


def _chrome(draw: ImageDraw.ImageDraw, rng: np.random.Generator, theme: Theme, size: tuple[int, int]) -> Box:
    """Draws the window's bar, its buttons and lines of grey text. Returns the area left for widgets."""
    width, height = size
    bar = max(3, round(BAR_SHARE * (width if theme.side == "left" else height)))
    box = {
        "top": (0, 0, width, bar),
        "left": (0, 0, bar, height),
        "bottom": (0, height - bar, width, height),
    }[theme.side]
    area = {
        "top": (0, bar + 1, width, height),
        "left": (bar + 1, 0, width, height),
        "bottom": (0, 0, width, height - bar - 1),
    }[theme.side]
    _fill(draw, box, theme.bar)
    dot = max(1, bar // 3)
    for i in range(3):
        along, across = bar // 2 + 2 * i * dot, (bar - dot) // 2
        x, y = (across, along) if theme.side == "left" else (along, box[1] + across)
        _fill(draw, (x, y, x + dot, y + dot), theme.detail)
    pitch = max(6, height // 8)
    for y, end in zip(range(area[1] + pitch // 2, area[3] - 1, pitch), rng.uniform(0.2, 0.9, size=8), strict=False):
        line = (area[0] + 2, y, area[0] + 2 + int(end * (area[2] - area[0] - 4)), y + max(1, height // 100))
        _fill(draw, line, theme.detail)
    return area


def _fill(draw: ImageDraw.ImageDraw, box: Box, color: RGB) -> None:
    draw.rectangle((box[0], box[1], box[2] - 1, box[3] - 1), fill=color)


def _draw_widget(draw: ImageDraw.ImageDraw, widget: Widget) -> None:
    if widget.kind == "text":
        _draw_button(draw, widget)
    else:
        _draw_icon(draw, widget.name, widget.box, COLORS[widget.color])


def _draw_button(draw: ImageDraw.ImageDraw, widget: Widget) -> None:
    x1, y1, x2, y2 = widget.box
    draw.rounded_rectangle((x1, y1, x2 - 1, y2 - 1), radius=(y2 - y1) // 5, fill=COLORS[widget.color])
    ink = (20, 20, 20) if widget.color in ("yellow", "orange") else (255, 255, 255)
    draw.text(((x1 + x2) / 2, (y1 + y2) / 2), widget.name, fill=ink, font=font(y2 - y1), anchor="mm")


def _draw_icon(draw: ImageDraw.ImageDraw, shape: str, box: Box, color: RGB) -> None:
    """The shape touches the borders of the box, but for the bar, which is a third as high and centred."""
    x1, y1, x2, y2 = box[0], box[1], box[2] - 1, box[3] - 1
    third = (x2 - x1 + 1) // 3
    if shape == "circle":
        draw.ellipse((x1, y1, x2, y2), fill=color)
    elif shape == "square":
        draw.rectangle((x1, y1, x2, y2), fill=color)
    elif shape == "triangle":
        draw.polygon(((x1, y2), (x2, y2), ((x1 + x2) / 2, y1)), fill=color)
    elif shape == "ring":
        draw.ellipse((x1, y1, x2, y2), outline=color, width=max(2, third * 2 // 3))
    elif shape == "cross":
        draw.rectangle((x1 + third, y1, x2 - third, y2), fill=color)
        draw.rectangle((x1, y1 + third, x2, y2 - third), fill=color)
    else:
        draw.rectangle((x1, y1 + third, x2, y2 - third), fill=color)


@lru_cache(maxsize=256)
def font(height: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Pillow's own font, the same on every machine, sized for a button of that height in pixels."""
    return ImageFont.load_default(max(8, round(0.72 * height)))


# Questions about drawn screens that are answered in different ways, as rows of VLM-R1's data are.

Drawn = tuple[LabelledScene, list[Image.Image]]
Size = tuple[int, int]
LETTERS = "ABCDEF"
SAME, CHANGED = "Operation No Response", "No Defect"  # two labels of VLM-R1's GUI-defect data


def draw_question(rng: np.random.Generator, index: int, size: Size) -> Drawn:
    """A question and its screens of `size` pixels: objects, a choice, yes or no, two screens to compare, in turn.

    `method` is VLM-R1's name of the reward; the row has no id and no image.
    """
    return (_detect, _choose, _decide, _compare)[index % 4](rng, size)


def _screen(rng: np.random.Generator, size: Size, objects: int) -> tuple[Image.Image, list[Widget]]:
    theme = tuple(THEMES)[rng.integers(len(THEMES))]
    return render(rng, size=size, objects=objects, text_share=0.0, theme=theme, widget=(0.2, 0.34))


def _detect(rng: np.random.Generator, size: Size) -> Drawn:
    image, widgets = _screen(rng, size, objects=3)
    objects = tuple(Object(f"{widget.color} {widget.name}", tuple(map(float, widget.box))) for widget in widgets)
    labels = tuple(thing.label for thing in objects)
    question = (
        f"Please carefully check the image and detect the following objects: {list(labels)}. Answer with a "
        '```json list of {"bbox_2d": [x1, y1, x2, y2], "label": "object name"}.'
    )
    return LabelledScene("", (), question, labels, objects, method="odLength"), [image]


def _choose(rng: np.random.Generator, size: Size) -> Drawn:
    image, (widget, *_) = _screen(rng, size, objects=1)
    colors = list(COLORS)
    choices = "\n".join(f"{letter}. {color}" for letter, color in zip(LETTERS, colors, strict=True))
    question = f"What colour is the {widget.name}?\n{choices}\nAnswer with the letter."
    return LabelledScene("", (), question, answer=LETTERS[colors.index(widget.color)], method="mcq"), [image]


def _decide(rng: np.random.Generator, size: Size) -> Drawn:
    image, (widget, *_) = _screen(rng, size, objects=1)
    others = [shape for shape in SHAPES if shape != widget.name]
    there = bool(rng.integers(2))
    name = widget.name if there else others[rng.integers(len(others))]
    question = f"Is there a {name} on the screen? Answer yes or no."
    return LabelledScene("", (), question, answer="yes" if there else "no", method="yes_no"), [image]


def _compare(rng: np.random.Generator, size: Size) -> Drawn:
    before, _ = _screen(rng, size, objects=3)
    same = bool(rng.integers(2))
    after = before.copy() if same else _screen(rng, size, objects=3)[0]
    question = f"These are screens from before and after a click. Did anything change? Answer {CHANGED} or {SAME}."
    return LabelledScene("", (), question, answer=SAME if same else CHANGED, method="all_match"), [before, after]


# Questions about rendered screens whose right action follows from the words and the picture alone.

# `{target}` is a widget; `{text}` is what is said
PHRASES = {
    "click": "Click {target}",
    "long_press": "Press and hold {target}",
    "doubleclick": "Double-click {target}",
    "rightclick": "Right-click {target}",
    "moveto": "Move the pointer over {target} without clicking",
    "type": 'Type the text "{text}"',
    "select": 'Select the option "{text}"',
    "open_app": 'Open the app "{text}"',
    "scroll": "Scroll {text}",
    "hotkey": 'Press the keys "{text}" together',
    "press_back": "Go back to the previous screen",
    "press_home": "Go to the home screen",
    "press_recent": "Show the recent apps",
    "press_enter": "Press the enter key",
    "press_tab": "Press the tab key",
    "press_space": "Press the space bar",
    "press_down": "Press the down key",
    "enter": "Confirm the input with enter",
    "wait": "Wait until the screen has loaded",
    "complete": "Nothing is left to do, so end the task as done",
    "impossible": "This cannot be done here, so give the task up as impossible",
    "close/delete": "Close this window",
}
SAID = {
    "type": ("red shoes", "good morning", "42 Park Lane", "weather in Rome", "two tickets", "see you at noon"),
    "select": ("Large", "Express delivery", "English", "Monthly", "Window seat"),
    "open_app": ("Maps", "Calendar", "Music Player", "Photos", "Clock"),
    "scroll": DIRECTIONS,
    "hotkey": ("ctrl c", "ctrl v", "alt tab"),
}
ENDS = ("complete", "impossible", "close/delete")  # nothing can follow
PLACED_SHARE = 0.5  # of the questions, where other kinds are allowed too


def question(rng: np.random.Generator, widgets: Sequence[Widget], kinds: Sequence[str]) -> tuple[str, GuiTruth]:
    """(instruction without a full stop, right action): one of the kinds, on one of the widgets if it needs a place."""
    placed = [kind for kind in kinds if kind in PLACED]
    others = [kind for kind in kinds if kind not in PLACED]
    chosen = placed if not others or (placed and rng.random() < PLACED_SHARE) else others
    kind = chosen[rng.integers(len(chosen))]
    target = widgets[int(rng.integers(len(widgets)))]
    phrase = SAID[kind][rng.integers(len(SAID[kind]))] if kind in SAID else ""
    box = tuple(map(float, target.box)) if kind in PLACED else ()
    return PHRASES[kind].format(target=named(target), text=phrase), GuiTruth(kind, box, text=phrase)


def named(target: Widget) -> str:
    name = f'button "{target.name}"' if target.kind == "text" else target.name
    return f"the {target.color} {name}"


def two_steps(
    rng: np.random.Generator, widgets: Sequence[Widget], kinds: Sequence[str], history: bool
) -> tuple[str, str, GuiTruth]:
    """(instruction of two steps, history, right action): which step is due is told by the history, else the first."""
    starts = [kind for kind in kinds if kind not in ENDS]
    (first, truth), (second, later) = question(rng, widgets, starts), question(rng, widgets, kinds)
    done = history and bool(rng.integers(2))
    instruction = f"{first}, then {second[0].lower()}{second[1:]}"
    return instruction, first if done else "None", later if done else truth


# Forms: rows of colored options and a button that ends the episode, for curricula over instructions (Learning to
# Navigate the Web, arXiv 1812.09195). `form-N` asks for an option of each of N rows. `walk-N` asks for what a random
# walk over the form left behind, so that the walk is a demonstration of it: the paper's generator of goals (INET) in
# miniature, where a rule reads the instruction off the page that a trained network reads there.

MOST_ROWS, COLUMNS = 3, 3
FORM_SIZE = (64, 80)  # of the screen in pixels
SIDE, PITCH, BORDER = 14, 19, 6  # of an option, from one to the next, and around them, in pixels
BUTTON = (6, 63, 58, 77)  # x1, y1, x2, y2
ANY = "any"  # of a row that the instruction leaves open


class FormOption(NamedTuple):
    """A place in the form."""

    row: int
    column: int

    @property
    def center(self) -> tuple[float, float]:
        """In pixels of the screen."""
        return BORDER + self.column * PITCH + SIDE / 2, BORDER / 2 + self.row * PITCH + SIDE / 2


@dataclass(frozen=True)
class ColorForm:
    """What a page shows and asks for.

    colors: [rows][COLUMNS], names. target: [rows], the column that is asked for; None: any. walk: the random clicks
    that led to the target; () of a `form-N`.
    """

    colors: tuple[tuple[str, ...], ...]
    target: tuple[int | None, ...]
    walk: tuple[FormOption, ...] = ()

    @property
    def instruction(self) -> str:
        names = (ANY if c is None else row[c] for row, c in zip(self.colors, self.target, strict=True))
        return f"Choose {', '.join(names)}."

    def is_fulfilled(self, chosen: Sequence[int | None]) -> bool:
        return all(want is None or want == have for want, have in zip(self.target, chosen, strict=True))


def list_forms() -> tuple[str, ...]:
    """The pages that `make_form` knows."""
    return tuple(f"{kind}-{rows}" for kind in ("form", "walk") for rows in range(1, MOST_ROWS + 1))


def make_form(page: str, seed: str, split: Split) -> ColorForm:
    """The page's form of this seed, the same everywhere."""
    kind, _, rows = page.partition("-")
    rng = generator(len(page), split, int.from_bytes(f"{page}/{seed}".encode()))
    names = np.array(list(COLORS))
    colors = tuple(tuple(rng.permutation(names)[:COLUMNS].tolist()) for _ in range(int(rows)))
    if kind == "form":
        return ColorForm(colors, tuple(rng.integers(COLUMNS, size=len(colors)).tolist()))
    walk = [
        FormOption(*map(int, rng.integers((len(colors), COLUMNS)))) for _ in range(rng.integers(1, 2 * len(colors) + 1))
    ]
    chosen = choose(len(colors), walk)
    return ColorForm(colors, chosen, tuple(walk))


def choose(rows: int, clicks: Sequence[FormOption]) -> tuple[int | None, ...]:
    """[rows]: the column that is chosen after these clicks; the last one of a row counts."""
    last = {click.row: click.column for click in clicks}
    return tuple(last.get(row) for row in range(rows))


def draw_form(form: ColorForm, chosen: Sequence[int | None]) -> Image.Image:
    """RGB, FORM_SIZE pixels; the option that is chosen in a row has a dark frame and a light core."""
    image = Image.new("RGB", FORM_SIZE, (245, 245, 245))
    draw = ImageDraw.Draw(image)
    for row, names in enumerate(form.colors):
        for column, name in enumerate(names):
            x, y = (number - SIDE / 2 for number in FormOption(row, column).center)
            is_chosen = chosen[row] == column
            box = (x, y, x + SIDE - 1, y + SIDE - 1)
            draw.rectangle(box, COLORS[name], (0, 0, 0) if is_chosen else COLORS[name], 2)
            if is_chosen:
                draw.rectangle((x + 5, y + 5, x + SIDE - 6, y + SIDE - 6), (255, 255, 255))
    draw.rectangle(BUTTON, (90, 90, 90))
    return image
