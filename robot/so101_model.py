"""The MJCF of an arm like the SO-101, drawn by hand: six servos, a gripper of two fingers, a table, a disc to touch.

Zero degrees of each joint is the middle of its range, as lerobot calibrates it: upper arm upright, forearm ahead,
gripper ahead. x points ahead, y to the left, z up; metres. Lengths and masses are near those of the real arm and not
measured on one; the servo's stiffness is that of an STS3215 at lerobot's own gain.
"""

from __future__ import annotations

import numpy as np

HZ, SUBSTEPS = 30, 8  # ticks a second; steps of physics a tick
STEP = 1 / (HZ * SUBSTEPS)  # seconds
JOINTS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
LIMITS = np.array(((-110, 110), (-100, 100), (-97, 97), (-95, 95), (-160, 160), (-10, 100)), np.float64)  # degrees
KP, TORQUE = 17.8, 3.35  # N m / rad at lerobot's gain (16); N m at stall
DAMPING, FRICTION, ARMATURE = 0.6, 0.052, 0.028  # N m s / rad (back-EMF and gears), N m, kg m^2
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
    <joint limited="true" armature="{ARMATURE}" damping="{DAMPING}" frictionloss="{FRICTION}"/>
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
