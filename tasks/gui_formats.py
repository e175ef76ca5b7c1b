"""GUI answers and prompts in the forms of the published methods, and what a step of theirs is worth."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from PIL.Image import Image

from rewards import boxes as rewards_boxes
from rewards import gui, parse
from rewards.boxes import in_box
from rewards.gui import (
    EDGE_WEIGHT,
    IOU_WEIGHT,
    NO_TEXT,
    PLACED,
    TYPED,
    gui_g1_edges,
    gui_g1_hit,
    gui_g1_iou,
    gui_g1_read,
    gui_odyssey_click,
    gui_r1_accuracy,
    gui_r1_format,
    read_action,
    ui_r1_action,
    ui_r1_coordinate,
    ui_r1_format,
)
from rewards.gui import Action as GuiAction
from rewards.text import direction, similar, token_f1
from tasks.base import answer_markup
from vlrl.types import Frame

# The right GUI action of a step, and the rules by which papers and benchmarks call another one right.
#
# Kinds of actions go by one name everywhere, GUI-R1's: `click`, `type`, `press_back`. All places are in pixels of the
# task's image, (x, y) or (x1, y1, x2, y2).

RADIUS = 0.14  # of each side of the screen: AndroidControl, GUI-Odyssey, OmniAct, GUI-Act-Web
PRESSED = ("press_back", "press_home", "press_recent", "press_enter", "press_tab", "press_space", "press_down")
BARE = (*PRESSED, "press_up", "press_pgdn", "press_pgup", "enter", "wait", "complete", "impossible", "close/delete")
KINDS = frozenset({*PLACED, *TYPED, *BARE, "scroll", "hotkey"} - {"input_text"})  # UI-R1's word for `type`
Size = tuple[int, int]


@dataclass(frozen=True)
class GuiTruth:
    """The right action. `box` is what it acts on; `point` stands alone where a data set gives no box."""

    kind: str
    box: tuple[float, ...] = ()
    point: tuple[float, ...] = ()
    text: str = ""  # what is typed, chosen, opened or pressed, or a scroll's direction; '' where any will do

    @property
    def region(self) -> tuple[float, ...]:
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


def right_place(given: GuiAction, truth: GuiTruth, size: Size) -> float:
    """0 or 1: the point is on the image and in the truth's box (borders included) or, where the truth is a point, at
    most 14 % of the screen away from it."""
    if given.position is None or not on_image(given.position, size):
        return 0.0
    if truth.box:
        return rewards_boxes.in_box(given.position, truth.box)
    return rewards_boxes.near(given.position, truth.point, size, RADIUS)


def right_text(given: GuiAction, truth: GuiTruth) -> float:
    return float(not truth.text or gui.says(given, truth.text))


def right_step(given: GuiAction, truth: GuiTruth, size: Size) -> float:
    """0 or 1: the right kind with the right argument. Every kind's argument counts, for a direction as for a place."""
    if given.kind != truth.kind:
        return 0.0
    return right_place(given, truth, size) if truth.kind in PLACED else right_text(given, truth)


def os_atlas_place(given: GuiAction, truth: GuiTruth, size: Size) -> float:
    """0 or 1: at most 14 % of the screen from the truth's point, or from the middle of its box."""
    if given.position is None or not on_image(given.position, size):
        return 0.0
    return rewards_boxes.near(given.position, truth.centre, size, RADIUS)


def os_atlas_step(given: GuiAction, truth: GuiTruth, size: Size) -> float:
    """0 or 1 by the protocol of OS-Atlas (2410.23218) and GUI-R1 for AndroidControl, OmniAct and GUI-Act-Web.

    The right kind; a place within 14 % of the screen; typed words with an F1 over one half; the same direction.
    """
    if given.kind != truth.kind:
        return 0.0
    if truth.kind in PLACED:
        return os_atlas_place(given, truth, size)
    if truth.kind in TYPED:
        words, right = gui.unbracketed(given.words), gui.unbracketed(truth.text)
        return float(not truth.text or token_f1(words, right) > 0.5)
    return right_text(given, truth)


