"""The toolkit's own policies as servables: small ones that give numbers, language models that say actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from robot.serving.spec import Asked, Feature, Picture, Spec
from vlrl.policies.control import ControlPolicy
from vlrl.types import Episode, Observation, Sample, UserError


class Driver:
    """A policy that gives numbers (`vlrl.policies.control`)."""

    def __init__(self, name: str, version: str, policy: ControlPolicy, spec: Spec):
        self.name, self.version, self.spec, self._policy = name, version, spec, policy

    def infer(self, asked: Sequence[Asked]) -> list[np.ndarray]:
        return [each.action for each in _acted(self._policy, [shown(one) for one in asked])]

    def forget(self, session: str) -> None:
        """It remembers nothing."""


class Speaker:
    """A language model that says actions in the words of its task.

    Args:
        task: has `heard` and `understood` (tasks/manipulation.py).
    """

    def __init__(self, name: str, version: str, policy: Any, spec: Spec, task: Any):
        self.name, self.version, self.spec, self._policy, self._task = name, version, spec, policy, task

    def infer(self, asked: Sequence[Asked]) -> list[np.ndarray]:
        """Raises UserError where the words are no action; of several asked at once, for all of them."""
        decisions = _acted(self._policy, [self._task.heard(shown(one)) for one in asked])
        chunks = [self._task.understood(each.action) for each in decisions]
        for chunk, decision in zip(chunks, decisions, strict=True):
            if chunk is None:
                raise UserError(f"the policy said no action, but {decision.action[:80]!r}")
        return chunks

    def forget(self, session: str) -> None:
        """It remembers nothing."""


def shown(asked: Asked) -> Observation:
    """As the toolkit's robots show it: pictures, then the instruction, and the state."""
    pictures = (Image.fromarray(np.ascontiguousarray(picture)) for picture in asked.images.values())
    return Observation((*pictures, asked.task), np.array(asked.state, np.float32))


def driver_spec(policy: ControlPolicy, about: Any, hz: float) -> Spec:
    """What the policy says of itself; the rest from `about` the task's robots, where there is one (robot/pool.py)."""
    shape = policy.shape
    units = shape.units or (about.controls.units if about else ("",) * len(shape.low))
    pictures = shape.pictures or ("",) * len(shape.cameras)
    return Spec(
        state=_features(shape.names or (about.names if about else ()), shape.state),
        pictures=tuple(Picture(name, high, wide) for name, (wide, high) in zip(pictures, shape.cameras, strict=True)),
        action=tuple(map(Feature, shape.controls, units, shape.low, shape.high)),
        hz=hz or shape.hz or (about.hz if about else 0.0),
        chunk=shape.chunk,
    )


def speaker_spec(task: Any, example: Observation, hz: float) -> Spec:
    """Of a model that speaks, which itself knows nothing of a robot: all from its task and what its robot shows."""
    about = task.pool.about
    return Spec(
        state=_features(about.names, 0 if example.state is None else len(example.state)),
        pictures=tuple(Picture("", image.height, image.width) for image in example.images),
        action=tuple(map(Feature, about.controls.names, about.controls.units)),
        hz=hz or about.hz,
        chunk=task.chunk,
    )


def _features(names: Sequence[str], size: int) -> tuple[Feature, ...]:
    return tuple(map(Feature, names)) if len(names) == size else (Feature(),) * size


def _acted(policy: Any, observations: Sequence[Observation]) -> list:
    """Greedy decisions, each of an episode of its own that has just begun."""
    nothing = Sample("", Observation(()))
    return policy.act([Episode(nothing, i) for i in range(len(observations))], observations, greedy=True)
