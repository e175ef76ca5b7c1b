"""Where a trial stands: outcomes by policy and round, and the course of each pair's test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from robot.trial.journal import State, Verdict
from robot.trial.plan import Plan
from robot.trial.sequential import Course, Rule, follow


def tries(plan: Plan, state: State) -> dict[str, list[Verdict]]:
    """The verdicts in force of each policy, voids among them, in order."""
    return {
        name: [each for each in state.verdicts if plan.order[each.episode - 1].policy == name] for name in plan.policies
    }


def courses(plan: Plan, state: State) -> dict[tuple[str, str], Course]:
    """The test of each pair of policies, with alpha shared evenly among them (Bonferroni).

    A pair's rounds are taken in the order in which both of its episodes were done, which the plan alone fixes.
    """
    trial = plan.trial
    both = list(combinations(plan.policies, 2))
    rule = Rule(trial.alpha / len(both), trial.delta, plan.paired)
    done = _rounds(plan, state)
    return {pair: follow(rule, *_columns(done, pair)) for pair in both}


def over(plan: Plan, state: State) -> str:
    """Why the trial needs no further episode: 'decided', 'all episodes', or '' while it does."""
    if all(course.decided for course in courses(plan, state).values()):
        return "decided"
    return "all episodes" if len(state.counted) == len(plan.order) else ""


def _rounds(plan: Plan, state: State) -> list[tuple[int, str, bool]]:
    """(round, policy, success) in order of play."""
    played = zip(plan.order, state.counted, strict=False)
    return [(each.round, each.policy, verdict.verdict == "success") for each, verdict in played]


def _columns(done: Sequence[tuple[int, str, bool]], pair: tuple[str, str]) -> list[list[bool]]:
    """Outcomes of both policies over the rounds that both have played."""
    half: dict[int, Mapping[str, bool]] = {}
    columns: list[list[bool]] = [[], []]
    for number, policy, success in done:
        if policy in pair:
            half[number] = {**half.get(number, {}), policy: success}
            if len(half[number]) == 2:
                for column, name in zip(columns, pair, strict=True):
                    column.append(half[number][name])
    return columns
