"""Chunks of controls as words, for language models that move robots, and back.

A number is one of `bins` levels between its limits, written as an integer. `bins` says every number of every tick
(OpenVLA, arXiv 2406.09246, whose levels are tokens; as digits: VLA-0, 2510.13054). `dct` says the lowest `keep`
frequencies of each control over the chunk (FAST, 2501.09747, which merges them into tokens by byte pairs).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from robot.controls import Controls
from vlrl.types import UserError


@dataclass(frozen=True)
class Speech:
    """How a language model says an action, and what it is told of the robot's state.

    Args:
        words: `bins` or `dct`, as above.
        bins: levels of a number; odd, so that standing still can be said.
        keep: with `dct`, the frequencies of each control that are said.
        state: numbers of the robot's state to tell, each with the limits between which it is told in levels.
    """

    words: Literal["bins", "dct"] = "bins"
    bins: int = 21
    keep: int = 3
    state: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def write(chunk: np.ndarray, controls: Controls, speech: Speech) -> str:
    """A chunk float32 [K, A] within the limits, as words; the nearest that can be said."""
    middle, half = _limits(controls)
    numbers = (chunk - middle) / half  # [-1, 1]
    if speech.words == "dct":
        basis, reach = _basis(len(chunk), speech.keep)
        numbers = (basis @ numbers) / reach[:, None]
    return said(numbers.ravel(), speech.bins)


def read(text: str, ticks: int, controls: Controls, speech: Speech) -> np.ndarray | None:
    """Words as a chunk float32 [ticks, A] within the limits; None where they are no action."""
    rows = min(speech.keep, ticks) if speech.words == "dct" else ticks
    levels = _heard(text, rows * len(controls), speech.bins)
    if levels is None:
        return None
    middle, half = _limits(controls)
    numbers = levels.reshape(rows, len(controls))
    if speech.words == "dct":
        basis, reach = _basis(ticks, speech.keep)
        numbers = (basis.T @ (numbers * reach[:, None])).clip(-1, 1)
    return (middle + half * numbers).astype(np.float32)


def told(state: np.ndarray, names: Sequence[str], speech: Speech) -> str:
    """The chosen numbers of a state, in words. UserError where the robot's state has no such number."""
    chosen = []
    for name, (low, high) in speech.state.items():
        if name not in names:
            raise UserError(f"task.speech.state: {name!r}: must be of {', '.join(names)}")
        chosen.append((float(state[list(names).index(name)]) - low) / (high - low) * 2 - 1)
    return said(np.array(chosen), speech.bins)


def said(numbers: np.ndarray, bins: int) -> str:
    """Numbers in [-1, 1] as levels 0 to bins - 1. Digits need no space between them."""
    levels = ((numbers.clip(-1, 1) + 1) / 2 * (bins - 1)).round().astype(int)
    return _gap(bins).join(map(str, levels))


def _heard(text: str, count: int, bins: int) -> np.ndarray | None:
    """Numbers in [-1, 1], float64 [count]; None where the text is not as many levels."""
    parts = list(text.strip()) if _gap(bins) == "" else text.split()
    if len(parts) != count or not all(part.isascii() and part.isdecimal() and len(part) <= 4 for part in parts):
        return None
    levels = np.array([int(part) for part in parts])
    return levels / (bins - 1) * 2 - 1 if levels.max() < bins else None


def _gap(bins: int) -> str:
    return "" if bins <= 10 else " "


def _limits(controls: Controls) -> tuple[np.ndarray, np.ndarray]:
    """Middle and half width of each control's limits, float64 [A]."""
    low, high = controls.low.astype(np.float64), controls.high.astype(np.float64)
    return (low + high) / 2, (high - low) / 2


@functools.cache
def _basis(ticks: int, keep: int) -> tuple[np.ndarray, np.ndarray]:
    """The lowest frequencies of the orthonormal DCT-II [F, ticks], and the largest value [F] that each can have."""
    from scipy.fft import dct

    basis = dct(np.eye(ticks), axis=0, norm="ortho")[: min(keep, ticks)]
    return basis, np.abs(basis).sum(1)
