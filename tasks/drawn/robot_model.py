"""The MJCF model of a table with a robot arm, four loose objects and things to put them on.

An arm of five joints with a hand that points down and two fingers, all moved by position actuators; the fingers' force
is bounded. Objects are held by friction alone: there are no welds.
"""

from __future__ import annotations

SLOTS = 4  # loose objects
TARGETS = ("plate", "tray", "bin")
TOPS = {"plate": 0.012, "tray": 0.012, "bin": 0.008}  # height of what an object comes to stand on, in metres
SURFACES = ("plain", "dotted", "checked")  # of table and floor
LARGEST = 0.042  # metres: half an object's greatest extent; MuJoCo's bounds for collisions are compiled from it
STEP, SUBSTEPS = 0.02 / 3, 3  # seconds of a step of physics; steps for one of control
CONTROL = STEP * SUBSTEPS  # seconds
BASE, SHOULDER, UPPER, FORE, HAND = -0.4, 0.14, 0.38, 0.36, 0.15  # the arm, in metres; HAND: wrist to grip
OPEN = 0.056  # metres from the grip's middle to an opened finger


def xml() -> str:
    """The model in MJCF."""
    materials = "".join(
        f'<material name="plain_{name}"/>'
        f'<material name="dotted_{name}" texture="dotted" texrepeat="{many} {many}"/>'
        f'<material name="checked_{name}" texture="checked" texrepeat="{many} {many}"/>'
        for name, many in (("table", 5), ("floor", 12))
    )
    objects = "".join(
        f'<body name="object{i}" pos="{i} 2 0.03"><joint name="object{i}" type="free" damping="0.0002"/>'
        f'<inertial pos="0 0 0" mass="0.08" diaginertia="5e-5 5e-5 5e-5"/>'
        f'<geom name="object{i}" type="box" size="{LARGEST} {LARGEST} {LARGEST}" contype="1" conaffinity="1"/></body>'
        for i in range(SLOTS)
    )
    fingers = "".join(
        f'<body name="{name}" pos="0 0 {HAND}"><joint name="{name}" type="slide" axis="0 {side} 0" range="0 {OPEN}" '
        f'limited="true" armature="0.05" damping="4"/>'
        f'<geom type="box" size="0.014 0.007 0.035" pos="0 {side * 0.007} -0.012" mass="0.03" rgba="0.1 0.1 0.12 1" '
        f'contype="1" friction="1.6 0.02 0.001" condim="4" priority="1" solref="0.01 1"/></body>'
        for name, side in (("left", 1), ("right", -1))
    )
    return f"""
<mujoco>
  <option timestep="{STEP}" integrator="implicitfast" iterations="8" ls_iterations="8"/>
  <visual>
    <quality shadowsize="0" offsamples="4" numslices="16" numstacks="8"/>
    <headlight ambient="0.4 0.4 0.4" diffuse="0.3 0.3 0.3" specular="0 0 0"/>
  </visual>
  <asset>
    <texture name="dotted" type="2d" builtin="gradient" rgb1="1 1 1" rgb2="0.7 0.7 0.7" width="32" height="32"/>
    <texture name="checked" type="2d" builtin="checker" rgb1="1 1 1" rgb2="0.7 0.7 0.7" width="32" height="32"/>
    <material name="arm" rgba="1 1 1 1"/><material name="target" rgba="1 1 1 1"/>{materials}
  </asset>
  <default>
    <geom contype="0" conaffinity="0" friction="0.9 0.005 0.0001" solref="0.015 1"/>
    <joint armature="0.08" damping="1"/>
    <position kp="900" dampratio="1"/>
    <default class="target"><geom type="box" material="target" contype="1"/></default>
  </default>
  <worldbody>
    <light name="lamp" pos="0 0 2.5" dir="0 0 -1" directional="false" castshadow="false"/>
    <geom name="floor" type="plane" size="3 3 0.1" pos="0 0 -0.5" material="plain_floor"/>
    <body name="table">
      <geom name="table" type="box" size="0.5 0.42 0.03" pos="0 0 -0.03" material="plain_table"/>
      <geom type="plane" size="0.5 0.42 0.1" contype="1" group="4"/>
    </body>
    <body name="plate"><geom class="target" type="cylinder" size="0.15 0.006" pos="0 0 0.006"/></body>
    <body name="tray"><geom class="target" size="0.15 0.09 0.006" pos="0 0 0.006"/></body>
    <body name="bin">
      <geom class="target" size="0.16 0.075 0.004" pos="0 0 0.004"/>
      <geom class="target" size="0.005 0.075 0.025" pos="0.16 0 0.025"/>
      <geom class="target" size="0.005 0.075 0.025" pos="-0.16 0 0.025"/>
      <geom class="target" size="0.16 0.005 0.025" pos="0 0.075 0.025"/>
      <geom class="target" size="0.16 0.005 0.025" pos="0 -0.075 0.025"/>
    </body>
    <body pos="{BASE} 0 0" gravcomp="1">
      <joint name="base" axis="0 0 1"/>
      <geom type="cylinder" size="0.07 {SHOULDER / 2 - 0.02}" pos="0 0 {SHOULDER / 2 - 0.02}" material="arm" mass="1"/>
      <body pos="0 0 {SHOULDER}" gravcomp="1">
        <joint name="shoulder" axis="0 1 0"/>
        <geom type="capsule" fromto="0 0 0 0 0 {UPPER}" size="0.04" material="arm" mass="0.5"/>
        <body pos="0 0 {UPPER}" gravcomp="1">
          <joint name="elbow" axis="0 1 0"/>
          <geom type="capsule" fromto="0 0 0 0 0 {FORE}" size="0.032" material="arm" mass="0.4"/>
          <body pos="0 0 {FORE}" gravcomp="1">
            <joint name="wrist" axis="0 1 0"/>
            <geom type="capsule" fromto="0 0 0 0 0 0.05" size="0.03" rgba="0.25 0.25 0.28 1" mass="0.1"/>
            <body gravcomp="1">
              <joint name="roll" axis="0 0 1"/>
              <geom type="box" size="0.018 0.062 0.015" pos="0 0 {HAND - 0.06}" rgba="0.25 0.25 0.28 1" mass="0.1"/>
              <site name="grip" pos="0 0 {HAND}"/>
              {fingers}
            </body>
          </body>
        </body>
      </body>
    </body>
    {objects}
  </worldbody>
  <actuator>
    <position joint="base"/><position joint="shoulder"/><position joint="elbow"/>
    <position joint="wrist"/><position joint="roll"/>
    <position joint="left" kp="500" dampratio="1" forcerange="-9 9"/>
    <position joint="right" kp="500" dampratio="1" forcerange="-9 9"/>
  </actuator>
</mujoco>"""
