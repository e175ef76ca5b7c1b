"""Between a joint's angle and the steps that a servo counts. Pure functions of the joint and how its horn sits.

Steps are present steps: those of the encoder less the homing offset, as the bus says them. A calibrated joint has
2047.5 in the middle of its range.
"""

from __future__ import annotations

from dataclasses import dataclass

from robot import so101_model as arm

TURN, MIDDLE = 4096, 2047.5  # steps


@dataclass(frozen=True)
class Encoder:
    name: str  # of the joint
    mount: int  # steps by which the horn sits askew: the homing offset that calibration finds

    @property
    def limits(self) -> tuple[float, float]:
        """Degrees."""
        low, high = arm.LIMITS[arm.JOINTS.index(self.name)].tolist()
        return low, high

    @property
    def range(self) -> tuple[int, int]:
        """The position limits that calibration finds, in steps. To the wrist's roll lerobot gives the whole turn."""
        low, high = self.limits
        half = 2047 if self.name == "wrist_roll" else round((high - low) / 2 * TURN / 360)
        return 2047 - half, 2048 + half

    def raw(self, degrees: float, homing: int) -> int:
        """The steps of an angle."""
        turned = (degrees - sum(self.limits) / 2) * TURN / 360
        return int((MIDDLE + 0.5 + turned + self.mount - homing) // 1) % TURN

    def degrees(self, raw: float, homing: int) -> float:
        """The angle of steps."""
        return sum(self.limits) / 2 + (raw + homing - self.mount - MIDDLE) * 360 / TURN

    def user(self, raw: float, homing: int) -> float:
        """Steps as lerobot says them: degrees, and the gripper's opening in percent."""
        degrees, (low, high) = self.degrees(raw, homing), self.limits
        return 100 * (degrees - low) / (high - low) if self.name == "gripper" else degrees
