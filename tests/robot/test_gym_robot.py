"""Any Gymnasium environment as a robot: its parts, its endings, its seeds."""

import random
import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from robot.env import RobotEnv, look
from robot.sim.gym import GymRobot
from robot.types import BadControlError, RobotError
from robot.workers import RobotPool
from vlrl.types import UserError

if find_spec("gymnasium") is None:
    pytest.skip("gymnasium is not installed: pip install 'vlrl[sims]'", allow_module_level=True)
import gymnasium
from gymnasium.spaces import Box, Dict, Discrete

WALK, PENDULUM = "Walk-v0", {"id": "Pendulum-v1", "success": None}


class Walk(gymnasium.Env):
    """A point on a line, drawn from the process' generators. Past 1 it has won, below -1 lost."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012
    action_space = Box(-0.5, 0.5, (1, 2))
    observation_space = Dict(
        agent=Dict(pos=Box(-9, 9, (2,)), grip=Box(0, 1, (1,))), mode=Discrete(3), top=Box(0, 255, (6, 8, 3), np.uint8)
    )

    def __init__(self, render_mode=None, patience=99, secret=False):
        self.render_mode, self.patience, self.secret = render_mode, patience, secret

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.ticks = np.array([np.random.uniform(-0.2, 0.2), random.random()]), 0
        return self.seen(), {}

    def step(self, action):
        self.at, self.ticks = self.at + action[0], self.ticks + 1
        self.at[1] += np.random.normal()
        x = float(self.at[0])
        info = {} if self.secret else {"is_success": x > 1, "x": x, "name": "walk", "lost": float("nan")}
        return self.seen(), x, abs(x) > 1, self.ticks >= self.patience, info

    def seen(self):
        top = np.arange(144, dtype=np.uint8).reshape(6, 8, 3)
        return {"agent": {"pos": self.at.astype(np.float32), "grip": np.ones(1, np.float32)}, "mode": 2, "top": top}

    def render(self):
        return self.seen()["top"][:, ::-1]


@pytest.fixture(scope="module", autouse=True)
def _registered():
    gymnasium.register(WALK, Walk, max_episode_steps=3)
    yield
    del gymnasium.registry[WALK]


def walk(**options):
    return GymRobot(id=WALK, instruction="Walk.", **options)


def test_parts_of_the_observation_are_state_and_pictures():
    """A policy would be shown a picture as 144 numbers, or not at all."""
    robot = walk(images=["top", "render"], names=["x", "y"], units=["m", "m"])
    assert robot.names == ("agent.pos.0", "agent.pos.1", "agent.grip", "mode.0", "mode.1", "mode.2")
    robot.reset(0)
    shown, _ = look(robot)
    assert [image.size for image in shown.images] == [(8, 6), (8, 6)] and shown.text == "Walk."
    assert np.array_equal(np.asarray(shown.images[0]), np.asarray(shown.images[1])[:, ::-1])
    assert shown.state.tolist()[3:] == [0, 0, 1] and robot.hz == 5 and robot.controls.units == ("m", "m")
    chosen = walk(state=["agent.pos"], hz=7)
    chosen.reset(0)
    assert chosen.get_observation().state.tolist() == shown.state.tolist()[:2] and chosen.hz == 7
    assert chosen.get_observation().images == ()


@pytest.mark.parametrize(
    ("speed", "patience", "end"),
    [(0.5, 99, "success"), (-0.5, 99, "failure: the environment ended the episode"), (0.0, 4, "stopped"),
     (0.0, 99, "time_out")],
)  # fmt: skip
def test_how_an_episode_ends(speed, patience, end):
    """A lost episode would count as cut short, or a limit of the environment's own as the policy's fault."""
    robot = walk(options={"patience": patience})
    play = RobotEnv(robot, 3, ticks=6)
    play.reset()
    step = play.step(np.tile(np.float32([speed, 0]), (9, 1)))
    assert (
        step.info[end]
        and step.terminated == (end.split(":")[0] in ("success", "failure"))
        and step.truncated != step.terminated
    )
    if end == "time_out":
        assert step.info["ticks"] == 6  # past the three of its registration
    assert step.info["x"] == robot._env.unwrapped.at[0] and not {"lost", "name"} & set(step.info)


def test_scenes_hang_on_the_seed_though_they_are_drawn_from_the_process(bits, controls):
    """Two policies would not meet the same scene, and a run's sampling would hang on how many scenes were made."""
    one, other = walk(), walk()
    np.random.seed(5)
    random.seed(5)
    expected = np.random.random(), random.random()
    np.random.seed(5)
    random.seed(5)
    following, seen = controls(one, 0, 4), []
    one.reset(4)
    other.reset(4)
    for control in following:  # in turns
        seen.append([(robot.send_action(control), bits(robot.get_observation()))[1] for robot in (one, other)])
    assert all(first == second for first, second in seen) and len({first for first, _ in seen}) == 4
    assert (np.random.random(), random.random()) == expected


