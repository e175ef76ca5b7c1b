"""Grounding data from web pages, made with a real browser: what is asked for is what a click hits."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from PIL import Image

from tasks.web import browser, capture
from tasks.web.capture import DRAWN_ALIKE, LETTERS, Element, askable, drawable, pages, read_elements
from vlrl import cli
from vlrl.types import UserError

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

SIZE = (320, 240)
SCALE = 0.5
RECORD = "<script>addEventListener('click', (e) => { hit = e.target.closest('[data-key]')?.dataset.key })</script>"
LISTED = """
<button data-key=save>Save</button> <a data-key=link href="#x">Read <b>more</b></a>
<button data-key=icon aria-label="Search"><svg width=20 height=20><rect width=20 height=20 /></svg></button>
<label>City <input data-key=city></label> <input data-key=tick type=checkbox aria-label="News">
<select data-key=list aria-label="Country"><option>DE</option></select> <div data-key=div onclick="0">Plain part</div>
"""


@pytest.fixture(scope="module")
def chrome() -> Iterator[Chrome]:
    started = browser.launch(SIZE)
    browser.resize(started, SIZE, SCALE)
    yield started
    browser.end(started)


@pytest.fixture
def show(chrome: Chrome, tmp_path: Path) -> Callable[[str], list[Element]]:
    """show(html) -> the elements of that page."""

    def shown(html: str) -> list[Element]:
        (tmp_path / "page.html").write_text(f"<!doctype html><meta charset=utf-8><body>{html}", encoding="utf-8")
        browser.visit(chrome, (tmp_path / "page.html").as_uri())
        return read_elements(chrome, SCALE)[1]

    return shown


def asked(found: list[Element]) -> list[str]:
    return [element.instruction for element in askable(found)[0]]


def reasons(found: list[Element]) -> dict[str, int]:
    return dict(askable(found)[1])


def click(chrome: Chrome, box: tuple[float, ...], across: float, down: float) -> str | None:
    """Clicks as a mouse does at a share of the box; the key of what received it."""
    x, y = box[0] + across * (box[2] - box[0]), box[1] + down * (box[3] - box[1])
    for kind in ("mousePressed", "mouseReleased"):
        event = {"type": kind, "x": x / SCALE, "y": y / SCALE, "button": "left", "clickCount": 1}
        chrome.execute_cdp_cmd("Input.dispatchMouseEvent", event)
    return chrome.execute_script("const hit = window.hit; window.hit = null; return hit")


def rows(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def run(*arguments: object) -> int:
    return cli.main(["capture", *map(str, arguments)])


def test_instructions_name_what_a_reader_sees(show) -> None:
    """A model would be asked for things by names that are not on the screen."""
    assert asked(show(LISTED)) == [
        'Click the button "Save".', 'Click the link "Read more".', 'Click the icon "Search".',
        'Click the text field "City".', 'Click the checkbox "News".', 'Click the list "Country".',
        'Click "Plain part".',
    ]  # fmt: skip


@pytest.mark.parametrize(("across", "down"), [(0.5, 0.5), (0.2, 0.3), (0.8, 0.7)])
def test_a_click_in_the_box_hits_the_element(show, chrome: Chrome, across: float, down: float) -> None:
    """Right answers would be marked wrong, and wrong ones right."""
    good = askable(show(LISTED + RECORD))[0]
    keys = [click(chrome, element.box, across, down) for element in good if element.kind != "list"]
    assert keys == ["save", "link", "icon", "city", "tick", "div"]


def test_boxes_are_pixels_of_the_screenshot(show) -> None:
    """Boxes in CSS pixels miss their element wherever a screenshot is scaled."""
    (element,) = show('<button style="position:absolute;left:40px;top:60px;width:100px;height:30px">Go</button>')
    assert element.box == (20.0, 30.0, 70.0, 45.0)


@pytest.mark.parametrize(
    ("html", "reason"),
    [
        ("<button disabled>Go</button>", "disabled"),
        ('<button style="position:fixed;bottom:-9px">Go</button>', "cut by the edge"),
        ('<button>Go</button><div style="position:fixed;inset:0;background:#0003"></div>', "covered"),
        ('<a href=x style="font:40px serif">much too long for one line of it</a>', "broken over lines"),
        ('<div onclick="0" style="width:40px;height:20px"></div>', "no name"),
        (f'<button style="width:300px">{"long " * 20}</button>', "long name"),
        ('<button style="all:unset;font-size:4px">Go</button>', "too small"),
        ('<a href=x style="display:block">Card <button style="width:80%">Buy</button></a>', "covered"),
    ],
)
def test_what_a_click_would_miss_is_left_out(show, html: str, reason: str) -> None:
    """Samples that nobody can answer teach a model to guess."""
    found = show(html)
    assert reasons(found) == {reason: 1}
    assert 'Click the button "Go".' not in asked(found)


@pytest.mark.parametrize(
    "style", ["display:none", "visibility:hidden", "opacity:0", "position:fixed;top:900px", "position:fixed;left:-99px"]
)
def test_what_does_not_show_is_not_there(show, style: str) -> None:
    """A hidden twin would make the shown one ambiguous, or be asked for itself."""
    assert asked(show(f'<button>Go</button><p style="{style}"><button>Go</button></p>')) == ['Click the button "Go".']


def test_ambiguous_names_are_left_out(show) -> None:
    """Of two buttons with one name, either would be right."""
    found = show("<button>Go</button> <button>go</button> <a href=x>Go</a>")
    assert asked(found) == ['Click the link "Go".']
    assert reasons(found) == {"ambiguous": 2}


def test_right_to_left_pages_keep_their_boxes(show, chrome: Chrome) -> None:
    """Arabic pages would be mirrored against their boxes."""
    found = show(f"<div dir=rtl><button data-key=a>بحث</button> <button data-key=b>حذف</button></div>{RECORD}")
    first, second = askable(found)[0]
    assert first.instruction == 'Click the button "بحث".'
    assert first.box[0] > second.box[2]
    assert [click(chrome, e.box, 0.5, 0.5) for e in (first, second)] == ["a", "b"]


def test_a_language_without_a_font_is_noticed(chrome: Chrome) -> None:
    """Its pages would show boxes for letters."""
    assert drawable(chrome, "en")
    assert chrome.execute_script(DRAWN_ALIKE, "\U0010fffd\U0010fffc")  # no font has these


def test_every_bundled_page_gives_questions_and_no_error(chrome: Chrome) -> None:
    """A page that breaks in one language would quietly be missing from the data."""
    chrome.get_log("browser")
    for page, language in zip(itertools.cycle(pages([])), LETTERS, strict=False):
        browser.visit(chrome, f"{page.url}?seed=1&lang={language}")
        declared, found = read_elements(chrome, SCALE)
        assert declared == language
        assert asked(found), f"{page.name} in {language}"
    assert [line["message"] for line in chrome.get_log("browser")] == []


def test_data_is_whole_repeatable_and_can_be_trained_on(tmp_path: Path, capsys) -> None:
    """The same command twice would give two data sets, or one that no task can read."""
    options = ["--train", 40, "--test", 20, "--viewport", "320x240", "--scale", 0.4, "--held-out", "player"]
    for name in ("one", "two"):
        assert run("mail", "shop", "player", "--out", tmp_path / name, *options, "--kinds", "icon") == 0
    for split, number in (("train", 40), ("test", 20)):
        made = rows(tmp_path / "one" / f"{split}.jsonl")
        assert made == rows(tmp_path / "two" / f"{split}.jsonl")
        assert len(made) == len({row["id"] for row in made}) == number
        assert {row["kind"] for row in made} == {"icon"}
        assert {row["page"] for row in made} == {"mail", "shop"} | ({"player"} if split == "test" else set())
        for row in made:
            picture = tmp_path / "one" / row["image"]
            with Image.open(picture) as image:
                assert image.size == (128, 96)
            assert picture.read_bytes() == (tmp_path / "two" / row["image"]).read_bytes()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["one", "two"]
    capsys.readouterr()
    assert cli.main(["check-task", "gui_grounding", "--data", str(tmp_path / "one" / "train.jsonl")]) == 0
    assert "FAILED" not in capsys.readouterr().out


def test_a_split_of_nothing_is_empty(tmp_path: Path) -> None:
    """Who wants only test data would wait for ever."""
    assert run("mail", "form", "--out", tmp_path / "data", "--train", 0, "--test", 30, "--viewport", "320x240") == 0
    assert rows(tmp_path / "data" / "train.jsonl") == []
    assert len(rows(tmp_path / "data" / "test.jsonl")) == 30


def test_own_pages_never_share_a_screenshot_between_splits(tmp_path: Path, capsys, monkeypatch) -> None:
    """Pages that ignore the seed would put the same pictures into training and testing."""
    monkeypatch.setattr(capture, "FRUITLESS", 3)  # it only looks in vain for longer
    folder = tmp_path / "site"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / f"{name}.html").write_text(f"<h1>{name}</h1><button>Save {name}</button><a href=x>More</a>")
    assert run(folder, "--out", tmp_path / "data", "--viewport", "320x240", "200x300", "--train", 50, "--test", 50) == 0
    train, test = (rows(tmp_path / "data" / f"{split}.jsonl") for split in ("train", "test"))
    assert len(train) == len(test) == 4
    assert {(r["page"], r["viewport"]) for r in train}.isdisjoint((r["page"], r["viewport"]) for r in test)
    assert "4 questions on 2 screenshots of 50 asked for" in capsys.readouterr().out


def test_local_pages_stay_off_the_network(tmp_path: Path) -> None:
    """Screenshots would hang on servers, and opening a saved page would tell them."""
    (tmp_path / "page.html").write_text(
        "<img src='http://127.0.0.1:9/x.png' onerror='document.body.append(made)'><script>"
        "const made = document.createElement('button'); made.textContent = 'not loaded';"
        "fetch('http://127.0.0.1:9/').catch(() => {})</script>"
    )
    assert run(tmp_path / "page.html", "--out", tmp_path / "data", "--train", 1, "--test", 0) == 0
    assert [row["name"] for row in rows(tmp_path / "data" / "train.jsonl")] == ["not loaded"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["nowhere.html"], "nowhere.html: no such page"),
        (["{tmp}"], "holds no .html file"),
        (["file:///nowhere/page.html"], "does not open"),
        (["http://127.0.0.1:9/"], "does not open"),
        (["mail", "--viewport", "wide"], "--viewport: 'wide': must be WIDTHxHEIGHT"),
        (["mail", "--kinds", "banana"], "--kinds: 'banana': must be among icon"),
        (["mail", "--languages", "xx"], "--languages: 'xx': must be among en"),
        (["mail", "--scale", "0"], "--scale: 0.0: must be"),
        (["mail", "--held-out", "mail"], "--held-out: leaves no page"),
        (["mail", "--kinds", "slider"], "no question for train: nothing to click"),
        (["mail", "--train", "0", "--test", "0"], "--train, --test"),
    ],
)
def test_mistakes_are_answered_in_one_line(tmp_path: Path, capsys, arguments: list[str], problem: str) -> None:
    """Otherwise a typing mistake ends in a browser's stack trace, or leaves half a data set."""
    assert run(*(argument.format(tmp=tmp_path) for argument in arguments), "--out", tmp_path / "data") == 2
    assert problem in capsys.readouterr().err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_a_data_set_that_is_there_is_not_overwritten(tmp_path: Path, capsys) -> None:
    (tmp_path / "train.jsonl").write_text("mine")
    assert run("mail", "--out", tmp_path) == 2
    assert "exists already" in capsys.readouterr().err
    assert (tmp_path / "train.jsonl").read_text() == "mine"


def test_a_browser_whose_driver_is_killed_while_it_starts_is_started_again(monkeypatch) -> None:
    """A run of thousands of episodes would end with the first driver that the system kills."""
    started, make = [], browser.make_service

    def make_killed(driver: str) -> object:
        service = make(driver)
        if not started:
            begin = service.start

            def start() -> None:
                begin()
                service.process.kill()

            service.start = start
        started.append(service)
        return service

    monkeypatch.setattr(browser, "make_service", make_killed)
    chrome = browser.launch(SIZE)
    try:
        assert chrome.execute_script("return 1 + 1") == 2 and len(started) == 2
    finally:
        browser.end(chrome)


def test_missing_parts_are_named(monkeypatch) -> None:
    """Otherwise the first capture on a new machine ends in an ImportError."""
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="chromium is not on PATH"):
        browser.launch(SIZE)
