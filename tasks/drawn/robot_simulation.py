"""Plays a job in the simulator and records its state at every step of control."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from robot.simulation import load_mujoco
from tasks.drawn.robot_events import PARTS, Record
from tasks.drawn.robot_expert import commands, fingers_along
from tasks.drawn.robot_model import SLOTS, SUBSTEPS, TOPS
from tasks.drawn.robot_tasks import Job, Move
from tasks.drawn.robot_world import HOME, furnish, joints, parts, simulator

SETTLING = 10  # steps of control before the robot starts
IDLE = (10, 40)  # steps of control after it has ended
DROP = 0.004  # metres above its support at which an object is let go


def played(rng: np.random.Generator, job: Job) -> Record:
    """The job as the physics lets it happen."""
    mujoco = load_mujoco()
    model, data = simulator()
    furnish(job.scene)
    states: list[tuple] = []
    mujoco.mj_step(model, data, SETTLING * SUBSTEPS)
    start = HOME
    for move in job.moves:
        source, goal = _ends(job, move, data)
        for x, y, z, angle, opening in commands(rng, start, source, goal).tolist():
            data.ctrl[:] = (*joints(x, y, z, angle), opening, opening)
            states.append(_state(data))
            mujoco.mj_step(model, data, SUBSTEPS)
        start = (x, y, z, angle)
    for _ in range(int(rng.integers(*IDLE))):
        states.append(_state(data))
        mujoco.mj_step(model, data, SUBSTEPS)
    return _recorded(states)


def _state(data: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return data.qpos.copy(), data.site_xpos[0].copy(), data.contact.geom.copy()


def _recorded(states: Sequence[tuple]) -> Record:
    qpos = np.stack([state[0] for state in states])
    touch = np.zeros((len(states), len(PARTS) + 1, len(PARTS) + 1), bool)
    steps = np.repeat(np.arange(len(states)), [len(state[2]) for state in states])
    first, second = parts()[np.concatenate([state[2] for state in states])].T
    touch[steps, first, second] = touch[steps, second, first] = True
    objects = qpos[:, 7:].reshape(len(states), SLOTS, 7)[..., :3]
    return Record(qpos, np.stack([state[1] for state in states]), objects, touch[:, :-1, :-1])


def _ends(job: Job, move: Move, data: Any) -> tuple[tuple, tuple]:
    """Poses of the hand at which it takes the object and lets it go, as the objects lie now."""
    thing = job.scene.things[move.what]
    x, y, z, w, _, _, turn = data.joint(f"object{move.what}").qpos.tolist()
    angle = fingers_along(x, y, 2 * np.arctan2(turn, w) if thing.form == "cube" else None)
    if move.onto is None:
        spot, top = move.spot, TOPS[job.scene.target]
    else:
        below = data.joint(f"object{move.onto}").qpos
        spot, top = tuple(below[:2].tolist()), float(below[2]) + job.scene.things[move.onto].half
    return (x, y, z, angle), (*spot, top + thing.half + DROP, np.pi / 2)
