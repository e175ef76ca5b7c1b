"""BrowserGym's pages as tasks of any Gymnasium environment: a real Chromium, its own actions and rewards."""

from __future__ import annotations

import re

import numpy as np
import psutil
import pytest

from tasks.agent_actions import ScreenAction
from tasks.gym import BROWSER_SHOWS, Gym, link_chromium
from tasks.web.miniwob import MiniWob
from vlrl.cli import main
from vlrl.types import UserError

pytest.importorskip("browsergym.miniwob", reason="the extra environments")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("browsergym"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),  # Playwright's and Gymnasium's
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
PAGE = "browsergym/miniwob.click-test-2"


@pytest.fixture
def make():
    """`make(...)`: a task that is closed after the test."""
    tasks = []

    def made(**options) -> Gym:
        tasks.append(Gym(**options))
        return tasks[-1]

    yield made
    for task in tasks:
        task.close()


def element(text: str, role: str, name: str) -> str:
    """The id that an accessibility tree gives an element."""
    return re.search(rf"\[(\d+)\] {role} '{name}'", text).group(1)


def test_a_page_is_solved_by_its_own_actions(make):
    """What it shows names the element, what is called clicks it, the page's own verdict is the success."""
    task = make(id=PAGE, turns=3)
    assert "click(bid: str" in task.opening and "fill('b534'" not in task.opening
    for sample in task.samples("test")[:2]:
        environment = task.environment(sample)
        shown = environment.reset()
        (image,), text = shown.images, shown.text
        assert image.size[0] > 300 and "goal: Click button ONE." in text
        lost = environment.step("<answer>click('999')</answer>")
        assert (
            lost.reward == 0
            and not lost.terminated
            and 'no element with bid "999"' in lost.observation.text.replace("Could not find", "no")
        )
        unread = environment.step("<answer>click(</answer>")
        assert unread.reward == 0 and "last_action_error" in unread.observation.text
        won = environment.step(f"<answer>click('{element(text, 'button', 'ONE')}')</answer>")
        assert (won.reward, won.terminated, won.fault) == (1.0, True, "")
        environment.close()


def test_a_seed_is_a_page(make):
    """A group whose members saw other pages would compare their luck."""
    task = make(id="browsergym/miniwob.click-button", shows=["goal", "axtree_object"])
    texts = []
    for sample in (task.samples("train")[0], task.samples("train")[0], task.samples("train")[1]):
        environment = task.environment(sample)
        texts.append(environment.reset().text)
        environment.close()
    assert texts[0] == texts[1] != texts[2]


def test_a_browser_that_dies_makes_the_episode_void(make):
    """A crash that counts as a failure teaches the policy to avoid what it did before."""
    task = make(id=PAGE)
    environment = task.environment(task.samples("test")[0])
    environment.reset()
    for process in psutil.Process().children(recursive=True):
        if "chrom" in process.name():
            process.kill()
    step = environment.step("<answer>noop()</answer>")
    assert step.fault and step.truncated and not step.reward
    environment.close()
    again = task.environment(task.samples("test")[0])
    assert "Click button ONE" in again.reset().text
    again.close()


BUTTONS = """return [...document.querySelectorAll('#area button')].map(button => {
  const { x, y, width, height } = button.getBoundingClientRect();
  const middle = [x + width / 2, y + height / 2];
  return [button.textContent.trim(), middle, document.elementFromPoint(...middle) === button]; });"""


@pytest.fixture
def screen():
    browser = MiniWob()
    yield browser
    browser.quit()


@pytest.mark.parametrize("page", ["click-test-2", "click-button"])
def test_a_page_is_what_our_own_wrapper_plays(make, screen, page):
    """Success rates of the two could not be compared: other goals, other buttons, or another verdict."""
    task = make(id=f"browsergym/miniwob.{page}", shows=["goal", "axtree_object"])
    verdicts = []
    for i, sample in enumerate(task.samples("test")[:20]):
        number = int(np.random.RandomState(sample.answer).randint(0, 1_000_000))  # as BrowserGym draws the page's seed
        screen.begin(page, number, "test")
        environment = task.environment(sample)
        text = environment.reset().text
        assert re.search(r"^goal: (.*)$", text, re.M).group(1) == screen.status().goal
        theirs, ours = re.findall(r"\[(\d+)\] button '(.*?)'", text), screen.chrome.execute_script(BUTTONS)
        assert [name for _, name in theirs] == [name for name, _, _ in ours]
        target = re.search(r"button ONE|(?<=\").*(?=\")", screen.status().goal).group(0).removeprefix("button ")
        # a covered button is clicked by nobody: Playwright refuses, and a hand clicks what covers it
        wanted = [place for place, (name, _, free) in enumerate(ours) if (name == target) == (i % 2 == 0) and free]
        if wanted:  # a page may have no wrong button
            step = environment.step(f"<answer>click('{theirs[wanted[0]][0]}')</answer>")
            screen.act(ScreenAction("click", (tuple(ours[wanted[0]][1]),)))
            status = screen.status()
            assert (step.terminated, step.reward) == (status.done, float(status.reward > 0)) == (True, i % 2 == 0)
            verdicts.append(step.reward)
        environment.close()
    assert verdicts.count(1.0) >= 8 and verdicts.count(0.0) >= 5


def test_it_trains_from_the_command_line(tmp_path):
    """Episodes of several turns in browsers, by the trainer's own path; a void one would be played anew."""
    small = ["train.steps=1", "train.prompts_per_step=1", "train.group_size=2", "eval.num_samples=1", 
             "train.num_minibatches=1", "task.turns=2", "policy.max_pixels=4096", "log.trackers=[]"]  # fmt: skip
    task = f"task={{name: gym, id: {PAGE}, template: short, shows: {list(BROWSER_SHOWS)}}}"
    config = tmp_path / "page.yaml"
    config.write_text(
        f"out: {tmp_path / 'run'}\n{task.replace('=', ': ', 1)}\npolicy: {{model: embedded, max_tokens: 12}}\n"
    )
    assert main(["train", str(config), *small]) == 0
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count('"loss"') == 1


def test_what_is_missing_is_one_line(monkeypatch, tmp_path):
    """Another family's package, a browser, a page."""
    with pytest.raises(UserError, match=r"task\.id: .*: needs pip install browsergym-workarena"):
        Gym(id="browsergym/workarena.servicenow.order-ipad")
    with pytest.raises(UserError, match=r"task\.id: gymnasium cannot make 'browsergym/miniwob\.click-tset'"):
        Gym(id="browsergym/miniwob.click-tset")
    monkeypatch.delenv("PLAYWRIGHT_BROWSERS_PATH", raising=False)
    monkeypatch.setattr("tasks.web.browser.BROWSERS", ("no-such-browser",))
    with pytest.raises(UserError, match="needs Chromium: run `make system`"):
        Gym(id=PAGE)
    program = next(link_chromium("/usr/bin/chromium", tmp_path).glob("chromium-*/chrome-linux/chrome"))
    assert "exec /usr/bin/chromium --no-sandbox" in program.read_text() and program.stat().st_mode & 0o111
