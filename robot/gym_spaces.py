"""Gymnasium's spaces as a robot's controls, state and pictures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from robot.controls import Controls
from vlrl.types import UserError

ALONE = "observation"  # name of an observation that has no parts


@dataclass(frozen=True)
class Part:
    """One part of an observation that may be nested; `name` is its keys with dots between."""

    keys: tuple[Any, ...]
    space: Any

    @property
    def name(self) -> str:
        return ".".join(map(str, self.keys)) or ALONE

    @property
    def is_image(self) -> bool:
        return self.space.dtype == np.uint8 and len(self.space.shape or ()) == 3 and self.space.shape[2] == 3

    def of(self, observation: Any) -> Any:
        for key in self.keys:
            observation = observation[key]
        return observation


def parts(space: Any, keys: tuple[Any, ...] = ()) -> Iterator[Part]:
    """The parts of an observation of this space."""
    from gymnasium.spaces import Dict, Tuple

    if isinstance(space, Dict | Tuple):
        for key, each in space.spaces.items() if isinstance(space, Dict) else enumerate(space.spaces):
            yield from parts(each, (*keys, key))
    else:
        yield Part(keys, space)


def chosen(key: str, wanted: Sequence[str] | None, known: Sequence[Part]) -> list[Part]:
    """The parts with these names, in their order; none: all.

    Raises:
        UserError: there is no such part.
    """
    if wanted is None:
        return list(known)
    by_name = {each.name: each for each in known}
    unknown = [name for name in wanted if name not in by_name]
    if unknown:
        raise UserError(f"robot.{key}: {', '.join(unknown)}: must be of {', '.join(by_name) or 'nothing'}")
    return [by_name[name] for name in wanted]


class Numbers:
    """Parts of an observation as one vector; `names` says what each number is.

    Raises:
        UserError: a part that is not so many numbers, always.
    """

    def __init__(self, chosen: Sequence[Part]):
        from gymnasium.spaces import flatdim, flatten

        self._parts, self._flatten = tuple(chosen), flatten
        try:
            sizes = [flatdim(each.space) for each in chosen]
        except (NotImplementedError, ValueError) as error:
            raise UserError(f"robot.state: {', '.join(each.name for each in chosen)}: {error}") from None
        self.names = tuple(
            each.name if size == 1 else f"{each.name}.{index}"
            for each, size in zip(chosen, sizes, strict=True)
            for index in range(size)
        )

    def of(self, observation: Any) -> np.ndarray:
        """float32 [S]"""
        if not self._parts:
            return np.zeros(0, np.float32)
        return np.concatenate([self._flatten(p.space, p.of(observation)) for p in self._parts]).astype(np.float32)


def controls_of(space: Any, what: str, names: Sequence[str] | None, units: Sequence[str] | None) -> Controls:
    """The controls that an action space allows.

    Raises:
        UserError: it is not made of real numbers within limits, or there are more or fewer names than numbers.
    """
    from gymnasium.spaces import Box

    if not isinstance(space, Box) or space.dtype.kind != "f" or not (space.is_bounded() and space.shape):
        raise UserError(f"robot.id: {what}: its actions are {space}: must be a Box of real numbers with finite limits")
    size = int(np.prod(space.shape))
    names = tuple(names) if names is not None else tuple(f"a{index}" for index in range(size))
    units = tuple(units) if units is not None else ("1",) * size
    for key, given in (("names", names), ("units", units)):
        if len(given) != size:
            raise UserError(f"robot.{key}: {len(given)} given, but {what} takes {size} numbers")
    return Controls(names, units, space.low.reshape(-1), space.high.reshape(-1))


def picture(shown: Any) -> Image.Image:
    """RGB, from what an environment gives as a picture: uint8 [H, W, 3]."""
    return shown if isinstance(shown, Image.Image) else Image.fromarray(np.ascontiguousarray(shown, dtype=np.uint8))


def numbers_of(info: Mapping[str, Any], less: Any) -> dict[str, float]:
    """What of an environment's `info` is a finite number, less the one of this name."""
    kinds = bool | int | float | np.bool_ | np.number
    told = ((name, value) for name, value in info.items() if name != less and isinstance(value, kinds))
    return {name: float(value) for name, value in told if math.isfinite(value)}
