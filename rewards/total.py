"""The border of every reward: an argument of another kind than declared earns the lowest value, nothing raises."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from functools import wraps
from types import FunctionType
from typing import Any, ParamSpec

import numpy as np

from rewards import RANGES

P = ParamSpec("P")
LARGEST = 10**100  # integer: a product of two would still be a float


def _is_number(value: Any) -> bool:
    if isinstance(value, float | np.floating):
        return math.isfinite(value)
    return _is_integer(value)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST


def _each(is_one: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list | tuple | np.ndarray) and all(map(is_one, value))


def _is_object(value: Any) -> bool:
    """A `rewards.boxes.Object`, which this module cannot import."""
    known = is_dataclass(value) and value.__match_args__ == ("label", "box")
    return known and isinstance(value.label, str) and len(value.box) == 4 and _numbers(value.box)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_numbers = _each(_is_number)
# annotation -> whether a value is of its kind; what is not listed (options, arrays) is checked by the reward itself
KINDS: Mapping[str, Callable[[Any], bool]] = {
    "str": _is_text,
    "int": _is_integer,
    "float": _is_number,
    "Sequence[str]": _each(_is_text),
    "Sequence[int]": lambda value: _is_text(value) or _each(_is_integer)(value),  # one letter is an answer as well
    "Sequence[float]": _numbers,
    "Sequence[Sequence[float]]": _each(_numbers),
    "Sequence[Object]": _each(_is_object),
}


def total(**lengths: int) -> Callable[[Callable[P, float]], Callable[P, float]]:
    """Makes a reward total: in its declared range for any arguments, at the lowest where one is of another kind.

    Args:
        lengths: parameter -> how many numbers it has.
    """

    def decorate(reward: Callable[P, float]) -> Callable[P, float]:
        signature = inspect.signature(reward)
        names = tuple(signature.parameters)
        checks = [(n, KINDS[str(p.annotation)]) for n, p in signature.parameters.items() if p.annotation in KINDS]
        assert isinstance(reward, FunctionType)
        lowest, highest = RANGES[f"{reward.__module__.rpartition('.')[2]}.{reward.__name__}"]

        @wraps(reward)
        def checked(*args: P.args, **kwargs: P.kwargs) -> float:
            given = dict(zip(names, args, strict=False)) | kwargs
            fits = all(name not in given or check(given[name]) for name, check in checks)
            if not fits or any(name in given and len(given[name]) != n for name, n in lengths.items()):
                return float(lowest)
            value = reward(*args, **kwargs)
            return value if lowest <= value <= highest else float(lowest)

        return checked

    return decorate
