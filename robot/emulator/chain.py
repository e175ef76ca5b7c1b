"""The servos of one arm as a bus reaches them: an instruction goes to those it is for, and they answer in turn."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from robot.emulator import packets
from robot.emulator.faults import Faults
from robot.emulator.packets import Packet
from robot.emulator.record import Record
from robot.emulator.servo import Servo
from robot.emulator.trouble import trouble

WATCHED = ("Goal_Position", "Torque_Enable")


@dataclass(eq=False)
class Chain:
    """Six servos. `lock` is to be held by whoever reads or changes them."""

    arm: str  # follower, leader
    servos: Sequence[Servo]
    faults: Faults
    record: Record
    lock: threading.RLock = field(default_factory=threading.RLock)
    _troubled: bool = False

    def suffer(self) -> None:
        """Tells every servo what stands against it now."""
        with self.lock:
            if self._troubled or self.faults.any:
                self._troubled = self.faults.any
                for servo in self.servos:
                    servo.suffer(trouble(self.faults, servo.name, self.arm))

    def answers(self, packet: Packet, t: float) -> list[tuple[str, bytes]]:
        """What the servos say to an instruction that came at a time: (servo, bytes), in the order of their answers."""
        if self.faults.standing("silent", None, self.arm) or self.faults.standing("power", None, self.arm):
            return []
        said, written = [], {}
        with self.lock:
            for servo, part in self._addressed(packet):
                if self.faults.standing("dead", servo.name, self.arm):
                    continue
                if self.faults.strike("deaf", servo.name, self.arm):
                    continue
                answer, names = servo.answer(part)
                written[servo] = names
                if answer is not None and not self.faults.standing("mute", servo.name, self.arm):
                    said.append((servo.name, packets.encode(answer)))
            self._note(written, t)
        return said

    def _addressed(self, packet: Packet) -> Iterator[tuple[Servo, Packet]]:
        by_id = {servo.id: servo for servo in self.servos}
        if packet.code == packets.SYNC_WRITE:
            address, parts = packets.sync_writes(packet.params)
            for number, data in parts:
                if number in by_id:
                    part = Packet(packets.BROADCAST, packets.WRITE, bytes((address,)) + data)
                    yield by_id[number], part
        elif packet.code == packets.SYNC_READ:
            for number in packet.params[2:]:
                if number in by_id:
                    yield by_id[number], Packet(number, packets.READ, packet.params[:2])
        elif packet.id == packets.BROADCAST:
            yield from ((servo, packet) for _, servo in sorted(by_id.items()))
        elif packet.id in by_id:
            yield by_id[packet.id], packet

    def _note(self, written: dict[Servo, set[str]], t: float) -> None:
        goals = {s.name: s.user(WATCHED[0]) for s, names in written.items() if WATCHED[0] in names}
        torques = {s.name: bool(s.registers.get(WATCHED[1])) for s, names in written.items() if WATCHED[1] in names}
        if goals:
            self.record.event("goal", t, arm=self.arm, goal=goals)
        if torques:
            self.record.event("torque", t, arm=self.arm, torque=torques)
