"""Headless Chromium driven over its debugging pipe with the standard library only."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = str(Path(__file__).parent)
if FOLDER not in sys.path:
    sys.path.insert(0, FOLDER)  # what these tests share lies beside them

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)
CODES = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "End": 35, "Enter": 13, "Escape": 27,
         "Tab": 9}  # fmt: skip
TEXTS = {"Enter": "\r"}
PATIENCE = 60  # seconds that the browser may stay silent before a test gives up


class Browser:
    """Chromium and a minimal client of its DevTools protocol: JSON messages that end with a NUL byte."""

    def __init__(self, program: str, profile: Path) -> None:
        command, self.writer = os.pipe()
        self.reader, answer = os.pipe()
        # High numbers first: wiring one end to 3 or 4 in the child must not overwrite the other.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 20) for end in (command, answer)]
        log = str(profile.parent / "chromium.log")
        wiring = [(os.POSIX_SPAWN_DUP2, end, number) for end, number in zip(ends, (3, 4), strict=True)]
        wiring += [(os.POSIX_SPAWN_OPEN, out, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) for out in (1, 2)]
        arguments = [program, *FLAGS, f"--user-data-dir={profile}"]
        self.process = os.posix_spawn(program, arguments, os.environ, file_actions=wiring, setpgroup=0)
        for end in (command, answer, *ends):
            os.close(end)
        self.buffer = b""
        self.count = 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Sends one command and returns its result; events that come meanwhile are kept."""
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self.writer, json.dumps(message).encode() + b"\0")
        while (reply := self.receive()).get("id") != self.count:
            self.events.append(reply)
        assert "error" not in reply, f"{method}: {reply['error']}"
        return reply["result"]

    def receive(self) -> dict[str, Any]:
        """The next message."""
        end = time.monotonic() + PATIENCE
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.reader], [], [], max(0, end - time.monotonic()))
            piece = os.read(self.reader, 1 << 20) if ready else b""
            assert piece, "the browser fell silent or ended"
            self.buffer += piece
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def close(self) -> None:
        os.close(self.writer)
        os.close(self.reader)
        os.killpg(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)


class Page:
    """One tab: what it logged, threw and asked the network for."""

    def __init__(self, browser: Browser, width: int, height: int, scheme: str) -> None:
        self.browser = browser
        self.target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=self.target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(width, height)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **params)

    def resize(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def open(self, place: Path | str) -> None:
        """place: a file, or an address."""
        self.call("Page.navigate", url=place if isinstance(place, str) else place.as_uri())
        while not self.seen("Page.loadEventFired"):
            self.browser.events.append(self.browser.receive())
        self.settle()

    def settle(self) -> None:
        """Waits until the page has drawn twice: resizes and intersections are seen by then."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 50))))")

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression, awaited."""
        reply = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    def until(self, script: str) -> Any:
        """The value of an expression once it is true."""
        end = time.monotonic() + PATIENCE
        while not (value := self.run(script)):
            assert time.monotonic() < end, f"never: {script}"
            self.settle()
        return value

    def press(self, *keys: str) -> None:
        for key in keys:
            text = {"text": key} if len(key) == 1 else {"windowsVirtualKeyCode": CODES[key], "text": TEXTS.get(key, "")}
            self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
            self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def seen(self, *methods: str) -> list[dict[str, Any]]:
        """Parameters of this tab's events of these kinds."""
        mine = [event for event in self.browser.events if event.get("sessionId") == self.session]
        return [event["params"] for event in mine if event["method"] in methods]

    def complaints(self) -> list[dict[str, Any]]:
        logged = self.seen("Runtime.exceptionThrown", "Log.entryAdded")
        return logged + [said for said in self.seen("Runtime.consoleAPICalled") if said["type"] in ("error", "warning")]

    def requests(self) -> list[str]:
        """Addresses asked for, without those that live in the page."""
        urls = [sent["request"]["url"] for sent in self.seen("Network.requestWillBeSent")]
        return [url for url in urls if not url.startswith("data:")]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if program is None:
        message = f"no browser on PATH ({', '.join(BROWSERS)}): install one to test the report's page"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(message)
    browser = Browser(program, tmp_path_factory.mktemp("browser") / "profile")
    yield browser
    browser.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """open_page(path, width, height, scheme) -> the loaded tab."""

    pages = []

    def opened(path: Path | str, width: int = 1280, height: int = 900, scheme: str = "light") -> Page:
        pages.append(Page(browser, width, height, scheme))
        pages[-1].open(path)
        return pages[-1]

    yield opened
    for page in pages:
        browser.call("Target.closeTarget", targetId=page.target)


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A finished run of 300 steps with every file that a run can hold."""
    from small_runs import finished_run

    return finished_run(tmp_path)
