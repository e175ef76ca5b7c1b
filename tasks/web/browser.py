"""Starts headless Chromium for tasks that look at web pages (selenium, chromedriver; nothing is downloaded)."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
from typing import TYPE_CHECKING, Any

from vlrl.system.children import end_with_owner, kill_session
from vlrl.types import TRIES, UserError, first_line

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
    for number in range(1, TRIES + 1):  # it may be killed while it starts
        service = make_service(driver)
        try:
            chrome = webdriver.Chrome(options, service)
            break
        except died() as error:
            if service.process:
                kill_session(service.process.pid)
            if number == TRIES:
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
        process: Any = None  # before it starts

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
