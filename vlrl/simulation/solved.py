"""The share of scenes that each arm had solved by each tick, as a drawing: how fast, and how many at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

WIDTH, HEIGHT = 760, 260
LEFT, RIGHT, TOP, BOTTOM = 44, 120, 16, 34  # pixels around the curves
COLORS = 8  # of look.css, --c0 to --c7


def solved(result: Mapping[str, Any]) -> str:
    """An SVG with a stepped curve for each arm."""
    rows, names = result["episodes"], [arm["name"] for arm in result["arms"]]
    last = max(1, *(row["ticks"] for row in rows))
    curves = {name: curve([row for row in rows if row["arm"] == name], last) for name in names}
    drawn = "".join(_curve(i, name, points, last) for i, (name, points) in enumerate(curves.items()))
    said = "; ".join(f"{name} {points[-1][1]:.0%}" for name, points in curves.items())
    return (
        f'<svg class="solved" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Solved in the end: {escape(said)}">'
        f'<g class="axes">{_axes(last)}</g>{drawn}</svg>'
    )


def curve(rows: Sequence[Mapping[str, Any]], last: int) -> list[tuple[float, float]]:
    """(tick, share solved by then), from 0 to the last tick."""
    won = sorted(row["ticks"] for row in rows if row["success"])
    return [(0, 0.0), *((tick, (i + 1) / len(rows)) for i, tick in enumerate(won)), (last, len(won) / len(rows))]


def _curve(index: int, name: str, points: Sequence[tuple[float, float]], last: int) -> str:
    (x, y), *others = [_place(tick, share, last) for tick, share in points]
    path = f"M{x:.1f} {y:.1f}" + "".join(f"H{right:.1f}V{up:.1f}" for right, up in others)
    x, y = others[-1]
    return (
        f'<g class="series" style="--line: var(--c{index % COLORS})"><path class="line" d="{path}"/>'
        f'<text x="{x + 8:.1f}" y="{y + 4:.1f}" style="fill: var(--line)">{escape(name)}</text></g>'
    )


def _axes(last: int) -> str:
    lines = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        x, y = _place(0, share, last)
        end = WIDTH - RIGHT
        lines.append(f'<line x1="{x}" x2="{end}" y1="{y}" y2="{y}"/><text x="{x - 8}" y="{y + 4}" text-anchor="end">')
        lines.append(f"{share:.0%}</text>")
    for part in range(5):
        tick = round(last * part / 4)
        x, y = _place(tick, 0, last)
        lines.append(f'<text x="{x:.1f}" y="{y + 18}" text-anchor="middle">{tick}</text>')
    return "".join(lines)


def _place(tick: float, share: float, last: int) -> tuple[float, float]:
    return LEFT + tick / last * (WIDTH - LEFT - RIGHT), TOP + (1 - share) * (HEIGHT - TOP - BOTTOM)
