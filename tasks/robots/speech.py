"""Chunks of controls as words, for language models that move robots, and back.

A number is one of `bins` levels between its limits. `bins` says every number of every tick (OpenVLA, arXiv 2406.09246).
`dct` says the lowest `keep` frequencies of each control over the chunk (FAST, 2501.09747, which merges their levels by
byte pairs). A level is said in digits (VLA-0, 2510.13054), or as <a0>, <a1>, ... by models that have these tokens.
"""

from __future__ import annotations

import functools
import re
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
        spelled: levels in digits, with a space between them where they may have several, or as tokens.
        bins: levels of a number; odd, so that standing still can be said.
        keep: with `dct`, the frequencies of each control that are said.
        state: numbers of the robot's state to tell, each with the limits between which it is told in levels.
    """

    words: Literal["bins", "dct"] = "bins"
    spelled: Literal["digits", "tokens"] = "digits"
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
    return said(numbers.ravel(), speech)


def read(text: str, ticks: int, controls: Controls, speech: Speech) -> np.ndarray | None:
    """Words as a chunk float32 [ticks, A] within the limits; None where they are no action."""
    rows = min(speech.keep, ticks) if speech.words == "dct" else ticks
    levels = _heard(text, rows * len(controls), speech)
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
    return said(np.array(chosen), speech)


def said(numbers: np.ndarray, speech: Speech) -> str:
    """Numbers in [-1, 1] as levels 0 to bins - 1."""
    levels = ((numbers.clip(-1, 1) + 1) / 2 * (speech.bins - 1)).round().astype(int)
    if speech.spelled == "tokens":
        return "".join(f"<a{level}>" for level in levels)
    return _gap(speech).join(map(str, levels))


def _heard(text: str, count: int, speech: Speech) -> np.ndarray | None:
    """Numbers in [-1, 1], float64 [count]; None where the text is not as many levels."""
    pattern = {"tokens": r"<a(\d{1,4})>", "digits": r"(\d{1,4})\s+" if _gap(speech) else r"(\d)"}[speech.spelled]
    levels = re.findall(pattern, text := f"{text.strip()} ", re.ASCII)
    if len(levels) != count or not re.fullmatch(rf"(?:{pattern})+\s*", text, re.ASCII):
        return None
    levels = np.array([int(level) for level in levels])
    return levels / (speech.bins - 1) * 2 - 1 if levels.max() < speech.bins else None


def _gap(speech: Speech) -> str:
    """What stands between two levels in digits."""
    return "" if speech.bins <= 10 else " "


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
