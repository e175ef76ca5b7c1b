"""How papers ask for GUI actions: their prompts byte for byte, the kinds of actions they allow, and how they pay.

Sources: github.com/lll6gg/UI-R1 (2503.21620; grpo_json_action_coord.py with its -dast and -nothink variants),
github.com/ritzz-ai/GUI-R1 (2504.10458; verl/utils/dataset.py, guir1/), github.com/Yuqi-Zhou/GUI-G1 (2505.15810;
grpo_rec.py). `{instruction}` and `{history}` are filled in; `<image>` is where the screen stands, else it comes first.
"""

from __future__ import annotations

from dataclasses import dataclass

from PIL.Image import Image

from tasks.gui import gui_answers
from tasks.gui.gui_answers import Family

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
        UI_R1_KINDS, gui_answers.UI_R1, texts=False,
    ),
    "ui_r1_e": System(_ui_r1("['click']", UI_R1_ANSWER + UI_R1_CLICK), ("click",), gui_answers.UI_R1),
    "ui_r1_nothink": System(
        _ui_r1("['click']", UI_R1_DIRECT + UI_R1_CLICK), ("click",), gui_answers.UI_R1, thinking=False
    ),
    "gui_r1": System(GUI_R1_HIGH, HIGH_KINDS, gui_answers.GUI_R1, low="gui_r1_low"),
    "gui_r1_low": System(_gui_r1("'click'", GUI_R1_LOW_NOTE), ("click",), gui_answers.GUI_R1),
    "gui_r1_android": System(GUI_R1_ANDROID, ANDROID_KINDS, gui_answers.GUI_R1),
    "gui_r1_odyssey": System(GUI_R1_ODYSSEY, ODYSSEY_KINDS, gui_answers.GUI_R1),
    "gui_r1_omniact_web": System(GUI_R1_OMNIACT_WEB, WEB_KINDS, gui_answers.GUI_R1),
    "gui_g1": System(
        "Grounding instruction is: {instruction}. Report the bbox coordinates in JSON format.",
        ("click",), gui_answers.GUI_G1, thinking=False,
    ),
    "plain": System(PLAIN, tuple(dict.fromkeys((*HIGH_KINDS, *ANDROID_KINDS))), gui_answers.GUI_R1, thinking=False),
}  # fmt: skip
