"""Environments of OpenEnv as tasks, over its own servers and client: conversations, rewards, faults, mistakes."""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path

import pytest

pytest.importorskip("openenv", reason="the extra openenv")

from tasks.openenv import OpenEnv
from tasks.verifiers import Verifiers
from tests.tasks.episodes import play
from vlrl.plugins import list_requirements
from vlrl.types import UserError

pytestmark = pytest.mark.slow

APP = "toy_openenv:app"


@pytest.fixture(scope="module", autouse=True)
def _path():
    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", str(Path(__file__).parent))
    yield
    patch.undo()


@pytest.fixture(scope="module")
def task():
    game = OpenEnv(app=APP, success="found", turns=12, sessions=2)
    yield game
    game.close()


def search(task, index=0, split="train"):
    """The episode of a player who halves what is left."""
    sample = task.samples(split)[index]
    environment = task.environment(sample)
    shown, low, high = environment.reset(), 0, 9
    texts = [shown.text]
    while True:
        middle = (low + high) // 2
        step = environment.step(f"<answer>{middle}</answer>")
        texts.append(step.observation.text)
        if step.terminated:
            environment.close()
            return texts, middle
        low, high = (middle + 1, high) if "more" in texts[-1] else (low, middle - 1)


def test_text_pictures_and_rewards_arrive(task):
    """The policy is shown what the server says, and paid what it pays."""
    _, number = search(task)
    other = (number + 1) % 10
    episode = play(task, [f"<answer>{other}</answer>", "nothing", f"<answer>{number}</answer>"])
    first = episode.turns[0].observation
    assert first.text.startswith("hint: from 0 to 9\ntries: 0\nfound: false\n") and "inside <answer>" in first.text
    assert first.images[0].size == (8, 8) and first.images[0].getpixel((0, 0)) == (number, 0, 0)
    assert "Error: no action can be read" in episode.turns[2].observation.text
    score = task.score(episode)
    assert score.parts == {"return": pytest.approx(0.9), "success": 1.0, "format": pytest.approx(2 / 3)}
    assert score.correct == 1.0 and episode.turns[-1].step.terminated


def test_a_refused_action_is_the_policys_mistake(task):
    """The policy is told, and the episode goes on."""
    episode = play(task, ['<answer>"seven"</answer>', "<answer>4</answer>"])
    assert "Error: the action is refused" in episode.turns[1].observation.text and not episode.turns[0].step.fault


def test_one_seed_is_one_episode(task):
    """A resumed run must be shown what the run before was; test episodes are others."""
    episodes = [search(task, index, split) for index, split in ((3, "train"), (3, "train"), (3, "test"))]
    assert episodes[0] == episodes[1]
    numbers = [[search(task, i, split)[1] for i in range(8)] for split in ("train", "test")]
    assert numbers[0] != numbers[1] and len(set(numbers[0])) > 2


@pytest.mark.parametrize(("number", "problem"), [(66, "the game is broken"), (77, "")])
def test_what_fails_voids_the_episode_and_the_next_one_plays(task, number, problem):
    """An environment that raises, or whose process dies, is no wrong answer; a server of ours is started again."""
    step = play(task, [f"<answer>{number}</answer>"]).turns[0].step
    assert step.truncated and step.fault.startswith(f"{APP}: ") and problem in step.fault
    assert "found" in search(task)[0][-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"task\.url, app: .*: must be one of the two"),
        ({"url": "localhost:80"}, r"task\.url: 'localhost:80': must be http://HOST:PORT"),
        ({"url": "http://127.0.0.1:9"}, r"task\.url: http://127.0.0.1:9: no server of OpenEnv's answers: .*refused"),
        ({"app": "no_such_module:app"}, r"task\.app: no_such_module:app: does not start: .*no_such_module"),
        ({"app": APP, "turns": 0}, r"task\.pool, held_out, turns"),
    ],
)
def test_a_mistake_is_one_line(options, message):
    """Whoever names a server wrongly wants to know what is wrong."""
    with pytest.raises(UserError, match=message) as error:
        OpenEnv(**options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shows": ["hnt"]}, r"task\.shows: no 'hnt'; did you mean 'hint'\? \(one of: found, hint, pixels, tries\)$"),
        ({"options": {"limit": 0}}, r"task\.url: http.*: no episode begins: .*no such limit"),
        ({"sends": "completion"}, r"task\.sends: 'completion': must be answer: actions hold number"),
    ],
)
def test_what_the_server_refuses_is_one_line(task, options, message):
    """Before a run begins, not at its first episode."""
    with pytest.raises(UserError, match=message) as error:
        OpenEnv(url=task._find_url(), **options)
    assert "\n" not in str(error.value)


def test_a_missing_package_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "openenv.core.generic_client", None)
    with pytest.raises(UserError, match=r"task\.name: openenv: pip install 'vlrl\[openenv\]'"):
        OpenEnv(url="http://127.0.0.1:9")


STRICT = """
from openenv.core.env_server.http_server import create_fastapi_app
from toy_openenv import Game, Guess, Told


class StrictGame(Game):
    def reset(self, seed=None, episode_id=None, limit=9):
        return super().reset(seed, episode_id, limit)


app = create_fastapi_app(StrictGame, Guess, Told)
"""


def test_an_option_that_its_reset_does_not_take_stops_before_it_is_served(monkeypatch, tmp_path):
    """OpenEnv drops it without a word: episodes would be others than the file says."""
    (tmp_path / "strict_game.py").write_text(STRICT)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parent}")
    message = r"task\.options\.limt: the reset of strict_game:app .*did you mean 'limit'\? \(one of: limit\)$"
    with pytest.raises(UserError, match=message):
        OpenEnv(app="strict_game:app", options={"limt": 3})
    served = OpenEnv(app="strict_game:app", options={"limit": 3})
    served.close()


@pytest.mark.parametrize(
    ("extra", "package", "old"), [("openenv", "openenv-core", "0.1.1"), ("verifiers", "verifiers", "0.1.9")]
)
def test_another_version_is_one_line(monkeypatch, extra, package, old):
    """Its insides are others: a run would end in a traceback at its first episode."""
    pytest.importorskip(extra, reason=f"the extra {extra}")
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: old if name == package else version(name))
    tasks = {"openenv": lambda: OpenEnv(url="http://127.0.0.1:9"), "verifiers": lambda: Verifiers(id="reverse-text")}
    task = tasks[extra]
    wanted = next(str(each.specifier) for each in list_requirements(extra))
    message = f"task.name: {extra}: pip install 'vlrl[{extra}]' ({package} {old} is installed, {wanted} is needed)"
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        task()
    monkeypatch.undo()
    missing = {"openenv": "openenv.core.generic_client", "verifiers": "verifiers.v1.utils.loaders"}[extra]
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(UserError, match=rf"{package} {version(package)} is installed, .* is needed: .*{missing}"):
        task()
