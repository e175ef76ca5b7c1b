"""What lerobot's motor buses lack on a bench, put on from outside: their code stays as it is.

Guarded: a reply that comes late is taken for the next one, and so for ever (`clearPort` empties the output alone); an
exception in the middle of a packet leaves the port "in use"; time-outs go by the wall clock; servos jump to an old goal
when torque comes on; one servo that answers with an error leaves the others under torque.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from robot.motion.ports import claim

TRIES = 3  # for each servo that is to be made safe
SPEED_MODE = 1  # Operating_Mode of wheels, with Feetech and Dynamixel
HEALTH = {  # register -> name, and the factor to its unit
    "Present_Temperature": ("temperature", 1.0),  # deg C
    "Present_Voltage": ("voltage", 0.1),  # V
    "Present_Input_Voltage": ("voltage", 0.1),
    "Present_Load": ("load", 0.1),  # percent of the largest
    "Present_Current": ("current", {"feetech": 6.5e-3, "dynamixel": 1e-3}),  # A
}


def buses_of(device: Any) -> dict[str, Any]:
    """Every bus of a lerobot robot or teleoperator by the prefix of its motors' names: '', or left_ and right_."""
    from lerobot.motors.motors_bus import MotorsBusBase

    found = {}
    for name, part in vars(device).items():
        if isinstance(part, MotorsBusBase):
            found[""] = part
        elif name.endswith("_arm") and hasattr(part, "action_features"):
            found |= {name.removesuffix("arm") + prefix: bus for prefix, bus in buses_of(part).items()}
    return found


def guard(bus: Any) -> None:
    """Guards a serial bus; others are left as they are."""
    port = getattr(bus, "port_handler", None)
    if port is None:
        return

    port.__class__ = _guarded(type(port))
    enable = bus.enable_torque

    def enable_where_it_is(motors: Any = None, num_retry: int = 0) -> None:
        for motor in bus._get_motors_list(motors):
            _goal_here(bus, motor)
        enable(motors, num_retry=num_retry)

    bus.enable_torque = enable_where_it_is


def _guarded(kind: type) -> type:
    """An SDK's PortHandler without the three faults above, and alone at its port."""

    class Guarded(kind):
        # one thread uses it: the flag only ever says that an exception left it standing, and then blocks the bus
        is_using = property(lambda self: False, lambda self, value: None)

        def setupPort(self, cflag_baud: int) -> bool:  # noqa: N802
            opened = super().setupPort(cflag_baud)
            claim(self.ser.fileno(), self.port_name)
            return opened

        def clearPort(self) -> None:  # noqa: N802
            self.ser.reset_input_buffer()  # a reply that is still there answers an older question
            self.ser.flush()

        def getCurrentTime(self) -> float:  # noqa: N802
            return time.monotonic() * 1e3  # milliseconds; the SDK takes the wall clock

    return Guarded


def off(bus: Any) -> list[str]:
    """Torque off, all at once and then servo by servo. Never raises; opens the port where it is not open.

    Returns:
        One line for each servo that may still be under torque.
    """
    problem = _opened(bus)
    if problem:
        return [problem]
    if hasattr(bus, "port_handler"):
        _try(lambda: bus.sync_write("Torque_Enable", 0, normalize=False))  # one packet, not answered: the quickest
    return _each(bus, lambda motor: bus.disable_torque(motor), lambda motor: _torque_is_off(bus, motor))


def hold(bus: Any) -> list[str]:
    """Every goal becomes where the servo is now, every wheel's 0. As `off`; a servo that fails keeps its last goal."""
    problem = _opened(bus)
    return [problem] if problem else _each(bus, lambda motor: _goal_here(bus, motor), lambda motor: False)


def close(bus: Any) -> None:
    """Closes the port without a change to the torque. Never raises."""
    _try(lambda: bus.disconnect(disable_torque=False))


