"""Starts headless Chromium for tasks that look at web pages (selenium, chromedriver; nothing is downloaded)."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import weakref
from collections.abc import Callable, Collection
from threading import Condition
from typing import TYPE_CHECKING, Any, Protocol

from vlrl.system.children import end_with_owner, kill_session
from vlrl.types import UserError, first_line

if TYPE_CHECKING:
    from selenium.webdriver import Chrome, ChromeService


BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",  # containers have little of it, and a page then crashes
    "--hide-scrollbars",
    "--font-render-hinting=none",
    "--force-color-profile=srgb",
    "--enable-blink-features=ComputedAccessibilityInfo",  # element.computedRole and element.computedName
)

PATIENCE = 30  # seconds that a page may take to load
LOADED = """
const done = arguments[0];
const ready = () => document.fonts.ready.then(() => done(location.href));
if (document.readyState === "complete") ready(); else addEventListener("load", ready);
"""


def find_browser() -> str | None:
    """The path of the browser that is installed; None: there is none."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def launch(size: tuple[int, int]) -> Chrome:
    """A fresh browser (its profile goes when it quits) whose viewport has `size` (width, height) pixels.

    Raises UserError naming what to install: selenium, a browser, chromedriver; or when the browser does not start.
    """
    try:
        from selenium import webdriver
        from selenium.common.exceptions import WebDriverException
    except ImportError as error:
        raise UserError("selenium is not installed: pip install 'vlrl[gui]'") from error
    browser = find_browser()
    driver = shutil.which("chromedriver")
    if not (browser and driver):
        raise UserError(f"{'chromedriver' if browser else 'chromium'} is not on PATH: run `make system`, or install it "
                        "(Debian: chromium and chromium-driver)")  # fmt: skip
    os.environ |= {"SE_OFFLINE": "true", "SE_AVOID_STATS": "true"}
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    options.unhandled_prompt_behavior = "dismiss"  # a page's alert() would stop everything
    for flag in FLAGS:
        options.add_argument(flag)
    try:
        chrome = webdriver.Chrome(options, make_service(driver))
    except WebDriverException as error:
        raise UserError(
            f"{browser} does not start with {driver}: {driver_message(error)}; see `vlrl doctor`"
        ) from error
    chrome.set_page_load_timeout(PATIENCE)
    chrome.set_script_timeout(PATIENCE)
    resize(chrome, size)
    return chrome


def make_service(driver: str) -> ChromeService:
    """chromedriver and its browser in a session that ends with this process."""
    from selenium.webdriver import ChromeService

    class BrowserService(ChromeService):
        def _start_process(self, path: str) -> None:
            super()._start_process(path)
            end_with_owner(self.process.pid)

    return BrowserService(driver, popen_kw={"start_new_session": True})


def end(chrome: Chrome) -> None:
    """Quits a browser; one that hangs or has lost its driver is killed."""
    process = chrome.service.process
    with contextlib.suppress(*died()):
        chrome.quit()
    kill_session(process.pid)


@functools.cache
def died() -> tuple[type[Exception], ...]:
    """What selenium raises when the browser, its driver or the line to them is gone, or does not answer in time."""
    from selenium.common.exceptions import WebDriverException
    from urllib3.exceptions import HTTPError

    return WebDriverException, HTTPError, OSError


def resize(chrome: Chrome, size: tuple[int, int], scale: float = 1.0) -> None:
    """Sets the viewport in CSS pixels, of which each becomes `scale` pixels of a screenshot."""
    metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": scale, "mobile": False}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def visit(chrome: Chrome, address: str) -> None:
    """Opens a page and waits until it has loaded (chromedriver's own wait ends early on a busy machine).

    Raises UserError when it does not open or load.
    """
    from selenium.common.exceptions import WebDriverException

    try:
        chrome.get(address)
        reached = chrome.execute_async_script(LOADED)
    except WebDriverException as error:
        raise UserError(f"{address}: does not open ({driver_message(error)})") from error
    if reached.startswith("chrome-error:"):
        raise UserError(f"{address}: does not open: no such file, or no server there that answers")


def driver_message(error: Exception) -> str:
    """What a WebDriverException says, whose text goes on with the browser's stack."""
    return first_line(error).removeprefix("Message: ")


# A pool of browsers that outlive episodes: started when first needed, one process each, replaced when they die.


class Browser(Protocol):
    """What a pool keeps. `pages` are those that it has loaded."""

    @property
    def pages(self) -> Collection[str]: ...

    def quit(self) -> None: ...


def _quit[B: Browser](browsers: list[B]) -> None:
    while browsers:
        with contextlib.suppress(Exception):  # whatever a dead browser says
            browsers.pop().quit()


class BrowserPool[B: Browser]:
    """At most `size` browsers that `start` makes. Safe to use from several threads."""

    def __init__(self, start: Callable[[], B], size: int):
        self.kind: Any = start  # the class of what it keeps
        self._start, self._room = start, size
        self._idle: list[B] = []
        self._changed = Condition()
        weakref.finalize(self, _quit, self._idle)  # with the task that made the pool, or with the process

    def take(self, page: str) -> B:
        """An idle browser, if possible one that has the page loaded; waits until there is one or room for one."""
        with self._changed:
            self._changed.wait_for(lambda: self._idle or self._room)
            if self._idle and (not self._room or any(page in browser.pages for browser in self._idle)):
                chosen = next((browser for browser in self._idle if page in browser.pages), self._idle[-1])
                self._idle.remove(chosen)
                return chosen
            self._room -= 1
        try:
            return self._start()
        except BaseException:
            self._free()
            raise

    def give(self, browser: B) -> None:
        """A browser back, fit for the next episode."""
        with self._changed:
            self._idle.append(browser)
            self._changed.notify()

    def bury(self, browser: B) -> None:
        """A browser that died or hangs: its processes are ended, and its place is free for another."""
        with contextlib.suppress(Exception):  # whatever a dead browser says
            browser.quit()
        self._free()

    def close(self) -> None:
        """Quits the idle browsers."""
        while self._idle:
            self.bury(self._idle.pop())

    def _free(self) -> None:
        with self._changed:
            self._room += 1
            self._changed.notify()
