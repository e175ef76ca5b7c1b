"""What the motion process does between connecting and leaving: it listens, ticks and tells."""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from robot.motion.body import Body
from robot.motion.dead_man import Held
from robot.motion.estop import Stops
from robot.motion.governor import Governor
from robot.motion.guardian import Guardian
from robot.motion.limits import Safety
from robot.motion.line import Line
from robot.motion.loop import EMERGENCY, STOPPED, Loop, controls_of, told
from robot.motion.messages import About, pack_about, pack_ticked, read, read_plan
from robot.motion.pictures import Pictures
from robot.motion.plausible import Plausible
from robot.motion.ranges import narrowed
from robot.motion.signals import EndError, Signals
from robot.motion.watch import Clock, Silence
from robot.wire import pack
from vlrl.system.clock import boottime

TRIES = 3  # to get a first reading
SWEEP = 100  # ticks between two collections of garbage, in spare time


class Service:
    """Serves one connected body.

    Raises:
        UserError: limits that do not fit the robot.
        Exception: what the body raises when it gives no first reading.
    """

    def __init__(
        self, line: Line, memory: Pictures, body: Body, safety: Safety, guardian: Guardian | None, priority: str
    ):
        self._line, self._memory, self._guardian = line, memory, guardian
        self._body, self._clock, self._task = body, Clock(body.hz), ""
        self._safety, self._stops = safety, Stops(safety.estop)  # keys are the terminal's, so of whoever started it
        self._person = -math.inf  # boottime() of the last sign of the dead man that came over the line
        limits = narrowed(safety, getattr(body, "ranges", {}))
        self._loop = Loop(
            body,
            Governor(body.channels, limits, body.hz),
            Plausible(body.channels, controls_of(body), limits, body.hz),
            silence=Silence(safety.silence_s, safety.stale.stop_s),
            pressed=lambda: self._stops.pressed(),
            held=_dead_man(safety, lambda: self._person),
            pause=guardian.pause if guardian else lambda: None,
        )
        first = _first_reading(body)
        images = {name: image.shape[:2] for name, image in first.images.items()}
        line.send(pack_about(About(body.hz, body.channels, controls_of(body), body.names, images, priority)))

    def run(self, signals: Signals) -> None:
        """Ticks until it is to end.

        Raises:
            EndError: asked to, or by a signal.
            EOFError: the other side is gone.
            LostError: the robot is.
        """
        gc.collect()
        gc.freeze()
        gc.disable()  # a collection may take longer than a tick
        self._clock.again()
        while True:
            with signals.later():
                self._listen()
                if self._guardian:
                    self._guardian.beat()
                timing = self._clock.begin()
                ticked = self._loop.do()
                task = getattr(self._body, "task", "")
                self._line.send(pack_ticked(ticked, timing, self._loop.began, task, self._memory))
                self._use(self._clock.end(), ticked.tick)
            self._clock.wait()

    def _use(self, seconds: float, tick: int) -> None:
        """What can wait until the tick's work is done."""
        if seconds > 0.2 / self._body.hz and tick % SWEEP == 0:
            gc.collect(0)
        with contextlib.suppress(Exception):  # a reading of a servo's health that fails is none; the tick has its own
            getattr(self._body, "spare", lambda seconds: None)(seconds)

    def _listen(self) -> None:
        for message in self._line.receive():
            kind, fields, arrays = read(message)
            self._loop.heard()
            getattr(self, f"_on_{kind}")(fields, arrays)

    def _on_plan(self, fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        self._loop.plan(read_plan(fields, arrays))

    def _on_hand(self, fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        self._loop.hand(arrays["target"], fields["for_s"])

    def _on_begin(self, fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        try:
            self._loop.begin(fields["seed"])
        except Exception as error:  # the border to drivers and simulators
            self._line.send(pack({"kind": "failed", "cause": told(error)}))
        self._clock.again()

    def _on_idle(self, fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        self._loop.idle()

    def _on_pet(self, fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """That something was heard is all."""

    def _on_held(self, fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        self._person = boottime()

    def _on_stop(self, fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        self._loop.stop(fields["cause"], *(("estop", EMERGENCY) if fields["emergency"] else ("asked", STOPPED)))

    def _on_rearm(self, fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        self._stops.close()
        self._stops = Stops(self._safety.estop)  # what is still pressed stops it again
        self._loop.rearm()

    def _on_close(self, fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        raise EndError(self._loop.code, self._loop.governor.stopped)


def _dead_man(safety: Safety, heard: Callable[[], float]) -> Callable[[], bool]:
    """Whether the robot may move. A key is the terminal's, so its signs are heard of whoever started the process."""
    config = safety.dead_man
    if config is None:
        return lambda: True
    if config.key is not None:
        return lambda: boottime() - heard() <= config.within_s
    return Held(config).held


def _first_reading(body: Body) -> Any:
    """Of a robot that has just been connected, whose first answers may be lost."""
    for _ in range(TRIES - 1):
        with contextlib.suppress(Exception):
            return body.sense()
    return body.sense()
