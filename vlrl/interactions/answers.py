"""Rollout strategies, and rewards without a true answer, beside parts that they do not go with: one function each, as
in `vlrl.interactions`. Imports no torch.
"""

from __future__ import annotations

import inspect

from vlrl.config import Config
from vlrl.interactions import Find, takes_turns

OF_ONE_ANSWER = ("ghpo", "seele", "igrpo", "rethink", "guide")  # change the prompt of one answer, or go on from it
OF_TURNS = {  # begin an episode for the policy: how, and what to use where there is one turn
    "guide_turns": ("plays the first of several turns", "guide"), "snapshots": ("begins between two turns", "plain"),
}  # fmt: skip
READ_TRUTH = (*OF_ONE_ANSWER, "filter_refill", "augment", "snapshots")  # look at what is right
UNLABELLED = ("ttrl", "scope")  # shapings that do not


def one_answer(config: Config, find: Find) -> str | None:
    """What an environment shows turn by turn cannot be changed by what is done to the sample's prompt."""
    name, turns = config.rollouts.name, takes_turns(config, find)
    if turns and name in OF_ONE_ANSWER:
        return f"rollouts ({name}) works on one answer, but episodes of this task take several turns: use guide_turns"
    if not turns and name in OF_TURNS:
        how, other = OF_TURNS[name]
        return f"rollouts ({name}) {how}, but this task has one: use {other}"
    return None


def rounds_of_a_group(config: Config, find: Find) -> str | None:
    """A round of no completions tells nothing."""
    rounds, size = int(config.rollouts.options.get("rounds", 4)), config.train.group_size
    if config.rollouts.name == "seele" and rounds > size:
        return f"rollouts.rounds: at most train.group_size = {size}, which is divided into rounds (got {rounds})"
    return None


def no_thoughts(config: Config, find: Find) -> str | None:
    """Where an answer alone is asked for, whatever is thought besides makes it wrong."""
    may = "thinking" in inspect.signature(find("task", config.task.name)).parameters
    if config.rollouts.name == "rethink" and may and not config.task.options.get("thinking"):
        return "rollouts (rethink) goes on with thoughts, which this task does not ask for: set task.thinking to true"
    return None


def forgotten_reward(config: Config, find: Find) -> str | None:
    """A reward that is replaced takes nothing over."""
    for i, component in enumerate(config.shaping):
        if component.name in UNLABELLED and i:
            return f"shaping.{i} ({component.name}) replaces the reward: put it first, so that others add to it"
    return None


def known_answers(config: Config, find: Find) -> str | None:
    """Learning without true answers would use them all the same."""
    without = next((f"shaping.{i} ({c.name})" for i, c in enumerate(config.shaping) if c.name in UNLABELLED), None)
    if without and config.rollouts.name in READ_TRUTH:
        return f"{without} does without true answers, but rollouts: {config.rollouts.name} looks at them: use plain"
    return None


RULES = (one_answer, no_thoughts, rounds_of_a_group, forgotten_reward, known_answers)
