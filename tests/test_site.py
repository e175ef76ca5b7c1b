"""The documentation as a site: built, complete, and read without a network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.web.browser import end, make_service
from vlrl.cli.help import read_errors

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """A link that leads nowhere, a page that no menu names, a name that the reference does not find: each stops it."""
    pytest.importorskip("mkdocstrings_handlers.python", reason="needs pip install 'vlrl[docs]'")
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_is_built_and_fetches_nothing(site):
    """A reader would follow a dead link, or without a network see a page without its look."""
    outside = re.compile(r'<(?:script|img|iframe|link rel="stylesheet")[^>]*(?:src|href)="(?:https?:)?//')
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(list((ROOT / "docs").rglob("*.md")))
    assert [str(page) for page in pages if outside.search(page.read_text(encoding="utf-8"))] == []


def test_the_reference_says_what_keys_and_options_mean(site):
    """A reader of the reference would see a key without what it means."""
    keys = (site / "reference" / "keys.html").read_text(encoding="utf-8")
    assert "prompts in one forward; default: the whole minibatch" in keys
    assert "Coefficient of the loss term." in (site / "reference" / "methods" / "losses.html").read_text(
        encoding="utf-8"
    )


def test_every_error_has_its_place_on_the_site(site):
    """The code that a terminal shows would lead to no entry, or a link in an entry nowhere (the build is strict)."""
    page = (site / "reference" / "errors.html").read_text(encoding="utf-8")
    assert [code.upper() for code in re.findall(r'<h2 id="(vl\d+)"', page)] == list(read_errors())


@pytest.fixture(scope="module")
def browser(needs):
    """A browser that reaches nothing but the disk."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs pip install 'vlrl[gui]'")
    options = webdriver.ChromeOptions()
    options.binary_location = needs("chromium", "google-chrome")
    offline = "--host-resolver-rules=MAP * ~NOTFOUND"
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1300,1000", offline):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options, make_service(needs("chromedriver")))
    yield browser
    end(browser)


def find_hit(browser, words: str, page: str) -> None:
    """Types the words into the search, and waits until a hit leads to the page.

    Raises:
        TimeoutException: none does.
    """
    wait = pytest.importorskip("selenium.webdriver.support.wait")
    browser.find_element("css selector", ".md-search__input").send_keys(words)
    hit = ("css selector", f".md-search-result__link[href*='{page}']")
    wait.WebDriverWait(browser, 120).until(lambda driver: driver.find_elements(*hit), words)


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("leave one out", "methods"),
        ("num_generations", "reference/keys.html?h=num_generations#trainsection"),  # TRL's name of train.group_size
        ("ppo_mini_batch_size", "reference/keys.html?h=ppo_mini_batch_size#trainsection"),  # verl's
        ("VL303", "reference/errors.html?h=vl303#vl303"),
    ],
)
def test_the_site_is_searched_from_the_disk(words, page, site, browser):
    """Whoever opens the site without a server would find nothing, in a browser that starts no workers there."""
    browser.get((site / "guides" / "curves.html").as_uri())
    find_hit(browser, words, page)
    assert browser.get_log("browser") == []


@pytest.mark.parametrize("width", [1300, 390])
def test_the_first_page_has_three_doors(width, site, browser):
    """A reader would not see where to begin; on a telephone the page would have to be moved sideways."""
    size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        browser.get((site / "index.html").as_uri())
        doors = browser.find_elements("css selector", ".grid.cards > ul > li")
        assert [door.find_element("css selector", "strong").text for door in doors] == [
            "A vision-language model", "An agent", "A robot"
        ]  # fmt: skip
        tops = {round(door.location["y"]) for door in doors}
        assert width > 390 or len(tops) == 3
        assert all(door.size["width"] > 200 and door.find_elements("tag name", "a") for door in doors)
        for page in ("index", "gallery"):
            browser.get((site / f"{page}.html").as_uri())
            assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        broken = "return [...document.images].filter(i => !i.naturalWidth).map(i => i.src)"
        assert browser.execute_script("return document.images.length") > 10 and browser.execute_script(broken) == []
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
