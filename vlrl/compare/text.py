"""A result as tables of text, for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

VERDICTS = {"larger": "a is better", "smaller": "b is better", "open": "no difference shown"}


def measured(result: Mapping[str, Any]) -> list[list[str]]:
    """Head and one line for each arm: means over seeds with 95 % intervals."""
    ks = result["config"]["pass_at"]["k"]
    head = ["recipe", "seeds", "final accuracy", "95 %", *(f"pass@{k}" for k in ks), "mean along training", "entropy",
            "tokens written", "through the model", "rollouts", "updates", "CPU-s to train", "CPU-s a run"]  # fmt: skip
    start = result["start"]
    before = result["arms"][0]["before"]["value"]
    first = ["before training", "", f"{before:.3f}", "", *(f"{start[str(k)]['value']:.3f}" for k in ks), "",
             f"{start['entropy']:.3f}", *[""] * 6]  # fmt: skip
    return [head, first, *(_arm(arm, ks) for arm in result["arms"])]


def _arm(arm: Mapping[str, Any], ks: Sequence[int]) -> list[str]:
    entropy = arm["entropy"]
    return [
        arm["name"], str(len(arm["seeds"])), f"{arm['final']['value']:.3f}", interval(arm["final"]),
        *(f"{arm['pass_at'][str(k)]['value']:.3f}" for k in ks), f"{arm['area']['value']:.3f}",
        f"{entropy['first']['value']:.3f} -> {entropy['last']['value']:.3f}",
        *(whole(arm[key]["value"]) for key in ("tokens", "forwarded", "rollouts", "updates", "cpu_s", "whole_cpu_s")),
    ]  # fmt: skip


def seeds(result: Mapping[str, Any]) -> list[list[str]]:
    """Each seed's final accuracy with Wilson's interval."""
    head = ["recipe", "seed", "before", "after", "95 %", "held-out samples"]
    body = [
        [arm["name"], str(s["seed"]), f"{arm['before']['value']:.3f}", f"{s['value']:.3f}", interval(s), str(s["n"])]
        for arm in result["arms"] for s in arm["seeds"]
    ]  # fmt: skip
    return [head, *body]


def decisions(result: Mapping[str, Any]) -> list[list[str]]:
    head = ["a", "b", "a - b", "p", "verdict", "look"]
    body = [
        [d["a"], d["b"], f"{d['difference']:+.3f}", f"{d['p']:.3g}", VERDICTS[d["verdict"]], str(d["look"])]
        for d in result["test"]["decisions"]
    ]
    return [head, *body]


def reach(target: Mapping[str, Any]) -> list[list[str]]:
    """What it took each arm to get there."""
    axes = ("steps", "rollouts", "tokens", "cpu_s")
    head = ["recipe", "steps", "rollouts", "tokens", "CPU seconds"]
    return [head, *([name, *(cost(found[axis]) for axis in axes)] for name, found in target["arms"].items())]


def cost(found: Mapping[str, float | None]) -> str:
    if found["value"] is None:
        return "not reached"
    ends = [whole(end) if end is not None else "never" for end in (found["low"], found["high"])]
    return f"{whole(found['value'])} [{ends[0]}, {ends[1]}]"


def whole(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.2g}"


def interval(item: Mapping[str, float | None]) -> str:
    return "" if item["low"] is None else f"[{item['low']:.3f}, {item['high']:.3f}]"


def aligned(table: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in table)


def text(result: Mapping[str, Any]) -> str:
    """The whole result for a terminal."""
    parts = [aligned(measured(result)), aligned(decisions(result))]
    parts += [f"to reach {target['label']}:\n{aligned(reach(target))}" for target in result["reach"]]
    return "\n\n".join([*parts, *(f"note: {note}" for note in result["notes"])])