def ranges(bus: Any) -> dict[str, tuple[float, float]]:
    """The limits that the servos themselves keep, in the units of positions; of those that say them."""
    found = {}
    for motor in bus.motors if hasattr(bus, "port_handler") else ():
        limits = [bus.read(f"{end}_Position_Limit", motor, normalize=False, num_retry=1) for end in ("Min", "Max")]
        if motor in bus.calibration and limits[0] < limits[1]:
            number = bus.motors[motor].id
            ends = [bus._normalize({number: limit})[number] for limit in limits]
            found[motor] = (float(min(ends)), float(max(ends)))
    return found


def torque(bus: Any, prefix: str) -> dict[str, float]:
    """Who is under torque, all in one exchange: `{"shoulder_pan.torque": 1.0}`. Raises ConnectionError."""
    told = bus.sync_read("Torque_Enable", normalize=False)
    return {f"{prefix}{motor}.torque": float(value) for motor, value in told.items()}


def readings(bus: Any, prefix: str) -> Iterator[Callable[[], dict[str, float]]]:
    """Questions after the servos' health for ever, one reading each: `{"shoulder_pan.temperature": 31.0}`.

    A question raises ConnectionError when it is not answered. What an overloaded or overheated servo answers says so:
    then the reading is `{"shoulder_pan.error": 1.0}`.
    """
    maker = "dynamixel" if "ynamixel" in type(bus).__name__ else "feetech"
    table = [
        (motor, register, *HEALTH[register])
        for register in HEALTH
        for motor, about in bus.motors.items()
        if register in bus.model_ctrl_table[about.model]
    ]
    while table:
        for motor, register, name, factor in table:
            scale = factor[maker] if isinstance(factor, dict) else factor
            yield lambda motor=motor, register=register, name=name, scale=scale: _reading(
                bus, motor, register, f"{prefix}{motor}", name, scale
            )


def _reading(bus: Any, motor: str, register: str, servo: str, name: str, scale: float) -> dict[str, float]:
    try:
        value = abs(bus.read(register, motor, normalize=False)) * scale
    except RuntimeError:  # it answered with an error bit, as lerobot says it
        return {f"{servo}.error": 1.0}
    return {f"{servo}.{name}": float(value), f"{servo}.error": 0.0}


def _opened(bus: Any) -> str:
    """Opens the port without asking whether every servo is there: '' or what went wrong."""
    if bus.is_connected:
        return ""
    error = _try(lambda: bus.connect(handshake=False))
    return f"port {getattr(bus, 'port', '?')} cannot be opened: {error}" if error else ""


def _each(bus: Any, do: Callable[[str], Any], is_safe: Callable[[str], bool]) -> list[str]:
    """Does it to every servo; goes on after one that fails, and comes back to it."""
    left: Iterable[str] = list(bus.motors)
    errors: dict[str, str] = {}
    for _ in range(TRIES):
        errors = {motor: error for motor in left if (error := _try(lambda motor=motor: do(motor)))}
        left = [motor for motor in errors if not is_safe(motor)]
        if not left:
            return []
    return [f"{motor}: {errors[motor]}" for motor in left]


def _goal_here(bus: Any, motor: str) -> None:
    registers = bus.model_ctrl_table[bus.motors[motor].model]
    if "Operating_Mode" in registers and bus.read("Operating_Mode", motor, normalize=False) == SPEED_MODE:
        bus.write("Goal_Velocity", motor, 0, normalize=False)
    else:
        bus.write("Goal_Position", motor, bus.read("Present_Position", motor, normalize=False), normalize=False)


def _torque_is_off(bus: Any, motor: str) -> bool:
    """Whether it says so itself: one that reports an error may have done what it was told."""
    told: list[int] = []
    _try(lambda: told.append(bus.sync_read("Torque_Enable", motor, normalize=False)[motor]))
    return told == [0]


def _try(do: Callable[[], Any]) -> str:
    """What it raised, in one line; '' when it went well."""
    try:
        do()
    except Exception as error:  # drivers raise what they like, termios.error too
        return (str(error).strip() or type(error).__name__).splitlines()[0]
    return ""
