"""The browser agent against real pages in a real browser."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import pytest

from tasks import check
from tasks.gui_agent import GuiAgent
from tasks.web import miniwob
from tasks.web.miniwob import GOLD
from tests.tasks.episodes import frames
from tests.tasks.episodes import play_gold as play
from vlrl.rollout import collect
from vlrl.types import Decision, Policy, UserError

pytestmark = pytest.mark.slow

ONE_CLICK = ("click-test", "click-color", "focus-text")


@pytest.fixture(scope="module")
def task():
    made = GuiAgent(held_out=len(GOLD), turns=12)
    yield made
    made.close()


def of_page(task, page, split="test"):
    return next(s for s in task.samples(split) if s.answer.page == page)


def test_every_page_with_a_solution_is_solved(task):
    """Demonstrations come from these solutions: clicks, typing, keys, scrolling and dragging reach the pages."""
    with ThreadPoolExecutor(task.max_parallel_envs) as threads:
        episodes = list(threads.map(lambda sample: play(task, sample), task.samples("test")))
    failed = [e.sample.answer.page for e in episodes if e.score.correct != 1.0]
    assert failed == []
    assert len({e.sample.answer.page for e in episodes}) == len(GOLD)
    kinds = {kind for e in episodes for kind in e.score.answer}
    assert kinds == {"click", "type", "scroll", "drag"}
    metrics = task.metrics(episodes)
    assert metrics["success_macro"] == 1.0
    assert metrics["low/drag-box"] == pytest.approx(0.2065, abs=1e-3)  # Wilson for 1 of 1
    assert metrics["turns_of_successes"] == np.mean([len(e.turns) for e in episodes])


def test_the_task_holds_what_check_task_claims():
    """Gold scores the maximum in every coordinate space, junk does not, splits do not meet."""
    task = GuiAgent(pages=ONE_CLICK, turns=2)
    assert [finding for finding in check.prove(task) if finding.problem] == []
    task.close()


def test_one_seed_is_one_screen(task):
    """Groups compare answers to the same start; held-out episodes are not those of training."""
    sample = of_page(task, "click-button")
    shots = []
    for chosen in (sample, sample, of_page(task, "click-button", "train")):
        environment = task.environment(chosen)
        shots.append(np.asarray(environment.reset().images[0]))
        environment.close()
    assert shots[0].shape == (210, 160, 3)
    assert np.array_equal(shots[0], shots[1])
    assert not np.array_equal(shots[0], shots[2])


def browser_of(environment):
    """The main process of the browser that an episode is played in."""
    children = psutil.Process(environment._screen.worker.pid).children()
    (driver,) = [child for child in children if child.name().startswith("chromedriver")]
    return driver.children()[0]


def kill_at_once(process):
    """Returns when the process is dead, buried by its parent or not."""
    os.kill(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("victim", ["browser", "driver"])
def test_a_killed_browser_loses_nothing(task, victim):
    """A browser that dies in the middle is replaced, its episode repeated from its seed, and the answers kept."""
    killed = []

    def kill(environment, turns):
        if len(turns) == 2 and not killed:
            process = browser_of(environment)
            process = process if victim == "browser" else process.parent()
            killed.append(process.pid)
            kill_at_once(process)

    episode = play(task, of_page(task, "login-user"), between=kill)
    assert len(killed) == 1
    assert episode.score.correct == 1.0
    assert len(episode.turns) == 5  # two fields to click into and to fill, one button: none was taken twice


def test_a_browser_that_dies_while_idle_is_replaced(task):
    """Between two steps of training a browser may be killed for its memory."""
    environment = task.environment(of_page(task, "click-test"))
    environment.reset()
    process = browser_of(environment)
    environment.close()
    kill_at_once(process)
    for _ in range(task.max_parallel_envs):
        assert play(task, of_page(task, "click-test")).score.correct == 1.0


def test_what_cannot_be_done_takes_a_turn_and_no_more(task):
    """A model that writes nonsense is told so by its history, and its episode ends at the limit, not by a failure."""
    episode = play(task, of_page(task, "click-test"), answer='<answer>["click", 3000, 10]</answer>')
    assert len(episode.turns) == 12
    assert episode.turns[-1].step.truncated
    assert not episode.turns[-1].step.terminated
    assert episode.score.reason == "outside_image"
    assert episode.score.parts == {"success": 0.0, "format": 0.0}
    assert "Done so far: nothing, nothing" in episode.turns[2].observation.text


def test_giving_up_ends_the_episode(task):
    """`done` is the agent's word, not success: only the page says what was reached."""
    episode = play(task, of_page(task, "click-test"), answer='<answer>["done"]</answer>')
    assert (len(episode.turns), episode.turns[-1].step.terminated, episode.score.correct) == (1, True, 0.0)
    assert episode.score.parts["format"] == 1.0


