"""The page of `vlrl serve-model`: a person asks the served model about an image."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from io import BytesIO

import pytest
from page_checks import checked, find_controls

from tasks.gui_grounding import GuiGrounding
from vlrl.config import PolicySection
from vlrl.policies.loading import bundled, load
from vlrl.types import Episode

pytestmark = pytest.mark.slow
TAKE = """(async () => {
  const bytes = Uint8Array.from(atob("%s"), (letter) => letter.charCodeAt(0));
  await take(new File([bytes], "screen.png", { type: "image/png" }));
})()"""
MARK = """(() => { const mark = document.querySelector("#stage .mark");
  return mark && ["cx", "cy"].map((name) => Number(mark.getAttribute(name))); })()"""


@contextmanager
def serve(log, *words):
    """The address that a command says."""
    with log.open("w") as out:
        command = [sys.executable, "-m", "vlrl.cli", *words, "--port", "0"]
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        end = time.monotonic() + 600  # a busy machine is no failure
        while not (found := re.search(r"(http://\S+)( .*)?\n", log.read_text())):
            assert process.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        yield f"{found[1].rstrip('/')}/"
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Of a server of the embedded model."""
    with serve(tmp_path_factory.mktemp("server") / "out", "serve-model", "embedded") as found:
        yield found


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_a_reply_is_drawn_where_the_model_points(open_page, address, width, scheme):
    """Who looks at a checkpoint would see its numbers at another place than it means."""
    page = open_page(address, width=width, scheme=scheme)
    check_reply(page)
    checked(page)


def check_reply(page):
    """The page shows what the embedded model answers greedily, and marks its point."""
    sample = GuiGrounding(held_out=4).samples("test")[0]
    policy = load(PolicySection(model="embedded", max_tokens=24), device="cpu")
    (decision,) = policy.act([Episode(sample, 0)], [sample.prompt], greedy=True)
    image = BytesIO()
    sample.prompt.images[0].save(image, "PNG")
    page.run(TAKE % base64.b64encode(image.getvalue()).decode())
    page.run(f"byId('question').value = {sample.prompt.text!r}; byId('form').requestSubmit()")
    page.until("byId('state').textContent.includes('marks')")
    assert page.run("byId('reply').textContent") == decision.action
    numbers = [float(each) for each in re.findall(r"-?\d+(?:\.\d+)?", decision.action.partition("<answer>")[2])]
    assert len(numbers) == 2 and page.run(MARK) == pytest.approx(decision.frames[0].to_original(*numbers))


def test_a_run_that_is_viewed_is_asked(open_page, tmp_path):
    """Who looks at a run's curves would have to learn of another command to try what it trained."""
    run = tmp_path / "mine"
    shutil.copytree(bundled("embedded"), run)
    (run / "config.yaml").write_text("task: {name: gui_grounding}\nout: runs/mine\n")
    with serve(tmp_path / "out", "view", str(run), "--chat") as address:
        page = open_page(address)
        chat = page.run("byId('chat').href")
        checked(page)
        page = open_page(chat)
        assert page.run("document.title") == "Ask mine"
        check_reply(page)


def test_what_goes_wrong_is_said(open_page, address):
    """A click would do nothing, and nobody would know why."""
    page = open_page(address)
    page.run("byId('question').value = '?'; byId('temperature').value = '-1'; ask().catch(fail)")
    assert "temperature" in page.until("byId('state').textContent.length > 3 && byId('state').textContent")
    page.run("take(new File(['no image'], 'a.png')).catch(fail)")
    assert page.until("!byId('state').textContent.includes('temperature') && byId('state').textContent")


def test_keys_ask_and_every_field_has_a_name(open_page, address):
    """Who cannot use a mouse, or cannot see the page, could not ask."""
    page = open_page(address)
    for _ in range(12):
        if page.run("document.activeElement.id") != "question":
            page.press("Tab")
    page.press(*"Where is it")
    for _ in range(2):  # the temperature, a token where one is needed, and the button
        page.press("Tab")
    assert page.run("document.activeElement.textContent") == "Ask"
    page.press("Enter")
    page.until("!byId('reply').hidden")
    assert page.run("byId('question').value") == "Where is it"
    names = {("textbox", "Question"), ("spinbutton", "Temperature"), ("button", "Ask")}
    assert names <= set(find_controls(page))
    checked(page)
