"""What GUI agents see and act on, in workers: a screen is made where it is to run, and asked over `vlrl.placement`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from typing import ClassVar

from PIL import Image

from tasks.agent_actions import ScreenAction
from tasks.web.browser import driver_message
from vlrl.placement.workers import Arrays, Packed, Worker, WorkerPool, WorkerService, pack_images, unpack_images
from vlrl.types import Split


@dataclass(frozen=True)
class Status:
    """Where an episode is: `reward` is the page's own, without its bonus for speed, and counts when `done`."""

    done: bool
    reward: float
    goal: str


class AgentScreen(ABC):
    """One screen, which plays one episode after the other. Made without arguments.

    It may raise whatever it likes where it has died: its worker is then buried.
    """

    NAME: ClassVar[str]  # what it is, in messages
    PAGE: ClassVar[str]  # what an episode is played on, in messages
    SOLVED: ClassVar[tuple[str, ...]]  # pages with a scripted solution
    SERVICE: ClassVar[str]  # its `ScreenService`, as `module:class`

    @staticmethod
    @abstractmethod
    def list_pages() -> tuple[str, ...]:
        """The names of all pages."""

    @property
    @abstractmethod
    def pages(self) -> Collection[str]:
        """Those that need not be loaded."""

    @abstractmethod
    def begin(self, page: str, seed: str, split: Split) -> None:
        """Starts the page's episode of that seed."""

    @abstractmethod
    def status(self) -> Status:
        """Where the episode is."""

    @abstractmethod
    def look(self) -> Image.Image:
        """The screen, RGB."""

    @abstractmethod
    def act(self, action: ScreenAction) -> None:
        """What a hand would do; points in pixels of the screen. `done` does nothing."""

    @abstractmethod
    def gold(self) -> ScreenAction | None:
        """The next right action; None where no solution is known."""

    @abstractmethod
    def quit(self) -> None:
        """Ends it and all that it started."""


class ScreenService(WorkerService):
    """A worker's screen, of the kind that `make_screen` makes."""

    make_screen: Callable[[], AgentScreen]

    def __init__(self) -> None:
        self._screen: AgentScreen | None = None

    @property
    def screen(self) -> AgentScreen:
        if self._screen is None:
            raise RuntimeError("a screen is asked for `make` first")
        return self._screen

    def answers(self) -> Mapping[str, Callable[[Mapping, Arrays], Packed]]:
        methods = (self.make, self.begin, self.status, self.look, self.act, self.gold)
        return {method.__name__: method for method in methods}

    def describe_error(self, error: Exception) -> str:
        return driver_message(error)

    def make(self, fields: Mapping, arrays: Arrays) -> Packed:
        self._screen = type(self).make_screen()
        return {}, {}

    def begin(self, fields: Mapping, arrays: Arrays) -> Packed:
        self.screen.begin(fields["page"], fields["seed"], fields["split"])
        return {"pages": list(self.screen.pages)}, {}

    def status(self, fields: Mapping, arrays: Arrays) -> Packed:
        return asdict(self.screen.status()), {}

    def look(self, fields: Mapping, arrays: Arrays) -> Packed:
        return {}, pack_images([self.screen.look()])

    def act(self, fields: Mapping, arrays: Arrays) -> Packed:
        self.screen.act(_action(fields["action"]))
        return {}, {}

    def gold(self, fields: Mapping, arrays: Arrays) -> Packed:
        action = self.screen.gold()
        return {"action": action and asdict(action)}, {}

    def close(self) -> None:
        if self._screen is not None:
            self._screen.quit()


def _action(fields: Mapping) -> ScreenAction:
    return ScreenAction(fields["kind"], tuple((x, y) for x, y in fields["points"]), fields["word"])


class ScreenWorker:
    """What an `AgentScreen` does, in a worker. Raises WorkerError when that, or its screen, has died."""

    def __init__(self, worker: Worker):
        self.worker = worker

    def begin(self, page: str, seed: str, split: Split) -> None:
        fields, _ = self.worker.ask("begin", {"page": page, "seed": seed, "split": split})
        self.worker.keeps = fields["pages"]

    def status(self) -> Status:
        return Status(**self.worker.ask("status", {})[0])

    def look(self) -> Image.Image:
        return unpack_images(self.worker.ask("look", {})[1])[0]

    def act(self, action: ScreenAction) -> None:
        self.worker.ask("act", {"action": asdict(action)})

    def gold(self) -> ScreenAction | None:
        action = self.worker.ask("gold", {})[0]["action"]
        return action and _action(action)


def screen_pool(screen: type[AgentScreen], size: int) -> WorkerPool:
    """At most so many screens, each in a worker; a worker keeps the pages that its screen has loaded."""
    return WorkerPool(screen.SERVICE, {}, kind="browser", size=size, name=f"{screen.NAME}s")
