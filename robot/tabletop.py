"""A table under a gantry, simulated by MuJoCo: reach a point, touch a thing, push a cube onto a disc, pick it up.

Thousands of ticks a second without pictures. A scene is a seed; success is sparse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from robot import tabletop_model as table
from robot.controls import Controls
from robot.robot import Signals, Snapshot
from robot.simulation import Camera, advance, load_mujoco, put_state, state_of
from robot.tabletop_expert import expert
from robot.tabletop_scenes import ASKED, JOBS, Scene, scene
from vlrl.types import Observation, UserError

SPEED = 0.4  # m/s along each axis
NEAR = {"reach": 0.015, "touch": 0.03, "push": 0.03, "pick": 0.025}  # metres to the goal at which the job is done
FALLEN = -0.05  # metres
WAYS = tuple("xyz")
STATE = ("hand x", "hand y", "hand z", "opening", "cube x", "cube y", "cube z", "turn sin", "turn cos", "goal x",
         "goal y", "goal z")  # fmt: skip


class Tabletop:
    """A gantry over a table (`robot.robot.Simulator`).

    Controls are speeds of the hand in m/s, and for `pick` the distance in metres of each finger from the middle that
    is asked for. The state is float32 [12]: hand x, y, z and opening, cube x, y, z, the sine and cosine of four times
    its turn (a cube looks the same after a quarter), goal x, y, z, in metres. Images come before the instruction.

    Args:
        job: `reach` (the hand to a point in the air), `touch` (the disc or the cube, as the instruction says), `push`
            (the cube onto the disc) or `pick` (the cube into the air).
        camera: width and height of the picture in pixels; none: the state alone.
        state: the numbers of the state to show, by name; what is left out must be seen in the picture.
        words: `plain` instructions, or the same in `other` words, which a policy may never have met.
        askew: degrees, -180 to 180, by which the gantry is turned against the table: x and y of the controls are its.
    """

    def __init__(
        self,
        *,
        job: str = "push",
        camera: Sequence[int] | None = None,
        state: Sequence[str] = STATE,
        words: str = "plain",
        askew: float = 0.0,
    ):
        if job not in JOBS:
            raise UserError(f"robot.job: {job!r}: must be one of {', '.join(JOBS)}")
        if camera is not None and not (len(camera) == 2 and all(8 <= side <= 1024 for side in camera)):
            raise UserError(f"robot.camera: {camera!r}: must be a width and a height of 8 to 1024 pixels")
        if words not in ASKED:
            raise UserError(f"robot.words: {words!r}: must be one of {', '.join(ASKED)}")
        if not -180 <= askew <= 180:
            raise UserError(f"robot.askew: {askew}: must be -180 to 180 degrees")
        unknown = [name for name in state if name not in STATE]
        if unknown or not state:
            raise UserError(f"robot.state: {unknown or 'nothing'}: must be of {', '.join(STATE)}")
        self.job, self.words, self.names = job, words, tuple(state)
        self.hz, self.controls = float(table.HZ), _controls(job)
        c, s = math.cos(math.radians(askew)), math.sin(math.radians(askew))
        self._turn = np.array(((c, -s, 0.0), (s, c, 0.0), (0.0, 0.0, 1.0)))  # from the gantry's axes to the table's
        self._told = [STATE.index(name) for name in state]
        size = (camera[0], camera[1]) if camera else (64, 64)
        self.model: Any = load_mujoco().MjModel.from_xml_string(table.xml(size))
        self.data: Any = load_mujoco().MjData(self.model)
        self._size = size if camera else None
        self._cameras: dict[tuple[int, int], Camera] = {}  # by size, made when first needed
        self._scene: Scene | None = None

    def home(self, seed: int) -> None:
        self._scene = scene(self.job, seed, self.words)
        data, now = self.data, self._scene
        load_mujoco().mj_resetData(self.model, data)
        opening = table.OPEN if self.job == "pick" else 0.0
        data.qpos[:5] = data.ctrl[:5] = (*now.hand, opening, opening)
        data.qpos[5:] = (*now.cube, table.CUBE, math.cos(now.turn / 2), 0, 0, math.sin(now.turn / 2))
        self._furnish(now)
        data.mocap_pos[:] = [now.marked if mark == now.mark else (0, 0, -5) for mark in table.GOALS]

    def observe(self) -> Observation:
        return Observation((*self._pictures(), self._begun().instruction), self._state()[self._told])

    def picture(self, size: tuple[int, int]) -> Image.Image:
        """The table from the front, RGB, width and height in pixels; for videos, whatever the policy is shown."""
        self._begun()
        if size not in self._cameras:
            self._cameras[size] = Camera(self.model, "front", size)
        return self._cameras[size].take(self.data)

    def expert(self) -> np.ndarray:
        """The script's next control, float32 [A], within the limits (`robot.tabletop_expert`)."""
        control = expert(self.job, self._state())
        control[:3] = self._turn.T @ control[:3]
        return self.controls.checked(control)

    def _state(self) -> np.ndarray:
        qpos = self.data.qpos
        w, turned = qpos[8], qpos[11]
        turn = 4 * 2 * math.atan2(turned, w)
        opening = (qpos[3] + qpos[4]) / 2
        return np.array([*qpos[:3], opening, *qpos[5:8], math.sin(turn), math.cos(turn), *self._goal()], np.float32)

    def move(self, control: np.ndarray) -> np.ndarray:
        control, ctrl = self.controls.checked(control), self.data.ctrl
        self._begun()
        asked = ctrl[:3] + self._turn @ control[:3] / self.hz
        sent = control.copy()
        within = asked.clip(table.LOW, table.HIGH)
        if (within != asked).any():
            sent[:3] = (self._turn.T @ (within - ctrl[:3]) * self.hz).clip(-SPEED, SPEED)
        ctrl[:3] = within
        if self.job == "pick":
            ctrl[3:] = control[3]
        advance(self.model, self.data, table.SUBSTEPS)
        return sent

    def signals(self) -> Signals:
        self._begun()
        hand, cube = self.data.qpos[:3], self.data.qpos[5:8]
        by_hand = self.job in ("reach", "touch")
        distance = float(np.linalg.norm((hand if by_hand else cube) - self._goal()))
        done = distance < NEAR[self.job]
        fell = not by_hand and cube[2] < FALLEN
        return Signals(done, float(done), "the cube fell off the table" if fell else None, None, {"distance": distance})

    def snapshot(self) -> Snapshot:
        return Snapshot(self._begun().seed, {"state": state_of(self.model, self.data)})

    def restore(self, snapshot: Snapshot) -> None:
        self._scene = scene(self.job, snapshot.seed, self.words)
        self._furnish(self._scene)
        put_state(self.model, self.data, snapshot.arrays["state"])

    def close(self) -> None:
        for camera in self._cameras.values():
            camera.close()
        self._cameras.clear()

    def _begun(self) -> Scene:
        if self._scene is None:
            raise RuntimeError("home first")
        return self._scene

    def _furnish(self, now: Scene) -> None:
        """What of a scene the model holds, and no state: its looks."""
        for name in ("cube", *table.GOALS):
            self.model.geom(name).rgba[:3] = now.colors[name == "cube"]
        self.model.light("lamp").pos[:2] = now.lamp

    def _goal(self) -> np.ndarray:
        """float64 [3]: for a disc the middle of a cube that stands on it."""
        x, y, z = self._begun().goal
        return np.array((x, y, z + table.CUBE * (self.job == "push")))

    def _pictures(self) -> tuple[Image.Image, ...]:
        return (self.picture(self._size),) if self._size else ()


def _controls(job: str) -> Controls:
    grip = 1 if job == "pick" else 0
    return Controls(
        WAYS + ("grip",) * grip,
        ("m/s",) * 3 + ("m",) * grip,
        np.array([-SPEED] * 3 + [0.0] * grip),
        np.array([SPEED] * 3 + [table.OPEN] * grip),
    )
