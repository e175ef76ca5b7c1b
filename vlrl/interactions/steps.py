"""Recipes whose credit for single steps cannot work, though all parts are right: one function each, as in
`vlrl.interactions`. Imports no torch.
"""

from __future__ import annotations

import inspect

from vlrl import methods
from vlrl.config import Config
from vlrl.interactions import BASELINES, STANDARDISERS, TRACKERS, Find, takes_turns
from vlrl.strict import Component

READ_STEPS = ("gae", "gigpo", "tgrpo", "mars", "archer")  # estimators that read what steps earned
OF_STEPS = ("gigpo", "salt", "tgrpo")  # compare the steps of episodes
SETTLED = ("srpo_released", "arena", "polar", "grm", "trl")  # process rewards that change the outcome alone
# estimators that begin with the rewards
FRESH = ("group", "leave_one_out", "ngrpo", "a_grae", "dgpo", "gigpo", "tgrpo", "mars", "dr_mas", *TRACKERS)


def unread_steps(config: Config, find: Find) -> str | None:
    """What steps earn is no part of the outcome: an estimator has to read it."""
    paid = [i for i, component in enumerate(config.process) if earns(component, find)]
    if not paid or any(c.name in READ_STEPS or ":" in c.name for c in config.advantages):
        return None
    return (
        f"process.{paid[0]} ({config.process[paid[0]].name}) pays steps, which none of advantages reads: "
        f"add one of {', '.join(READ_STEPS)}"
    )


def earns(component: Component, find: Find) -> bool:
    """Whether a built-in process reward pays steps; others change the outcome, some by an option `form`."""
    if component.name in SETTLED or ":" in component.name:
        return False
    form = inspect.signature(find("process", component.name)).parameters.get("form")
    return form is None or component.options.get("form", form.default) != "outcome"


def spread_outcome(config: Config, find: Find) -> str | None:
    """Of an outcome that was spread over the steps only the rest is left, for others to misread."""
    names = [c.name for c in config.process]
    if "spa" not in names:
        return None
    if names[-1] != "spa":
        return f"process.{names.index('spa')} (spa) spreads the outcome: what changes it must come before"
    for i, component in enumerate(config.advantages):
        if component.name in BASELINES and component.name not in STANDARDISERS:
            return f"advantages.{i} ({component.name}) reads an outcome that spa has spread over the steps: remove it"
    return None


def gate_of_nothing(config: Config, find: Find) -> str | None:
    """A gate lets through what came before it."""
    if config.process and config.process[0].name == "g_ra_steps":
        return "process.0 (g_ra_steps) gates what earlier parts of process gave to steps: put one before it"
    return None


def paid_twice(config: Config, find: Find) -> str | None:
    """The simulator's rewards are a part of the task's reward, or what steps earn."""
    shaped = (config.task.options.get("weights") or {}).get("shaped", 0)
    if shaped and any(c.name == "simulator" for c in config.process):
        return "process: simulator pays what task.weights.shaped pays already: set that to 0"
    return None


def steps_of_one_turn(config: Config, find: Find) -> str | None:
    """An episode of one step has nothing to tell apart."""
    if takes_turns(config, find):
        return None
    for i, component in enumerate(config.advantages):
        if component.name in OF_STEPS:
            return f"advantages.{i} ({component.name}) compares steps, but this task has one turn: use group"
    for i, component in enumerate(config.process):
        if earns(component, find):
            return f"process.{i} ({component.name}) pays steps, but this task has one turn: use shaping"
    return None


def nothing_to_share(config: Config, find: Find) -> str | None:
    """SALT averages advantages: of plain rewards every step would be good."""
    names = [c.name for c in config.advantages]
    if "salt" in names and not any(n in BASELINES or n in READ_STEPS or ":" in n for n in names[: names.index("salt")]):
        return f"advantages.{names.index('salt')} (salt) averages what an earlier one gave: put group before it"
    return None


def overwritten(config: Config, find: Find) -> str | None:
    """What begins with the rewards takes nothing over from what stands before it."""
    names = [c.name for c in config.advantages]
    for i, name in enumerate(names):
        lost = [n for n in names[:i] if n in (*READ_STEPS, "salt") or name in OF_STEPS]
        if name in FRESH and lost:
            return f"advantages.{i} ({name}) begins with the rewards, so that {lost[0]} has no effect: remove one"
    return None


def endless_episodes(config: Config, find: Find) -> str | None:
    """Undiscounted values behind time limits have only successes to learn from."""
    for i, component in enumerate(config.advantages):
        options = component.options
        if component.name == "gae" and options.get("bootstrap") and options.get("gamma", 1.0) == 1:
            return f"advantages.{i} (gae): bootstrap needs gamma below 1: without a discount a time-out costs nothing"
    return None


def other_discount(config: Config, find: Find) -> str | None:
    """A potential cancels out of a sum that is discounted as it is; of another it pays for slowness, or haste."""
    for i, part in enumerate(config.process):
        options = inspect.signature(find("process", part.name)).parameters if ":" not in part.name else {}
        if "form" not in options or part.options.get("form", options["form"].default) != "potential":
            continue
        own = part.options.get("gamma", options["gamma"].default)
        for reader in config.advantages:
            default = {"gae": 1.0, "mars": 1.0, "archer": 0.9}.get(reader.name)
            asked = own if default is None else reader.options.get("gamma", default)
            summed = 1.0 if reader.name == "tgrpo" else asked
            if summed != own:
                return f"process.{i} ({part.name}): gamma = {own:g}, but {reader.name} sums with {summed:g}: set it so"
    return None


def unknown_judge(config: Config, find: Find) -> str | None:
    """A judge of the wrong name or options shows when the configuration is read, not when the first group was played.

    Raises:
        UserError: which, and what would be right.
    """
    for i, component in enumerate(config.process):
        if "judge" in component.options:
            from vlrl import judges

            judges.check(component.options["judge"], f"process.{i} ({component.name}).judge")
    return None


def arena_of_one(config: Config, find: Find) -> str | None:
    """Episodes that are groups of their own have nobody to play against."""
    lost = "group" in methods.of(find("rollouts", config.rollouts.name)).lacks
    for i, component in enumerate(config.process):
        if lost and component.name == "arena":
            return f"process.{i} (arena) needs groups, which rollouts: {config.rollouts.name} does not give: use polar"
    return None


RULES = (
    steps_of_one_turn, unread_steps, spread_outcome, gate_of_nothing, paid_twice, nothing_to_share, overwritten,
    endless_episodes, other_discount, unknown_judge, arena_of_one,
)  # fmt: skip
