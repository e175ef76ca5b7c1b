"""`vlrl serve-task`: OpenEnv's own client, and our task of it, play our tasks as the trainer does."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("openenv", reason="the extra openenv")

from openenv.core.generic_client import GenericEnvClient

from tasks.counting import Counting
from tasks.openenv import OpenEnv, is_healthy
from tests.tasks.episodes import play
from vlrl.cli import main
from vlrl.types import Frame, UserError

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def url():
    """A server of the task `counting` by its name, in a process of its own."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vlrl.cli", "serve-task", "counting", "task.size=[64, 64]"]
    there = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([*command, "--port", str(port)], cwd=ROOT, env=there, stderr=subprocess.DEVNULL)
    address, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 300
    while not is_healthy(address):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.2)
    yield address
    process.terminate()
    process.wait()


def test_openenvs_client_plays_our_task(url):
    """A trainer of others' must be shown and pay what ours is."""
    task = Counting(size=(64, 64))
    sample = task.samples("test")[3]
    gold = task.gold(sample, [Frame("original_px", image.size, image.size) for image in sample.prompt.images])
    with GenericEnvClient(url).sync() as client:
        shown = client.reset(seed=3, split="test")
        kinds = [part["type"] for part in shown.observation["messages"][0]["content"]]
        assert "image_url" in kinds and not shown.done
        right = client.step({"text": gold})
        assert right.done and right.observation["correct"] == 1.0 and right.observation["parts"]["format"] == 1.0
        client.reset(seed=3, split="test")
        wrong = client.step({"text": "many"})
        assert wrong.done and wrong.observation["correct"] == 0.0 and wrong.reward < right.reward
        with pytest.raises(RuntimeError, match="before the episode's end"):
            client.step({"text": gold})


def test_our_task_plays_what_we_serve(url):
    """There and back: the same prompts, pixel by pixel, and the same score for the gold answer."""
    served = OpenEnv(url=url, sends="completion", success="correct", test_options={"split": "test"}, template="short")
    task = Counting(size=(64, 64))
    for split, first in (("train", 0), ("test", 2**30)):
        samples = task.samples(split)
        own = samples[first % len(samples)]
        gold = task.gold(own, [Frame("original_px", image.size, image.size) for image in own.prompt.images])
        episode = play(served, [gold], split=split)
        shown = episode.turns[0].observation
        assert shown.text.strip() == own.prompt.text.strip() and len(shown.images) == 1
        assert shown.images[0].tobytes() == own.prompt.images[0].convert("RGB").tobytes()
        assert served.score(episode).correct == 1.0
    served.close()


def test_a_split_or_option_that_there_is_not_stops_before_work(url):
    """OpenEnv drops what a reset does not take: another split would be trained on than is written."""
    for options in ({"splt": "test"}, {"split": "tset"}):
        with pytest.raises(UserError, match=r"no episode begins: .*reset takes seed, episode_id and split") as error:
            OpenEnv(url=url, sends="completion", options=options)
        assert "\n" not in str(error.value)


def test_a_task_without_a_configuration_has_its_defaults(monkeypatch):
    """Only those that have a YAML could be served by name; options would be those of another."""
    served = []
    monkeypatch.setattr("vlrl.tools.trl_verl.serve_task", lambda task, *rest: served.append((task, rest)))
    assert main(["serve-task", "proposed_clicks", "task.size=[64, 64]", "--split", "test", "--port", "9"]) == 0
    ((task, rest),) = served
    assert type(task).__name__ == "ProposedClicks" and rest == ("test", "127.0.0.1", 9, 64)
    assert task.samples("test")[0].prompt.images[0].size == (64, 64)


def test_a_name_that_is_no_tasks_is_one_line(capsys):
    assert main(["serve-task", "countin"]) == 2
    assert "did you mean 'counting'?" in capsys.readouterr().err
