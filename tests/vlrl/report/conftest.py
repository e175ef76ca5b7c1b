"""A realistic run folder, and headless Chromium driven over its debugging pipe with the standard library only."""

from __future__ import annotations

import fcntl
import json
import math
import os
import random
import select
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageDraw

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
PATIENCE = 60  # seconds that the browser may stay silent before a test gives up

HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'><!--<script>"


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

    def open(self, path: Path) -> None:
        self.call("Page.navigate", url=path.as_uri())
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


@pytest.fixture(scope="session")
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

    def opened(path: Path, width: int = 1280, height: int = 900, scheme: str = "light") -> Page:
        pages.append(Page(browser, width, height, scheme))
        pages[-1].open(path)
        return pages[-1]

    yield opened
    for page in pages:
        browser.call("Target.closeTarget", targetId=page.target)


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A finished run of 300 steps with every file that a run can hold."""
    run = tmp_path / "point-grpo"
    (run / "rollouts" / "images").mkdir(parents=True)
    config = "seed: 3\ntask:\n  # finds a <shape>\n  name: pointing\n  data: {}\nsteps: 300\n"
    (run / "config.yaml").write_text(config)
    draw = random.Random(3)
    rows = [row for step in range(1, 301) for row in metric_rows(step, draw)]
    write_lines(run / "metrics.jsonl", rows)
    write_lines(run / "timings.jsonl", [timing(step, draw) for step in range(1, 301)])
    (run / "summary.json").write_text(json.dumps(summary()))
    for step in range(10, 301, 10):
        write_lines(run / "rollouts" / f"step_{step:06d}.jsonl", rollouts(run, step, draw))
    return run


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def summary() -> dict[str, Any]:
    return {
        "metric": "accuracy",
        "before": {"value": 0.11, "low": 0.085, "high": 0.14, "n": 512},
        "after": {"value": 0.83, "low": 0.795, "high": 0.86, "n": 512},
        "wall_s": 812.4,
        "cpu_s": 1504.0,
        "seed": 3,
        "rollouts": 19200,
        "updates": 300,
        "bad_rows": 2,
        "device": "cpu <2 cores>",
    }


def metric_rows(step: int, draw: random.Random) -> list[dict[str, Any]]:
    skill = 0.1 + 0.75 / (1 + math.exp(-(step - 120) / 35))
    hit = min(1.0, max(0.0, draw.gauss(skill, 0.08)))
    train = {
        "step": step,
        "reward": 0.2 + hit,
        "reward/hit": hit,
        "reward/format": min(1.0, 0.7 + step / 400 + draw.gauss(0, 0.02)),
        "accuracy": hit,
        "entropy": 2.2 * math.exp(-step / 200) + draw.gauss(0, 0.04),
        "kl": 0.0004 * step * abs(draw.gauss(1, 0.3)),
        "clip_fraction": abs(draw.gauss(0.03, 0.01)),
        "zero_advantage": min(1.0, abs(draw.gauss(0.25, 0.1))),
        "length": 8 + draw.gauss(0, 0.5),
        "cut": 0.0,
        "loss": draw.gauss(0, 0.02),
        "grad_norm": abs(draw.gauss(0.8, 0.2)) * (9 if step == 77 else 1),
        "lr": 3e-6 * (1 - step / 320),
        "logprob_gap": abs(draw.gauss(0, 2e-5)),
        "parse_fail/no_answer": max(0.0, 0.2 - step / 900),
        "parse_fail/not_a_number": max(0.0, 0.05 - step / 5000),
        "skipped": 0,
        "gpu/memory_gib": 11.5 + draw.random(),
    }
    if step == 40:
        train["kl"] = float("nan")
    if step % 25 and step != 1:
        return [train]
    accuracy = skill - 0.02
    held = {"eval/accuracy": accuracy, "eval/low": accuracy - 0.04, "eval/high": accuracy + 0.035, "eval/n": 512}
    return [train, {"step": step, **held, "eval/reward": accuracy + 0.25}]


def timing(step: int, draw: random.Random) -> dict[str, float]:
    rollout, update = 0.1 + 0.02 * draw.random(), 0.15 + 0.02 * draw.random()
    return {"step": step, "seconds": rollout + update + 0.01, "rollout": rollout, "reward": 0.01, "update": update}


def rollouts(run: Path, step: int, draw: random.Random) -> list[dict[str, Any]]:
    """Sixteen rollouts in groups of four, the last a jigsaw; pictures are half of image_size, as thumbnails are."""
    found = []
    for group in range(4):
        name = f"rollouts/images/{step % 50}_{group}.png"
        x, y = 40 + 90 * group, 60 + 4 * (step % 50)
        picture(run / name, x, y)
        for member in range(4):
            sample = {"step": step, "sample_id": f"shape-{step}-{group}", "group": group, "images": [name]}
            found.append({**sample, **rollout(x, y, step, member, draw), "image_size": [480, 320]})
    found[-1] |= jigsaw()
    found[9]["completion"] = HOSTILE
    return found


def picture(path: Path, x: int, y: int) -> None:
    image = Image.new("RGB", (240, 160), (226, 232, 240))
    pen = ImageDraw.Draw(image)
    pen.rectangle((150, 20, 220, 60), fill=(148, 163, 184))
    pen.ellipse([(x - 20) / 2, (y - 20) / 2, (x + 20) / 2, (y + 20) / 2], fill=(59, 130, 246))
    image.save(path)


def rollout(x: int, y: int, step: int, member: int, draw: random.Random) -> dict[str, Any]:
    spread = 120 * math.exp(-step / 90) + 6
    px, py = round(x + draw.gauss(0, spread), 1), round(y + draw.gauss(0, spread), 1)
    hit = float(max(abs(px - x), abs(py - y)) <= 20)
    failed = member == 2 and step < 150
    truth = {"role": "truth", "kind": "box", "xy": [x - 20, y - 20, x + 20, y + 20], "label": "blue disc"}
    guess = {"role": "prediction", "kind": "point", "xy": [px, py], "label": ""}
    return {
        "prompt": "Point at the blue disc.\nReply as <answer>x, y</answer>.",
        "completion": "I cannot see it." if failed else f"It is left of the grey box.\n<answer>{px}, {py}</answer>",
        "answer": None if failed else [px, py],
        "parts": {"hit": 0.0 if failed else hit, "format": 0.0 if failed else 1.0},
        "reward": 0.0 if failed else hit + 0.2,
        "correct": 0.0 if failed else hit,
        "reason": "no_answer" if failed else None,
        "advantage": draw.gauss(0, 0.7),
        "marks": [truth] if failed else [truth, guess],
        "split": "eval" if member == 3 else "train",
    }


def jigsaw() -> dict[str, Any]:
    truth = {"role": "truth", "kind": "text", "xy": [], "label": "2 0 3 1"}
    guess = {"role": "prediction", "kind": "text", "xy": [], "label": "2 3 0 1"}
    return {"completion": "<answer>2 3 0 1</answer>", "answer": [2, 3, 0, 1], "marks": [truth, guess], "reason": None}
