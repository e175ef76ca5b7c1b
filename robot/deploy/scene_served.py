"""A success classifier behind a server as the scene: it is shown what the robot sees, and says when it is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from robot.deploy.config import Served
from robot.deploy.connect import connected
from robot.deploy.scene import Operator
from robot.motion.body import Ticked
from robot.robot import RobotError, Signals
from robot.serving.client import Client
from robot.serving.spec import Asked, Feature, Picture, Wants, difference
from vlrl.system.clock import boottime
from vlrl.types import UserError

LOST_S = 3.0  # seconds without a word, after which nobody can say how the job stands


class ServedScene(Operator):
    """A person arranges it; the classifier says when it is done, a person still may.

    It gets pictures and numbers of the state by name, those that it wants.

    Args:
        names: of the robot's state.
        sizes: camera -> height, width of its pictures.
        task: the instruction.

    Raises:
        UserError: it cannot be reached, is no classifier, or wants what the robot does not see.
    """

    ready, knows = True, True

    def __init__(self, config: Served, names: Sequence[str], sizes: Mapping[str, Sequence[int]], task: str):
        super().__init__()
        self._config, self._task, self._episode, self._sure = config, task, 0, 0
        self._open: float | None = None  # boottime() of the question that is not answered yet
        self._heard = self._asked = boottime()
        self._client = connected("scene", config.url, config.token_file, config.ca)
        try:
            self._pictures, self._state = _seen(self._client, names, sizes)
        except UserError:
            self._client.close()
            raise

    def begin(self, seed: int) -> None:
        super().begin(seed)
        self._episode, self._sure, self._open = self._episode + 1, 0, None
        self._heard = boottime()
        self._client.reset(self._episode)

    def verdict(self, ticked: Ticked, images: Mapping[str, np.ndarray]) -> Signals:
        now = boottime()
        for answer in self._client.answers():
            self._open, self._heard = None, now
            self._sure = self._sure + 1 if float(answer.actions[0, 0]) >= self._config.threshold else 0
        if now - self._heard > LOST_S:
            why = self._client.lost or self._client.failure
            raise RobotError(f"scene.url: the success classifier is silent: {why or 'no answer'}")
        if self._sure >= self._config.after:
            return Signals(success=True, reward=1.0)
        self._ask(ticked, images, now)
        return super().verdict(ticked, images)

    def _ask(self, ticked: Ticked, images: Mapping[str, np.ndarray], now: float) -> None:
        waits = self._open is not None and now - self._open < LOST_S / 3
        if waits or self._client.lost or now - self._asked < 1 / self._config.hz:
            return
        if not all(name in images for name in self._pictures):
            return
        shown = {name: images[name] for name in self._pictures}
        self._client.ask(Asked("", self._episode, self._task, ticked.sensed.state[self._state], shown))
        self._open = self._asked = now

    def close(self) -> None:
        self._client.close()


def _seen(client: Client, names: Sequence[str], sizes: Mapping[str, Sequence[int]]) -> tuple[list[str], list[int]]:
    """Names of the pictures that it wants, places of the numbers of the state."""
    spec = client.spec
    for key, known, wanted in (("camera", sizes, spec.pictures), ("number of the state", names, spec.state)):
        for each in wanted:
            if each.name not in known:
                there = ", ".join(known) or "none"
                raise UserError(f"scene.url: {client.model} wants the {key} {each.name!r}; there are {there}")
    pictures = [Picture(each.name, *(int(side) for side in sizes[each.name][:2])) for each in spec.pictures]
    wants = Wants(spec.state, tuple(pictures), (Feature(),))
    if problem := difference(wants, spec):
        raise UserError(f"scene.url: {client.model}: {problem}: a success classifier gives one number")
    return [each.name for each in pictures], [list(names).index(each.name) for each in spec.state]
