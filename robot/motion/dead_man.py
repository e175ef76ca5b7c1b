"""The dead man: the robot moves only while a person says so, again and again."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from robot.motion.estop import Datagrams
from robot.motion.limits import DeadMan
from vlrl.system.clock import boottime
from vlrl.types import UserError

if TYPE_CHECKING:
    from robot.motion.keys import Keys


class Held:
    """Whether a person held on within the last `within_s` seconds. To be closed.

    Args:
        keys: of the terminal; needed for a key, which repeats while it is held down.

    Raises:
        UserError: the source cannot be had.
    """

    def __init__(self, config: DeadMan, keys: Keys | None = None):
        self._within, self._last = config.within_s, -math.inf
        self._sign, self.close = _source(config, keys)

    def held(self) -> bool:
        now = boottime()
        if self._sign():
            self._last = now
        return now - self._last <= self._within


def _source(config: DeadMan, keys: Keys | None) -> tuple[Callable[[], object], Callable[[], None]]:
    """What tells of a sign since it was last asked, and what gives the source back."""
    if config.key is not None:
        if keys is None:
            raise UserError("safety.dead_man.key: standard input is no terminal; use button or socket")
        return lambda: keys.typed(config.key), keys.close
    if config.button is not None:
        from robot.motion.gamepad import Gamepad

        pad = Gamepad()
        return lambda: pad.down(config.button), pad.close
    datagrams = Datagrams(config.socket, "safety.dead_man.socket")
    return datagrams.come, datagrams.close
