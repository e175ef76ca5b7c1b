"""Meta-World behind the robot protocol: all fifty tasks by seed, exact snapshots, scripts, pictures."""

from importlib.util import find_spec

import numpy as np
import pytest

from robot.env import RobotEnv, plan_chunk
from robot.sim.metaworld import CAMERAS, HANGING, INSTRUCTIONS, MetaWorldRobot, load_metaworld
from robot.sim.tabletop import Camera
from robot.types import BadControlError, RobotError
from robot.workers import RobotPool
from vlrl.types import UserError

if find_spec("metaworld") is None:  # not imported here: it would settle how MuJoCo renders
    pytest.skip("Meta-World is not installed: pip install 'vlrl[sims]'", allow_module_level=True)


def run(robot, controls, bits):
    """What is seen, sent, said and what the script would do, tick by tick."""
    seen = [bits(robot.get_observation())]
    for control in controls:
        sent = robot.send_action(control)
        seen += [sent.tobytes(), robot.status(), robot.expert().tobytes(), bits(robot.get_observation())]
    return seen


def test_every_task_has_an_instruction_and_a_script():
    """A task that is missing could not be trained on."""
    from_it = load_metaworld()
    from metaworld.policies import ENV_POLICY_MAP

    assert set(INSTRUCTIONS) == set(from_it.ALL_V3_ENVIRONMENTS) == set(ENV_POLICY_MAP)
    assert len(set(INSTRUCTIONS.values())) == 50


@pytest.mark.slow
@pytest.mark.parametrize("task", INSTRUCTIONS)
def test_groups_start_equal_and_go_on_from_snapshots(task, bits, controls):
    """Each of the fifty keeps marks of its own: a group would compare actions on different scenes or futures."""
    fresh, moved, homed = (MetaWorldRobot(task=task, shaped=True) for _ in range(3))
    moved.reset(2)
    run(moved, controls(moved, 0, 5), bits)
    for seed in (20_001, 5):
        homed.reset(seed)
    following, futures = controls(fresh, 3, 20), []
    for each in (fresh, moved, homed):
        each.reset(20_001)
        futures.append(run(each, following, bits))
    assert futures[0] == futures[1] == futures[2]
    for _ in range(30):  # where there is something to remember
        fresh.send_action(fresh.expert())
    snapshot = fresh.snapshot()
    expected = run(fresh, following[:5], bits)
    moved.reset(9)
    for each in (fresh, moved):
        each.restore(snapshot)
        assert run(each, following[:5], bits) == expected


@pytest.mark.parametrize("task", ["reach-v3", "door-open-v3", "drawer-close-v3", "basketball-v3"])
def test_the_script_does_the_job(task):
    """Demonstrations hang on it; basketball was lost where the goal was held to zero."""
    robot = MetaWorldRobot(task=task)
    play, step = RobotEnv(robot, 20_000, ticks=200), None
    shown = play.reset()
    assert shown.state[-3:].any()
    while step is None or not (step.terminated or step.truncated):
        step = play.step(robot.expert())
    assert step.info["success"] and step.reward == 1


def test_a_plan_leaves_the_robot_where_it_was(bits):
    """A demonstration would begin elsewhere than the policy it is shown to; this script writes into what it sees."""
    robot = MetaWorldRobot(task="door-open-v3")
    robot.reset(4)
    before = bits(robot.get_observation())
    controls = plan_chunk(robot, 8)
    assert bits(robot.get_observation()) == before and controls.shape == (8, 4)
    for control in controls:
        assert (robot.expert() == control).all()
        robot.send_action(control)


def test_a_snapshot_goes_on_in_another_process(bits):
    """A group that starts in the middle of an episode is played by several workers."""
    robot = MetaWorldRobot(task="bin-picking-v3")
    robot.reset(7)
    for _ in range(12):
        robot.send_action(robot.expert())
    pool = RobotPool("robot.sim.metaworld:MetaWorldRobot", {"task": "bin-picking-v3"}, size=1)
    play = pool.environment(robot.snapshot(), ticks=9)
    try:
        assert bits(play.reset()) == bits(robot.get_observation())
        controls = play.plan(3)
        for control in controls:
            robot.send_action(control)
        assert bits(play.step(controls).observation) == bits(robot.get_observation())
    finally:
        play.close()
        pool.close()


