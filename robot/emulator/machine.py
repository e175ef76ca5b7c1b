"""The whole emulator in one process: follower, leader, cameras, faults, and what can be asked of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from robot.emulator.arm import Arm
from robot.emulator.bus import Bus
from robot.emulator.calibration import calibration
from robot.emulator.camera import Cameras
from robot.emulator.chain import Chain
from robot.emulator.clock import Clock
from robot.emulator.faults import Fault, Faults, parse
from robot.emulator.kinds import KINDS
from robot.emulator.leader import Leader
from robot.emulator.record import Record
from robot.emulator.servo import Servo
from robot.so101 import WITHIN
from robot.so101_model import JOINTS
from robot.so101_scenes import JOBS
from vlrl.types import UserError

MOUNTS = {"follower": (112, -337, 256, -90, 41, 300), "leader": (-55, 210, -181, 333, 7, -120)}  # steps


@dataclass(frozen=True)
class Setup:
    """What is to be emulated."""

    folder: Path  # where the links to the ports and the control socket are made
    cameras: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # name -> width, height
    ports: Mapping[str, int] = field(default_factory=dict)  # of cameras; those that are missing are chosen
    fps: float = 30.0
    job: str = "touch"
    seed: int = 0
    calibrated: bool = True  # False: servos as they left the factory


class Machine:
    """Made running. To be closed.

    Raises:
        UserError: the setup cannot be.
    """

    def __init__(self, setup: Setup):
        if setup.job not in JOBS:
            raise UserError(f"job {setup.job!r}: must be one of {', '.join(JOBS)}")
        self.setup, self.faults, self.record = setup, Faults(setup.seed), Record()
        self.chains = {arm: self._chain(arm) for arm in MOUNTS}
        self.arm, self.leader = Arm(self.chains["follower"], setup.job, setup.seed), Leader(self.chains["leader"])
        self.cameras = Cameras(setup.cameras, setup.fps, setup.ports) if setup.cameras else None
        self.links = {"follower": setup.folder / "so101", "leader": setup.folder / "so101_leader"}
        self._buses = [Bus(self.chains[arm], link) for arm, link in self.links.items()]
        self._clock = Clock([self.arm, self.leader, *([_Shown(self)] if self.cameras else [])])
        for part in (*self._buses, self._clock):
            part.start()

    def _chain(self, arm: str) -> Chain:
        servos = [Servo(i, mount, self.setup.calibrated) for i, mount in enumerate(MOUNTS[arm])]
        return Chain(arm, servos, self.faults, self.record)

    def about(self) -> dict[str, Any]:
        """Where to find what."""
        cameras = {name: [*size, self.cameras.ports[name]] for name, size in self.setup.cameras.items()}
        return {"port": str(self.links["follower"]), "leader_port": str(self.links["leader"]), "cameras": cameras}

    def fault(self, **options: Any) -> dict[str, Any]:
        """Begins a fault (`robot.emulator.faults`)."""
        fault = parse(options)
        if fault.camera not in (None, *self.setup.cameras):
            raise UserError(f"fault {fault.kind}: no camera {fault.camera!r} (there are: {list(self.setup.cameras)})")
        if fault.kind == "reset":
            self._reset(fault)
        else:
            fault = self.faults.add(fault)
        self.chains[fault.arm].suffer()
        said = {key: value for key, value in asdict(fault).items() if value not in (None, math.inf)}
        self.record.event("fault", **said)
        return said

    def _reset(self, fault: Fault) -> None:
        chain = self.chains[fault.arm]
        with chain.lock:
            for servo in chain.servos:
                if fault.servo in (None, servo.name):
                    servo.restart()

    def clear(self, kind: str | None = None) -> list[str]:
        """Ends every fault, or those of a kind -> the kinds that ended."""
        if kind is not None and kind not in KINDS:
            raise UserError(f"clear: unknown fault {kind!r}: must be one of {', '.join(KINDS)}")
        ended = [fault.kind for fault in self.faults.clear(kind)]
        for chain in self.chains.values():
            chain.suffer()
        self.record.event("clear", kinds=ended)
        return ended

    def scene(self, seed: int) -> dict[str, Any]:
        """Lays the disc and the arm as this scene begins, as if by hand."""
        with self.arm.chain.lock:
            self.arm.set_scene(seed)
        self.record.event("scene", seed=seed)
        return {"seed": seed, "goal": list(self.arm.scene.goal), "instruction": self.arm.scene.instruction}

    def truth(self) -> dict[str, Any]:
        """How things really stand, whatever the servos say; angles in degrees, the gripper in percent."""
        if self._clock.fault:
            raise UserError(self._clock.fault)
        with self.arm.chain.lock:
            servos, tip, pose = self.arm.chain.servos, self.arm.tip(), self.arm.pose()
            distance = float(np.linalg.norm(tip - self.arm.scene.goal))
            get = lambda name: {each.name: each.registers.get(name) for each in servos}  # noqa: E731
            return {
                "success": distance < WITHIN,
                "distance": distance,
                "tip": tip.tolist(),
                "goal": list(self.arm.scene.goal),
                "seed": self.arm.scene.seed,
                "qpos_deg": dict(zip(JOINTS, pose.tolist(), strict=True)),
                "goal_deg": {each.name: each.user("Goal_Position") for each in servos},
                "torque": {each.name: each.holds for each in servos},
                "temperature": get("Present_Temperature"),
                "faults": [fault.kind for fault in self.faults.all()],
            }

    def lead(self, path: list[tuple[float, list[float]]]) -> None:
        """Moves the leader's hand through poses (`robot.emulator.leader.Leader.lead`)."""
        with self.leader.chain.lock:
            self.leader.lead(path)

    def stats(self) -> dict[str, Any]:
        """What it costs: share of a core for the physics, seconds not simulated, pictures a second."""
        rates = self.cameras.rates() if self.cameras else {}
        return {"physics": self._clock.share(), "lost": self._clock.lost, "fps": rates}

    def calibration(self, arm: str) -> dict[str, Any]:
        """What lerobot's calibration file of an arm says."""
        if arm not in self.chains:
            raise UserError(f"calibration: arm {arm!r}: must be one of {', '.join(self.chains)}")
        return calibration(self.chains[arm].servos)

    def close(self) -> None:
        self._clock.close()
        for bus in self._buses:
            bus.close()
        if self.cameras:
            self.cameras.close()


class _Shown:
    """Shows the cameras how the arm stands, and what is wrong with them, after each move."""

    def __init__(self, machine: Machine):
        self._machine, self.chain, self._said = machine, machine.arm.chain, None

    def advance(self, steps: int) -> None:
        data, cameras = self._machine.arm.data, self._machine.cameras
        cameras.show(data.qpos, data.mocap_pos[0])
        wrong = {
            kind: [f.camera or name for name in cameras.ports for f in self._machine.faults.all() if f.kind == kind]
            for kind in ("freeze", "black", "stop")
        }
        if wrong != self._said:
            cameras.trouble(wrong)
            self._said = wrong
