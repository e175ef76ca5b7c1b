"""Parts of a recipe that undo or miss one another; see `vlrl.interactions` for what a rule is. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator

from vlrl import methods
from vlrl.config import Config
from vlrl.interactions import BASELINES, SHAPERS, STANDARDISERS, TRACKERS, WITHOUT_RATIO, Find, takes_turns
from vlrl.strict import Component


def lost_groups(config: Config, find: Find) -> str | None:
    """Replayed episodes are groups of their own."""
    if "group" not in methods.of(find("rollouts", config.rollouts.name)).lacks:
        return None
    for kind in ("shaping", "advantages", "losses"):
        for i, component in enumerate(getattr(config, kind)):
            if "group" in methods.of(find(kind, component.name)).needs:
                return (
                    f"{kind}.{i} ({component.name}) needs groups, but rollouts: {config.rollouts.name} makes each "
                    "earlier episode one of its own: use rollouts: plain, or beta_tracker"
                )
    return None


def lost_ratios(config: Config, find: Find) -> str | None:
    """Of replayed episodes nobody knows the probabilities under the law that sampled: every ratio would be 1."""
    if "sampled" not in methods.of(find("rollouts", config.rollouts.name)).lacks:
        return None
    for i, component in enumerate(config.losses):
        free = component.name in WITHOUT_RATIO and component.options.get("score") != "ratio"
        if not free and ":" not in component.name:
            return f"losses.{i} ({component.name}) {methods.ALTERNATIVES['sampled']}"
    return None


def order(config: Config, find: Find) -> str | None:
    """What works on whole decisions cannot follow what works on tokens: it would take the shaping's mean with it."""
    levels = [methods.of(find("advantages", c.name)).level for c in config.advantages]
    for i, level in enumerate(levels):
        if level == "sequence" and "token" in levels[:i]:
            earlier = config.advantages[levels.index("token")].name
            return f"advantages.{i} ({config.advantages[i].name}) must come before {earlier}"
    return None


def normalised_after_shaping(config: Config, find: Find) -> str | None:
    """Shaping is bounded by each advantage; what standardises it afterwards takes its mean out and moves the bound."""
    names = [c.name for c in config.advantages]
    for i, name in enumerate(names):
        earlier = [n for n in names[:i] if n in SHAPERS]
        if name in STANDARDISERS and earlier:
            return f"advantages.{i} ({name}) must come before {earlier[0]}"
    return None


def cancelled_correction(config: Config, find: Find) -> str | None:
    """A correction that is one scale and shift for all rewards does nothing before an estimator that removes both."""
    shapings = [c.name for c in config.shaping]
    names = [c.name for c in config.advantages]
    for i, name in enumerate(shapings):
        if name == "noise_forward":
            undone = next((n for n in names if n in BASELINES), None)
            remedy = "set advantages: []"
        elif name == "noise_backward" and not any(n in TRACKERS for n in names):
            undone = next((c.name for c in config.advantages if standardises(c)), None)
            remedy = "use {name: group, std: none}, leave_one_out or beta_tracker without it"
        else:
            continue
        if undone:
            return f"shaping.{i} ({name}) has no effect, {undone} takes it out again: {remedy}"
    return None


def standardises(component: Component) -> bool:
    """Whether an estimator gives the same for rewards on another scale and shifted."""
    usual = {"group": "group", "dr_mas": "group", "mars": "none"}
    if component.name in usual:
        return component.options.get("std", usual[component.name]) != "none"
    return component.name in (*STANDARDISERS, "a_grae", "dgpo")


def one_decision(config: Config, find: Find) -> str | None:
    """The only completion of a step is its own mean."""
    if config.train.prompts * config.train.group_size > 1 or takes_turns(config, find):
        return None
    for i, component in enumerate(config.advantages):
        if component.name in STANDARDISERS:
            return f"advantages.{i} ({component.name}) compares a step's completions: set train.prompts to 2 or more"
    return None


def blind_sampler(config: Config, find: Find) -> str | None:
    """Uncertainty is what a tracker knows."""
    own = [c.name for c in config.advantages if c.name in TRACKERS or ":" in c.name]
    if config.sampler.name == "uncertainty" and not own:
        return "sampler: uncertainty draws by what a tracker knows: add spo_tracker or beta_tracker to advantages"
    return None


def unreachable_lengths(config: Config, find: Find) -> Iterator[str]:
    """A length that no completion of one turn can pass pays, or punishes, nobody."""
    if takes_turns(config, find):
        return
    most = config.policy.max_tokens
    for i, component in enumerate(config.shaping):
        least = paid_length(component)
        if least is not None and least >= most:
            yield (
                f"shaping.{i} ({component.name}) begins at {least} tokens, but completions end at policy.max_tokens = "
                f"{most}: all would be treated alike; lower it"
            )


def paid_length(component: Component) -> int | None:
    """Above how many tokens a built-in length term treats completions differently."""
    options = component.options
    if component.name == "overlong":
        return int(options["longest"]) - int(options["cache"])
    if component.name == "laser":
        return int(options["target"])
    if component.name in ("laser_d", "laser_de"):
        return min(map(int, options.get("ladder", (1024,))))
    return int(options.get("longer_than", 100)) if component.name == "shortest_bonus" else None


RULES = (
    lost_groups, lost_ratios, order, normalised_after_shaping, cancelled_correction, one_decision,
    blind_sampler,
)  # fmt: skip
