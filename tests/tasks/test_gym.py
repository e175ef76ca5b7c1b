"""Any Gymnasium environment as a task: what is shown, how actions are read, how episodes end and are paid."""

from __future__ import annotations

import random
import sys
from importlib import metadata
from importlib.util import find_spec

import numpy as np
import pytest

from tasks.context import LastImages
from tasks.gym import Gym
from tests.tasks import episodes
from vlrl.types import Episode, UserError

if find_spec("gymnasium") is None:
    pytest.skip("gymnasium is not installed: pip install 'vlrl[sims]'", allow_module_level=True)
import gymnasium
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Text

SPACES = {
    "text": Text(12, charset="abcdefghijklmnopqrstuvwxyz ()0123456789"),
    "few": Discrete(3, start=-1),
    "several": MultiDiscrete([2, 3]),
    "numbers": Box(-1.0, 1.0, (2, 1), np.float32),
    "endless": Box(-np.inf, np.inf, (2,)),
}


class Echo(gymnasium.Env):
    """Pays 1 for the third action, and shows the last one; draws from the process' generators."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space = Dict(
        goal=Text(99), at=Box(-9, 9, (2,), np.float32), seen=Dict(top=Box(0, 255, (6, 8, 3), np.uint8))
    )

    def __init__(self, space="few", fails="", render_mode=None):
        self.action_space, self.fails, self.render_mode = SPACES[space], fails, render_mode

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        if self.fails == "reset":
            raise ValueError("no\nreset")
        self.acted = []
        return self.look(), {}

    def look(self):
        top = np.full((6, 8, 3), len(self.acted), np.uint8)
        at = np.array([self.np_random.random(), random.random()], np.float32)
        return {"goal": f"acted {self.acted[-1:]}", "at": at, "seen": {"top": top}}

    def step(self, action):
        if self.fails == "step":
            raise OSError("the browser died")
        assert self.action_space.contains(action)
        self.acted.append(action)
        return self.look(), float(len(self.acted) == 3), len(self.acted) == 3, False, {"won": len(self.acted) == 3}

    def render(self):
        return np.zeros((4, 4, 3), np.uint8)


@pytest.fixture(scope="module", autouse=True)
def _registered():
    gymnasium.register("Echo-v0", Echo)
    yield
    gymnasium.registry.pop("Echo-v0")


def play(task: Gym, answers, index: int = 0) -> Episode:
    episode = episodes.play(task, answers, index)
    episode.score = task.score(episode)
    return episode


def tagged(*actions: str) -> list[str]:
    return [f"<answer>{action}</answer>" for action in actions]


@pytest.mark.parametrize(
    ("space", "options", "right", "wrong"),
    [
        ("text", {}, ["click(12)", "noop", "x"], ["A", "a" * 13]),
        ("few", {}, ["-1", "0", "1"], ["2", "0.5", "true", "up", "[0]"]),
        ("few", {"actions": ["up", "stay", "down"]}, ["up", "stay", "down"], ["0", "left", "upp"]),
        ("several", {}, ["[0, 2]", "[1, 0]", "[0, 0]"], ["[2, 0]", "[0]", "[0.0, 1]", "3", "[9e99, 1]", "[true, 1]"]),
        ("numbers", {}, ["[0.5, -1]", "[0, 0]", "[1, 1.0]"], ["[1.5, 0]", "[0]", "[NaN, 0]", '["a", 0]', "{}"]),
    ],
)
def test_actions_of_each_kind_are_read_strictly(space, options, right, wrong):
    """A lenient reader would act out what nobody wrote."""
    task = Gym(id="Echo-v0", options={"space": space}, turns=9, **options)
    episode = play(task, tagged(*right))
    assert episode.turns[-1].step.terminated
    assert dict(episode.score.parts) == {"return": 1.0, "success": 1.0, "format": 1.0}
    assert task.reward(episode.score) == 1.0
    assert [task.read(f"<answer>{each}</answer>").reason for each in episode.score.answer] == [None] * 3
    for action in (*wrong, ""):
        episode = play(task, tagged(action, *right))
        assert len(episode.turns) == 4 and episode.score.parts["format"] == 0.75, action
        assert episode.turns[0].step.observation.text.startswith("Error: no action can be read")
        assert episode.score.reason and episode.score.answer[0] is None


def test_what_is_shown_is_what_was_asked_for():
    """A policy that is shown other parts, or no instruction, learns another task."""
    task = Gym(id="Echo-v0", instruction="Go.", render=True, shows=["seen.top", "goal"], actions=["a", "b", "c"])
    first, second = (turn.observation for turn in play(task, tagged("b", "b")).turns)
    (message,) = first.messages
    assert [image.size for image in message.content[:2]] == [(8, 6), (4, 4)]
    assert message.content[2] == "goal: acted []"
    assert message.content[3] == "Go. Answer each turn with one action inside <answer> </answer>: a, b, c."
    assert second.text == "goal: acted [0]" and len(second.images) == 2
    plain = play(Gym(id="Echo-v0", template="short"), tagged("0")).turns[0].observation
    assert "Answer" not in plain.text and "at: [" in plain.text and len(plain.images) == 1


def test_episodes_hang_on_their_seed_alone():
    """A group's episodes must begin alike, test episodes unlike training ones, and the process' generators stay."""
    task = Gym(id="Echo-v0")
    random.seed(5)
    before = random.getstate()
    texts = [play(task, tagged("0", "1"), index).turns[1].observation.text for index in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2] and random.getstate() == before
    seeds = [{task.samples(split)[i].answer for i in range(500)} for split in ("train", "test")]
    assert len(seeds[0] | seeds[1]) == 1000


def test_success_is_a_number_of_info_or_a_return():
    """Accuracy would say something else than the environment does."""
    for success, won in (("won", 1.0), (1.0, 1.0), (2.0, 0.0), ("other", 0.0)):
        assert play(Gym(id="Echo-v0", success=success), tagged("0", "0", "0")).score.correct == won
    cut = play(Gym(id="Echo-v0", turns=2), tagged("0", "0"))
    assert cut.turns[-1].step.truncated and not cut.turns[-1].step.terminated and cut.score.correct == 0.0


def test_older_images_can_give_way_to_text():
    """A conversation of many screens outgrows a model."""
    shown = play(Gym(id="Echo-v0", context=LastImages(images=1)), tagged("0", "0")).turns[1].observation
    assert shown.restart and len(shown.images) == 1 and "[image 1 is no longer shown]" in shown.text


def test_an_environment_that_fails_voids_the_episode():
    """A dead browser is no wrong answer."""
    step = play(Gym(id="Echo-v0", options={"fails": "step"}), tagged("0")).turns[0].step
    assert step.fault == "Echo-v0: the browser died" and step.truncated
    task = Gym(id="Echo-v0", options={"fails": "reset"})
    with pytest.raises(UserError, match=r"task\.id: Echo-v0, seed 0: no$"):
        task.environment(task.samples("train")[0]).reset()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"id": "Nowhere-v0"}, "task.id: gymnasium cannot make 'Nowhere-v0'"),
        ({"id": "Echo-v0", "options": {"speed": 1}}, "task.id: gymnasium cannot make 'Echo-v0': .*speed"),
        ({"id": "Echo-v0", "options": {"space": "endless"}}, "its actions are Box.*must be text"),
        ({"id": "Echo-v0", "shows": ["sound"]}, "task.shows: sound: must be of goal, at, seen.top"),
        ({"id": "Echo-v0", "actions": ["up"]}, "task.actions: 1 names for 3 actions"),
        ({"id": "Echo-v0", "turns": 0}, "task.pool, held_out, turns"),
        ({"id": "Echo-v0", "weights": {"fun": 1.0}}, "task.weights.fun"),
    ],
)
def test_a_mistake_is_one_line(options, message):
    """Whoever names an environment wrongly wants to know what is wrong."""
    with pytest.raises(UserError, match=message) as error:
        Gym(**options)
    assert "\n" not in str(error.value)


def test_a_picture_of_the_lake_is_crossed():
    """The environment of configs/gym.yaml, by its names of actions."""
    task = Gym(id="FrozenLake-v1", options={"is_slippery": False}, render=True, actions=["left", "down", "right", "up"])
    episode = play(task, tagged("down", "down", "right", "right", "down", "right"))
    assert episode.score.correct == 1.0 and len(episode.turns) == 6
    assert all(turn.observation.images for turn in episode.turns)
    assert play(task, tagged("down", "right")).score.correct == 0.0


def test_an_evaluation_says_what_it_was_made_with():
    """Two results would be compared that other rules were played by."""
    version = metadata.version("gymnasium")
    assert Gym(id="FrozenLake-v1").facts(()) == {"environment": f"FrozenLake-v1 {version}", "gymnasium": version}


def test_a_missing_package_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(UserError, match=r"^task: needs gymnasium: pip install 'vlrl\[sims\]'$"):
        Gym(id="FrozenLake-v1")
