"""Videos of episodes: they show each tick, and change nothing."""

from importlib.util import find_spec

import av
import numpy as np
import pytest
from small_robots import Slide

from robot.env import RobotEnv, VideoWriter
from robot.sim.tabletop import Tabletop
from robot.workers import RobotPool
from vlrl.types import UserError

TICKS = 12


def frames(path):
    with av.open(str(path)) as file:
        return float(file.streams.video[0].average_rate), [each.to_image() for each in file.decode(video=0)]


def played(robot, bits, watchers=()):
    """All that an episode of drawn controls shows and says."""
    rng, play = np.random.default_rng(0), RobotEnv(robot, 7, ticks=TICKS, watchers=watchers)
    seen, over = [bits(play.reset())], False
    while not over:
        low, high = robot.controls.low, robot.controls.high
        step = play.step(rng.uniform(low, high, (5, len(low))).astype(np.float32))
        seen.append((bits(step.observation), step.reward, dict(step.info)))
        over = step.terminated or step.truncated
    return seen


def lift():
    from robot.sim.robosuite import RobosuiteRobot

    return RobosuiteRobot(task="Lift", timestep=0.005)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(Tabletop, id="state"),
        pytest.param(lambda: Tabletop(job="pick", camera=(48, 32)), id="camera"),
        pytest.param(lift, id="robosuite", marks=pytest.mark.skipif(not find_spec("robosuite"), reason="robosuite")),
    ],
)
def test_filming_changes_nothing(make, bits, tmp_path):
    """What a video shows would not be what was measured."""
    robot = make()
    plain = played(robot, bits)
    assert played(robot, bits, [VideoWriter(str(tmp_path / "a.mp4"), (96, 64))]) == plain
    assert played(robot, bits) == plain
    robot.close()
    rate, shown = frames(tmp_path / "a.mp4")
    assert rate == robot.hz and len(shown) == TICKS + 1 and {image.size for image in shown} == {(96, 64)}
    assert np.asarray(shown[0], int).std() > 5  # something is to be seen
    assert np.abs(np.asarray(shown[0], int) - np.asarray(shown[-1], int)).max() > 30  # and it moves


def test_a_robot_with_cameras_alone_is_filmed_with_the_first(bits, tmp_path):
    """Robots of users would have to learn of videos first."""
    film = VideoWriter(str(tmp_path / "a.mp4"), (96, 64))
    played(Slide(camera=True), bits, [film])
    _, shown = frames(tmp_path / "a.mp4")
    assert len(shown) == TICKS + 1 and shown[0].size == (8, 6)


def test_a_robot_without_a_picture_says_so():
    """Otherwise a user looks for the fault in the renderer."""
    with pytest.raises(UserError, match="Slide shows no picture"):
        Slide().picture((64, 64))


def test_the_file_appears_when_it_is_whole(tmp_path):
    """A player, or a report, would read half a video."""
    film, robot = VideoWriter(str(tmp_path / "a.mp4"), (64, 64)), Tabletop()
    play = RobotEnv(robot, 3, ticks=9, watchers=[film])
    play.reset()
    play.step(np.zeros((4, 3), np.float32))
    assert not (tmp_path / "a.mp4").exists()
    film.close()
    film.close()
    assert len(frames(tmp_path / "a.mp4")[1]) == 5 and len(list(tmp_path.iterdir())) == 1
    robot.close()


@pytest.mark.parametrize("end", ["time_out", "left"])
def test_a_worker_writes_it_too(end, tmp_path):
    """Robots live in processes of their own: without this no training robot could be filmed, nor one that is left."""
    pool = RobotPool("robot.sim.tabletop:Tabletop", {}, size=1)
    path = tmp_path / "a.mp4"
    play = pool.environment(3, ticks=6, video={"path": str(path), "size": [64, 64]})
    play.reset()
    step = play.step(np.zeros((6 if end == "time_out" else 4, 3), np.float32))
    assert step.truncated == (end == "time_out")
    play.close()
    assert len(frames(path)[1]) == 1 + step.info["ticks"]
    following = pool.environment(3, ticks=6)  # and the next episode is not filmed
    following.reset()
    following.step(np.zeros((6, 3), np.float32))
    assert len(list(tmp_path.iterdir())) == 1
    pool.close()
