"""What can be clicked on a page that a browser shows: names, roles and boxes as the browser itself knows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

SCRIPT = Path(__file__).with_name("elements.js")
NOUNS = {  # WAI-ARIA role -> what an instruction calls it
    "button": "button", "link": "link", "textbox": "text field", "searchbox": "search field", "checkbox": "checkbox",
    "radio": "radio button", "switch": "switch", "combobox": "list", "listbox": "list", "tab": "tab",
    "menuitem": "menu item", "slider": "slider", "spinbutton": "number field", "option": "option",
    "treeitem": "tree item",
}  # fmt: skip
ICON = "icon"  # a button, link, tab or menu item without a text of its own
KINDS = (ICON, *dict.fromkeys(NOUNS.values()), "element")
LETTERS = {  # two letters of a language's own: where no font has them, both are drawn as the same box
    "en": "ab", "de": "äö", "es": "ñá", "fr": "éç", "tr": "ğş", "pl": "łż", "ru": "яж", "el": "λω", "ar": "سم",
    "zh": "设购", "ja": "あカ",
}  # fmt: skip
DRAWN_ALIKE = """
const [one, other] = [...arguments[0]].map((letter) => {
  const canvas = Object.assign(document.createElement("canvas"), { width: 32, height: 32 });
  const pen = canvas.getContext("2d");
  pen.font = "20px sans-serif";
  pen.fillText(letter, 6, 24);
  return canvas.toDataURL();
});
return one === other;
"""
LONGEST = 80  # characters of a name; longer ones are whole paragraphs
SMALLEST = 4  # pixels of the screenshot


@dataclass(frozen=True)
class Element:
    """`box` is (x1, y1, x2, y2) in pixels of the screenshot; `flaw` says why it cannot be asked for."""

    kind: str
    name: str
    box: tuple[float, float, float, float]
    flaw: str | None

    @property
    def instruction(self) -> str:
        return f'Click "{self.name}".' if self.kind == "element" else f'Click the {self.kind} "{self.name}".'


def read(chrome: Chrome, scale: float) -> tuple[str, list[Element]]:
    """The language that the page declares, and the elements that show in its viewport, in the order of the page."""
    found = chrome.execute_script(SCRIPT.read_text(encoding="utf-8"))
    return found["language"], [_element(row, scale) for row in found["elements"]]


def _element(row: dict, scale: float) -> Element:
    name = " ".join(row["name"].split())
    x1, y1, x2, y2 = (round(value * scale, 2) for value in row["box"])
    kind = NOUNS.get(row["role"], "element")
    if row["bare"] and row["role"] in ("button", "link", "tab", "menuitem"):
        kind = ICON
    flaw = row["flaw"]
    if not flaw and (not name or len(name) > LONGEST):
        flaw = "long name" if name else "no name"
    if not flaw and min(x2 - x1, y2 - y1) < SMALLEST:
        flaw = "too small"
    return Element(kind, name.replace('"', "'"), (x1, y1, x2, y2), flaw)


def askable(elements: Sequence[Element], kinds: Sequence[str] = KINDS) -> tuple[list[Element], Counter[str]]:
    """Those that exactly one instruction leads to, and how many were left out for which reason."""
    alike = Counter(element.instruction.casefold() for element in elements)
    good, left_out = [], Counter()
    for element in elements:
        if element.kind not in kinds:
            continue
        flaw = element.flaw or ("ambiguous" if alike[element.instruction.casefold()] > 1 else None)
        if flaw:
            left_out[flaw] += 1
        else:
            good.append(element)
    return good, left_out


def drawable(chrome: Chrome, language: str) -> bool:
    """Whether the browser has a font for the language's script."""
    return not chrome.execute_script(DRAWN_ALIKE, LETTERS[language])
