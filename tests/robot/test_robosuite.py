"""robosuite behind the robot protocol: scenes by seed, exact snapshots, units, states, pictures, scripts."""

import functools
import os
import random
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from robot.demos import checksum
from robot.env import RobotEnv, look, noisy
from robot.sim.robosuite import RobosuiteRobot, adapted, expert
from robot.types import BadControlError, RobotError
from vlrl.types import UserError

if find_spec("robosuite") is None:  # not imported here: it would settle how MuJoCo renders
    pytest.skip("robosuite is not installed: pip install 'vlrl[sim]'", allow_module_level=True)

TASKS = ("Lift", "Stack", "PickPlaceCan", "Door", "NutAssemblySquare")
EACH = pytest.mark.parametrize("task", TASKS)


@functools.cache
def made(copy=0, **options):
    """A robot that tests share: home makes it as new, and making it takes longer."""
    return RobosuiteRobot(**options)


def run(robot, controls, bits):
    """What is seen, sent and said, tick by tick."""
    seen = [bits(robot.get_observation())]
    for control in controls:
        seen += [robot.send_action(control).tobytes(), robot.status(), bits(robot.get_observation())]
    return seen


def state(robot, name):
    """Numbers of the state whose names begin so."""
    return robot.get_observation().state[
        [index for index, each in enumerate(robot.names) if each.split(".")[0] == name]
    ]


@pytest.mark.slow
@EACH
def test_home_is_the_same_whatever_came_before(task, bits, controls):
    """Two policies compared on one seed would not have met the same scene."""
    robot, other = made(task=task), made(1, task=task)
    assert robot.has_snapshots
    following = controls(robot, 2, 4)
    robot.reset(7)
    first = run(robot, following, bits)
    robot.reset(8)
    assert bits(robot.get_observation()) != first[0]
    run(robot, controls(robot, 1, 3), bits)
    for each in (robot, robot, other):  # twice in a row, and in another object
        each.reset(7)
        assert run(each, following, bits) == first


@EACH
def test_a_snapshot_is_exact(task, bits, controls):
    """A group that starts from a snapshot would compare actions on different futures."""
    robot, other = made(task=task), made(1, task=task)
    robot.reset(3)
    run(robot, controls(robot, 4, 3), bits)
    snapshot, following = robot.snapshot(), controls(robot, 5, 4)
    assert snapshot.seed == 3 and all(isinstance(each, np.ndarray) for each in snapshot.arrays.values())
    expected = run(robot, following, bits)
    other.reset(9)
    run(other, controls(other, 6, 2), bits)
    for each in (robot, other):
        each.restore(snapshot)
        assert run(each, following, bits) == expected


def test_what_was_wiped_comes_back(bits, controls):
    """Wipe keeps what was done outside the simulation: a group would begin with a table half clean."""
    robot = RobosuiteRobot(task="Wipe")
    robot.reset(0)
    start, following = robot.snapshot(), controls(robot, 0, 2)
    expected = run(robot, following, bits)
    env = robot._env
    env.wiped_markers = env.model.mujoco_arena.markers[:-1]
    half = robot.snapshot()
    left = robot.get_observation().state
    robot.restore(start)
    assert run(robot, following, bits) == expected
    robot.restore(half)
    assert (robot.get_observation().state == left).all() and len(env.wiped_markers) == len(
        env.model.mujoco_arena.markers
    ) - 1


