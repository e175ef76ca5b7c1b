"""The simulated twin of an SO-101 arm on a table: the emulator's model and law of its servos, without bus or clock.

Controls, names and units are those of lerobot's `so101_follower` (degrees, the gripper in percent), so that a policy
trained here can be sent to the arm as it is. A scene is a seed; success is sparse.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from robot.sim.tabletop import Camera, advance, load_mujoco, put_state, state_of
from robot.types import ActionSpec, Robot, RobotStatus, Snapshot
from vlrl.types import Observation, UserError

# The MJCF of an arm like the SO-101, drawn by hand: six servos, a gripper of two fingers, a table, a disc to touch.
#
# Zero degrees of each joint is the middle of its range, as lerobot calibrates it: upper arm upright, forearm ahead,
# gripper ahead. x points ahead, y to the left, z up; metres. Lengths and masses are near those of the real arm and not
# measured on one; the servo's stiffness is that of an STS3215 at lerobot's own gain.

HZ, SUBSTEPS = 30, 8  # ticks a second; steps of physics a tick
STEP = 1 / (HZ * SUBSTEPS)  # seconds
JOINTS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
LIMITS = np.array(((-110, 110), (-100, 100), (-97, 97), (-95, 95), (-160, 160), (-10, 100)), np.float64)  # degrees
KP, TORQUE = 17.8, 3.35  # N m / rad at lerobot's gain (16); N m at stall
SO101_MODEL_DAMPING, FRICTION, ARMATURE = 0.6, 0.052, 0.028  # N m s / rad (back-EMF and gears), N m, kg m^2
TABLE_LOW, TABLE_HIGH = (-0.12, -0.35), (0.48, 0.35)  # metres: its corners
DISC, DISC_TOP = 0.03, 0.002  # metres: radius, height of its top above the table
CAMERAS = ("front", "top")
SMALL = 256 * 256  # pixels


def to_user(radians: np.ndarray) -> np.ndarray:
    """Joint angles float64 [6] as lerobot says them: degrees, and the gripper's opening in percent of its range."""
    degrees = np.degrees(radians)
    low, high = LIMITS[5]
    degrees[5] = 100 * (degrees[5] - low) / (high - low)
    return degrees


def to_radians(user: np.ndarray) -> np.ndarray:
    """Undoes `to_user`."""
    degrees = np.array(user, np.float64)
    low, high = LIMITS[5]
    degrees[5] = low + (high - low) * degrees[5] / 100
    return np.radians(degrees)


USER_LIMITS = np.array((*LIMITS[:5], (0, 100)))  # degrees and percent


def _joint(i: int, axis: str) -> str:
    low, high = LIMITS[i]
    return f'<joint name="{JOINTS[i]}" axis="{axis}" range="{low} {high}"/>'


def _arm() -> str:
    return f"""
    <geom type="box" size="0.045 0.04 0.025" pos="-0.01 0 0.025" rgba="0.2 0.2 0.22 1"/>
    <body name="shoulder" pos="0.02 0 0.05">{_joint(0, "0 0 1")}
      <geom type="box" size="0.025 0.024 0.032" pos="0 0 0.034" mass="0.12" class="shell"/>
      <body name="upper_arm" pos="0.02 0 0.065">{_joint(1, "0 1 0")}
        <geom type="capsule" fromto="0 0 0.01 0.02 0 0.11" size="0.016" mass="0.1" class="shell"/>
        <body name="forearm" pos="0.025 0 0.115">{_joint(2, "0 1 0")}
          <geom type="capsule" fromto="0.01 0 0 0.125 0 0" size="0.014" mass="0.1" class="shell"/>
          <body name="wrist" pos="0.135 0 0">{_joint(3, "0 1 0")}
            <geom type="box" size="0.028 0.016 0.014" pos="0.028 0 0" mass="0.08" class="dark"/>
            <body name="hand" pos="0.06 0 0">{_joint(4, "1 0 0")}
              <geom type="box" size="0.014 0.03 0.014" pos="0.012 0 0" mass="0.06" class="shell"/>
              <geom name="finger" type="capsule" fromto="0.03 0.008 0 0.094 0.006 0" size="0.006" mass="0.02"
                class="finger"/>
              <site name="grip" pos="0.1 0 0" size="0.004" rgba="0.1 0.8 0.2 0"/>
              <body name="jaw" pos="0.026 -0.012 0">{_joint(5, "0 0 -1")}
                <geom name="jaw" type="capsule" fromto="0.006 0.002 0 0.068 0.018 0" size="0.006" mass="0.02"
                  class="finger"/>
              </body>
            </body>
          </body>
        </body>
      </body>
    </body>"""


