"""A pool of browsers that outlive episodes: started when first needed, one process each, replaced when they die."""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Callable, Collection
from threading import Condition
from typing import Protocol


class Browser(Protocol):
    """What a pool keeps. `pages` are those that it has loaded."""

    @property
    def pages(self) -> Collection[str]: ...

    def quit(self) -> None: ...


class Pool[B: Browser]:
    """At most `size` browsers that `start` makes. Safe to use from several threads."""

    def __init__(self, start: Callable[[], B], size: int):
        self._start, self._room = start, size
        self._idle: list[B] = []
        self._changed = Condition()
        atexit.register(self.close)

    def take(self, page: str) -> B:
        """An idle browser, if possible one that has the page loaded; waits until there is one or room for one."""
        with self._changed:
            self._changed.wait_for(lambda: self._idle or self._room)
            if self._idle and (not self._room or any(page in browser.pages for browser in self._idle)):
                chosen = next((browser for browser in self._idle if page in browser.pages), self._idle[-1])
                self._idle.remove(chosen)
                return chosen
            self._room -= 1
        try:
            return self._start()
        except BaseException:
            self._free()
            raise

    def give(self, browser: B) -> None:
        """A browser back, fit for the next episode."""
        with self._changed:
            self._idle.append(browser)
            self._changed.notify()

    def bury(self, browser: B) -> None:
        """A browser that died or hangs: its processes are ended, and its place is free for another."""
        with contextlib.suppress(Exception):  # whatever a dead browser says
            browser.quit()
        self._free()

    def close(self) -> None:
        """Quits the idle browsers."""
        while self._idle:
            self.bury(self._idle.pop())

    def _free(self) -> None:
        with self._changed:
            self._room += 1
            self._changed.notify()
