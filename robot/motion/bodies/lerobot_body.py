"""Every robot that lerobot drives, as a body, by the name of its configuration."""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain, starmap
from typing import Any, Literal

import numpy as np

from robot.motion.bodies import lerobot_bus
from robot.motion.bodies.lerobot_make import drive_of, made
from robot.motion.body import Channel, Sensed
from vlrl.system.clock import boottime
from vlrl.types import UserError

READINGS = 40.0  # of the servos' health a second, at most one a tick
CONNECTS = 3  # tries, where there is a port
NEWS = 0.1  # share by which a number of a servo's health changed that is asked for again
ENOUGH = 0.005  # seconds: below that, a tick has no room for a reading


class LerobotBody:
    """A robot of lerobot (`robot.motion.body.Body`). Actions go through its own `send_action`.

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
        self._type, self._robot = type, made(type, options)
        self._buses = lerobot_bus.buses_of(self._robot)
        for bus in self._buses.values():
            lerobot_bus.guard(bus)
        self.channels = tuple(self._channel(name) for name in self._robot.action_features)
        shown = self._robot.observation_features
        self.names = tuple(name for name, kind in shown.items() if not isinstance(kind, tuple))
        self._pictures = tuple(name for name, kind in shown.items() if isinstance(kind, tuple) and kind[-1] == 3)
        self.at_exit = "off" if getattr(self._robot.config, "disable_torque_on_disconnect", True) else "hold"
        self.at_fault: Literal["hold", "off"] = "off"
        self.ranges: dict[str, tuple[float, float]] = {}
        self._health: dict[str, float] = {}
        self._questions: Iterator[Any] = iter(())
        self._torque: list[Any] = []
        self._asked_at = 0.0

    def connect(self) -> None:
        """Raises UserError: no such port, servos are missing, or it is not calibrated; nobody is asked anything."""
        if not self._connected():
            raise UserError(f"robot: {self._name()} is not calibrated, or not as its servos say: run {self._how()}")
        for prefix, bus in self._buses.items():
            found = lerobot_bus.ranges(bus)
            self.ranges |= {f"{prefix}{motor}.pos": both for motor, both in found.items()}
        serial = [(bus, prefix) for prefix, bus in self._buses.items() if hasattr(bus, "port_handler")]
        self._questions = chain.from_iterable(zip(*starmap(lerobot_bus.readings, serial), strict=False))
        self._torque = [partial(lerobot_bus.torque, *each) for each in serial]

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
                    raise UserError(f"robot: cannot connect to {self._name()}: {_told(error)}") from None
                for bus in opened:
                    lerobot_bus.close(bus)
        raise AssertionError

    def begin(self, seed: int) -> None:
        """A scene of the real world is set up by hand."""

    def sense(self) -> Sensed:
        began = boottime()
        seen = self._robot.get_observation()
        state = np.array([seen[name] for name in self.names], np.float32)
        measured = np.array([seen.get(each.name, 0.0) for each in self.channels], np.float32)
        images = {name: np.asarray(seen[name], np.uint8) for name in self._pictures}
        return Sensed(began, state, measured, images, dict(self._health))

    def send(self, target: np.ndarray) -> np.ndarray:
        action = {channel.name: float(value) for channel, value in zip(self.channels, target, strict=True)}
        sent = self._robot.send_action(action)
        return np.array([sent.get(channel.name, action[channel.name]) for channel in self.channels], np.float32)

    def spare(self, seconds: float) -> None:
        """Asks which servos are under torque, and after one more number of their health, in what is left of a tick."""
        now = time.monotonic()
        if seconds < ENOUGH or now - self._asked_at < 1 / READINGS:
            return
        self._asked_at = now
        for question in (*self._torque, next(self._questions, dict)):
            self._health |= self._sure(question)

    def _sure(self, question: Callable[[], dict[str, float]]) -> dict[str, float]:
        """What is new is asked for again: a reply that came late may have answered an older question."""
        said = question()
        news = [abs(value - self._health.get(name, value)) > NEWS * abs(value) for name, value in said.items()]
        return question() if any(news) or not said.keys() <= self._health.keys() else said

    def rest(self, how: Literal["hold", "off"]) -> list[str]:
        if self._buses:
            one = lerobot_bus.off if how == "off" else lerobot_bus.hold
            return [f"{prefix}{problem}" for prefix, bus in self._buses.items() for problem in one(bus)]
        try:
            return self._rest_without_a_bus(how)
        except Exception as error:  # drivers raise what they like
            return [f"{self._name()}: {_told(error)}"]

    def close(self) -> None:
        for bus in self._buses.values():
            lerobot_bus.close(bus)
        parts = self._robot.cameras.values() if self._buses else [self._robot]
        for part in parts:
            with contextlib.suppress(Exception):  # closed as far as can be
                if part.is_connected:
                    part.disconnect()

    def _rest_without_a_bus(self, how: str) -> list[str]:
        """A robot behind a network: it can only be told to stand still."""
        if not self._robot.is_connected:
            return []
        seen = self._robot.get_observation()
        still = {each.name: 0.0 if each.kind == "speed" else float(seen[each.name]) for each in self.channels}
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
        ports = ", ".join(str(getattr(bus, "port", "?")) for bus in self._buses.values())
        return f"{self._type} ({self._robot.id or 'without an id'})" + (f" on {ports}" if ports else "")

    def _how(self) -> str:
        config: Mapping[str, Any] = vars(self._robot.config)
        given = {"type": self._type} | {name: config[name] for name in ("port", "id") if config.get(name)}
        return "lerobot-calibrate " + " ".join(f"--robot.{name}={value}" for name, value in given.items())


def _told(error: Exception) -> str:
    """A driver's message in one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__
