"""The MJCF of a table under a gantry: a hand on three slides, two fingers, a loose cube, a mark for the goal.

Few bodies and few contacts, so that a step is cheap. The cube is held by friction alone.
"""

from __future__ import annotations

STEP, SUBSTEPS = 0.01, 5  # seconds of a step of physics; steps a tick
HZ = round(1 / (STEP * SUBSTEPS))
TABLE = 0.3  # metres: half the table's side
CUBE = 0.022  # metres: half the cube's edge
LOW, HIGH = (-0.28, -0.28, 0.02), (0.28, 0.28, 0.26)  # metres: where the fingers' tips may be driven
OPEN = 0.04  # metres: from the hand's middle to an opened finger
GOALS = ("disc", "point")  # on the table, in the air


def xml(size: tuple[int, int]) -> str:
    """The model, with a buffer for pictures of `size` (width, height)."""
    slides = "".join(
        f'<joint name="{name}" type="slide" axis="{axis}" range="{low} {high}" limited="true"/>'
        for name, axis, low, high in zip("xyz", ("1 0 0", "0 1 0", "0 0 1"), LOW, HIGH, strict=True)
    )
    fingers = "".join(
        f'<body name="{name}"><joint name="{name}" type="slide" axis="0 {side} 0" range="0 {OPEN}" limited="true" '
        f'armature="0.05" damping="4"/><geom type="box" size="0.012 0.006 0.028" pos="0 {side * 0.006} 0.02" '
        f'mass="0.03" rgba="0.12 0.12 0.14 1" contype="1" friction="1.6 0.02 0.001" condim="4" priority="1"/></body>'
        for name, side in (("left", 1), ("right", -1))
    )
    return f"""
<mujoco>
  <option timestep="{STEP}" integrator="implicitfast" iterations="10" ls_iterations="10">
    <flag autoreset="disable"/>
  </option>
  <visual>
    <global offwidth="{size[0]}" offheight="{size[1]}"/>
    <quality shadowsize="0" offsamples="4" numslices="12" numstacks="6"/>
    <headlight ambient="0.45 0.45 0.45" diffuse="0.3 0.3 0.3" specular="0 0 0"/>
  </visual>
  <default>
    <geom contype="0" conaffinity="0" friction="0.6 0.005 0.0001" solref="0.02 1"/>
    <joint armature="0.1" damping="2"/>
    <position kp="600" dampratio="1"/>
  </default>
  <worldbody>
    <light name="lamp" pos="0 0 2" dir="0 0 -1" directional="false" castshadow="false" diffuse="0.6 0.6 0.6"/>
    <camera name="front" pos="0.62 0 0.7" xyaxes="0 1 0 -0.7 0 0.71" fovy="36"/>
    <geom name="floor" type="plane" size="2 2 0.1" pos="0 0 -0.5" rgba="0.35 0.37 0.4 1"/>
    <geom name="table" type="box" size="{TABLE} {TABLE} 0.03" pos="0 0 -0.03" rgba="0.68 0.66 0.62 1" contype="1"/>
    <body name="disc" mocap="true"><geom name="disc" type="cylinder" size="0.035 0.001"/></body>
    <body name="point" mocap="true"><geom name="point" type="sphere" size="0.014"/></body>
    <body name="hand" gravcomp="1">
      {slides}
      <geom type="box" size="0.016 0.05 0.012" pos="0 0 0.06" rgba="0.25 0.26 0.3 1" mass="0.3"/>
      <geom type="capsule" fromto="0 0 0.07 0 0 0.35" size="0.012" rgba="0.6 0.62 0.66 1" mass="0.1"/>
      {fingers}
    </body>
    <body name="cube"><freejoint name="cube"/>
      <geom name="cube" type="box" size="{CUBE} {CUBE} {CUBE}" mass="0.05" contype="1" conaffinity="1"/>
    </body>
  </worldbody>
  <actuator>
    <position joint="x"/><position joint="y"/><position joint="z"/>
    <position joint="left" kp="300" dampratio="1" forcerange="-6 6"/>
    <position joint="right" kp="300" dampratio="1" forcerange="-6 6"/>
  </actuator>
</mujoco>"""