def xml(size: tuple[int, int] = (64, 64)) -> str:
    """The model, with a buffer for pictures of `size` (width, height)."""
    low, high = np.array(TABLE_LOW), np.array(TABLE_HIGH)
    (x, y), (half, wide) = (low + high) / 2, (high - low) / 2
    smooth = 4 if size[0] * size[1] <= SMALL else 0  # samples a pixel: in large pictures they cost more than they show
    servos = "".join(f'<position name="{name}" joint="{name}"/>' for name in JOINTS)
    return f"""
<mujoco model="arm like the SO-101">
  <option timestep="{STEP!r}" integrator="implicitfast" iterations="10" ls_iterations="10">
    <flag autoreset="disable"/>
  </option>
  <visual>
    <global offwidth="{size[0]}" offheight="{size[1]}"/>
    <quality shadowsize="0" offsamples="{smooth}" numslices="12" numstacks="6"/>
    <headlight ambient="0.45 0.45 0.45" diffuse="0.3 0.3 0.3" specular="0 0 0"/>
    <map znear="0.02" zfar="20"/>
  </visual>
  <default>
    <geom contype="0" conaffinity="1" friction="0.8 0.01 0.0001"/>
    <joint limited="true" armature="{ARMATURE}" damping="{SO101_MODEL_DAMPING}" frictionloss="{FRICTION}"/>
    <position kp="{KP}" forcerange="-{TORQUE} {TORQUE}"/>
    <default class="shell"><geom rgba="0.93 0.78 0.3 1"/></default>
    <default class="dark"><geom rgba="0.2 0.2 0.22 1"/></default>
    <default class="finger"><geom rgba="0.12 0.3 0.75 1"/></default>
  </default>
  <worldbody>
    <light pos="0.2 0.3 1.5" dir="0 -0.2 -1" directional="true" castshadow="false" diffuse="0.6 0.6 0.6"/>
    <camera name="top" pos="0.19 0 0.95" xyaxes="0 -1 0 1 0 0" fovy="34"/>
    <camera name="front" pos="0.82 0 0.55" xyaxes="0 1 0 -0.59 0 0.81" fovy="40"/>
    <geom name="floor" type="plane" size="2 2 0.1" pos="0 0 -0.5" rgba="0.35 0.37 0.4 1" conaffinity="0"/>
    <geom name="table" type="box" size="{half} {wide} 0.03" pos="{x} {y} -0.03" rgba="0.5 0.49 0.46 1" contype="1"
      conaffinity="0"/>
    <body name="disc" mocap="true" pos="0.25 0 0">
      <geom name="disc" type="cylinder" size="{DISC} {DISC_TOP / 2}" pos="0 0 {DISC_TOP / 2}" rgba="0.85 0.12 0.1 1"
        conaffinity="0"/>
    </body>
    {_arm()}
  </worldbody>
  <actuator>{servos}</actuator>
</mujoco>"""


# The scenes of the simulated SO-101: how the arm begins, where the disc lies. Pure functions of the seed.

JOBS = {"touch": "Touch the disc."}
HOME = (0.0, -35.0, 20.0, 55.0, 0.0, 5.0)  # degrees, and percent of the gripper's opening
SPREAD = (6.0, 4.0, 4.0, 4.0, 4.0, 3.0)  # how far from HOME the arm begins, at most
NEAR, FAR, ASIDE = 0.2, 0.31, 50.0  # metres from the shoulder's axis, degrees to either side: where the disc may lie
AXIS = 0.02  # metres ahead of the base's middle: the shoulder's axis


