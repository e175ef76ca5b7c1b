"""All rules that a recipe is held to as a whole."""

from __future__ import annotations

from collections.abc import Iterator

from vlrl.config import Config
from vlrl.interactions import Find, answers, asynchronous, mixing, processes, rollouts, steps, whole


def problems(config: Config, find: Find) -> Iterator[str]:
    """What is wrong with a configuration whose components are each in order; `find(kind, name)` gives a plug-in."""
    apart = (*answers.RULES, *rollouts.RULES, *processes.RULES, *asynchronous.RULES)
    for rule in (*whole.RULES, *steps.RULES, *mixing.RULES, *apart):
        if told := rule(config, find):
            yield told
    yield from whole.unreachable_lengths(config, find)
