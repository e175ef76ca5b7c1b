"""Arms that lerobot drives."""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import importlib
import inspect
import os
import pkgutil
import stat
import termios
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, starmap
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from robot.types import Channel, RobotDriver, RobotState
from vlrl.io import hold as leases_hold
from vlrl.plugins import load_plugin
from vlrl.system.clock import boottime
from vlrl.types import UserError, suggest

# The bodies that come with the package, by name. Imports none of them, so no driver and no simulator.

BODIES = MappingProxyType(
    {
        "simulated": "robot.drivers.simulated:Simulated",
        "lerobot": "robot.drivers.lerobot:LerobotBody",
        "replay": "robot.drivers.simulated:ReplayDriver",
    }
)


def make_driver(name: str, options: Mapping[str, Any]) -> RobotDriver:
    """A body by its name in BODIES, or as `my_module:MyBody` from anywhere on the Python path. It takes nothing yet.

    Raises:
        UserError: there is no such body, it does not take one of the options, or it cannot be made of them.
    """
    driver = _find(BODIES.get(name, name))
    known = inspect.signature(driver).parameters
    open_ended = any(each.kind is each.VAR_KEYWORD for each in known.values())
    named = [each.name for each in known.values() if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
    for option in options:
        if option not in known and not open_ended:
            raise UserError(f"robot.{option}: {name} has no such option{suggest(option, named)}")
    for each in known.values():
        if each.default is each.empty and each.name in named and each.name not in options:
            raise UserError(f"robot.{each.name}: is required for {name}")
    return driver(**options)


def _find(target: str) -> Any:
    module, colon, attribute = target.partition(":")
    if not (colon and module and attribute.isidentifier()):
        raise UserError(f"robot.name: unknown body {target!r}{suggest(target, [*BODIES, 'my_module:MyBody'])}")
    return load_plugin("body", target, "robot.name")


# The lease of a serial port: two processes that write to one bus would exchange their packets.

FOLDER = Path("/tmp/vlrl-ports")  # one for all users and whatever TMPDIR says
PTYS = "/dev/pts/"


@contextlib.contextmanager
def hold_ports(options: Mapping[str, Any], what: str) -> Iterator[list[int]]:
    """Holds every serial port that a robot's options name -> descriptors, for children that use the ports.

    Args:
        what: the options' key, as the error names it.

    Raises:
        UserError: another process holds one of them.
    """
    with contextlib.ExitStack() as stack:
        remedy = "end it first, or name another port"
        files = [(port, _lease_file(port, what)) for port in ports_of(options)]
        yield [stack.enter_context(leases_hold(file, f"{what}: port {port}", remedy)) for port, file in files]


def ports_of(options: Mapping[str, Any]) -> list[str]:
    """The serial ports in a robot's options: `port`, or `port` of one of its arms. Addresses of networks are none."""
    ports = []
    for name, value in options.items():
        if isinstance(value, Mapping):
            ports += ports_of(value)
        elif (name == "port" or name.endswith("_port")) and isinstance(value, str) and _is_device(value):
            ports.append(value)
    return ports


def claim(descriptor: int, port: str) -> None:
    """No other program of this user's can open the port from now on (TIOCEXCL); root's can, hence the lease.

    A pty is left as it is: it stays claimed when whoever claimed it was killed, and the guardian could not open it.
    """
    if not os.path.realpath(port).startswith(PTYS):
        fcntl.ioctl(descriptor, termios.TIOCEXCL)


def _is_device(path: str) -> bool:
    try:
        return stat.S_ISCHR(os.stat(path).st_mode)
    except OSError:  # the driver says what is wrong with it
        return False


def _lease_file(port: str, what: str) -> Path:
    """By the port's real path: a link in /dev/serial/by-id is the same port."""
    try:
        FOLDER.mkdir(exist_ok=True)
        with contextlib.suppress(PermissionError):  # another user made it
            FOLDER.chmod(0o1777)
    except OSError as error:
        raise UserError(f"{what}: {FOLDER} cannot be made: {error.strerror}") from None
    return FOLDER / f"{os.path.realpath(port).strip('/').replace('/', '-')}.lease"


# What lerobot's motor buses lack on a bench, put on from outside: their code stays as it is.
#
# Guarded: a reply that comes late is taken for the next one, and so for ever (`clearPort` empties the output alone); an
# exception in the middle of a packet leaves the port "in use"; time-outs go by the wall clock; servos jump to an old
# goal
# when torque comes on; one servo that answers with an error leaves the others under torque.

TRIES = 3  # for each servo that is to be made safe
SPEED_MODE = 1  # Operating_Mode of wheels, with Feetech and Dynamixel
WATCHDOG, WATCHDOG_UNIT, WATCHDOG_LARGEST = "Bus_Watchdog", 0.02, 127  # register, seconds of a unit, units
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

    buses = {}
    for name, part in vars(device).items():
        if isinstance(part, MotorsBusBase):
            buses[""] = part
        elif name.endswith("_arm") and hasattr(part, "action_features"):
            buses |= {name.removesuffix("arm") + prefix: bus for prefix, bus in buses_of(part).items()}
    return buses


def is_serial(bus: Any) -> bool:
    """Whether a bus is one of servos on a serial port, as Feetech's and Dynamixel's; others may be CAN."""
    return hasattr(bus, "port_handler")


def port_of(bus: Any) -> str:
    return str(getattr(bus, "port", "?"))


def guard(bus: Any) -> None:
    """Guards a serial bus; others are left as they are."""
    if not is_serial(bus):
        return
    port = bus.port_handler
    port.__class__ = _guarded(type(port))
    enable = bus.enable_torque

    def enable_where_it_is(motors: Any = None, num_retry: int = 0) -> None:
        for motor in bus._get_motors_list(motors):
            _goal_here(bus, motor)
        enable(motors, num_retry=num_retry)

    bus.enable_torque = enable_where_it_is


def watch(bus: Any, motors: Iterable[str], seconds: float) -> None:
    """Sets the Bus Watchdog of the servos that have one: without an instruction for so long, they stop where they are.

    One that has stopped refuses goals, also the next program's, until it is set to 0. Source: e-manual of the Dynamixel
    X series, address 98. One packet that is not answered: firmware below 38 knows no such register.

    Args:
        seconds: 0.02 to 2.54; 0: off.
    """
    units = min(WATCHDOG_LARGEST, round(seconds / WATCHDOG_UNIT))
    values = {name: units for name in motors if WATCHDOG in bus.model_ctrl_table[bus.motors[name].model]}
    if values:
        bus.sync_write(WATCHDOG, values, normalize=False)


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
    if is_serial(bus):
        _try(lambda: bus.sync_write("Torque_Enable", 0, normalize=False))  # one packet, not answered: the quickest
        _try(lambda: watch(bus, bus.motors, 0))
    return _each(bus, lambda motor: bus.disable_torque(motor), lambda motor: _torque_is_off(bus, motor))


def hold(bus: Any) -> list[str]:
    """Every goal becomes where the servo is now, every wheel's 0. As `off`; a servo that fails keeps its last goal."""
    problem = _opened(bus)
    return [problem] if problem else _each(bus, lambda motor: _goal_here(bus, motor), lambda motor: False)


def close_bus(bus: Any) -> None:
    """Closes the port without a change to the torque. Never raises."""
    _try(lambda: bus.disconnect(disable_torque=False))


def ranges(bus: Any) -> dict[str, tuple[float, float]]:
    """The limits that the servos themselves keep, in the units of positions; of those that say them."""
    limits_of = {}
    for motor in bus.motors if is_serial(bus) else ():
        limits = [bus.read(f"{end}_Position_Limit", motor, normalize=False, num_retry=1) for end in ("Min", "Max")]
        if motor in bus.calibration and limits[0] < limits[1]:
            number = bus.motors[motor].id
            ends = [bus._normalize({number: limit})[number] for limit in limits]
            limits_of[motor] = (float(min(ends)), float(max(ends)))
    return limits_of


def torque(bus: Any, prefix: str) -> dict[str, float]:
    """Who is under torque, all in one exchange: `{"shoulder_pan.torque": 1.0}`. Raises ConnectionError."""
    values = bus.sync_read("Torque_Enable", normalize=False)
    return {f"{prefix}{motor}.torque": float(value) for motor, value in values.items()}


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
    return f"port {port_of(bus)} cannot be opened: {error}" if error else ""


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
    watch(bus, [motor], 0)  # of a process that was killed: no goal is taken before
    registers = bus.model_ctrl_table[bus.motors[motor].model]
    if "Operating_Mode" in registers and bus.read("Operating_Mode", motor, normalize=False) == SPEED_MODE:
        bus.write("Goal_Velocity", motor, 0, normalize=False)
    else:
        bus.write("Goal_Position", motor, bus.read("Present_Position", motor, normalize=False), normalize=False)


def _torque_is_off(bus: Any, motor: str) -> bool:
    """Whether it says so itself: one that reports an error may have done what it was told."""
    values: list[int] = []
    _try(lambda: values.append(bus.sync_read("Torque_Enable", motor, normalize=False)[motor]))
    return values == [0]


def _try(do: Callable[[], Any]) -> str:
    """What it raised, in one line; '' when it went well."""
    try:
        do()
    except Exception as error:  # drivers raise what they like, termios.error too
        return (str(error).strip() or type(error).__name__).splitlines()[0]
    return ""


# A robot of lerobot from its configuration's name and options, made by lerobot itself.


def make_lerobot_robot(kind: str, options: Mapping[str, Any]) -> Any:
    """`lerobot.robots.Robot` of a type and the options of its configuration; nothing is connected.

    Cameras that the options do not name are not opened. A read that fails is not repeated by the driver unless the
    options say so: each try takes longer than a tick, and the motion process asks again at the next one.

    Raises:
        UserError: lerobot is missing, there is no such type, or an option is wrong.
    """
    try:
        import draccus
        from lerobot.robots import RobotConfig, make_robot_from_config
    except ImportError as error:
        raise UserError(f"robot: needs lerobot: pip install 'vlrl[robot]' ({_line(error)})") from None
    config = _config_class(RobotConfig, kind)
    if "num_read_retries" in config.__dataclass_fields__:
        options = {"num_read_retries": 0} | dict(options)
    for name in options:
        if name not in config.__dataclass_fields__:
            raise UserError(
                f"robot.{name}: {kind} has no such option{suggest(name, list(config.__dataclass_fields__))}"
            )
    try:
        robot = make_robot_from_config(draccus.decode(config, dict(options)))
        if "cameras" not in options and robot.cameras and buses_of(robot):  # set by default, and separate from the bus
            robot = make_robot_from_config(draccus.decode(config, dict(options) | {"cameras": {}}))
        return robot
    except Exception as error:  # draccus and the robots' own checks raise what they like
        raise UserError(f"robot: {kind} cannot be made: {_line(error)}") from None


def drive_of(drive: str) -> Literal["position", "speed"]:
    """Raises UserError where it is neither."""
    if drive not in ("position", "speed"):
        raise UserError(f"robot.drive: {drive!r}: must be position or speed")
    return drive


def _config_class(configs: Any, kind: str) -> Any:
    """Imports lerobot's robots, the likeliest first, until one of them knows the name; then other people's packages."""
    import lerobot.robots

    modules = [each.name for each in pkgutil.iter_modules(lerobot.robots.__path__) if each.ispkg]
    modules.sort(key=lambda name: -difflib.SequenceMatcher(None, name, kind).ratio())
    for module in [f"lerobot.robots.{name}" for name in modules] + [None]:
        if kind in configs.get_known_choices():
            return configs.get_choice_class(kind)
        _load(module)
    if kind in configs.get_known_choices():
        return configs.get_choice_class(kind)
    raise UserError(f"robot.type: lerobot has no {kind!r}{suggest(kind, list(configs.get_known_choices()))}")


def _load(module: str | None) -> None:
    """A robot whose own libraries are missing does not stand in the way of the others."""
    from lerobot.utils.import_utils import register_third_party_plugins

    try:
        importlib.import_module(module) if module else register_third_party_plugins()
    except ImportError:
        return


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


# Every robot that lerobot drives, as a body, by the name of its configuration.

READINGS = 40.0  # of the servos' health a second, at most one a tick
CONNECTS = 3  # tries, where there is a port
NEWS = 0.1  # share by which a number of a servo's health changed that is asked for again
HANG_S = 1.0  # without a packet: the servos stop, as the guardian ends a process that hangs for so long
ENOUGH = 0.005  # seconds: below that, a tick has no room for a reading


class LerobotBody(RobotDriver):
    """A robot of lerobot (`robot.types.RobotDriver`). Actions go through its own `send_action`.

    The state is the numbers of `get_observation` in the robot's order, the channels those of `action_features`. Cameras
    are best left out here: what a camera delays would delay the arm.

    Args:
        type: lerobot's name for it, for example so101_follower.
        hz: ticks a second.
        drive: `speed`: plans say degrees (or whatever the unit is) a second instead of positions.
        options: of that robot's configuration (port, id, calibration_dir, use_degrees, left_arm_config, ...).

    Raises:
        UserError: lerobot is missing, there is no such robot, or it cannot be made of these options.
    """

    def __init__(self, *, type: str, hz: float = 30.0, drive: str = "position", **options: Any):
        self.drive, self.hz = drive_of(drive), float(hz)
        if not 1 <= self.hz <= 1000:
            raise UserError(f"robot.hz: {hz:g}: must be 1 to 1000 ticks a second")
        self._type, self._robot = type, make_lerobot_robot(type, options)
        self._buses = buses_of(self._robot)
        for bus in self._buses.values():
            guard(bus)
        self.channels = tuple(self._channel(name) for name in self._robot.action_features)
        features = self._robot.observation_features
        self.names = tuple(name for name, kind in features.items() if not isinstance(kind, tuple))
        self._pictures = tuple(name for name, kind in features.items() if isinstance(kind, tuple) and kind[-1] == 3)
        self.at_exit = "off" if getattr(self._robot.config, "disable_torque_on_disconnect", True) else "hold"
        self.at_fault: Literal["hold", "off"] = "off"
        self._health: dict[str, float] = {}
        self._questions: Iterator[Any] = iter(())
        self._torque: list[Any] = []
        self._last_request = 0.0
        self._unwatched = [bus for bus in self._buses.values() if is_serial(bus)]

    def connect(self) -> None:
        """Raises UserError: no such port, servos are missing, or it is not calibrated; nobody is asked anything."""
        if not self._connected():
            raise UserError(f"robot: {self._name()} is not calibrated, or not as its servos say: run {self._how()}")
        for prefix, bus in self._buses.items():
            bus_ranges = ranges(bus)
            self.ranges = {**self.ranges, **{f"{prefix}{motor}.pos": both for motor, both in bus_ranges.items()}}
        serial = [(bus, prefix) for prefix, bus in self._buses.items() if is_serial(bus)]
        self._questions = chain.from_iterable(zip(*starmap(readings, serial), strict=False))
        self._torque = [partial(torque, *each) for each in serial]

    def _connected(self) -> bool:
        """Connects, also where one of the hundred packets of that is lost -> whether it is calibrated."""
        takes = inspect.signature(self._robot.connect).parameters
        for tries_left in reversed(range(CONNECTS)):
            try:
                self._robot.connect(**({"calibrate": False} if "calibrate" in takes else {}))
                return self._robot.is_calibrated is not False
            except Exception as error:  # drivers raise what they like
                opened = [bus for bus in self._buses.values() if bus.is_connected]
                if not opened or not tries_left:
                    raise UserError(f"robot: cannot connect to {self._name()}: {_format_error(error)}") from None
                for bus in opened:
                    close_bus(bus)
        raise AssertionError

    def begin(self, seed: int) -> None:
        """A scene of the real world is set up by hand."""

    def sense(self) -> RobotState:
        began = boottime()
        observation = self._robot.get_observation()
        state = np.array([observation[name] for name in self.names], np.float32)
        measured = np.array([observation.get(each.name, 0.0) for each in self.channels], np.float32)
        images = {name: np.asarray(observation[name], np.uint8) for name in self._pictures}
        return RobotState(began, state, measured, images, dict(self._health))

    def send(self, target: np.ndarray) -> np.ndarray:
        action = {channel.name: float(value) for channel, value in zip(self.channels, target, strict=True)}
        sent = self._robot.send_action(action)
        while self._unwatched:  # from the first goal on: before, nobody says when the next packet comes
            bus = self._unwatched.pop()
            watch(bus, bus.motors, max(HANG_S, 3 / self.hz))
        return np.array([sent.get(channel.name, action[channel.name]) for channel in self.channels], np.float32)

    def spare(self, seconds: float) -> None:
        """Asks which servos are under torque, and after one more number of their health, in what is left of a tick."""
        now = time.monotonic()
        if seconds < ENOUGH or now - self._last_request < 1 / READINGS:
            return
        self._last_request = now
        for question in (*self._torque, next(self._questions, dict)):
            self._health |= self._sure(question)

    def _sure(self, question: Callable[[], dict[str, float]]) -> dict[str, float]:
        """What is new is asked for again: a reply that came late may have answered an older question."""
        reply = question()
        news = [abs(value - self._health.get(name, value)) > NEWS * abs(value) for name, value in reply.items()]
        return question() if any(news) or not reply.keys() <= self._health.keys() else reply

    def rest(self, how: Literal["hold", "off"]) -> list[str]:
        if self._buses:
            one = off if how == "off" else hold
            return [f"{prefix}{problem}" for prefix, bus in self._buses.items() for problem in one(bus)]
        try:
            return self._rest_without_a_bus(how)
        except Exception as error:  # drivers raise what they like
            return [f"{self._name()}: {_format_error(error)}"]

    def close(self) -> None:
        for bus in self._buses.values():
            close_bus(bus)
        parts = self._robot.cameras.values() if self._buses else [self._robot]
        for part in parts:
            with contextlib.suppress(Exception):  # closed as far as can be
                if part.is_connected:
                    part.disconnect()

    def _rest_without_a_bus(self, how: str) -> list[str]:
        """A robot behind a network: it can only be told to stand still."""
        if not self._robot.is_connected:
            return []
        observation = self._robot.get_observation()
        still = {each.name: 0.0 if each.kind == "speed" else float(observation[each.name]) for each in self.channels}
        self._robot.send_action(still)
        return [f"{self._type} cannot be told to let go: it holds"] if how == "off" else []

    def _channel(self, name: str) -> Channel:
        """`shoulder_pan.pos` in deg; `x.vel` in m/s and `theta.vel` in deg/s, as lerobot has them."""
        joint, _, what = name.rpartition(".")
        if what == "vel":
            return Channel(name, "deg/s" if "theta" in joint else "m/s", "speed")
        for prefix, bus in self._buses.items():
            motor = bus.motors.get(joint.removeprefix(prefix)) if joint.startswith(prefix) else None
            if motor is not None:
                return Channel(name, "deg" if "DEGREES" in str(motor.norm_mode) else "%")
        return Channel(name, "")

    def _name(self) -> str:
        ports = ", ".join(map(port_of, self._buses.values()))
        return f"{self._type} ({self._robot.id or 'without an id'})" + (f" on {ports}" if ports else "")

    def _how(self) -> str:
        config: Mapping[str, Any] = vars(self._robot.config)
        options = {"type": self._type} | {name: config[name] for name in ("port", "id") if config.get(name)}
        return "lerobot-calibrate " + " ".join(f"--robot.{name}={value}" for name, value in options.items())


def _format_error(error: Exception) -> str:
    """A driver's message in one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__