def test_what_counts_as_success():
    """Every episode would fail, and nobody would be told why."""
    robot = walk(success=0.9)
    robot.reset(0)
    assert not robot.status().success
    robot.send_action(np.float32([0.5, 0]))
    assert not robot.status().success
    robot.send_action(np.float32([0.5, 0]))
    assert robot.status().success == (robot.status().reward >= 0.9)
    with pytest.raises(UserError, match=r"robot.success: Walk-v0 tells no 'won', but is_success, x"):
        walk(success="won")
    with pytest.raises(UserError, match="tells no 'is_success', but nothing"):
        walk(options={"secret": True})
    with pytest.raises(UserError, match="Pendulum-v1 tells no"):
        GymRobot(id="Pendulum-v1")


def test_it_begins_again_after_it_was_closed(bits):
    """A recorder closes each episode's robot and goes on with the next."""
    robot = walk()
    robot.reset(2)
    before = bits(robot.get_observation())
    robot.close()
    with pytest.raises(RobotError, match="home first"):
        robot.get_observation()
    robot.reset(2)
    assert bits(robot.get_observation()) == before


def test_bad_controls_do_not_reach_the_environment():
    """Many environments go on with NaN for good."""
    robot = walk()
    robot.reset(0)
    with pytest.raises(BadControlError):
        robot.send_action(np.float32([np.nan, 0]))
    assert robot.status().numbers == {} and np.isfinite(robot.get_observation().state).all()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"id": "Pendulm-v1"}, "robot.id: .*Pendulm"),
        ({"id": "no_such_module:Env-v0"}, "robot.id: .*no_such_module"),
        ({"id": "CartPole-v1"}, r"robot.id: CartPole-v1: its actions are Discrete\(2\)"),
        ({"id": WALK, "options": {"speed": 3}}, "robot.id: .*speed"),
        ({"id": WALK, "state": ["agent.mood"]}, "robot.state: agent.mood: must be of agent.pos, agent.grip, mode"),
        ({"id": WALK, "images": ["front"]}, "robot.images: front: must be of top"),
        ({"id": WALK, "names": ["x"]}, "robot.names: 1 given, but Walk-v0 takes 2"),
        ({"id": WALK, "hz": 0}, "robot.hz: 0"),
    ],
)
def test_wrong_options_are_said_in_one_line(options, said):
    """Gymnasium answers with a page of traceback."""
    with pytest.raises(UserError, match=said) as error:
        GymRobot(**options)
    assert "\n" not in str(error.value)


def test_the_example_runs(capsys):
    """A newcomer's first environment, typed from the page, must work."""
    text = (Path(__file__).parents[2] / "docs" / "simulators.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(from robot.*?)```", text, re.DOTALL)
    exec(compile(example, "docs/simulators.md", "exec"), {})
    assert -20 < float(capsys.readouterr().out) < 0


def test_a_pool_plays_it():
    """An environment that is found in this process alone could not be collected from in parallel."""
    pool, robot = RobotPool("robot.sim.gym:GymRobot", PENDULUM, size=1), GymRobot(**PENDULUM)
    robot.reset(11)
    play = pool.environment(11, ticks=3)
    try:
        assert (play.reset().state == robot.get_observation().state).all()
        step = play.step(np.zeros((5, 1), np.float32))
        assert step.truncated and step.info["ticks"] == 3
    finally:
        play.close()
        pool.close()


@pytest.mark.skipif(find_spec("mujoco") is None, reason="mujoco is not installed: pip install 'vlrl[sim]'")
def test_mujoco_renders_without_a_screen():
    """Gymnasium would look for a display, where there is none."""
    robot = GymRobot(id="InvertedPendulum-v5", options={"width": 48, "height": 32}, images=["render"], success=None)
    robot.reset(0)
    shown, _ = look(robot)
    assert shown.images[0].size == (48, 32)
    robot.close()
