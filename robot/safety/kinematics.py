"""Where the parts of a robot are at given targets, and how far that is outside its workspace. Needs `vlrl[sim]`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from robot.sim.so101 import xml as so101
from robot.sim.tabletop import load_mujoco
from robot.types import Channel
from vlrl.types import UserError, suggest

if TYPE_CHECKING:
    from robot.safety.limits import Workspace

MODELS = {"so101": so101}  # a name -> the MJCF's text


class Kinematics:
    """A model of its own, posed by targets.

    A channel moves the joint of its name (`shoulder_pan.pos`: joint `shoulder_pan`) or the one that the config says:
    degrees or radians of a hinge, metres of a slide, percent of the joint's range. Channels without a joint move
    nothing here.

    Raises:
        UserError: the model cannot be read, or lacks a joint, site, body or geom that the config names.
    """

    def __init__(self, workspace: Workspace, channels: Sequence[Channel]):
        self._limits, self.model = workspace, _model(workspace.model)
        self.data: Any = load_mujoco().MjData(self.model)
        self._channels, self._joints, self._scale, self._zero = _joints(self.model, workspace, channels)
        self._sites = [_id(self.model, "site", name) for name in workspace.sites]
        moving = _moving(self.model, self._joints)
        shaped = self.model.geom_bodyid[:, None] == moving[None]
        self._geoms = np.flatnonzero(shaped.any(1)) if workspace.floor is not None else np.zeros(0, int)
        self._pairs = [_pair(self.model, *pair) for pair in workspace.apart]

    def set_pose(self, targets: np.ndarray) -> None:
        """Poses the model at targets float64 [A]."""
        self.data.qpos[self._joints] = targets[self._channels] * self._scale + self._zero
        load_mujoco().mj_kinematics(self.model, self.data)

    def depth(self, targets: np.ndarray) -> tuple[float, str]:
        """How far in metres a pose is outside the workspace (negative: inside), and what is worst about it."""
        self.set_pose(targets)
        return max([*self._outside_box(), *self._below_floor(), *self._too_near()], default=(-math.inf, ""))

    def _outside_box(self) -> list[tuple[float, str]]:
        problems, limits = [], self._limits
        for name, site in zip(limits.sites, self._sites, strict=True):
            spot = self.data.site_xpos[site]
            for axis, low, high, value in zip("xyz", limits.low, limits.high, spot.tolist(), strict=True):
                problems.append((low + limits.margin - value, f"{name} at {axis} {value:.3f} m, limit {low:g}"))
                problems.append((value - high + limits.margin, f"{name} at {axis} {value:.3f} m, limit {high:g}"))
        return problems

    def _below_floor(self) -> list[tuple[float, str]]:
        """The lowest part that moves, each taken as the box around it."""
        if not len(self._geoms):
            return []
        down = self.data.geom_xmat[self._geoms, 6:]  # [G, 3]: how z hangs on the geom's own axes
        box = self.model.geom_aabb[self._geoms]  # [G, 6]: middle and half sizes
        lowest = self.data.geom_xpos[self._geoms, 2] + (down * box[:, :3]).sum(1) - (np.abs(down) * box[:, 3:]).sum(1)
        i, limits = int(lowest.argmin()), self._limits
        body = self.model.body(self.model.geom_bodyid[self._geoms[i]]).name
        return [(limits.floor + limits.margin - lowest[i], f"{body} at z {lowest[i]:.3f} m, floor {limits.floor:g}")]

    def _too_near(self) -> list[tuple[float, str]]:
        """Distances above gap + 0.1 m count as that: to know more would cost time."""
        problems, gap, mujoco = [], self._limits.gap, load_mujoco()
        for (first, second), pairs in zip(self._limits.apart, self._pairs, strict=True):
            near = min(mujoco.mj_geomDistance(self.model, self.data, a, b, gap + 0.1, None) for a, b in pairs)
            problems.append((gap - near, f"{first} {near:.3f} m from {second}, limit {gap:g}"))
        return problems


def _model(name: str) -> Any:
    mujoco = load_mujoco()
    try:
        if name in MODELS:
            return mujoco.MjModel.from_xml_string(MODELS[name]())
        if not Path(name).is_file():
            raise UserError(
                f"safety.workspace.model: {name!r} is neither a file nor a known model{suggest(name, MODELS)}"
            )
        return mujoco.MjModel.from_xml_path(name)
    except ValueError as error:
        raise UserError(f"safety.workspace.model: {name}: {' '.join(str(error).split())}") from None


def _id(model: Any, kind: str, name: str) -> int:
    """The number of a named part of the model."""
    mujoco = load_mujoco()
    kinds = mujoco.mjtObj
    number_of, count = {
        "body": (kinds.mjOBJ_BODY, model.nbody), "geom": (kinds.mjOBJ_GEOM, model.ngeom),
        "joint": (kinds.mjOBJ_JOINT, model.njnt), "site": (kinds.mjOBJ_SITE, model.nsite),
    }[kind]  # fmt: skip
    number = mujoco.mj_name2id(model, number_of, name)
    if number < 0:
        known = [mujoco.mj_id2name(model, number_of, i) or "" for i in range(count)]
        raise UserError(f"safety.workspace: the model has no {kind} {name!r}{suggest(name, known)}")
    return number


def _joints(model: Any, workspace: Workspace, channels: Sequence[Channel]) -> tuple[np.ndarray, ...]:
    """Which channels move which places of qpos, and how: qpos = target * scale + zero."""
    names = [channel.name for channel in channels]
    for name in workspace.joints:
        if name not in names:
            raise UserError(f"safety.workspace.joints.{name}: the robot has no such channel{suggest(name, names)}")
    rows = []
    for i, channel in enumerate(channels):
        if channel.kind == "position" and (joint := workspace.joints.get(channel.name, channel.name.split(".")[0])):
            number = _id(model, "joint", joint)
            low, high = model.jnt_range[number]
            scale = {"deg": math.pi / 180, "%": (high - low) / 100}.get(channel.unit, 1.0)
            rows.append((i, model.jnt_qposadr[number], scale, low if channel.unit == "%" else 0.0))
    table = np.array(rows, np.float64).reshape(-1, 4).T
    return table[0].astype(int), table[1].astype(int), table[2], table[3]


def _moving(model: Any, places: np.ndarray) -> np.ndarray:
    """The bodies that the channels move: those of the joints and all that hang on them."""
    moved = {int(model.jnt_bodyid[j]) for j in range(model.njnt) if model.jnt_qposadr[j] in places}
    for body in range(1, model.nbody):  # parents come before their children
        if int(model.body_parentid[body]) in moved:
            moved.add(body)
    return np.array(sorted(moved), int)


def _pair(model: Any, first: str, second: str) -> list[tuple[int, int]]:
    """Every geom of one body against every geom of another."""
    bodies = [_id(model, "body", name) for name in (first, second)]
    one, two = ([int(g) for g in np.flatnonzero(model.geom_bodyid == body)] for body in bodies)
    if not one or not two:
        raise UserError(f"safety.workspace.apart: {first if not one else second!r} has no shape")
    return [(a, b) for a in one for b in two]
