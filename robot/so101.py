"""The simulated twin of an SO-101 arm on a table: the emulator's model and law of its servos, without bus or clock.

Controls, names and units are those of lerobot's `so101_follower` (degrees, the gripper in percent), so that a policy
trained here can be sent to the arm as it is. A scene is a seed; success is sparse.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from robot import so101_model as arm
from robot.controls import Controls
from robot.robot import Signals, Snapshot
from robot.simulation import Camera, advance, load_mujoco, put_state, state_of
from robot.so101_expert import expert
from robot.so101_scenes import JOBS, Scene, scene
from vlrl.types import Observation, UserError

WITHIN = 0.015  # metres from the gripper's tip to the disc at which it is touched
SPEED = (90.0, 90.0, 90.0, 90.0, 90.0, 100.0)  # degrees and percent a second
DRIVES = ("speed", "position")
NAMES = tuple(f"{joint}.pos" for joint in arm.JOINTS)  # as lerobot says them
STATE = (*NAMES, "goal x", "goal y")


class So101:
    """An arm like the SO-101 (`robot.robot.Simulator`).

    The state is float32 [8]: where the joints are in degrees, the gripper's opening in percent, and the disc's place
    x (ahead of the base) and y (to its left) in metres. Images come before the instruction.

    Args:
        job: `touch`: the gripper's tip to the disc on the table.
        camera: width and height of the pictures in pixels; none: the state alone.
        views: from where pictures are taken, in this order: `top`, `front`.
        state: the numbers of the state to show, by name; what is left out must be seen in the picture.
        drive: `speed`: controls are joint speeds in degrees (gripper: percent) a second, added to the last target;
            `position`: controls are the targets themselves in degrees and percent.
    """

    def __init__(
        self,
        *,
        job: str = "touch",
        camera: Sequence[int] | None = None,
        views: Sequence[str] = ("top",),
        state: Sequence[str] = STATE,
        drive: str = "speed",
    ):
        if job not in JOBS:
            raise UserError(f"robot.job: {job!r}: must be one of {', '.join(JOBS)}")
        if drive not in DRIVES:
            raise UserError(f"robot.drive: {drive!r}: must be one of {', '.join(DRIVES)}")
        if camera is not None and not (len(camera) == 2 and all(8 <= side <= 1024 for side in camera)):
            raise UserError(f"robot.camera: {camera!r}: must be a width and a height of 8 to 1024 pixels")
        for path, chosen, known in (("views", views, arm.CAMERAS), ("state", state, STATE)):
            unknown = [name for name in chosen if name not in known]
            if unknown or not chosen:
                raise UserError(f"robot.{path}: {unknown or 'nothing'}: must be of {', '.join(known)}")
        self.job, self.drive, self.names = job, drive, tuple(state)
        self.hz, self.controls = float(arm.HZ), controls(drive)
        self._views, self._told = tuple(views), [STATE.index(name) for name in state]
        self._size = (camera[0], camera[1]) if camera else None
        self.model: Any = load_mujoco().MjModel.from_xml_string(arm.xml(self._size or (64, 64)))
        self.data: Any = load_mujoco().MjData(self.model)
        self._thought: Any = load_mujoco().MjData(self.model)  # the script's, so that thinking changes nothing
        self._cameras: dict[tuple[str, tuple[int, int]], Camera] = {}  # made when first needed
        self._scene: Scene | None = None

    def home(self, seed: int) -> None:
        self._scene = now = scene(self.job, seed)
        load_mujoco().mj_resetData(self.model, self.data)
        self.data.qpos[:] = self.data.ctrl[:] = arm.to_radians(np.array(now.start))
        self.data.mocap_pos[0] = (*now.goal[:2], 0.0)

    def observe(self) -> Observation:
        taken = tuple(self._take(view, self._size) for view in self._views) if self._size else ()
        return Observation((*taken, self._begun().instruction), self._state()[self._told])

    def picture(self, size: tuple[int, int]) -> Image.Image:
        """The arm from the front, RGB, width and height in pixels; for videos, whatever the policy is shown."""
        self._begun()
        return self._take("front", tuple(size))

    def expert(self) -> np.ndarray:
        """The script's next control, float32 [6], within the limits (`robot.so101_expert`)."""
        self._thought.qpos[:] = self.data.qpos
        asked = expert(self.model, self._thought, np.array(self._begun().goal))
        return self.controls.checked(asked if self.drive == "speed" else self._target() + asked / self.hz)

    def move(self, control: np.ndarray) -> np.ndarray:
        control = self.controls.checked(control)
        self._begun()
        before = self._target()
        asked = before + control / self.hz if self.drive == "speed" else control
        within = asked.clip(*arm.USER_LIMITS.T)
        sent = control
        if self.drive == "speed" and (within != asked).any():
            sent = self.controls.checked(np.where(within == asked, control, (within - before) * self.hz))
        self.data.ctrl[:] = arm.to_radians(within)
        advance(self.model, self.data, arm.SUBSTEPS)
        return sent

    def signals(self) -> Signals:
        goal, tip = self._begun().goal, self._tip()
        distance = float(np.linalg.norm(tip - goal))
        done = distance < WITHIN
        return Signals(done, float(done), None, None, {"distance": distance})

    def snapshot(self) -> Snapshot:
        return Snapshot(self._begun().seed, {"state": state_of(self.model, self.data)})

    def restore(self, snapshot: Snapshot) -> None:
        self._scene = scene(self.job, snapshot.seed)
        put_state(self.model, self.data, snapshot.arrays["state"])

    def close(self) -> None:
        for camera in self._cameras.values():
            camera.close()
        self._cameras.clear()

    def _begun(self) -> Scene:
        if self._scene is None:
            raise RuntimeError("home first")
        return self._scene

    def _target(self) -> np.ndarray:
        return arm.to_user(self.data.ctrl.copy())

    def _tip(self) -> np.ndarray:
        """float64 [3], of the positions as they are now: after a step, MuJoCo's own derived ones are those before."""
        load_mujoco().mj_kinematics(self.model, self.data)
        return self.data.site("grip").xpos.copy()

    def _state(self) -> np.ndarray:
        return np.array([*arm.to_user(self.data.qpos.copy()), *self._begun().goal[:2]], np.float32)

    def _take(self, view: str, size: tuple[int, int]) -> Image.Image:
        if (view, size) not in self._cameras:
            self._cameras[view, size] = Camera(self.model, view, size)
        return self._cameras[view, size].take(self.data)


def controls(drive: str) -> Controls:
    """What one control says: speeds or positions of the six joints."""
    low, high = arm.USER_LIMITS.T if drive == "position" else (-np.array(SPEED), np.array(SPEED))
    units = ("deg",) * 5 + ("%",) if drive == "position" else ("deg/s",) * 5 + ("%/s",)
    return Controls(NAMES, units, low, high)
