"""The right GUI action of a step, and the rules by which papers and benchmarks call another one right.

Kinds of actions go by one name everywhere, GUI-R1's: `click`, `type`, `press_back`. All places are in pixels of the
task's image, (x, y) or (x1, y1, x2, y2).
"""

from __future__ import annotations

from dataclasses import dataclass

from rewards import actions, gui_odyssey, points
from rewards import text as texts
from rewards.actions import PLACED, TYPED, Action

RADIUS = 0.14  # of each side of the screen: AndroidControl, GUI-Odyssey, OmniAct, GUI-Act-Web
PRESSED = ("press_back", "press_home", "press_recent", "press_enter", "press_tab", "press_space", "press_down")
BARE = (*PRESSED, "press_up", "press_pgdn", "press_pgup", "enter", "wait", "complete", "impossible", "close/delete")
KINDS = frozenset({*PLACED, *TYPED, *BARE, "scroll", "hotkey"} - {"input_text"})  # UI-R1's word for `type`
Size = tuple[int, int]


@dataclass(frozen=True)
class Truth:
    """The right action. `box` is what it acts on; `point` stands alone where a data set gives no box."""

    kind: str
    box: tuple[float, ...] = ()
    point: tuple[float, ...] = ()
    text: str = ""  # what is typed, chosen, opened or pressed, or a scroll's direction; '' where any will do

    @property
    def place(self) -> tuple[float, ...]:
        """The box, else the point, else ()."""
        return tuple(self.box or self.point)

    @property
    def centre(self) -> tuple[float, float]:
        """The point, else the middle of the box."""
        if self.point:
            return self.point[0], self.point[1]
        return (self.box[0] + self.box[2]) / 2, (self.box[1] + self.box[3]) / 2


def takes_text(kind: str) -> bool:
    """Whether an action of this kind must say something; a hotkey may."""
    return kind in TYPED or kind == "scroll"


def on_image(point: tuple[float, ...] | None, size: Size) -> bool:
    return point is not None and 0 <= point[0] <= size[0] and 0 <= point[1] <= size[1]


def right_place(given: Action, truth: Truth, size: Size) -> float:
    """0 or 1: the point is on the image and in the truth's box (borders included) or, where the truth is a point, at
    most 14 % of the screen away from it."""
    if not on_image(given.place, size):
        return 0.0
    if truth.box:
        return points.in_box(given.place, truth.box)
    return points.near(given.place, truth.point, size, RADIUS)


def right_text(given: Action, truth: Truth) -> float:
    return float(not truth.text or actions.says(given, truth.text))


def right_step(given: Action, truth: Truth, size: Size) -> float:
    """0 or 1: the right kind with the right argument. Every kind's argument counts, for a direction as for a place."""
    if given.kind != truth.kind:
        return 0.0
    return right_place(given, truth, size) if truth.kind in PLACED else right_text(given, truth)


def os_atlas_place(given: Action, truth: Truth, size: Size) -> float:
    """0 or 1: at most 14 % of the screen from the truth's point, or from the middle of its box."""
    return points.near(given.place, truth.centre, size, RADIUS) if on_image(given.place, size) else 0.0


def os_atlas_step(given: Action, truth: Truth, size: Size) -> float:
    """0 or 1 by the protocol of OS-Atlas (2410.23218) and GUI-R1 for AndroidControl, OmniAct and GUI-Act-Web.

    The right kind; a place within 14 % of the screen; typed words with an F1 over one half; the same direction.
    """
    if given.kind != truth.kind:
        return 0.0
    if truth.kind in PLACED:
        return os_atlas_place(given, truth, size)
    if truth.kind in TYPED:
        words, right = actions.unbracketed(given.words), actions.unbracketed(truth.text)
        return float(not truth.text or texts.token_f1(words, right) > 0.5)
    return right_text(given, truth)


def odyssey_step(given: Action, truth: Truth, size: Size) -> float:
    """0 or 1 by GUI-Odyssey's action matching (2406.08451): the right kind; a place in the box or within 14 % of the
    point, the same direction, or a typed text of which at least half need not be edited."""
    if given.kind != truth.kind:
        return 0.0
    if truth.kind in PLACED:
        if not on_image(given.place, size):
            return 0.0
        box = (*_thousandths(truth.box[:2], size), *_thousandths(truth.box[2:], size))
        return gui_odyssey.click(_thousandths(given.place, size), _thousandths(truth.centre, size), box)
    if truth.kind == "type":
        return texts.similar(given.words.strip(), truth.text.strip())
    return texts.direction(given.words, truth.text) if truth.kind == "scroll" else 1.0


def _thousandths(point: tuple[float, ...], size: Size) -> tuple[float, ...]:
    return tuple(1000 * value / side for value, side in zip(point, size, strict=False))
