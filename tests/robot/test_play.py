"""A robot as the environment of one episode."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from small_robots import Real, Slide

from robot.env import RobotEnv
from robot.types import OUTCOMES, Snapshot
from vlrl.types import UserError

RIGHT = np.array([1.0, 0.0], np.float32)


class Notes:
    """A watcher that writes down what it is told."""

    def __init__(self):
        self.ticks, self.said = [], []

    def on_begin(self, robot):
        self.said.append("begun")

    def on_tick(self, robot, tick):
        self.ticks.append(tick)

    def on_end(self, robot, ending):
        self.said.append(ending.outcome)


def begun(robot=None, *, ticks=50, **options):
    play = RobotEnv(robot or Slide(), 0, ticks=ticks, **options)
    play.reset()
    return play


def outcomes(step):
    return {name for name in OUTCOMES if name in step.info}


def test_a_chunk_is_carried_out_tick_by_tick():
    """A policy that plans eight ticks ahead would be replanned at each, or be a tick behind."""
    robot = Slide()
    play = begun(robot)
    looks = robot.looks
    step = play.step(np.tile(RIGHT, (4, 1)))
    assert (step.info["ticks"], step.terminated, step.truncated, len(robot.moved)) == (4, False, False, 4)
    assert robot.looks == looks + 1  # rendered once, not at every tick
    assert step.observation.state.tolist() == robot.state.tolist()
    assert play.step(RIGHT).info["ticks"] == 1


def test_the_rest_of_a_chunk_is_left_once_the_job_is_done():
    """A robot that has succeeded would move on, and credit would go to what did nothing."""
    robot = Slide()
    step = begun(robot).step(np.tile(RIGHT, (40, 1)))
    assert step.terminated and not step.truncated and step.reward == 1.0 and outcomes(step) == {"success"}
    assert step.info["ticks"] == len(robot.moved) < 40


def test_failure_ends_with_its_reason():
    """Why a policy fails could not be told from how often."""
    step = begun().step(np.tile(-RIGHT, (40, 1)))
    assert step.terminated and step.reward == 0 and step.info["failure: it fell off"] == 1


def test_a_time_out_is_a_cut():
    """A policy that was merely slow would be taken for one that failed; a critic would not look past the end."""
    robot = Slide()
    step = begun(robot, ticks=5).step(np.zeros((9, 2), np.float32))
    assert step.truncated and not step.terminated and outcomes(step) == {"time_out"} and len(robot.moved) == 5


def test_success_in_the_last_tick_counts():
    """Off by one at the limit, an episode that was won would be cut."""
    needed = begun().step(np.tile(RIGHT, (40, 1))).info["ticks"]
    assert outcomes(begun(ticks=int(needed)).step(np.tile(RIGHT, (40, 1)))) == {"success"}


def test_controls_are_held_to_the_limits_and_counted():
    """A policy that asks for too much all the time would go unseen."""
    robot, notes = Slide(), Notes()
    step = begun(robot, watchers=[notes]).step(np.array([[9, 0], [0.5, 0.1], [0, -7]], np.float32))
    assert step.info["clipped"] == 2
    assert [m.tolist() for m in robot.moved] == [[1, 0], [0.5, np.float32(0.1)], [0, -0.5]]
    assert notes.ticks[0].requested.tolist() == [9, 0] and notes.ticks[0].sent.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        (np.array([np.nan, 0]), "not finite"),
        (np.array([[0, 0], [0, np.inf]]), "not finite"),
        (np.array([1e300, 0]), "not finite"),
        (np.zeros(3), "wrong shape"),
        (np.zeros((2, 3)), "wrong shape"),
        (np.zeros((0, 2)), "wrong shape"),
        (np.zeros((1, 1, 2)), "wrong shape"),
        (np.float32(1), "not an array of numbers"),
        ("move right", "not an array of numbers"),
        (np.array([None, None]), "not an array of numbers"),
    ],
)
def test_a_bad_action_is_an_outcome_and_reaches_no_robot(action, reason):
    """A diverged policy would break the run, or the arm; here it loses the episode, and the report says why."""
    robot = Slide()
    step = begun(robot).step(action)
    assert step.terminated and not step.truncated and step.reward == 0 and robot.moved == []
    assert outcomes(step) == {"bad_action"} and step.info[f"bad_action: {reason}"] == 1


@given(
    st.one_of(
        arrays.arrays(
            st.sampled_from([np.float32, np.float64, np.int64, np.bool_]), arrays.array_shapes(min_dims=0, max_side=3)
        ),
        st.text(max_size=5),
        st.none(),
    )
)
def test_no_action_raises_or_breaks_the_limits(action):
    """What a model writes is not under our control."""
    robot = Slide()
    step = begun(robot).step(action)
    low, high = robot.controls.low, robot.controls.high
    assert all((low <= moved).all() and (moved <= high).all() for moved in robot.moved)
    assert ("bad_action" in step.info) == (robot.moved == [])


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("raise", "ArithmeticError: the matrix is singular"),
        ("nan_state", "the state is not finite"),
        ("nan_signal", "x is not finite"),
        ("black", "camera 0 shows nothing"),
    ],
)
def test_a_fault_of_the_robot_cuts_the_episode(fault, reason):
    """A broken simulator would be held against the policy, or end hours of training."""
    notes = Notes()
    play = begun(Slide(fault=fault, camera=True), watchers=[notes])
    assert not play.step(RIGHT).truncated
    before = play.step(RIGHT).observation
    step = play.step(RIGHT)
    assert step.truncated and not step.terminated and outcomes(step) == {"error"} and step.info[f"error: {reason}"] == 1
    assert np.isfinite(step.observation.state).all() and step.observation is before
    assert notes.said == ["begun", "error"]


def test_a_picture_that_was_dropped_is_taken_again_and_counted():
    """One lost frame would end an episode on a real robot, or a black picture would be learned from."""
    robot = Slide(fault="flicker", camera=True)
    play = begun(robot)
    steps = [play.step(RIGHT) for _ in range(6)]
    assert sum(step.info["repeats"] for step in steps) > 0 and not any(step.truncated for step in steps)
    assert all(step.observation.images[0].getextrema()[0][1] > 0 for step in steps)


def test_a_stop_is_obeyed_between_ticks():
    """A person who stops the robot would have to wait for the chunk's end."""
    robot = Slide()
    step = begun(robot, stopped=lambda: len(robot.moved) >= 2).step(np.tile(RIGHT, (9, 1)))
    assert step.truncated and outcomes(step) == {"stopped"} and len(robot.moved) == 2
    step = begun(Slide(fault="hand")).step(RIGHT)
    assert step.truncated and step.info["stopped: a hand was in the way"] == 1


