"""One demonstration: a robot's script plays a scene, tick by tick."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from robot.noise import noisy
from robot.outcomes import outcome_in
from robot.play import Play
from robot.robot import Robot, RobotError
from vlrl.types import Observation, UserError


@dataclass(frozen=True, eq=False)
class Moment:
    """What the robot showed, what was done then, and how that tick went."""

    shown: Observation
    control: np.ndarray  # float32 [A], as given to the robot: within the limits, noise included
    clean: np.ndarray  # float32 [A], the script's own: what is to be imitated
    reward: float
    success: bool
    done: bool  # the episode's last


@dataclass(frozen=True, eq=False)
class Demo:
    scene: int  # the seed
    moments: tuple[Moment, ...]  # at least one
    outcome: str  # of robot.outcomes.OUTCOMES
    void: str  # why it says nothing of the script, or ''


def demonstrate(robot: Robot, scene: int, *, ticks: int, noise: float, seed: int) -> Demo:
    """An episode of at most `ticks` played by the robot's script, `robot.expert()`, with noise on its controls.

    It hangs on the scene and `seed`, and not on what was played before.

    Raises:
        UserError: the robot has no script for its job, or does not begin.
    """
    rng, moments = np.random.default_rng([seed, scene]), []
    play = Play(robot, scene, ticks=ticks)
    script: Any = robot  # which has one, or this fails
    try:
        shown, over = play.reset(), False
        while not over:
            clean = np.asarray(script.expert(), np.float32)
            control = noisy(rng, robot.controls, clean, noise)
            step = play.step(control)
            over = step.done or step.cut
            moments.append(Moment(shown, control, clean, step.reward, "success" in step.info, over))
            shown = step.observation
    except RobotError as error:
        raise UserError(f"demos: scene {scene}: {error}") from None
    return Demo(scene, tuple(moments), outcome_in(step.info), step.void)