@dataclass(frozen=True)
class So101Scene:
    seed: int
    start: tuple[float, ...]  # degrees and percent [6]
    goal: tuple[float, float, float]  # metres: the middle of the disc's top
    instruction: str


def scene(job: str, seed: int) -> So101Scene:
    """The same on every machine, for any seed of at least 0."""
    rng = np.random.default_rng([seed, zlib.crc32(job.encode())])
    start = np.array(HOME) + rng.uniform(-1, 1, 6) * SPREAD
    reach = math.sqrt(rng.uniform(NEAR**2, FAR**2))  # uniform over the area
    angle = math.radians(rng.uniform(-ASIDE, ASIDE))
    place = (AXIS + reach * math.cos(angle), reach * math.sin(angle), DISC_TOP)
    return So101Scene(seed, tuple(start.tolist()), place, JOBS[job])


# A script that touches the disc: inverse kinematics by damped least squares. It has no memory.

GAIN, POSE_GAIN = 5.0, 1.0  # 1/s: of the way to go, and of the way back to a tidy pose where that costs nothing
SO101_EXPERT_SPEED = np.array((60.0, 60.0, 60.0, 60.0, 60.0, 40.0))  # degrees and percent a second, at most
SO101_EXPERT_DAMPING = 0.03  # metres per radian: how near to a singular pose joints are slowed down
ABOVE, HIGHEST = 0.004, 0.06  # metres over the goal: aimed at from straight above, and on the way


def expert(model: Any, data: Any, goal: np.ndarray) -> np.ndarray:
    """The joints' speeds float64 [6] in degrees and percent a second that go on with the job.

    Args:
        data: scratch data whose `qpos` holds the arm's pose.
        goal: float64 [3], metres.
    """
    mujoco = load_mujoco()
    mujoco.mj_kinematics(model, data)
    mujoco.mj_comPos(model, data)
    tip, jacobian = data.site("grip").xpos, np.empty((3, model.nv))
    mujoco.mj_jacSite(model, data, jacobian, None, data.site("grip").id)
    jacobian = jacobian[:, :4]  # the wrist's roll and the gripper move no tip
    spot = goal + np.array((0, 0, ABOVE + min(float(np.linalg.norm((goal - tip)[:2])), HIGHEST)))
    inverse = jacobian.T @ np.linalg.inv(jacobian @ jacobian.T + SO101_EXPERT_DAMPING**2 * np.eye(3))
    pose = np.degrees(data.qpos)
    free = np.radians(POSE_GAIN * (np.array(HOME[:4]) - pose[:4]))
    speeds = np.degrees(inverse @ (GAIN * (spot - tip)) + free - inverse @ (jacobian @ free))
    control_values = np.append(speeds, (-POSE_GAIN * pose[4], 0.0))
    return control_values / max(
        1.0, float(np.max(np.abs(control_values) / SO101_EXPERT_SPEED))
    )  # slowed down together, the way stays the same


WITHIN = 0.015  # metres from the gripper's tip to the disc at which it is touched
SPEED = (90.0, 90.0, 90.0, 90.0, 90.0, 100.0)  # degrees and percent a second
DRIVES = ("speed", "position")
NAMES = tuple(f"{joint}.pos" for joint in JOINTS)  # as lerobot says them
STATE = (*NAMES, "goal x", "goal y")


