"""The desktop with its real applications: solved by script, repeated by seed, killed in the middle."""

from __future__ import annotations

import os
import time
from random import Random

import numpy as np
import psutil
import pytest

from tasks.gui_agent import GuiAgent
from tasks.web import desktop
from tests.tasks.episodes import frames as frames_of
from tests.tasks.episodes import play_gold as play
from vlrl.types import UserError

SIZE = desktop.SIZE
NAMES = tuple(desktop.TASKS)


@pytest.fixture(scope="module")
def task():
    agent = GuiAgent(environment="desktop", held_out=2 * len(NAMES), browsers=1)
    yield agent
    agent.close()


def kill_program(environment, name):
    """Kills a program of the episode's worker."""
    programs = psutil.Process(environment._screen.worker.pid).children(recursive=True)
    process = next(each for each in programs if each.name() == name)
    process.kill()
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:  # its parent, the worker, may not reap it
        time.sleep(0.01)
    return process


@pytest.mark.slow
@pytest.mark.alone  # when a screen is still is told by a clock: beside other work a picture may be an earlier one
def test_every_task_is_solved_and_repeats(task):
    """Demonstrations come from these solutions; a resumed run must be shown the same screens."""
    samples = list(task.samples("test"))
    first = [play(task, sample) for sample in samples]
    assert {e.sample.id: e.score.correct for e in first} == {sample.id: 1.0 for sample in samples}
    assert {kind for e in first for kind in e.score.answer} == {"click", "type", "key"}
    assert len({e.turns[0].observation.text for e in first}) == len(samples)  # the seed makes the variant
    for episode in first[: len(NAMES)]:
        again = play(task, episode.sample)
        assert [t.decision.action for t in again.turns] == [t.decision.action for t in episode.turns]
        screens = [[np.asarray(t.observation.images[0]) for t in e.turns] for e in (episode, again)]
        assert all(map(np.array_equal, *screens)) and screens[0][0].shape == (SIZE[1], SIZE[0], 3)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["Xvfb", desktop.EDITOR, "dbus-daemon"])
def test_what_dies_is_replaced_and_the_episode_goes_on(task, victim):
    """A program that is killed says nothing about the policy."""
    sample = next(s for s in task.samples("test") if s.answer.page == "replace-word")
    killed = []

    def kill(environment, turns):
        if len(turns) == 2 and not killed:
            killed.append(kill_program(environment, victim))

    episode = play(task, sample, between=kill)
    assert killed and (episode.score.correct, len(episode.turns)) == (1.0, 4)


@pytest.mark.slow
def test_a_desktop_that_cannot_live_voids_the_episode(task, monkeypatch, tmp_path):
    """Three in a row are the machine's fault: the episode must not count as the policy's failure."""
    environment = task.environment(task.samples("train")[1])
    shown = environment.reset()
    (tmp_path / "Xvfb").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "Xvfb").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    kill_program(environment, "Xvfb")
    frames = frames_of(shown)
    step = environment.step('<answer>["key", "Enter"]</answer>', frames)
    environment.close()
    assert step.truncated and "3 desktops died" in step.fault


@pytest.mark.slow
def test_a_closed_application_is_the_policys_own_doing(task):
    """Whoever closes the editor has failed; nothing is void, and no script knows a way on."""
    environment = task.environment(task.samples("train")[1])
    shown = environment.reset()
    frames = frames_of(shown, "original_px")
    step = environment.step('<answer>["click", 300, 8]</answer>', frames)
    gold = environment.gold(frames)
    environment.close()
    assert not step.fault and not step.terminated and gold is None


def test_variants_depend_on_the_seed_alone():
    """A group compares answers to one variant."""
    for name, make in desktop.TASKS.items():
        goals = {make(Random(f"{name}/{seed}")).goal for seed in range(20)}
        assert len(goals) > 8 and make(Random(f"{name}/3")).goal in goals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pages": ("click-test",)}, r"task\.pages: 'click-test': must be a task of the desktop, such as compute"),
        ({"pages": ()}, r"task\.pages"),
    ],
)
def test_wrong_names_stop_before_a_desktop_starts(options, message):
    with pytest.raises(UserError, match=message):
        GuiAgent(environment="desktop", **options)


def test_missing_programs_are_named_in_one_line(monkeypatch):
    """Whoever has no Debian must know what to install by hand."""
    monkeypatch.setenv("PATH", "/nowhere")
    agent = GuiAgent(environment="desktop", pages=("compute",))
    with pytest.raises(UserError, match=r"needs the Debian packages xvfb, openbox, .*mate-calc.*: run `make system`$"):
        agent.environment(agent.samples("train")[0]).reset()


@pytest.mark.slow
@pytest.mark.alone  # as above: a picture may be an earlier one
def test_the_wheel_scrolls_the_page_under_the_pointer(task):
    """What is longer than a window could not be read."""
    sample = next(s for s in task.samples("test") if s.answer.page == "write-line")
    environment = task.environment(sample)
    frames = frames_of(environment.reset(), "original_px")
    line, screens = " ".join(map(str, range(60))), []  # wider than the editor
    for action in (f'["type", "{line}"]', *(f'["scroll", 150, 200, "{way}"]' for way in ("left", "left", "right"))):
        step = environment.step(f"<answer>{action}</answer>", frames)
        assert not step.fault
        screens.append(np.asarray(step.observation.images[-1])[48:62, 10:280])  # the line of the editor
    environment.close()
    end, once, twice, back = screens
    assert not np.array_equal(end, once) and not np.array_equal(once, twice) and not np.array_equal(twice, back)


@pytest.mark.slow
@pytest.mark.alone
def test_a_text_of_two_lines_is_typed_on_two(task):
    """Words of two lines would run together."""
    sample = next(s for s in task.samples("test") if s.answer.page == "write-line")
    environment = task.environment(sample)
    frames = frames_of(environment.reset(), "original_px")
    screens = []
    for text in ("one", "two", "\\nthree"):
        step = environment.step(f'<answer>["type", "{text}"]</answer>', frames)
        assert not step.fault
        screens.append(np.asarray(step.observation.images[-1])[64:78, 10:200])  # below the first line of the editor
    environment.close()
    one, both, three = screens
    assert np.array_equal(one, both) and not np.array_equal(both, three)
