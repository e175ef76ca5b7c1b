"""The course of a trial as drawings: the e-value with its threshold, and the confidence sequence. Inline SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

WIDTH, HEIGHT = 760, 230
LEFT, RIGHT, TOP, BOTTOM = 52, 90, 14, 32  # pixels around the curves
LN10 = math.log(10)


@dataclass(frozen=True)
class Frame:
    """Rounds 0 to n, left to right; values from low to high, upwards."""

    n: int
    low: float
    high: float

    def x(self, number: float) -> float:
        return LEFT + number / max(1, self.n) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return TOP + (self.high - value) / (self.high - self.low) * (HEIGHT - TOP - BOTTOM)

    def steps(self, values: Sequence[float]) -> str:
        """A stepped path that begins at round 0."""
        x0, y0 = self.x(0), self.y(values[0])
        moves = (f"H{self.x(i):.1f}V{self.y(value):.1f}" for i, value in enumerate(values[1:], 1))
        return f"M{x0:.1f} {y0:.1f}" + "".join(moves)


def e_value(pair: Mapping[str, Any]) -> str:
    """The e-value after each round on a logarithmic axis, with the threshold of the test."""
    logs = [0.0, *(value / LN10 for value in pair["course"]["log_e"])]
    bar = math.log10(pair["threshold"])
    frame = Frame(len(logs) - 1, math.floor(min(-1.0, *logs)), math.ceil(max(bar + 0.3, *logs)))
    step = max(1, round((frame.high - frame.low) / 5))
    ticks = range(round(frame.low), round(frame.high) + 1, step)
    curve = f'<g class="series"><path class="line" d="{frame.steps(logs)}"/></g>'
    said = f"e-value {pair['e']:.3g} after {pair['rounds']} rounds, threshold {pair['threshold']:.3g}"
    return _svg(frame, said, ticks, lambda tick: f"{10.0**tick:g}", [(bar, f"decides: {pair['threshold']:.3g}")], curve)


def sequence(pair: Mapping[str, Any], delta: float) -> str:
    """The confidence sequence of the difference, and the band that would not matter."""
    low, high = [-1.0, *pair["course"]["low"]], [1.0, *pair["course"]["high"]]
    frame = Frame(len(low) - 1, -1.0, 1.0)
    back = f"V{frame.y(low[-1]):.1f}"
    back += "".join(f"V{frame.y(low[i]):.1f}H{frame.x(i):.1f}" for i in range(len(low) - 2, -1, -1))
    edges = "".join(f'<path class="line" d="{frame.steps(edge)}"/>' for edge in (high, low))
    curve = f'<g class="series"><path class="band" d="{frame.steps(high)}{back}Z"/>{edges}</g>'
    said = f"difference between {pair['low']:+.2f} and {pair['high']:+.2f} after {pair['rounds']} rounds"
    bars = [(delta, f"delta {delta:g}"), (-delta, "")]
    return _svg(frame, said, (-1, -0.5, 0, 0.5, 1), lambda tick: f"{tick:+g}", bars, curve)


def _svg(frame: Frame, said: str, ticks: Sequence[float], word: Callable[[float], str],
         bars: Sequence[tuple[float, str]], curve: str) -> str:  # fmt: skip
    end = WIDTH - RIGHT
    lines = [_line(frame.y(tick), end, word(tick)) for tick in ticks]
    lines += [_bar(frame.y(value), end, text) for value, text in bars]
    rounds = sorted({round(frame.n * part / 4) for part in range(5)})
    lines += [f'<text x="{frame.x(i):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{i}</text>' for i in rounds]
    return (f'<svg class="course" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(said)}">'
            f'<g class="axes">{"".join(lines)}</g>{curve}</svg>')  # fmt: skip


def _line(y: float, end: float, word: str) -> str:
    return (f'<line x1="{LEFT}" x2="{end}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(word)}</text>')  # fmt: skip


def _bar(y: float, end: float, text: str) -> str:
    return (f'<line class="bar" x1="{LEFT}" x2="{end}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{end + 6}" y="{y + 4:.1f}">{escape(text)}</text>')  # fmt: skip
