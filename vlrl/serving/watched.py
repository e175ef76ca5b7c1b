"""A policy that is replaced, between two inferences, when newer weights lie in its folder."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

import numpy as np

from robot.serving.server import blank
from robot.serving.spec import Asked, Servable
from vlrl.types import UserError

log = logging.getLogger("vlrl.serve")


class Watched:
    """A servable whose newer versions are loaded and warmed up in a thread of their own, so that no robot waits.

    Args:
        load: the policy as it lies there now; may raise UserError.
        state: changes when other weights lie there.
        every: seconds between two looks.
    """

    def __init__(self, load: Callable[[], Servable], state: Callable[[], object], every: float = 1.0):
        self._load, self._state, self._every = load, state, every
        self._seen = state()
        self._now, self._next, self._said = load(), None, ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        return self._now.name

    @property
    def version(self) -> str:
        return self._now.version

    @property
    def spec(self):
        return self._now.spec

    def infer(self, asked: Sequence[Asked]) -> list[np.ndarray]:
        newer, self._next = self._next, None
        if newer:
            log.warning("weights %s take the place of %s", newer.version, self._now.version)
            self._now = newer
        return self._now.infer(asked)

    def forget(self, session: str) -> None:
        self._now.forget(session)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def look(self) -> None:
        """Loads what is new, if anything is."""
        try:
            state = self._state()
            if state == self._seen:
                return
            newer = self._load()
            if newer.spec != self._now.spec:
                raise UserError("the newer policy has other inputs or outputs: start a new server for it")
            newer.infer([blank(newer.spec)])
            self._seen, self._next, self._said = state, newer, ""
        except Exception as error:  # half-written, removed meanwhile, or anybody's code: the present one goes on
            if str(error) != self._said:
                log.warning("the newer weights are not taken: %s", " ".join(str(error).split()))
            self._said = str(error)

    def _watch(self) -> None:
        while not self._stop.wait(self._every):
            self.look()
