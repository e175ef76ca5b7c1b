"""Recipes that cannot be played ahead (`train.staleness`): one function each, as in `vlrl.interactions`. No torch."""

from __future__ import annotations

from collections.abc import Callable

from vlrl.config import Config
from vlrl.interactions import Find

Rule = Callable[[Config, Find], str | None]

MATCHING = ("limr", "sws", "vade")  # samplers that look for outcomes of their latest draw
ZERO = "set train.staleness to 0"


def remembering(config: Config, find: Find) -> str | None:
    """A strategy with a state goes on from what it played last."""
    name = config.rollouts.name
    if hasattr(find("rollouts", name), "state_dict"):
        return f"rollouts: {name} goes on from its last step, which train.staleness does not wait for: use plain"
    return None


def matched(config: Config, find: Find) -> str | None:
    """What these draw next would be taken for what was played."""
    name = config.sampler.name
    if name in MATCHING:
        return f"sampler: {name} needs a draw's outcomes before the next draw: {ZERO}, or use unsolved or shuffled"
    return None


def recorded(config: Config, find: Find) -> str | None:
    """Operations are recorded of all that a GPU does meanwhile."""
    return f"policy.cuda_graphs: no other thread may use the GPU: {ZERO}" if config.policy.cuda_graphs else None


def one_writer(config: Config, find: Find) -> str | None:
    """An engine has to be told whose weights it writes by, and to write while the trainer works."""
    from vlrl import engines

    name = config.policy.engine.name
    if name != "local" and not hasattr(engines.target(config.policy.engine), "follow"):
        return f"policy.engine: {name} writes by the present weights alone: use local or server, or {ZERO}"
    return None


def ahead(config: Config, find: Find) -> str | None:
    """The first of all that is wrong where steps are played ahead."""
    rules = (remembering, matched, recorded, one_writer) if config.train.staleness else ()
    return next((told for rule in rules if (told := rule(config, find))), None)


def weighed_twice(config: Config, find: Find) -> str | None:
    """Each multiplies by the weight between what sampled and what trains."""
    names = [c.name for c in config.advantages if c.name in ("decoupled", "truncated_weights")]
    return f"advantages: {' and '.join(names)} weigh the same twice: leave one out" if len(names) > 1 else None


RULES = (ahead, weighed_twice)
