"""Recipes whose parts are all right and that are wrong as a whole: one function each, asked when a config is read.

Each takes a configuration and returns what is wrong and what to do, or None. Only built-in plug-ins are known by name;
what a user's own does is the user's affair. Imports no torch. Here is what the rules share; vlrl/interactions/every.py
asks them all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vlrl.config import Config
from vlrl.parts import tasks_of

TRACKERS = ("beta_tracker", "spo_tracker")  # baselines with a state for each prompt
STANDARDISERS = ("batch_norm", "whiten", "sigma_filter")  # over the whole step
BASELINES = ("group", "leave_one_out", "ngrpo", "a_grae", "dgpo", "dr_mas", "mars", *TRACKERS, *STANDARDISERS)
SHAPERS = ("entropy_shaping",)  # add to each token by its own size
# losses that do not ask how likely an action was when it was taken
WITHOUT_RATIO = ("likelihood", "kl", "entropy", "disco", "gepo", "sft", "distill", "a_lol", "copg")

Find = Callable[[str, str], Any]


def takes_turns(config: Config, find: Find) -> bool:
    """Whether the task's episodes may have several turns: it makes environments of its own, and not for one turn."""
    one = find("task base", "tasks.base:Task").environment
    return any(
        getattr(find("task", task.name), "environment", one) is not one and task.options.get("turns") != 1
        for _, task in tasks_of(config.task)
    )
