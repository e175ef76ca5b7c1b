"""Questions about rendered screens whose right action follows from the words and the picture alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rewards.actions import PLACED
from rewards.text import DIRECTIONS
from tasks.drawn import screens
from tasks.gui.gui_steps import Truth

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


def question(rng: np.random.Generator, widgets: Sequence[screens.Widget], kinds: Sequence[str]) -> tuple[str, Truth]:
    """(instruction without a full stop, right action): one of the kinds, on one of the widgets if it needs a place."""
    placed = [kind for kind in kinds if kind in PLACED]
    others = [kind for kind in kinds if kind not in PLACED]
    chosen = placed if not others or (placed and rng.random() < PLACED_SHARE) else others
    kind = chosen[rng.integers(len(chosen))]
    target = widgets[int(rng.integers(len(widgets)))]
    said = SAID[kind][rng.integers(len(SAID[kind]))] if kind in SAID else ""
    box = tuple(map(float, target.box)) if kind in PLACED else ()
    return PHRASES[kind].format(target=named(target), text=said), Truth(kind, box, text=said)


def named(target: screens.Widget) -> str:
    name = f'button "{target.name}"' if target.kind == "text" else target.name
    return f"the {target.color} {name}"


def two_steps(
    rng: np.random.Generator, widgets: Sequence[screens.Widget], kinds: Sequence[str], history: bool
) -> tuple[str, str, Truth]:
    """(instruction of two steps, history, right action): which step is due is told by the history, else the first."""
    starts = [kind for kind in kinds if kind not in ENDS]
    (first, truth), (second, later) = question(rng, widgets, starts), question(rng, widgets, kinds)
    done = history and bool(rng.integers(2))
    instruction = f"{first}, then {second[0].lower()}{second[1:]}"
    return instruction, first if done else "None", later if done else truth
