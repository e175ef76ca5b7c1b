"""What `result.json` holds: everything that the page shows, unblinded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib import metadata
from itertools import combinations
from typing import Any

from robot.trial.fisher import fisher
from robot.trial.journal import State, Verdict
from robot.trial.plan import Plan
from robot.trial.sequential import Course
from robot.trial.standing import courses, tries
from vlrl.types import wilson

WARN = 0.05  # p of Fisher's test on voids, times the number of pairs


def result_of(plan: Plan, state: State) -> dict[str, Any]:
    """As JSON can hold it. Numbers of rounds and episodes begin at 1."""
    trial, by_policy = plan.trial, tries(plan, state)
    pairs = [_pair(*both, course) for both, course in courses(plan, state).items()]
    return {
        "plan": plan.checksum, "seed": plan.seed, "manual": plan.manual, "paired": plan.paired,
        "alpha": trial.alpha, "delta": trial.delta, "ended": state.ended, "undone": state.undone,
        "episodes": len(state.counted), "most": len(plan.order),
        "sentences": [sentence(pair, plan) for pair in pairs], "warnings": _warnings(by_policy),
        "policies": [_policy(plan, name, each) for name, each in by_policy.items()], "pairs": pairs,
        "rows": [_row(plan, each) for each in state.verdicts],
        "settings": plan.settings, "vlrl": metadata.version("vlrl"),
    }  # fmt: skip


def _policy(plan: Plan, name: str, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    counted = [each for each in verdicts if each.verdict != "void"]
    won, n = sum(each.verdict == "success" for each in counted), len(counted)
    low, high = wilson(won, n)
    value = won / n if n else None
    return {
        "name": name, "slot": plan.slot(name), "n": n, "successes": won,
        "success": {"value": value, "low": low, "high": high, "n": n},
        "voids": len(verdicts) - n, "tries": len(verdicts),
        "by_robot": sum(each.by == "robot" for each in counted), "numbers": _means(counted),
    }  # fmt: skip


def _means(counted: Sequence[Verdict]) -> dict[str, float]:
    """Of each number that all episodes have."""
    shared = set.intersection(*(set(each.numbers) for each in counted)) if counted else set()
    return {name: math.fsum(each.numbers[name] for each in counted) / len(counted) for name in sorted(shared)}


def _pair(a: str, b: str, course: Course) -> dict[str, Any]:
    n = course.rounds
    return {
        "a": a, "b": b, "decision": course.decision, "decided": course.decided, "rounds": n,
        "e": math.exp(min(course.log_e[-1], 700)) if n else 1.0, "threshold": math.exp(course.threshold),
        "low": float(course.low[-1]) if n else -1.0, "high": float(course.high[-1]) if n else 1.0,
        "course": {"log_e": course.log_e.tolist(), "low": course.low.tolist(), "high": course.high.tolist()},
    }  # fmt: skip


def _row(plan: Plan, verdict: Verdict) -> dict[str, Any]:
    assigned = plan.order[verdict.episode - 1]
    return {**vars(verdict), "policy": assigned.policy, "round": assigned.round + 1, "start": assigned.start}


def sentence(pair: Mapping[str, Any], plan: Plan) -> str:
    """The decision on a pair, and what it does not say."""
    a, b = pair["a"], pair["b"]
    known = (f"the difference {a} - {b} lies between {pair['low']:+.2f} and {pair['high']:+.2f} (jointly "
             f"{1 - plan.trial.alpha:.0%} sure, whenever one looks; e-value {pair['e']:.3g}, threshold "
             f"{pair['threshold']:.3g}, after {pair['rounds']} rounds)")  # fmt: skip
    if pair["decision"] in ("a", "b"):
        better, worse = (a, b) if pair["decision"] == "a" else (b, a)
        return f"{better} succeeds more often than {worse}: {known}. This does not say by how much beyond that " \
               "interval, nor anything of other starts, scenes or robots."  # fmt: skip
    if pair["decision"] == "same":
        return f"{a} and {b} do not differ by more than {plan.trial.delta:g}: {known}. This does not say that they " \
               "are equal, nor anything of other starts, scenes or robots."  # fmt: skip
    return f"{a} or {b} is undecided: {known}. This does not say that they are alike."


def _warnings(by_policy: Mapping[str, Sequence[Verdict]]) -> list[str]:
    """Where voids fell on one policy more than chance would have it."""
    both = list(combinations(by_policy, 2))
    found = []
    for a, b in both:
        (void_a, n_a), (void_b, n_b) = (_voids(by_policy[name]) for name in (a, b))
        p = min(1.0, len(both) * fisher(void_a, n_a, void_b, n_b))
        if p < WARN:
            found.append(f"voids fell on {a} in {void_a} of {n_a} tries and on {b} in {void_b} of {n_b} (Fisher's "
                         f"exact test, p = {p:.2g}): if a policy causes them, the comparison is not fair")  # fmt: skip
    return found


def _voids(verdicts: Sequence[Verdict]) -> tuple[int, int]:
    return sum(each.verdict == "void" for each in verdicts), len(verdicts)
