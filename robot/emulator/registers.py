"""The registers of an STS3215: names, addresses, what is kept without power, numbers with a sign bit.

Source: Feetech's memory table of the STS series, as in lerobot's `motors/feetech/tables.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

SIZE, EPROM = 256, 40  # bytes; below this address they outlive a loss of power
FIXED = (range(0, 5), range(56, 70))  # read-only: firmware and model, what is measured
MODEL, FIRMWARE = 777, (3, 10)


@dataclass(frozen=True)
class Register:
    address: int
    size: int = 1  # bytes
    sign: int | None = None  # the bit that says minus, the bits below it are the magnitude
    factory: int = 0


TABLE = {
    "Firmware_Major_Version": Register(0, factory=FIRMWARE[0]),
    "Firmware_Minor_Version": Register(1, factory=FIRMWARE[1]),
    "Model_Number": Register(3, 2, factory=MODEL),
    "ID": Register(5, factory=1),
    "Baud_Rate": Register(6),
    "Return_Delay_Time": Register(7, factory=250),
    "Response_Status_Level": Register(8, factory=1),
    "Min_Position_Limit": Register(9, 2),
    "Max_Position_Limit": Register(11, 2, factory=4095),
    "Max_Temperature_Limit": Register(13, factory=70),
    "Max_Voltage_Limit": Register(14, factory=140),
    "Min_Voltage_Limit": Register(15, factory=80),
    "Max_Torque_Limit": Register(16, 2, factory=1000),
    "Phase": Register(18, factory=12),
    "Unloading_Condition": Register(19, factory=44),
    "LED_Alarm_Condition": Register(20, factory=47),
    "P_Coefficient": Register(21, factory=32),
    "D_Coefficient": Register(22, factory=32),
    "I_Coefficient": Register(23),
    "Minimum_Startup_Force": Register(24, 2, factory=16),
    "CW_Dead_Zone": Register(26, factory=1),
    "CCW_Dead_Zone": Register(27, factory=1),
    "Protection_Current": Register(28, 2, factory=500),
    "Angular_Resolution": Register(30, factory=1),
    "Homing_Offset": Register(31, 2, 11),
    "Operating_Mode": Register(33),
    "Protective_Torque": Register(34, factory=20),
    "Protection_Time": Register(35, factory=200),
    "Overload_Torque": Register(36, factory=80),
    "Torque_Enable": Register(40),
    "Acceleration": Register(41),
    "Goal_Position": Register(42, 2, 15),
    "Goal_Time": Register(44, 2),
    "Goal_Velocity": Register(46, 2, 15),
    "Torque_Limit": Register(48, 2, factory=1000),
    "Lock": Register(55, factory=1),
    "Present_Position": Register(56, 2, 15),
    "Present_Velocity": Register(58, 2, 15),
    "Present_Load": Register(60, 2, 10),
    "Present_Voltage": Register(62, factory=120),
    "Present_Temperature": Register(63, factory=28),
    "Status": Register(65),
    "Moving": Register(66),
    "Present_Current": Register(69, 2, 15),
    "Maximum_Acceleration": Register(85, factory=254),
}


class Registers:
    """The memory of one servo. Numbers are raw: steps, tenths of volts, per mille."""

    def __init__(self) -> None:
        self._memory, self._kept = bytearray(SIZE), bytearray(SIZE)
        for name, register in TABLE.items():
            self.put(name, register.factory)
        self._kept[:] = self._memory

    def get(self, name: str) -> int:
        register = TABLE[name]
        raw = int.from_bytes(self._memory[register.address : register.address + register.size], "little")
        if register.sign is None:
            return raw
        magnitude = raw & ((1 << register.sign) - 1)
        return -magnitude if raw >> register.sign & 1 else magnitude

    def put(self, name: str, value: int, *, keep: bool = False) -> None:
        """Sets a register from inside, cut to what it holds; with `keep` also what a loss of power leaves."""
        register = TABLE[name]
        bits = 8 * register.size if register.sign is None else register.sign
        raw = min(abs(int(value)) if register.sign else max(int(value), 0), (1 << bits) - 1)
        raw |= (1 << register.sign) if register.sign and value < 0 else 0
        where = slice(register.address, register.address + register.size)
        self._memory[where] = raw.to_bytes(register.size, "little")
        if keep:
            self._kept[where] = self._memory[where]

    def read(self, address: int, size: int) -> bytes:
        """As many bytes from an address; beyond the memory there are zeros."""
        return bytes(self._memory[address : address + size]).ljust(size, b"\0")

    def write(self, address: int, data: bytes) -> set[str]:
        """What the bus writes: read-only bytes stay. Kept without power only while the lock is open.

        Returns:
            The names of the registers that were written, changed or not.
        """
        keep = not self.get("Lock")
        for where, byte in enumerate(data[: SIZE - address], address):
            if not any(where in fixed for fixed in FIXED):
                self._memory[where] = byte
                if keep:
                    self._kept[where] = byte
        written = range(address, address + len(data))
        return {name for name, register in TABLE.items() if register.address in written}

    def restart(self) -> None:
        """Power came back: what is kept as it was kept, the rest as at the factory."""
        self._memory[:EPROM] = self._kept[:EPROM]
        for name, register in TABLE.items():
            if register.address >= EPROM:
                self.put(name, register.factory)
        self.put("Torque_Limit", self.get("Max_Torque_Limit"))
