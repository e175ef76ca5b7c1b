"""Drawings of a run's series, as SVG without anything from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

WIDTH, HEIGHT = 520, 200
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 14, 40  # pixels around the plot
BINS = 40
MOST = 99.5  # percentile where a histogram ends; what lies beyond is in its last bar


def histogram(name: str, milliseconds: Sequence[float] | np.ndarray) -> str:
    """Counts of a series; '' without any."""
    values = np.asarray(milliseconds, np.float64)
    if not len(values):
        return ""
    low, high = min(0.0, float(np.percentile(values, 100 - MOST))), max(float(np.percentile(values, MOST)), 1e-3)
    counts, _ = np.histogram(values.clip(low, high), BINS, (low, high))
    bars = "".join(_bar(count, i, counts.max()) for i, count in enumerate(counts))
    half, most = np.percentile(values, (50, 95))
    said = f"{name}: {len(values)} values, median {half:.1f} ms, 95 % below {most:.1f} ms"
    return _drawing(said, _series(bars) + _axes(low, high, "ms", counts.max()))


def curve(name: str, values: Sequence[float] | np.ndarray, unit: str) -> str:
    """A series in its order; '' with fewer than two. Of many values, each point is the largest of its stretch."""
    series = np.asarray(values, np.float64)
    if len(series) < 2:
        return ""
    parts = np.array_split(series, min(len(series), WIDTH // 2))
    tops = np.array([part.max() for part in parts])
    high = max(float(tops.max()), 1e-9)
    xs, ys = np.linspace(LEFT, WIDTH - RIGHT, len(tops)), TOP + (1 - tops.clip(0) / high) * (HEIGHT - TOP - BOTTOM)
    points = "L".join(f"{x:.1f} {y:.1f}" for x, y in zip(xs, ys, strict=True))
    said = f"{name} over the run, at most {high:.1f} {unit}"
    return _drawing(said, _series(f'<path class="line" d="M{points}"/>') + _axes(0, len(series), "", high))


def _drawing(said: str, inside: str) -> str:
    label = escape(said)
    return (
        f'<figure class="chart"><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{inside}</svg>'
        f"<figcaption>{label}</figcaption></figure>"
    )


def _series(drawn: str) -> str:
    return f'<g class="series">{drawn}</g>'


def _bar(count: int, index: int, most: int) -> str:
    width = (WIDTH - LEFT - RIGHT) / BINS
    height = (HEIGHT - TOP - BOTTOM) * count / most
    x, y = LEFT + index * width, HEIGHT - BOTTOM - height
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width - 1:.1f}" height="{height:.1f}"/>' if count else ""


def _axes(low: float, high: float, unit: str, most: float) -> str:
    base = HEIGHT - BOTTOM
    marks = "".join(
        f'<text x="{LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT):.1f}" y="{base + 16}" '
        f'text-anchor="middle">{value:.4g}</text>'
        for value in _round_numbers(low, high)
    )
    return (
        f'<g class="axes"><line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{base}" y2="{base}"/>{marks}'
        f'<text x="{LEFT - 6}" y="{TOP + 10}" text-anchor="end">{most:.4g}</text>'
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">{unit}</text></g>'
    )


def _round_numbers(low: float, high: float) -> np.ndarray:
    """A handful from `low` to `high`, that people read easily."""
    rough = (high - low) / 4
    power = 10.0 ** np.floor(np.log10(rough))
    step = power * next(each for each in (1, 2, 5, 10) if each * power >= rough * 0.8)
    return np.arange(np.ceil(low / step - 1e-9), np.floor(high / step + 1e-9) + 1) * step + 0.0
