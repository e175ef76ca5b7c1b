"""`vlrl capture`: GUI grounding data from web pages. Screenshots, and boxes of what can be clicked, from the DOM.

A page is opened as `page.html?seed=N&lang=xx`; those that come with vlrl (tasks/web/pages) draw themselves from that.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tasks.web import browser
from vlrl.io import make_folder
from vlrl.types import Split, UserError

if TYPE_CHECKING:
    from selenium.webdriver import Chrome


# What can be clicked on a page that a browser shows: names, roles and boxes as the browser itself knows them.

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


def read_elements(chrome: Chrome, scale: float) -> tuple[str, list[Element]]:
    """The language that the page declares, and the elements that show in its viewport, in the order of the page."""
    elements = chrome.execute_script(SCRIPT.read_text(encoding="utf-8"))
    return elements["language"], [_element(row, scale) for row in elements["elements"]]


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


# Which pages `vlrl capture` opens: the user's files, folders and addresses, or those that come with vlrl.

BUNDLED = Path(__file__).with_name("pages")


@dataclass(frozen=True)
class Page:
    """An address to open and the name that rows carry; `local` pages are seeded and kept off the network."""

    name: str
    url: str
    local: bool


def pages(names: Sequence[str]) -> tuple[Page, ...]:
    """Pages of files, folders (all .html below), addresses (http, https, file) and names of bundled pages.

    Raises UserError for a name that is none of these and for a folder without pages.
    """
    addresses = [page for name in names or [str(BUNDLED)] for page in _pages(name)]
    return tuple(dict.fromkeys(addresses))


def _pages(name: str) -> list[Page]:
    path, bundled = Path(name), BUNDLED / f"{name}.html"
    if re.match(r"(https?|file)://", name):
        return [Page(name, name, name.startswith("file:"))]
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in (".html", ".htm"))
        if not files:
            raise UserError(f"{path}: holds no .html file; name a page, a folder of pages or an address")
        return [_file(file, file.relative_to(path).with_suffix("").as_posix()) for file in files]
    if not path.is_file() and bundled.is_file():
        path = bundled
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in BUNDLED.glob("*.html")))
        raise UserError(f"{name}: no such page; name a file, a folder, an address or one of {known}")
    return [_file(path, path.stem)]


def _file(path: Path, name: str) -> Page:
    return Page(name, path.resolve().as_uri(), local=True)


FRUITLESS = 20  # rounds over all pages and viewports without a new screenshot, after which there are no more
WEB = ("http://*", "https://*", "ws://*", "wss://*")


@dataclass(frozen=True)
class CapturePlan:
    """What to capture. `rows` are questions wanted; `per_screen` exactly so many of a screenshot, None: all."""

    pages: tuple[Page, ...]
    held_out: tuple[Page, ...]
    rows: dict[Split, int]
    viewports: tuple[tuple[int, int], ...]  # CSS pixels
    scale: float  # pixels of the screenshot to a CSS pixel
    languages: tuple[str, ...]
    kinds: tuple[str, ...]
    per_screen: int | None
    seed: int

    def split(self, page: Page, made: dict[Split, list[dict]]) -> Split | None:
        """Where the page's next screenshot belongs: the page's own questions are shared out first, then all of them.

        None: nowhere, what it is for is full.
        """

        def filled(split: Split) -> tuple[float, float]:
            own = sum(row["page"] == page.name for row in made[split])
            return own / self.rows[split], len(made[split]) / self.rows[split]

        unfilled = [split for split, target in self.rows.items() if len(made[split]) < target]
        if page in self.held_out:
            unfilled = [split for split in unfilled if split == "test"]
        return min(unfilled, key=filled, default=None)


@dataclass
class Made:
    """What came of it: the rows of each split, and what was left out for which reason."""

    rows: dict[Split, list[dict]] = field(default_factory=lambda: {"train": [], "test": []})
    screens: set[str] = field(default_factory=set)  # digests: one screenshot is never in both splits
    left_out: Counter[str] = field(default_factory=Counter)

    def full(self, plan: CapturePlan) -> bool:
        return all(len(self.rows[split]) >= target for split, target in plan.rows.items())


def capture(plan: CapturePlan, out: Path) -> Made:
    """Writes `train.jsonl`, `test.jsonl` and `images/` to a new folder, whole or not at all.

    Raises UserError when the folder is there already, a page does not open, or the pages give a split no row.
    """
    with make_folder(out) as part:
        (part / "images").mkdir()
        result = _fill(plan, part)
        for split, rows in result.rows.items():
            lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows[: plan.rows[split]])
            (part / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
    return result


def _fill(plan: CapturePlan, part: Path) -> Made:
    chrome = browser.launch(plan.viewports[0])
    try:
        chrome.execute_cdp_cmd("Network.enable", {})  # what `page.local` may ask of it is blocked
        result, start = Made(), time.perf_counter()
        plan = _with_drawable_languages(chrome, plan, result)
        for rows, split, png in _screens(chrome, plan, result):
            image = Path("images") / f"{len(result.screens):06d}.png"
            (part / image).write_bytes(png)
            for row in rows:
                number = len(result.rows[split])
                result.rows[split].append({"id": f"pages/{split}/{number:06d}", "image": image.as_posix()} | row)
            counts = ", ".join(f"{name} {min(len(result.rows[name]), n)}/{n}" for name, n in plan.rows.items())
            spent = time.perf_counter() - start
            print(f"\r{len(result.screens)} screenshots, {counts}, {spent:.0f} s ", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
    finally:
        browser.end(chrome)
    for split, target in plan.rows.items():
        if target and not result.rows[split]:
            reasons = ", ".join(f"{reason} {n}" for reason, n in result.left_out.most_common()) or "nothing to click"
            raise UserError(f"no question for {split}: {reasons}; give more pages or --viewport, or other --kinds")
    return result


def _with_drawable_languages(chrome: Chrome, plan: CapturePlan, made: Made) -> CapturePlan:
    good = tuple(language for language in plan.languages if drawable(chrome, language))
    if not good:
        raise UserError(f"no font here draws {', '.join(plan.languages)}: run `make system`, or name other --languages")
    made.left_out |= Counter({f"language {name} without a font": 1 for name in plan.languages if name not in good})
    return replace(plan, languages=good)


def _screens(chrome: Chrome, plan: CapturePlan, made: Made) -> Iterator[tuple[list[dict], Split, bytes]]:
    """New screenshots with their questions, until both splits are full or the pages give nothing new."""
    everything = plan.pages + plan.held_out
    combinations = len(everything) * len(plan.viewports)
    visit, last = -1, -1
    while not made.full(plan) and visit - last < FRUITLESS * combinations:
        visit += 1
        page = everything[visit % len(everything)]
        split = plan.split(page, made.rows)
        if split is None:
            last += 1  # waiting is not fruitless
            continue
        rng = np.random.default_rng([plan.seed, visit])
        viewport = plan.viewports[visit // len(everything) % len(plan.viewports)]
        rows = _visit(chrome, plan, page, viewport, rng, made.left_out)
        if not rows:
            continue
        png = base64.b64decode(chrome.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"])
        digest = hashlib.sha256(png).hexdigest()
        if digest in made.screens:
            made.left_out["seen before"] += len(rows)
            continue
        made.screens.add(digest)
        last = visit
        yield rows, split, png


def _visit(
    chrome: Chrome, plan: CapturePlan, page: Page, viewport: tuple[int, int], rng, left_out: Counter
) -> list[dict]:
    """Opens a page and asks about what it shows."""
    browser.resize(chrome, viewport, plan.scale)
    address = page.url
    if page.local:
        language = plan.languages[rng.integers(len(plan.languages))]
        address += f"{'&' if '?' in address else '?'}seed={rng.integers(2**31)}&lang={language}"
    chrome.execute_cdp_cmd("Network.setBlockedURLs", {"urls": list(WEB) if page.local else []})
    browser.visit(chrome, address)
    language, elements = read_elements(chrome, plan.scale)
    good, flaws = askable(elements, plan.kinds)
    left_out.update(flaws)
    count = len(good) if plan.per_screen is None else plan.per_screen
    if len(good) < count:
        left_out["too few on a screenshot"] += len(good)
        return []
    chosen = sorted(rng.permutation(len(good))[:count])
    tags = {"page": page.name, "language": language, "viewport": "x".join(map(str, viewport)), "scale": plan.scale}
    return [{"instruction": e.instruction, "box": e.box, "kind": e.kind, "name": e.name} | tags
            for e in (good[i] for i in chosen)]  # fmt: skip


def main(options: argparse.Namespace) -> int:
    """`vlrl capture`: prints what was made and what was left out."""
    held_out = pages(options.held_out) if options.held_out else ()
    plan = CapturePlan(
        pages=tuple(page for page in pages(options.pages) if page not in held_out),
        held_out=held_out,
        rows={"train": options.train, "test": options.test},
        viewports=tuple(map(_viewport, options.viewport)),
        scale=options.scale,
        languages=tuple(options.languages or LETTERS),
        kinds=tuple(options.kinds or KINDS),
        per_screen=options.per_screen,
        seed=options.seed,
    )
    _check(plan)
    out = Path(options.out)
    result = capture(plan, out)
    for split, target in plan.rows.items():
        rows = result.rows[split][:target]
        screens = len({row["image"] for row in rows})
        short = f" of {target} asked for: the pages give no more" if len(rows) < target else ""
        print(f"{out / f'{split}.jsonl'}: {len(rows)} questions on {screens} screenshots{short}")
    if result.left_out:
        print("left out: " + ", ".join(f"{reason} {number}" for reason, number in result.left_out.most_common()))
    return 0


def _viewport(text: str) -> tuple[int, int]:
    size = re.fullmatch(r"(\d+)x(\d+)", text)
    if not size or not all(64 <= int(side) <= 8192 for side in size.groups()):
        raise UserError(f"--viewport: {text!r}: must be WIDTHxHEIGHT, 64 to 8192 CSS pixels each, for example 1280x800")
    return int(size[1]), int(size[2])


def _check(plan: CapturePlan) -> None:
    if not 0.1 <= plan.scale <= 4:
        raise UserError(f"--scale: {plan.scale}: must be between 0.1 and 4 pixels to a CSS pixel")
    if min(plan.rows.values()) < 0 or not any(plan.rows.values()):
        raise UserError("--train, --test: at least one must be above 0, none below")
    if plan.seed < 0 or (plan.per_screen is not None and plan.per_screen < 1):
        raise UserError("--seed must be at least 0 and --per-screen at least 1")
    for name, values, known in (("kinds", plan.kinds, KINDS), ("languages", plan.languages, LETTERS)):
        if wrong := [value for value in values if value not in known]:
            raise UserError(f"--{name}: {wrong[0]!r}: must be among {', '.join(known)}")
    if not plan.pages and plan.rows["train"]:
        raise UserError("--held-out: leaves no page to train on")
