"""How a servo protects itself: too hot, too long overloaded, too low a voltage. The rest is only kept in registers."""

from __future__ import annotations

from robot.emulator.registers import Registers
from robot.emulator.trouble import Trouble

VOLTAGE, OVERHEAT, OVERLOAD = 1, 4, 32  # bits of the error byte
ROOM, HOT, WARMING = 28.0, 30.0, 120.0  # deg C; deg C more at full load, in the end; seconds
HOTTEST = 120.0  # deg C


class Protection:
    """Watches one servo's temperature and load."""

    def __init__(self, registers: Registers):
        self._registers, self.temperature = registers, ROOM
        self._overloaded, self._way, self._loaded_for, self._said = False, 0.0, 0.0, 0

    def step(self, load: float, seconds: float, trouble: Trouble) -> list[str]:
        """After some time under a load, -1 to 1 of what it could bear.

        Returns:
            What it did of its own, each in a word: `overheated`, `overloaded`.
        """
        aim = ROOM + HOT * load * load
        self.temperature += seconds * (trouble.heating or (aim - self.temperature) / WARMING)
        self.temperature = min(self.temperature, HOTTEST)
        get, put = self._registers.get, self._registers.put
        self._loaded_for = self._loaded_for + seconds if abs(load) > get("Overload_Torque") / 100 else 0.0
        if self._loaded_for > get("Protection_Time") / 100:
            self._overloaded, self._way = True, load
        now = self.error(trouble)
        begun, self._said = now & ~self._said, now
        put("Present_Temperature", round(self.temperature))
        put("Status", now)
        if now & OVERHEAT & get("Unloading_Condition"):
            put("Torque_Enable", 0)
        return [word for bit, word in ((OVERHEAT, "overheated"), (OVERLOAD, "overloaded")) if begun & bit]

    def error(self, trouble: Trouble) -> int:
        """The error byte of the servo's answers."""
        get = self._registers.get
        low = trouble.volts * 10 < get("Min_Voltage_Limit")
        hot = self.temperature > get("Max_Temperature_Limit")
        return VOLTAGE * low | OVERHEAT * hot | OVERLOAD * (self._overloaded or trouble.overload)

    def written(self, names: set[str]) -> None:
        """An overload ends when torque is switched, or a goal leads the other way."""
        get = self._registers.get
        back = (get("Goal_Position") - get("Present_Position")) * self._way < 0
        if "Torque_Enable" in names or ("Goal_Position" in names and back):
            self._overloaded, self._loaded_for = False, 0.0

    def cool(self) -> None:
        self.temperature = ROOM

    def restart(self) -> None:
        self._overloaded, self._loaded_for = False, 0.0
