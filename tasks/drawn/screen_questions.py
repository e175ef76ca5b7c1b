"""Questions about drawn screens that are answered in different ways, as rows of VLM-R1's data are."""

from __future__ import annotations

import numpy as np
from PIL import Image

from rewards.boxes import Object
from tasks.drawn import screens
from tasks.readers import Scene

Drawn = tuple[Scene, list[Image.Image]]
Size = tuple[int, int]
LETTERS = "ABCDEF"
SAME, CHANGED = "Operation No Response", "No Defect"  # two labels of VLM-R1's GUI-defect data


def drawn(rng: np.random.Generator, index: int, size: Size) -> Drawn:
    """A question and its screens of `size` pixels: objects, a choice, yes or no, two screens to compare, in turn.

    `method` is VLM-R1's name of the reward; the row has no id and no image.
    """
    return (_detect, _choose, _decide, _compare)[index % 4](rng, size)


def _screen(rng: np.random.Generator, size: Size, objects: int) -> tuple[Image.Image, list[screens.Widget]]:
    theme = tuple(screens.THEMES)[rng.integers(len(screens.THEMES))]
    return screens.render(rng, size=size, objects=objects, text_share=0.0, theme=theme, widget=(0.2, 0.34))


def _detect(rng: np.random.Generator, size: Size) -> Drawn:
    image, widgets = _screen(rng, size, objects=3)
    objects = tuple(Object(f"{widget.color} {widget.name}", tuple(map(float, widget.box))) for widget in widgets)
    labels = tuple(found.label for found in objects)
    question = (
        f"Please carefully check the image and detect the following objects: {list(labels)}. Answer with a "
        '```json list of {"bbox_2d": [x1, y1, x2, y2], "label": "object name"}.'
    )
    return Scene("", (), question, labels, objects, method="odLength"), [image]


def _choose(rng: np.random.Generator, size: Size) -> Drawn:
    image, (widget, *_) = _screen(rng, size, objects=1)
    colors = list(screens.COLORS)
    choices = "\n".join(f"{letter}. {color}" for letter, color in zip(LETTERS, colors, strict=True))
    question = f"What colour is the {widget.name}?\n{choices}\nAnswer with the letter."
    return Scene("", (), question, answer=LETTERS[colors.index(widget.color)], method="mcq"), [image]


def _decide(rng: np.random.Generator, size: Size) -> Drawn:
    image, (widget, *_) = _screen(rng, size, objects=1)
    others = [shape for shape in screens.SHAPES if shape != widget.name]
    there = bool(rng.integers(2))
    asked = widget.name if there else others[rng.integers(len(others))]
    question = f"Is there a {asked} on the screen? Answer yes or no."
    return Scene("", (), question, answer="yes" if there else "no", method="yes_no"), [image]


def _compare(rng: np.random.Generator, size: Size) -> Drawn:
    before, _ = _screen(rng, size, objects=3)
    same = bool(rng.integers(2))
    after = before.copy() if same else _screen(rng, size, objects=3)[0]
    question = f"These are screens from before and after a click. Did anything change? Answer {CHANGED} or {SAME}."
    return Scene("", (), question, answer=SAME if same else CHANGED, method="all_match"), [before, after]