def test_controls_are_metres():
    """A policy's step of a centimetre would be one of a tenth of a millimetre or of a metre."""
    robot = MetaWorldRobot()
    robot.reset(0)
    before = robot._env.data.mocap_pos[0].copy()
    robot.send_action(np.float32([0.004, 0, -0.002, 1]))
    assert robot._env.data.mocap_pos[0] - before == pytest.approx([0.004, 0, -0.002], abs=1e-6)
    assert (robot.send_action(np.full(4, 9.0)) == robot.controls.high).all()
    with pytest.raises(BadControlError):
        robot.send_action(np.full(4, np.nan))


def test_an_episode_may_be_longer_than_the_benchmarks():
    """Meta-World raises after 500 ticks: the last part of an episode would be an error of the robot's."""
    robot = MetaWorldRobot(task="drawer-open-v3")
    play = RobotEnv(robot, 1, ticks=520)
    play.reset()
    step = play.step(np.zeros((600, 4), np.float32))
    assert step.info["time_out"] and step.info["ticks"] == 520


def test_rewards():
    """Success alone, or Meta-World's own shaped reward of 0 to 10, is what is learned from."""
    sparse, shaped = MetaWorldRobot(), MetaWorldRobot(shaped=True)
    for robot in (sparse, shaped):
        robot.reset(0)
        robot.send_action(robot.expert())
    assert sparse.status().reward == 0 < shaped.status().reward < 10
    assert shaped.status().reward == shaped.status().numbers["unscaled_reward"]


def test_pictures():
    """A policy would see the scene upside down, or looking at it would change the episode."""
    robot, blind = MetaWorldRobot(cameras=("corner2", "gripperPOV"), size=(48, 32)), MetaWorldRobot()
    for each in (robot, blind):
        each.reset(0)
    try:
        first = robot.get_observation()
    except UserError as error:
        pytest.skip(str(error))
    assert [image.size for image in first.images] == [(48, 32)] * 2
    raw = Camera(robot._env.model, "corner2", (48, 32))
    assert raw.take(robot._env.data).rotate(180).tobytes() == first.images[0].tobytes()
    raw.close()
    ups = {name: robot._env.data.camera(name).xmat[7] for name in CAMERAS}  # of each camera's up, how much is upwards
    assert {name for name, up in ups.items() if up < -0.3} == set(HANGING)
    for control in np.float32([[0.01, 0, 0, 1], [0, 0.01, 0, -1]]):
        robot.send_action(control)
        blind.send_action(control)
        robot.get_observation()
    assert (robot.get_observation().state == blind.get_observation().state).all()
    assert robot.get_observation().images[0].tobytes() != first.images[0].tobytes()
    robot.close()
    assert robot.get_observation().images[0].size == (48, 32)
    robot.close()


def test_an_unstable_simulation_is_said(tmp_path, monkeypatch):
    """MuJoCo would reset the scene in silence, and the episode go on from elsewhere."""
    monkeypatch.chdir(tmp_path)  # MuJoCo writes a log
    robot = MetaWorldRobot()
    with pytest.raises(RobotError, match="home first"):
        robot.get_observation()
    robot.reset(0)
    robot._env.data.qvel[0] = 1e12
    with pytest.raises(RobotError, match="unstable"):
        robot.send_action(np.zeros(4, np.float32))
    robot.reset(0)
    robot.send_action(np.zeros(4, np.float32))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"task": "reach"}, "robot.task: unknown task 'reach': did you mean 'reach-v3'"),
        ({"cameras": ["moon"]}, f"robot.cameras: moon: must be of {CAMERAS[0]}"),
        ({"size": (4, 4)}, "robot.size"),
    ],
)
def test_wrong_options_are_said_in_one_line(options, said):
    """Meta-World answers with a KeyError."""
    with pytest.raises(UserError, match=said) as error:
        MetaWorldRobot(**options)
    assert "\n" not in str(error.value)
