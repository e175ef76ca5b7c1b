"""The documentation as a site: built, complete, and read without a network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.web.browser import end, make_service

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


def test_the_site_is_searched_from_the_disk(site, needs):
    """Whoever opens the site without a server would find nothing, in a browser that starts no workers there."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs pip install 'vlrl[gui]'")
    wait = pytest.importorskip("selenium.webdriver.support.wait")
    options = webdriver.ChromeOptions()
    options.binary_location = needs("chromium", "google-chrome")
    offline = "--host-resolver-rules=MAP * ~NOTFOUND"
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1300,1000", offline):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options, make_service(needs("chromedriver")))
    try:
        browser.get((site / "guides" / "curves.html").as_uri())
        browser.find_element("css selector", ".md-search__input").send_keys("leave one out")
        hit = ("css selector", ".md-search-result__item")
        wait.WebDriverWait(browser, 60).until(lambda driver: driver.find_elements(*hit))
        assert browser.get_log("browser") == []
    finally:
        end(browser)
