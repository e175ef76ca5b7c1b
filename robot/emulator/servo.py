"""One STS3215: what it measures, what it holds, what it answers. No clock of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass

from robot import so101_model as arm
from robot.emulator import packets
from robot.emulator.encoder import TURN, Encoder
from robot.emulator.packets import Packet
from robot.emulator.protection import OVERLOAD, Protection
from robot.emulator.registers import Registers
from robot.emulator.trouble import VOLTS, Trouble

STALL = 2.7 / 0.0065  # steps of current at stall (2.7 A)


@dataclass(frozen=True)
class Law:
    """What a servo does now: torque = stiffness * (target - angle), at most limit."""

    target: float = 0.0  # rad
    stiffness: float = 0.0  # N m / rad; 0: limp
    limit: float = arm.TORQUE  # N m
    believed: float | None = None  # rad: the angle that it takes for its own, where that is not the true one


class Servo:
    """A servo of a joint.

    Args:
        joint: its place in `so101_model.JOINTS`; its id is one more.
        mount: steps by which its horn sits askew, which the calibrated homing offset undoes.
        calibrated: whether its memory holds its calibration, or what it left the factory with.
    """

    def __init__(self, joint: int, mount: int, calibrated: bool = True):
        self.name, self.encoder = arm.JOINTS[joint], Encoder(arm.JOINTS[joint], mount)
        self.registers, self.trouble = Registers(), Trouble()
        self.registers.put("ID", joint + 1, keep=True)
        if calibrated:
            names, values = ("Homing_Offset", "Min_Position_Limit", "Max_Position_Limit"), (mount, *self.encoder.range)
            for name, value in zip(names, values, strict=True):
                self.registers.put(name, value, keep=True)
        self.protection = Protection(self.registers)
        self._asked, self._setpoint, self._pending = False, 0.0, b""

    @property
    def id(self) -> int:
        return self.registers.get("ID")

    @property
    def holds(self) -> bool:
        """Whether there is torque at its joint."""
        return bool(self.registers.get("Torque_Enable")) and self.trouble.powered and not self.trouble.limp

    def raw(self, degrees: float) -> int:
        """Present steps of a joint angle."""
        return self.encoder.raw(degrees, self.registers.get("Homing_Offset"))

    def user(self, register: str) -> float:
        """A position register as lerobot says it."""
        return self.encoder.user(self.registers.get(register), self.registers.get("Homing_Offset"))

    def sense(self, degrees: float, speed: float, torque: float, seconds: float) -> list[str]:
        """What it measures after some time at an angle, speed (degrees a second) and own torque (N m).

        Returns:
            What it did of its own, each in a word: `overheated`, `overloaded`.
        """
        put, load = self.registers.put, torque / arm.TORQUE
        if not self.trouble.stuck:
            put("Present_Position", self.raw(degrees))
            put("Present_Velocity", round(speed * TURN / 360))
        put("Present_Load", round(1000 * load))
        put("Present_Current", round(STALL * load))
        put("Moving", abs(speed) > 1)
        put("Present_Voltage", round(10 * self.trouble.volts))
        return self.protection.step(load, seconds, self.trouble)

    def error(self) -> int:
        """The error byte of its answers."""
        return self.protection.error(self.trouble)

    def law(self, seconds: float) -> Law:
        """What it does in the next so many seconds."""
        get = self.registers.get
        if not self.holds:
            return Law()
        goal = float(min(max(get("Goal_Position"), get("Min_Position_Limit")), get("Max_Position_Limit")))
        most = abs(get("Goal_Velocity")) * seconds
        step = goal - self._setpoint
        self._setpoint += min(max(step, -most), most) if most else step
        share = min(get("Max_Torque_Limit"), get("Torque_Limit")) / 1000 * min(self.trouble.volts / VOLTS, 1.0)
        if self.error() & OVERLOAD:
            share = min(share, get("Protective_Torque") / 100)
        believed = self._radians(get("Present_Position")) if self.trouble.stuck else None
        stiffness = arm.KP * get("P_Coefficient") / 16
        return Law(self._radians(self._setpoint), stiffness, share * arm.TORQUE, believed)

    def _radians(self, raw: float) -> float:
        return math.radians(self.encoder.degrees(raw, self.registers.get("Homing_Offset")))

    def write(self, address: int, data: bytes) -> set[str]:
        """A write from the bus -> the registers written."""
        was = self.registers.get("Torque_Enable")
        written = self.registers.write(address, data)
        self.protection.written(written)
        if "Goal_Position" in written:
            self._asked = True
        if "Torque_Enable" in written and not self.registers.get("Torque_Enable"):
            self._asked = False
        if self.registers.get("Torque_Enable") and not was:
            self._hold()
        return written

    def _hold(self) -> None:
        """Torque came on: it holds where it is, unless it has been told where to go since torque went off."""
        self._setpoint = float(self.registers.get("Present_Position"))
        if not self._asked:
            self.registers.put("Goal_Position", round(self._setpoint))

    def goal(self, degrees: float) -> None:
        """Asks for an angle from inside; whether it has torque stays."""
        self.registers.put("Goal_Position", self.raw(degrees))
        self._setpoint, self._asked = float(self.registers.get("Goal_Position")), False

    def suffer(self, trouble: Trouble) -> None:
        """Takes over what is wrong with it from now on."""
        was, self.trouble = self.trouble, trouble
        if was.heating and not trouble.heating:
            self.protection.cool()
        if was.powered and not trouble.powered:
            self.restart()
        if trouble.released:
            self.registers.put("Torque_Enable", 0)

    def restart(self) -> None:
        """Power came back: torque is off."""
        self.registers.restart()
        self.protection.restart()
        self._asked, self._pending = False, b""

    def answer(self, packet: Packet) -> tuple[Packet | None, set[str]]:
        """What it says to an instruction for it, and the registers that this wrote. Malformed ones it passes over."""
        params, written, said, error = packet.params, set(), b"", self.error()
        if packet.code == packets.READ and len(params) == 2:
            said = self.registers.read(*params)
        elif packet.code == packets.WRITE and len(params) >= 2:
            written = self.write(params[0], params[1:])
        elif packet.code == packets.REG_WRITE and len(params) >= 2:
            self._pending = params
        elif packet.code == packets.ACTION:
            written = self.write(self._pending[0], self._pending[1:]) if self._pending else set()
            self._pending = b""
        elif packet.code != packets.PING:
            return None, set()
        mute = packet.id == packets.BROADCAST and packet.code != packets.PING
        return (None if mute else Packet(self.id, error, said)), written