def odyssey_step(given: GuiAction, truth: GuiTruth, size: Size) -> float:
    """0 or 1 by GUI-Odyssey's action matching (2406.08451): the right kind; a place in the box or within 14 % of the
    point, the same direction, or a typed text of which at least half need not be edited."""
    if given.kind != truth.kind:
        return 0.0
    if truth.kind in PLACED:
        if given.position is None or not on_image(given.position, size):
            return 0.0
        box = (*_thousandths(truth.box[:2], size), *_thousandths(truth.box[2:], size))
        return gui_odyssey_click(_thousandths(given.position, size), _thousandths(truth.centre, size), box)
    if truth.kind == "type":
        return similar(given.words.strip(), truth.text.strip())
    return direction(given.words, truth.text) if truth.kind == "scroll" else 1.0


def _thousandths(point: tuple[float, ...], size: Size) -> tuple[float, ...]:
    return tuple(1000 * value / side for value, side in zip(point, size, strict=False))


# Places as a model can write them: what its coordinates can express, and in which numbers.


def expressible(frame: Frame, box: Sequence[float]) -> tuple[float, float]:
    """The box's centre in the frame's coordinates; where rounding leaves the box, a neighbour that does not."""
    x, y = frame.from_original((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)
    step = frame.step
    around = sorted(itertools.product((0, -1, 1, -2, 2), repeat=2), key=lambda move: abs(move[0]) + abs(move[1]))
    for dx, dy in around:
        candidate = round(x + dx * step, 4), round(y + dy * step, 4)
        if in_box(frame.to_original(*candidate), box):
            return candidate
    return x, y


def format_numbers(frame: Frame, numbers: Sequence[float]) -> list[float]:
    """The numbers as the frame's models write them: whole, but for shares of the image."""
    return list(numbers) if frame.step < 1 else [int(number) for number in numbers]


def nearest(frame: Frame, given: Sequence[float], truth: Sequence[float]) -> tuple[float, ...]:
    """`given` (x, y) in pixels of the image, or `truth` where the frame cannot write anything nearer to the truth.

    So a box whose corners are as exact as the model's coordinates allow is worth the full reward.
    """
    return tuple(truth) if frame.from_original(*given) == frame.from_original(*truth) else tuple(given)


def located(frame: Frame, box: Sequence[float]) -> tuple[float, float, float, float]:
    """A box in the frame's coordinates -> pixels of the image, cut off at its borders."""
    width, height = frame.original
    (left, top), (right, bottom) = frame.to_original(*box[:2]), frame.to_original(*box[2:])
    return _within(left, width), _within(top, height), _within(right, width), _within(bottom, height)


def _within(value: float, most: float) -> float:
    return min(max(value, 0.0), most)


def corners(frame: Frame, box: Sequence[float]) -> list[float]:
    """A box in pixels of the image as the frame's models write it; never without area."""
    step = frame.step if frame.step < 1 else 1
    x1, y1, x2, y2 = format_numbers(frame, (*frame.from_original(*box[:2]), *frame.from_original(*box[2:])))
    if x2 <= x1:
        x1, x2 = (x1, x1 + step) if x1 < 1 else (x1 - step, x1)
    if y2 <= y1:
        y1, y2 = (y1, y1 + step) if y1 < 1 else (y1 - step, y1)
    return [x1, y1, x2, y2]


def as_exact(
    frame: Frame, boxes: Sequence[Sequence[float]], truths: Sequence[Sequence[float]]
) -> list[tuple[float, ...]]:
    """Boxes in pixels of the image; in place of each one the truth that the frame's models cannot write any nearer."""
    same_corners = {tuple(corners(frame, truth)): tuple(truth) for truth in truths}
    return [same_corners.get(tuple(corners(frame, box)), tuple(box)) for box in boxes]


# How models of three papers write a GUI action, and what the paper pays for it. Rewards come from `rewards/`.
#
# A family's functions take and give actions under one set of names (gui_steps.py) and never raise on a completion.

UI_R1_WORDS = {"type": "input_text", "press_back": "navigate_back"}  # our name -> UI-R1's
NOWHERE = (-100, -100)  # how GUI-R1 writes the point of an action that has no place


@dataclass(frozen=True)
class ParsedAnswer:
    """An action as a model wrote it; GUI-G1's also has the box whose centre is the action's point."""

    action: GuiAction
    box: tuple[float, ...] = ()

    def in_pixels(self, frame: Frame) -> ParsedAnswer:
        """The same answer in pixels of the image: the one place where predictions are converted."""
        point = frame.to_original(*self.action.point) if self.action.point else None
        box = (*frame.to_original(*self.box[:2]), *frame.to_original(*self.box[2:])) if self.box else ()
        return ParsedAnswer(replace(self.action, point=point), box)


@dataclass(frozen=True)
class Family:
    """`read`: completion, thinking -> Parsed[ParsedAnswer]; `write`: ParsedAnswer, thinking -> completion.

    `parts`: ParsedAnswer in pixels, GuiTruth, Frame -> reward parts, each in [0, 1]; `weights` are the paper's.
    `gold`: GuiTruth, Frame -> the best ParsedAnswer that the frame can express, in the frame's coordinates.
    """

    weights: Mapping[str, float]
    read: Callable[[str, bool], parse.Parsed]
    write: Callable[[ParsedAnswer, bool], str]
    parts: Callable[[ParsedAnswer, GuiTruth, Frame], dict[str, float]]
    gold: Callable[[GuiTruth, Frame], ParsedAnswer]


def _read_list(completion: str, thinking: bool, key: str, ours: Mapping[str, str]) -> parse.Parsed:
    parsed = parse.answer(completion, thinking, partial(read_action, point=key))
    if parsed.reason:
        return parsed
    kind = parsed.value.kind
    return parse.Parsed(ParsedAnswer(replace(parsed.value, kind=ours.get(kind, kind))))


def _write_list(answer: ParsedAnswer, thinking: bool, key: str, theirs: Mapping[str, str]) -> str:
    action = answer.action
    fields = {"action": theirs.get(action.kind, action.kind), key: action.point, "input_text": action.text}
    values = {name: list(v) if isinstance(v, tuple) else v for name, v in fields.items() if v is not None}
    return answer_markup(repr([values]), thinking)


def _find_region(truth: GuiTruth, frame: Frame) -> tuple[float, ...]:
    """A right point in the frame's coordinates."""
    return tuple(
        format_numbers(frame, expressible(frame, truth.box) if truth.box else frame.from_original(*truth.point))
    )


# -- UI-R1 -----------------------------------------------------------------------------------------------------------


def _read_ui_r1(completion: str, thinking: bool) -> parse.Parsed:
    return _read_list(completion, thinking, "coordinate", {word: kind for kind, word in UI_R1_WORDS.items()})


def _write_ui_r1(answer: ParsedAnswer, thinking: bool) -> str:
    return _write_list(answer, thinking, "coordinate", UI_R1_WORDS)


def _score_ui_r1(answer: ParsedAnswer, truth: GuiTruth, frame: Frame) -> dict[str, float]:
    """The paper's three. A truth that is a point (AndroidControl) is met within 14 % of the screen, as its evaluation
    has it."""
    completion = _write_ui_r1(answer, False)
    kind = UI_R1_WORDS.get(truth.kind, truth.kind)
    action = ui_r1_action(completion, kind, thinking=False)
    if truth.kind == "click" and not truth.box:
        coordinate = action * right_place(answer.action, truth, frame.original)
    else:
        coordinate = ui_r1_coordinate(completion, kind, truth.box, truth.text, thinking=False)
    return {"action": action, "coordinate": coordinate, "format": ui_r1_format(completion, thinking=False)}


def _gold_ui_r1(truth: GuiTruth, frame: Frame) -> ParsedAnswer:
    point = _find_region(truth, frame) if truth.kind in PLACED else None
    return ParsedAnswer(GuiAction(truth.kind, point, truth.text or None))


# -- GUI-R1 ----------------------------------------------------------------------------------------------------------


def _read_gui_r1(completion: str, thinking: bool) -> parse.Parsed:
    parsed = _read_list(completion, thinking, "point", {})
    if parsed.reason:
        return parsed
    action = parsed.value.action
    return parse.Parsed(ParsedAnswer(replace(action, kind=action.kind.lower())))


def _write_gui_r1(answer: ParsedAnswer, thinking: bool) -> str:
    return _write_list(answer, thinking, "point", {})


def _score_gui_r1(answer: ParsedAnswer, truth: GuiTruth, frame: Frame) -> dict[str, float]:
    """Accuracy and format. A click beside the image is worth nothing, however near its target is."""
    completion, size = _write_gui_r1(answer, False), frame.original
    accuracy = gui_r1_accuracy(completion, truth.kind, truth.region, truth.text, thinking=False)
    if truth.kind in PLACED and not on_image(answer.action.position, size):
        accuracy = 0.0
    return {"accuracy": accuracy, "format": gui_r1_format(completion, thinking=False)}


def _gold_gui_r1(truth: GuiTruth, frame: Frame) -> ParsedAnswer:
    point = _find_region(truth, frame) if truth.kind in PLACED else NOWHERE
    return ParsedAnswer(GuiAction(truth.kind, point, truth.text or NO_TEXT))


# -- GUI-G1 ----------------------------------------------------------------------------------------------------------


def _read_gui_g1(completion: str, thinking: bool) -> parse.Parsed:
    parsed = gui_g1_read(completion)
    if parsed.reason:
        return parsed
    x1, y1, x2, y2 = parsed.value
    return parse.Parsed(ParsedAnswer(GuiAction("click", ((x1 + x2) / 2, (y1 + y2) / 2)), parsed.value))


def _write_gui_g1(answer: ParsedAnswer, thinking: bool) -> str:
    return f"```json\n{json.dumps([{'bbox_2d': list(answer.box)}])}\n```"


def _score_gui_g1(answer: ParsedAnswer, truth: GuiTruth, frame: Frame) -> dict[str, float]:
    """Hit, IoU and edges, the latter two as shares of what the paper weighs them with (0.25, 0.125)."""
    corners = [nearest(frame, answer.box[i : i + 2], truth.box[i : i + 2]) for i in (0, 2)]
    completion = _write_gui_g1(ParsedAnswer(answer.action, (*corners[0], *corners[1])), False)
    return {
        "hit": gui_g1_hit(completion, truth.box),
        "iou": gui_g1_iou(completion, truth.box) / IOU_WEIGHT,
        "edges": gui_g1_edges(completion, truth.box, frame.original) / EDGE_WEIGHT,
    }


def _gold_gui_g1(truth: GuiTruth, frame: Frame) -> ParsedAnswer:
    (x1, y1), (x2, y2) = (frame.from_original(*truth.box[i : i + 2]) for i in (0, 2))
    step = frame.step if frame.step < 1 else 1
    box = format_numbers(frame, (x1, y1, max(x2, x1 + step), max(y2, y1 + step)))  # no box without area
    return ParsedAnswer(GuiAction("click"), tuple(box))


UI_R1 = Family({"action": 1.0, "coordinate": 1.0, "format": 1.0}, _read_ui_r1, _write_ui_r1, _score_ui_r1, _gold_ui_r1)
GUI_R1 = Family({"accuracy": 0.8, "format": 0.2}, _read_gui_r1, _write_gui_r1, _score_gui_r1, _gold_gui_r1)
GUI_G1 = Family(
    {"hit": 1.0, "iou": IOU_WEIGHT, "edges": EDGE_WEIGHT},
    _read_gui_g1, _write_gui_g1, _score_gui_g1, _gold_gui_g1,
)  # fmt: skip


# How papers ask for GUI actions: their prompts byte for byte, the kinds of actions they allow, and how they pay.
#
# Sources: github.com/lll6gg/UI-R1 (2503.21620; grpo_json_action_coord.py with its -dast and -nothink variants),
# github.com/ritzz-ai/GUI-R1 (2504.10458; verl/utils/dataset.py, guir1/), github.com/Yuqi-Zhou/GUI-G1 (2505.15810;
# grpo_rec.py). `{instruction}` and `{history}` are filled in; `<image>` is where the screen stands, else it comes
# first.

UI_R1_KINDS = ("click", "open_app", "scroll", "press_back", "type")
HIGH_KINDS = ("complete", "close/delete", "press_home", "click", "press_back", "type", "select", "scroll", "enter")
ANDROID_KINDS = ("wait", "long_press", "click", "press_back", "type", "open_app", "scroll")
WEB_KINDS = (
    *("press_tab", "moveto", "rightclick", "press_enter", "scroll", "click", "press_down", "hotkey", "press_space"),
    "doubleclick",
)
ODYSSEY_KINDS = (
    *("press_back", "press_recent", "press_home", "complete", "long_press", "scroll", "click", "impossible", "type"),
)


@dataclass(frozen=True)
class System:
    """One paper's way of asking. `texts`: the prompt has a place for typed words and directions, so they are judged."""

    template: str
    kinds: tuple[str, ...]
    family: Family
    thinking: bool = True
    texts: bool = True
    low: str = ""  # the system that asks in its place where a data set calls an instruction low-level

    def content(self, image: Image, instruction: str, history: str) -> tuple[str | Image, ...]:
        """The prompt: screen and text in reading order."""
        before, marked, after = self.template.rpartition("<image>")
        fill = (("{history}", history), ("{instruction}", instruction))
        texts = [_filled(text, fill) for text in (before, after)]
        return (texts[0], image, texts[1]) if marked else (image, texts[1])


def _filled(text: str, fields: tuple[tuple[str, str], ...]) -> str:
    """The text with its fields replaced; what is put in is not searched for fields."""
    if not fields:
        return text
    (name, value), rest = fields[0], fields[1:]
    return value.join(_filled(part, rest) for part in text.split(name))


def _ui_r1(enumerated: str, answer: str) -> str:
    """UI-R1's training prompt; two of its quotes stand unbalanced, as published."""
    return (
        "In this UI screenshot, I want to perform the command '{instruction}'.\n"
        f"Please provide the action to perform (enumerate in {enumerated})"
        "and the coordinate where the cursor is moved to(integer) if click is performed.\n"
        f"{answer}\nPlease strictly follow the format."
    )


UI_R1_ANSWER = (
    "Output the thinking process in <think> </think> and final answer in <answer> </answer> tags."
    "The output answer format should be as follows:\n<think> ... </think> "
)
UI_R1_DIRECT = (
    "Output the final answer in <answer> </answer> tags directly.The output answer format should be as follows:\n"
)
UI_R1_CLICK = "<answer>[{'action': 'click', 'coordinate': [x, y]}]</answer>"


def _gui_r1(kinds: str, note: str, who: str = "GUI-R1") -> str:
    """GUI-R1's prompt for an enumeration of actions, and what it notes about them."""
    return (
        f"You are {who}, a reasoning GUI Agent Assistant. In this UI screenshot <image>, I want you to continue "
        "executing the command '{instruction}', with the action history being '{history}'.\n"
        f"Please provide the action to perform (enumerate from [{kinds}]), the point where the cursor is moved to "
        "(integer) if a click is performed, and any input text required to complete the action.\n"
        "Output the thinking process in <think> </think> tags, and the final answer in <answer> </answer> tags as "
        f"follows:\n{note}"
    )


def _quoted(kinds: tuple[str, ...]) -> str:
    return ", ".join(f"'{kind}'" for kind in kinds)


def _note(kinds: tuple[str, ...], texts: str, bare: str, placed: str, typed: str) -> str:
    """The form of the answer and its examples; kinds as GUI-R1 lists them."""
    scroll = "[{'action': enum['scroll'], 'point': [-100, -100], 'input_text': enum['up', 'left', 'right', 'down']}]"
    words = f"[{{'action': enum[{typed}], 'point': [-100, -100], 'input_text': 'shanghai shopping mall'}}]\n"
    return (
        f"<think> ... </think> <answer>[{{'action': enum[{_quoted(kinds)}], 'point': [x, y], "
        "'input_text': 'no input text [default]'}]</answer>\n"
        f"Note:\n specific input text (no default) is necessary for actions enum[{texts}] \n Example:\n"
        f"[{{'action': enum[{bare}], 'point': [-100, -100], 'input_text': 'no input text'}}]\n"
        f"[{{'action': enum[{placed}], 'point': [123, 300], 'input_text': 'no input text'}}]\n"
        f"{words if typed else ''}{scroll}"
    )


GUI_R1_HIGH = _gui_r1(
    _quoted(HIGH_KINDS),
    _note(
        HIGH_KINDS,
        texts="'type', 'select', 'scroll'",
        bare="'complete', 'close/delete', 'press_home', 'press_back', 'enter'",
        placed="'click'",
        typed="'type', 'select'",
    ),
)
GUI_R1_LOW_NOTE = (
    "<think> ... </think> <answer>[{'action': enum[ 'click'], 'point': [x, y], 'input_text': 'no input text'}]"
    "</answer>\nExample:\n[{'action': enum['click'], 'point': [123, 300], 'input_text': 'no input text'}]\n"
)
GUI_R1_ANDROID = _gui_r1(
    _quoted(ANDROID_KINDS),
    _note(
        ANDROID_KINDS,
        texts="'type', 'open_app', 'scroll'",
        bare="'wait', 'press_back'",
        placed="'click', 'long_press'",
        typed="'type', 'open_app'",
    ),
)
GUI_R1_OMNIACT_WEB = _gui_r1(
    _quoted(WEB_KINDS),
    _note(
        WEB_KINDS,
        texts="'scroll'",
        bare="'press_tab', 'press_enter','press_down','hotkey','press_space'",
        placed="'moveto', 'rightclick','click','doubleclick'",
        typed="",
    ),
)
# Of this one only the enumeration is known; note and examples follow the others' pattern.
GUI_R1_ODYSSEY = _gui_r1(
    _quoted(ODYSSEY_KINDS),
    _note(
        ODYSSEY_KINDS,
        texts="'type', 'scroll'",
        bare="'press_back', 'press_recent', 'press_home', 'complete', 'impossible'",
        placed="'click', 'long_press'",
        typed="'type'",
    ),
)
PLAIN = (
    "{instruction} Done so far: {history}. Give one action as "
    "<answer>[{'action': ..., 'point': [x, y], 'input_text': '...'}]</answer>"
)

SYSTEMS = {
    "ui_r1": System(
        _ui_r1(
            "['click', 'open_app', 'scroll', 'navigate_back', 'input_text']'",
            UI_R1_ANSWER + "<answer>[{'action': enum['click', 'open_app', 'scroll', 'navigate_back', 'input_text], "
            "'coordinate': [x, y]}]</answer>",
        ),
        UI_R1_KINDS, UI_R1, texts=False,
    ),
    "ui_r1_e": System(_ui_r1("['click']", UI_R1_ANSWER + UI_R1_CLICK), ("click",), UI_R1),
    "ui_r1_nothink": System(
        _ui_r1("['click']", UI_R1_DIRECT + UI_R1_CLICK), ("click",), UI_R1, thinking=False
    ),
    "gui_r1": System(GUI_R1_HIGH, HIGH_KINDS, GUI_R1, low="gui_r1_low"),
    "gui_r1_low": System(_gui_r1("'click'", GUI_R1_LOW_NOTE), ("click",), GUI_R1),
    "gui_r1_android": System(GUI_R1_ANDROID, ANDROID_KINDS, GUI_R1),
    "gui_r1_odyssey": System(GUI_R1_ODYSSEY, ODYSSEY_KINDS, GUI_R1),
    "gui_r1_omniact_web": System(GUI_R1_OMNIACT_WEB, WEB_KINDS, GUI_R1),
    "gui_g1": System(
        "Grounding instruction is: {instruction}. Report the bbox coordinates in JSON format.",
        ("click",), GUI_G1, thinking=False,
    ),
    "plain": System(PLAIN, tuple(dict.fromkeys((*HIGH_KINDS, *ANDROID_KINDS))), GUI_R1, thinking=False),
}  # fmt: skip
