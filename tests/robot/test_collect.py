"""The collector that knows no robots, on robots."""

from dataclasses import replace

import numpy as np
import pytest
from small_robots import Slide

from robot.env import RobotEnv
from robot.types import RobotError
from robot.workers import RobotPool
from tasks.base import Task
from vlrl.rollout import collect
from vlrl.types import LOST_MOST, Decision, Observation, Policy, Sample, Score, UserError


class GoRight(Task):
    """Slides from three seeds; a group starts from one."""

    weights = {"success": 1.0}  # noqa: RUF012

    def __init__(self, environment, max_parallel_envs=None):
        self.environment, self.max_parallel_envs = environment, max_parallel_envs

    def samples(self, split):
        return SAMPLES

    def score(self, episode):
        won = episode.turns[-1].step.info.get("success", 0.0)
        return Score({"success": won}, won)


class Steady(Policy):
    """A policy that moves at one speed, in chunks of three."""

    def __init__(self, speed):
        self.chunk = np.tile(np.float32([speed, 0]), (3, 1))

    def act(self, episodes, observations, **options):
        return [Decision(self.chunk, None, None, truncated=False) for _ in episodes]


SAMPLES = [Sample(f"slide/{seed}", Observation(("Go to the right.",)), seed) for seed in range(3)]


def told(episodes):
    return [
        [
            (turn.step.observation.state.tolist(), turn.step.terminated, turn.step.truncated, dict(turn.step.info))
            for turn in e.turns
        ]
        for e in episodes
    ]


@pytest.mark.parametrize(("speed", "end"), [(1.0, "success"), (-1.0, "failure"), (0.0, "time_out")])
def test_a_robot_is_collected_like_any_environment(speed, end):
    """The trainer would need to know robots."""
    made = []

    def environment(sample):
        made.append(RobotEnv(Slide(), sample.answer, ticks=20))
        return made[-1]

    episodes = collect(Steady(speed), GoRight(environment), SAMPLES, group_size=2)
    assert [e.reward for e in episodes] == [end == "success"] * 6
    assert all(end in e.turns[-1].step.info and e.turns[-1].step.truncated == (end == "time_out") for e in episodes)
    assert told(episodes[::2]) == told(episodes[1::2])  # a group starts from one seed
    assert all(play.robot.closed for play in made)


def test_a_pool_is_collected_in_threads():
    """Workers would run one after the other, or mix up their episodes."""
    pool = RobotPool("small_robots:Slide", {}, size=2)
    there = collect(Steady(1), GoRight(lambda s: pool.environment(s.answer, ticks=20), 2), SAMPLES, 1)
    here = collect(Steady(1), GoRight(lambda s: RobotEnv(Slide(), s.answer, ticks=20)), SAMPLES, 1)
    assert told(there) == told(here)
    assert pool.counts["started"] <= pool.size and not pool.counts["errors"]
    pool.close()


class Shaky(Slide):
    """Fails at its first tick as often as told."""

    left = 0

    def send_action(self, control):
        if Shaky.left:
            Shaky.left -= 1
            raise RobotError("joint 3 does not answer")
        return super().send_action(control)


def test_a_void_episode_is_played_anew():
    """A fault of the robot would be learned from as the policy's failure."""
    Shaky.left = 2
    task = GoRight(lambda s: RobotEnv(Shaky(), s.answer, ticks=20))
    episodes = collect(Steady(1), task, SAMPLES, 1)
    assert [e.faults for e in episodes] == [["joint 3 does not answer"], ["joint 3 does not answer"], []]
    assert [e.reward for e in episodes] == [1.0, 1.0, 1.0]
    assert told(episodes) == told(collect(Steady(1), task, SAMPLES, 1))


class LosesItsWorker(RobotEnv):
    """Its worker dies in the first steps of the whole test."""

    left = 0

    def step(self, action, frames=()):
        step = super().step(action, frames)
        if LosesItsWorker.left:
            LosesItsWorker.left -= 1
            return replace(step, truncated=True, fault="died", worker_lost=True)
        return step


def test_workers_that_die_are_no_fault_of_the_episode():
    """Where three in ten are killed, one episode in forty meets three: the run would end."""
    LosesItsWorker.left = LOST_MOST - 1
    task = GoRight(lambda s: LosesItsWorker(Shaky(), s.answer, ticks=20))
    (episode,) = collect(Steady(1), task, SAMPLES[:1], 1)
    assert episode.faults == ["died"] * (LOST_MOST - 1) and episode.reward == 1.0
    LosesItsWorker.left = LOST_MOST
    with pytest.raises(UserError, match=f"sample slide/0: failed {LOST_MOST} times: died"):
        collect(Steady(1), task, SAMPLES[:1], 1)


def test_a_robot_that_is_broken_ends_the_collecting():
    """It would be tried for ever."""
    Shaky.left = 10**6
    with pytest.raises(UserError, match="sample slide/0: failed 3 times: joint 3 does not answer"):
        collect(Steady(1), GoRight(lambda s: RobotEnv(Shaky(), s.answer, ticks=20)), SAMPLES[:1], 1)
