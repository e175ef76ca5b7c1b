"""The follower: MuJoCo's arm moved by six servos, and the scene that it stands in."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from robot import so101_model as model
from robot.emulator.chain import Chain
from robot.simulation import advance, load_mujoco
from robot.so101_scenes import scene

JAMMED = 50.0  # N m of friction


class Arm:
    """A simulated arm. Its methods are to be called by one thread at a time or with the chain's lock held."""

    def __init__(self, chain: Chain, job: str, seed: int):
        self.chain, self.job = chain, job
        self.model: Any = load_mujoco().MjModel.from_xml_string(model.xml())
        self.data: Any = load_mujoco().MjData(self.model)
        self.scene = scene(job, seed)
        self.set_scene(seed)

    def set_scene(self, seed: int) -> None:
        """Lays the disc and puts the arm where this scene begins, as if by hand: at rest, with that as its goal."""
        self.scene = scene(self.job, seed)
        load_mujoco().mj_resetData(self.model, self.data)
        self.data.qpos[:] = model.to_radians(np.array(self.scene.start))
        self.data.mocap_pos[0] = (*self.scene.goal[:2], 0.0)
        for servo, degrees in zip(self.chain.servos, np.degrees(self.data.qpos), strict=True):
            servo.goal(float(degrees))
        self._sense(0.0)

    def advance(self, steps: int) -> None:
        """As many steps of physics, under what the servos do now."""
        self.chain.suffer()
        for i, servo in enumerate(self.chain.servos):
            law = servo.law(steps * model.STEP)
            blind = law.believed is not None
            self.model.actuator_gainprm[i, 0] = law.stiffness
            self.model.actuator_biasprm[i, 1] = 0.0 if blind else -law.stiffness
            self.model.dof_frictionloss[i] = JAMMED if servo.trouble.jammed else model.FRICTION
            self.model.actuator_forcerange[i] = (-law.limit, law.limit)
            self.data.ctrl[i] = law.target - (law.believed if blind else 0.0)
        advance(self.model, self.data, steps)
        self._sense(steps * model.STEP)
        self.chain.record.sample(time.monotonic(), tuple(self.pose().tolist()))

    def _sense(self, seconds: float) -> None:
        degrees, speeds, torques = np.degrees(self.data.qpos), np.degrees(self.data.qvel), self.data.actuator_force
        for servo, *now in zip(self.chain.servos, degrees.tolist(), speeds.tolist(), torques.tolist(), strict=True):
            for did in servo.sense(*now, seconds):
                self.chain.record.event(did, arm=self.chain.arm, servo=servo.name)

    def pose(self) -> np.ndarray:
        """Where the joints truly are, float64 [6], degrees and percent."""
        return model.to_user(self.data.qpos.copy())

    def tip(self) -> np.ndarray:
        """float64 [3], metres."""
        load_mujoco().mj_kinematics(self.model, self.data)
        return self.data.site("grip").xpos.copy()
