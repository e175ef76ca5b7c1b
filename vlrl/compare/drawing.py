"""Curves with bands as inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 620, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 12, 40  # pixels around the curves
COLORS = 8  # of look.css, --c0 to --c7; beyond them lines are dashed


@dataclass(frozen=True)
class Line:
    """A curve; where `low` and `high` are None there is no band."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float | None]
    high: Sequence[float | None]


@dataclass(frozen=True)
class Frame:
    x0: float
    x1: float
    y0: float
    y1: float

    def point(self, x: float, y: float) -> str:
        across = (x - self.x0) / ((self.x1 - self.x0) or 1)
        up = (y - self.y0) / ((self.y1 - self.y0) or 1)
        return f"{LEFT + across * (WIDTH - LEFT - RIGHT):.1f} {TOP + (1 - up) * (HEIGHT - TOP - BOTTOM):.1f}"


def chart(lines: Sequence[Line], x_label: str, y_label: str) -> str:
    """All curves in one frame, over what their bands and points cover."""
    ys = [v for line in lines for v in (*line.y, *line.low, *line.high) if v is not None]
    xs = [x for line in lines for x in line.x]
    low, high = nice(min(ys), max(ys))
    frame = Frame(min(xs), max(xs), low, high)
    drawn = "".join(_line(i, line, frame) for i, line in enumerate(lines))
    said = "; ".join(f"{line.name} {line.y[-1]:.3g}" for line in lines)
    return (
        f'<figure class="chart"><figcaption>{escape(y_label)} against {escape(x_label)}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(y_label)} at the end: {escape(said)}">'
        f'<g class="axes">{_axes(frame, x_label)}</g>{drawn}</svg></figure>'
    )


def legend(names: Sequence[str]) -> str:
    items = (f'<li style="--line: var(--c{i % COLORS})"><i{_dash(i)}></i>{escape(n)}</li>' for i, n in enumerate(names))
    return f'<ul class="names">{"".join(items)}</ul>'


def nice(low: float, high: float) -> tuple[float, float]:
    """A little room; never below 0 for what is not."""
    room = 0.05 * (high - low) or 0.05
    return (max(0.0, low - room) if low >= 0 else low - room), high + room


def _line(index: int, line: Line, frame: Frame) -> str:
    path = "M" + "L".join(frame.point(x, y) for x, y in zip(line.x, line.y, strict=True))
    band = ""
    known = [(x, a, b) for x, a, b in zip(line.x, line.low, line.high, strict=True) if a is not None and b is not None]
    if known:
        up = [frame.point(x, b) for x, _, b in known]
        down = [frame.point(x, a) for x, a, _ in reversed(known)]
        band = f'<path class="band" d="M{"L".join(up + down)}Z"/>'
    style = f"--line: var(--c{index % COLORS})"
    title = f"<title>{escape(line.name)}</title>"
    return f'<g class="series" style="{style}">{title}{band}<path class="line"{_dash(index)} d="{path}"/></g>'


def _dash(index: int) -> str:
    return ' data-dashed=""' if index >= COLORS else ""


def _axes(frame: Frame, x_label: str) -> str:
    parts = []
    for step in range(5):
        x = frame.x0 + (frame.x1 - frame.x0) * step / 4
        y = frame.y0 + (frame.y1 - frame.y0) * step / 4
        px, py = frame.point(x, frame.y0).split()[0], frame.point(frame.x0, y).split()[1]
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{py}" y2="{py}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{float(py) + 4:.1f}" text-anchor="end">{y:.2f}</text>')
        parts.append(f'<text x="{px}" y="{HEIGHT - BOTTOM + 17}" text-anchor="middle">{short(x)}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    return "".join(parts) + f'<text x="{middle}" y="{HEIGHT - 5}" text-anchor="middle">{escape(x_label)}</text>'


def short(value: float) -> str:
    """1,200 as 1.2k, 3 as 3."""
    if value >= 1e6:
        return f"{value / 1e6:.3g}M"
    return f"{value / 1e3:.3g}k" if value >= 1e4 else f"{value:.4g}"