def test_a_wrong_click_fails(task):
    """The page's own verdict: clicking another colour ends the episode without success."""
    sample = next(s for s in task.samples("train")[:200] if s.answer.page == "click-dialog-2")
    environment = task.environment(sample)
    shown = environment.reset()
    labels = ["OK", "Cancel", "x"]
    wanted = next(label for label in labels if f'"{label}"' in shown.text)
    other = next(label for label in labels[:2] if label != wanted)
    buttons = "[...document.querySelectorAll('.ui-dialog-buttonset button')]"
    script = f"const b = {buttons}.find(b => b.textContent === '{other}');"
    twin = miniwob.MiniWob()
    twin.begin(sample.answer.page, sample.answer.seed, sample.answer.split)
    x, y, width, height = twin.chrome.execute_script(
        script + "const r = b.getBoundingClientRect(); return [r.x, r.y, r.width, r.height];"
    )
    twin.quit()
    step = environment.step(
        f'<answer>["click", {x + width / 2}, {y + height / 2}]</answer>', frames(shown, "original_px")
    )
    environment.close()
    assert (step.terminated, step.reward) == (True, 0.0)


class Golden(Policy):
    """A policy that clicks where the task's own environment says, to drive the collector."""

    def __init__(self, task):
        self.task, self.open = task, []

    def act(self, episodes, observations):
        self.open.append(len(episodes))
        answers = ['<answer>["click", 500, 600]</answer>'] * len(episodes)
        shown = zip(answers, observations, strict=True)
        return [Decision(text, None, None, False, frames(seen)) for text, seen in shown]


def test_the_collector_keeps_to_the_number_of_browsers():
    """A hundred episodes must not open a hundred browsers, and come back in order."""
    task = GuiAgent(pages=ONE_CLICK, turns=2, browsers=2)
    policy = Golden(task)
    samples = task.samples("train")[:3]
    episodes = collect(policy, task, samples, group_size=3)
    assert [e.sample.id for e in episodes] == [s.id for s in samples for _ in range(3)]
    assert all(1 <= len(e.turns) <= 2 for e in episodes)
    assert max(policy.open) <= 2
    starts = [np.asarray(e.turns[0].observation.images[0]).tobytes() for e in episodes]
    assert len(set(starts)) == 3
    task.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pages": ("click-tset",)}, r"task\.pages: 'click-tset': must be a page of MiniWoB"),
        ({"pages": ()}, r"task\.pages"),
        ({"turns": 0}, "at least 1"),
        ({"weights": {"succes": 1.0}}, "no such part"),
    ],
)
def test_wrong_options_stop_before_a_browser_starts(options, message):
    """A misspelt page would otherwise show after minutes."""
    with pytest.raises(UserError, match=message):
        GuiAgent(**options)


def test_all_pages_of_the_package_can_be_named():
    """The benchmark is more than the pages that we know a solution of."""
    assert len(miniwob.pages()) > 100
    assert set(GOLD) < set(miniwob.pages())