@pytest.mark.slow
def test_a_scene_is_the_same_in_another_process():
    """A checksum of scenes would say nothing if it hung on the process: hashes of strings differ between two."""
    code = (
        "from robot.sim.robosuite import RobosuiteRobot; from robot.demos import checksum;"
        "print(checksum(RobosuiteRobot(task='NutAssemblySquare'), range(2)))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [checksum(made(task="NutAssemblySquare"), range(2))]
    assert done.stderr == ""  # robosuite's advice is silenced


def test_generators_of_the_process_are_left_alone():
    """robosuite draws from them: a run's sampling would hang on how many scenes were made."""
    np.random.seed(5)
    random.seed(5)
    expected = np.random.random(), random.random()
    np.random.seed(5)
    random.seed(5)
    made(task="Lift").reset(1)
    assert (np.random.random(), random.random()) == expected


def test_looking_changes_nothing(bits, controls):
    """Recording a video would change the episode."""
    robot = made(task="PickPlaceCan")
    following = controls(robot, 0, 4)
    robot.reset(1)
    seen = run(robot, following, bits)[-1]
    robot.reset(1)
    for control in following:
        robot.send_action(control)
    assert bits(robot.get_observation()) == bits(robot.get_observation()) == seen


def test_the_state_is_of_the_moment():
    """robosuite's own observations are a tick old, and those that hang on each other two."""
    robot = made(task="PickPlaceCan")
    robot.reset(0)
    for _ in range(3):
        robot.send_action(np.array([0.05, 0.05, -0.05, 0, 0, 0, -1]))
        env = robot._env
        assert np.allclose(state(robot, "Can_pos"), env.sim.data.body_xpos[env.obj_body_id["Can"]], atol=1e-6)
        assert np.allclose(state(robot, "robot0_eef_pos"), env.sim.data.get_site_xpos("gripper0_right_grip_site"))
        distance = np.linalg.norm(state(robot, "Can_pos") - env.sim.data.get_body_xpos("robot0_right_hand"))
        assert np.linalg.norm(state(robot, "Can_to_robot0_eef_pos")) == pytest.approx(distance, abs=0.15)
    assert len(set(robot.names)) == len(robot.names) == len(robot.get_observation().state)


@pytest.mark.parametrize(
    ("robot", "controller", "units"),
    [
        ("Sawyer", "OSC_POSITION", ("m",) * 3 + ("1",)),
        ("UR5e", "JOINT_VELOCITY", ("rad/s",) * 6 + ("1",)),
        ("Panda", "IK_POSE", ("m",) * 3 + ("rad",) * 3 + ("1",)),
    ],
)
def test_arms_and_controllers(robot, controller, units, bits, controls):
    """Each arm and controller has its own units and its own memory."""
    arm = RobosuiteRobot(robot=robot, controller=controller)
    assert arm.controls.units == units
    arm.reset(0)
    look(arm)
    run(arm, controls(arm, 0, 2), bits)
    snapshot, following = arm.snapshot(), controls(arm, 1, 2)
    expected = run(arm, following, bits)
    arm.restore(snapshot)
    assert run(arm, following, bits) == expected


def test_controls_are_metres():
    """A policy's step of a centimetre would be one of half a millimetre or of half a metre."""
    robot = made(task="Lift")
    robot.reset(0)
    before = state(robot, "robot0_eef_pos")
    robot.send_action(np.array([0, 0, 0.02, 0, 0, 0, -1]))
    for _ in range(3):
        robot.send_action(np.array([0, 0, 0, 0, 0, 0, -1]))
    goal = robot._env.robots[0].part_controllers["right"].goal_pos
    assert 0.002 < (state(robot, "robot0_eef_pos") - before)[2] < 0.02
    robot.send_action(np.array([0, 0, 0.02, 0, 0, 0, -1]))
    goal = robot._env.robots[0].part_controllers["right"].goal_pos - goal
    assert goal[2] == pytest.approx(0.02, abs=0.005)


def test_a_tick_is_a_step_of_robosuite(controls):
    """Results could not be compared with those of others."""
    robot, other = made(task="Stack"), made(1, task="Stack")
    robot.reset(3)
    other.reset(3)
    for control in controls(robot, 0, 6):
        robot.send_action(control)
        other._env.step(other._units.normalised(control))
    assert (robot._env.sim.data.qpos == other._env.sim.data.qpos).all()


def test_two_arms_have_names_of_their_own():
    """Whose hand a number moves could not be told."""
    robot = RobosuiteRobot(task="TwoArmLift", robot=["Panda", "Panda"])
    assert len(robot.controls) == len(set(robot.controls.names)) == 14
    robot.reset(0)
    robot.send_action(np.zeros(14))


def test_bad_controls_move_nothing(bits):
    """One NaN would end the simulation."""
    robot = made(task="Lift")
    robot.reset(1)
    before = bits(robot.get_observation())
    for bad in (np.full(7, np.nan), np.zeros(6)):
        with pytest.raises(BadControlError):
            robot.send_action(bad)
    assert bits(robot.get_observation()) == before
    assert (robot.send_action(np.full(7, 9.0)) == robot.controls.high).all()


def test_an_unstable_simulation_is_said(tmp_path, monkeypatch):
    """MuJoCo would reset the scene in silence, and the episode go on from elsewhere."""
    monkeypatch.chdir(tmp_path)  # MuJoCo writes a log
    robot = RobosuiteRobot()
    robot.reset(0)
    robot._env.sim.data.qvel[0] = 1e12
    with pytest.raises(RobotError, match="unstable"):
        robot.send_action(np.zeros(7))
    robot.reset(0)
    robot.send_action(np.zeros(7))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "noise", "limit"), [("Lift", 0.0, 60), ("Lift", 0.2, 100), ("Stack", 0.0, 120), ("PickPlaceCan", 0.0, 200)]
)
def test_the_script_does_the_job(task, noise, limit):
    """Demonstrations and the control arm of every evaluation hang on it."""
    robot, rng = made(task=task), np.random.default_rng(0)
    act = expert(task, robot.names)
    play = RobotEnv(robot, 20_000, ticks=limit)
    shown, step = play.reset(), None
    while step is None or not (step.terminated or step.truncated):
        step = play.step(noisy(rng, robot.controls, adapted(robot.controls, act(shown.state)), noise))
        shown = step.observation
    assert step.info["success"] and step.reward == 1


def test_pictures():
    """One renderer serves all scenes: it must show the scene that is there, upright."""
    robot = RobosuiteRobot(cameras=["agentview"], size=(48, 32))
    try:
        robot.reset(0)
        first = look(robot)[0].images[0]
    except UserError as error:
        pytest.skip(str(error))
    robot.reset(1)
    seen = robot.get_observation().images[0]
    robot.close()
    robot.close()
    assert seen.size == (48, 32) and seen.tobytes() != first.tobytes()
    assert seen.tobytes() == robot.get_observation().images[0].tobytes()  # by another renderer, made for this scene
    pixels = np.asarray(seen, float)
    assert pixels[-8:].mean() > pixels[:4].mean() + 50  # the bright table is below, the wall above
    robot.close()


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"task": "Fly"}, "robot.task"),
        ({"task": "TwoArmLift"}, "robot.task"),
        ({"robot": "R2D2"}, "robot.types"),
        ({"controller": "MIND"}, "robot.controller"),
        ({"cameras": ["moon"]}, "robot.cameras"),
        ({"size": (4, 4)}, "robot.size"),
        ({"hz": 30}, "robot.hz"),
        ({"state": ["mood"]}, "robot.state"),
    ],
)
def test_wrong_options_are_said_in_one_line(options, key):
    """robosuite answers with assertions and paths."""
    with pytest.raises(UserError, match=key) as error:
        RobosuiteRobot(**options)
    assert "\n" not in str(error.value)