def test_watchers_are_told_every_tick():
    """A recorder would miss what happens within a chunk."""
    notes = Notes()
    begun(ticks=6, watchers=[notes]).step(np.tile(RIGHT / 10, (9, 1)))
    assert [tick.index for tick in notes.ticks] == list(range(6)) and notes.said == ["begun", "time_out"]


def test_a_watchers_error_is_not_the_robots():
    """A full disk would be reported as a broken robot, episode after episode."""

    class Full(Notes):
        def on_tick(self, robot, tick):
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        begun(watchers=[Full()]).step(RIGHT)


def test_it_is_for_one_episode():
    """A second reset would add another scene's turns to the same episode."""
    play = begun(ticks=1)
    with pytest.raises(RuntimeError, match="one episode"):
        play.reset()
    play.step(RIGHT)
    with pytest.raises(RuntimeError, match="after the end"):
        play.step(RIGHT)
    play.close()
    assert play.robot.closed


def test_it_starts_from_a_snapshot_or_says_that_it_cannot():
    """Groups from the middle of an episode would silently begin elsewhere."""
    robot = Slide()
    snapshot = Snapshot(5, {"state": np.array([0.25, 0.5], np.float32), "ticks": np.array(2)})
    assert RobotEnv(robot, snapshot, ticks=5).reset().state.tolist() == [0.25, 0.5]
    with pytest.raises(UserError, match="start from a seed"):
        RobotEnv(Real(), snapshot, ticks=5).reset()