class So101(Robot):
    """An arm like the SO-101 (`robot.types.Robot`).

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
        for path, chosen, known in (("views", views, CAMERAS), ("state", state, STATE)):
            unknown = [name for name in chosen if name not in known]
            if unknown or not chosen:
                raise UserError(f"robot.{path}: {unknown or 'nothing'}: must be of {', '.join(known)}")
        self.job, self.drive, self.names = job, drive, tuple(state)
        self.hz, self.controls = float(HZ), controls(drive)
        self._views, self._told = tuple(views), [STATE.index(name) for name in state]
        self._size = (camera[0], camera[1]) if camera else None
        self.model: Any = load_mujoco().MjModel.from_xml_string(xml(self._size or (64, 64)))
        self.data: Any = load_mujoco().MjData(self.model)
        self._thought: Any = load_mujoco().MjData(self.model)  # the script's, so that thinking changes nothing
        self._cameras: dict[tuple[str, tuple[int, int]], Camera] = {}  # made when first needed
        self._scene: So101Scene | None = None

    def reset(self, seed: int) -> None:
        self._scene = now = scene(self.job, seed)
        load_mujoco().mj_resetData(self.model, self.data)
        self.data.qpos[:] = self.data.ctrl[:] = to_radians(np.array(now.start))
        self.data.mocap_pos[0] = (*now.goal[:2], 0.0)

    def get_observation(self) -> Observation:
        taken = tuple(self._take(view, self._size) for view in self._views) if self._size else ()
        return Observation((*taken, self._require_reset().instruction), self._state()[self._told])

    def picture(self, size: tuple[int, int]) -> Image.Image:
        """The arm from the front, RGB, width and height in pixels; for videos, whatever the policy is shown."""
        self._require_reset()
        return self._take("front", tuple(size))

    def expert(self) -> np.ndarray:
        """The script's next control, float32 [6], within the limits (`robot.sim.so101`)."""
        self._thought.qpos[:] = self.data.qpos
        control_values = expert(self.model, self._thought, np.array(self._require_reset().goal))
        return self.controls.checked(
            control_values if self.drive == "speed" else self._target() + control_values / self.hz
        )

    def send_action(self, control: np.ndarray) -> np.ndarray:
        control = self.controls.checked(control)
        self._require_reset()
        before = self._target()
        target = before + control / self.hz if self.drive == "speed" else control
        within = target.clip(*USER_LIMITS.T)
        sent = control
        if self.drive == "speed" and (within != target).any():
            sent = self.controls.checked(np.where(within == target, control, (within - before) * self.hz))
        self.data.ctrl[:] = to_radians(within)
        advance(self.model, self.data, SUBSTEPS)
        return sent

    def status(self) -> RobotStatus:
        goal, tip = self._require_reset().goal, self._tip()
        distance = float(np.linalg.norm(tip - goal))
        done = distance < WITHIN
        return RobotStatus(done, float(done), None, None, {"distance": distance})

    def snapshot(self) -> Snapshot:
        return Snapshot(self._require_reset().seed, {"state": state_of(self.model, self.data)})

    def restore(self, snapshot: Snapshot) -> None:
        self._scene = scene(self.job, snapshot.seed)
        put_state(self.model, self.data, snapshot.arrays["state"])

    def close(self) -> None:
        for camera in self._cameras.values():
            camera.close()
        self._cameras.clear()

    def _require_reset(self) -> So101Scene:
        if self._scene is None:
            raise RuntimeError("home first")
        return self._scene

    def _target(self) -> np.ndarray:
        return to_user(self.data.ctrl.copy())

    def _tip(self) -> np.ndarray:
        """float64 [3], of the positions as they are now: after a step, MuJoCo's own derived ones are those before."""
        load_mujoco().mj_kinematics(self.model, self.data)
        return self.data.site("grip").xpos.copy()

    def _state(self) -> np.ndarray:
        return np.array([*to_user(self.data.qpos.copy()), *self._require_reset().goal[:2]], np.float32)

    def _take(self, view: str, size: tuple[int, int]) -> Image.Image:
        if (view, size) not in self._cameras:
            self._cameras[view, size] = Camera(self.model, view, size)
        return self._cameras[view, size].take(self.data)


def controls(drive: str) -> ActionSpec:
    """What one control says: speeds or positions of the six joints."""
    low, high = USER_LIMITS.T if drive == "position" else (-np.array(SPEED), np.array(SPEED))
    units = ("deg",) * 5 + ("%",) if drive == "position" else ("deg/s",) * 5 + ("%/s",)
    return ActionSpec(NAMES, units, low, high)
