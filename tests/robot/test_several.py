"""Several robots in one process: each scene is one robot's, and nothing leaks from one to the next."""

from __future__ import annotations

import numpy as np
import pytest
from small_robots import Slide

from robot.sim.tabletop import Tabletop
from robot.workers import RobotPool, Several
from vlrl.types import UserError

REACH = {"target": "robot.sim.tabletop:Tabletop", "options": {"job": "reach"}}
TOUCH = {"target": "robot.sim.tabletop:Tabletop", "options": {"job": "touch", "words": "other"}}
PICK = {"target": "robot.sim.tabletop:Tabletop", "options": {"job": "pick"}}
SLIDE = {"target": "small_robots:Slide", "options": {}}


@pytest.fixture
def several():
    made = []

    def make(*robots):
        made.append(Several(robots=list(robots)))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("seed", [0, 7, 20_000, 20_001])
def test_a_scene_is_that_of_its_own_robot(several, seed):
    """A policy would be told one job and paid for another, or trained on scenes that are held out for the job alone."""
    both, alone = several(REACH, TOUCH), Tabletop(**(REACH, TOUCH)[seed % 2]["options"])
    both.reset(seed + 1)
    both.reset(seed)
    alone.reset(seed)
    for _ in range(6):
        one, other = both.get_observation(), alone.get_observation()
        assert one.text == other.text and (one.state == other.state).all()
        control = both.expert()
        assert (control == alone.expert()).all() and (both.send_action(control) == alone.send_action(control)).all()
        assert both.status() == alone.status()


def test_a_snapshot_goes_back_to_its_robot(several):
    """Groups of episodes would begin on another job."""
    both = several(REACH, TOUCH)
    both.reset(4)
    both.send_action(np.float32([0.1, 0.0, 0.0]))
    kept, before = both.snapshot(), both.get_observation()
    both.reset(5)
    both.restore(kept)
    assert both.get_observation().text == before.text and (both.get_observation().state == before.state).all()
    assert both.has_snapshots


def test_what_one_lacks_none_has(several):
    """A script would be promised that fails in the middle of a night."""
    alone, pair = several(SLIDE), several(SLIDE, SLIDE)
    assert pair.has_script == alone.has_script == Slide().has_script
    assert pair.has_snapshots == alone.has_snapshots == Slide().has_snapshots


@pytest.mark.parametrize(
    ("robots", "problem"),
    [
        ((REACH, PICK), r"task\.robot\.1: one policy drives all robots, but its controls are"),
        ((REACH, {**TOUCH, "options": {"job": "touch", "state": ["hand x"]}}), "numbers of the state are .'hand x'"),
        ((REACH, SLIDE), r"task\.robot\.1: one policy drives all robots, but its"),
        (
            (REACH, {**TOUCH, "options": {"jbo": "touch"}}),
            r"robot\.jbo: robot\.sim\.tabletop:Tabletop has no such option",
        ),
    ],
)
def test_robots_that_do_not_fit_are_refused(several, robots, problem):
    """A policy's controls would mean one thing on one robot and another on the next."""
    with pytest.raises(UserError, match=problem) as caught:
        several(*robots)
    assert "\n" not in str(caught.value)


def test_a_pool_needs_no_more_processes_than_for_one():
    """Three jobs would take three times the memory."""
    pool = RobotPool("robot.workers:Several", {"robots": [REACH, TOUCH]}, size=1)
    try:
        for seed in (0, 1, 2, 0, 1):
            play = pool.environment(seed, ticks=4)
            assert ("Move the hand" in play.reset().text) == (seed % 2 == 0)
            assert play.plan(2).shape == (2, 3)
            play.close()
        assert pool.counts["started"] == 1 and pool.info.script and len(pool.info.names) == 12
    finally:
        pool.close()
