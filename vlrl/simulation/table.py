"""A result as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def text(result: Mapping[str, Any]) -> str:
    """Arms, pairs and notes."""
    head, *body = arms(result["arms"])
    parts = [_aligned([head, *body])]
    if result["pairs"]:
        parts.append(_aligned([PAIRS, *(pair(each) for each in result["pairs"])]))
    return "\n\n".join([*parts, *(f"note: {note}" for note in result["notes"])])


PAIRS = ("A - B", "success", "95 %", "p", "both", "only A", "only B", "neither")


def arms(measured: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """The head of the table, then a line for each arm; outcomes that no arm has are left out."""
    ends = dict.fromkeys(name for arm in measured for name in arm["outcomes"] if name != "success")
    head = ("arm", "success", "95 %", *(name.replace("_", " ") for name in ends), "repeats", "ticks to success",
            "quartiles", "seconds", "rate", "jerk", "clipped", "s/episode", "ticks/s")  # fmt: skip
    return [head, *(_arm(arm, list(ends)) for arm in measured)]


def _arm(arm: Mapping[str, Any], ends: Sequence[str]) -> tuple[str, ...]:
    success, ticks, seconds = arm["success"], arm["ticks_to_success"], arm["seconds_to_success"]
    return (
        arm["name"], f"{success['value']:.3f}", f"[{success['low']:.3f}, {success['high']:.3f}]",
        *(str(arm["outcomes"].get(name, 0)) for name in ends), str(arm["repeats"]["count"]),
        f"{ticks['median']:g}" if ticks else "-", f"[{ticks['low']:g}, {ticks['high']:g}]" if ticks else "-",
        f"{seconds['median']:.2f}" if seconds else "-",
        *("-" if arm[name] is None else f"{arm[name]:.3f}" for name in ("action_rate", "action_jerk", "clipped")),
        f"{arm['seconds_per_episode']:.3f}", f"{arm['ticks_per_s']:,.0f}",
    )  # fmt: skip


def pair(each: Mapping[str, Any]) -> tuple[str, ...]:
    counts = (str(each[name]) for name in ("both", "only_a", "only_b", "neither"))
    interval = f"[{each['low']:+.3f}, {each['high']:+.3f}]"
    return (f"{each['a']} - {each['b']}", f"{each['difference']:+.3f}", interval, f"{each['p']:.2g}", *counts)


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
