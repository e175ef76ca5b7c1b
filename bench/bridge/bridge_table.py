"""Figures of `bench/bridge.py costs` from what its processes tell, and its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from bridge_policy import KINDS

SHARES = {"p50": 50, "p95": 95, "p99": 99, "max": 100}


def spread(values: Sequence[float]) -> dict[str, float]:
    """Percentiles; NaN of nothing."""
    return {
        name: float(np.percentile(values, share)) if len(values) else float("nan") for name, share in SHARES.items()
    }


def trips(rounds: Sequence[Mapping[str, Any]], requests: int) -> dict[str, Any]:
    """Of rounds of so many round trips: milliseconds, and CPU milliseconds a round trip."""
    whole = np.concatenate([each["trips"] for each in rounds])
    policy = np.concatenate([each["policy"] for each in rounds])
    if len(policy) != len(whole):
        raise RuntimeError(f"{len(whole)} observations were asked, {len(policy)} inferred")
    network = np.concatenate([each["network"] or [0.0] * requests for each in rounds])
    return {
        "trips": len(whole), "added": spread(1e3 * (whole - policy)), "beyond": spread(1e3 * (whole - network)),
        "whole": spread(1e3 * whole),
        "server_cpu": float(np.median([1e3 * each["server_cpu"] / requests for each in rounds])),
        "robot_cpu": float(np.median([1e3 * each["robot_cpu"] / requests for each in rounds])),
    }  # fmt: skip


def loops(rounds: Sequence[Mapping[str, Any]], hz: float, seconds: float) -> dict[str, Any]:
    """Of rounds of a loop: milliseconds, and shares in percent."""
    between, ages, starved, ticks, span = [], [], 0, 0, 0.0
    for each in rounds:
        starts, aged = np.array(each["starts"]), each["ages"]
        counted = starts >= starts[-1] - seconds
        kept = [age for age, count in zip(aged, counted, strict=True) if count]
        between.append(np.diff(starts[counted]))
        ages += [1e3 * age for age in kept if age is not None]
        starved, ticks, span = starved + kept.count(None), ticks + len(kept), span + float(np.ptp(starts[counted]))
    gaps = np.concatenate(between)
    return {
        "ticks": ticks, "rate": len(gaps) / span, "deviation": spread(1e3 * np.abs(gaps - 1 / hz)),
        "missed": 100 * float(np.mean(gaps > 1.5 / hz)), "age": spread(ages), "starved": 100 * starved / ticks,
        "cpu": 100 * sum(each["cpu"] for each in rounds) / (len(rounds) * (seconds + 1)),
        "inferences": sum(each["inferences"] for each in rounds) / (len(rounds) * (seconds + 1)),
        "priority": rounds[0]["priority"],
    }  # fmt: skip


def markdown(rows: Mapping[str, Any]) -> str:
    """Both tables and the machine."""
    about = rows["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    said = (
        f"{about['cores']} cores of {about['cpu']}, Python {about['python']}, {versions}, {about['date']}; "
        f"load average before {about['load'][0]}, after {about['load_after'][0]}."
    )
    return "\n".join([said, "", *_trips(rows["trips"]), "", *_loops(rows["loops"])])


def _trips(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        "| two pictures | policy | bridge | added, ms: p50 | p95 | p99 | max | beyond the network, ms: p50 | p95 "
        "| sent, kB | received, kB | CPU ms, server | robot |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        numbers = [*row["added"].values(), row["beyond"]["p50"], row["beyond"]["p95"]]
        counted = [row["sent"] / 1e3, row["received"] / 1e3, row["server_cpu"], row["robot_cpu"]]
        lines.append(_line([row["pictures"], KINDS[row["kind"]], row["arm"], *numbers, *counted]))
    return lines


def _loops(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        "| loop | asks at | hogs | bridge | priority | ticks/s | deviation, ms: p50 | p95 | p99 | max | missed, % "
        "| age, ms: p50 | p95 | p99 | starved, % | inferences/s | CPU, % of a core |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        age = [row["age"][name] for name in ("p50", "p95", "p99")]
        begun = [f"{row['hz']:g} Hz", f"{row['threshold']:.0%}", row["hogs"], row["arm"], row["priority"], row["rate"]]
        lines.append(
            _line(
                [*begun, *row["deviation"].values(), row["missed"], *age, row["starved"], row["inferences"], row["cpu"]]
            )
        )
    return lines


def _line(cells: Sequence[Any]) -> str:
    return f"| {' | '.join(_told(cell) for cell in cells)} |"


def _told(cell: Any) -> str:
    """Numbers with three digits."""
    if not isinstance(cell, float):
        return str(cell)
    return f"{cell:.0f}" if abs(cell) >= 100 else f"{cell:.1f}" if abs(cell) >= 10 else f"{cell:.2f}"
