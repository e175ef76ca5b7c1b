"""What is equal between arms, by construction, and what is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vlrl.compare.arms import WHOLE, Arm
from vlrl.types import UserError


@dataclass(frozen=True)
class Fact:
    """One line. `key`: the setting that lets a recipe keep its own; '' where there is none.

    inherent: it may differ, because the methods do.
    """

    label: str
    of: Callable[[Arm], Any]
    key: str = ""
    inherent: bool = False


def spent(arm: Arm) -> int:
    """Rollouts in all, those included that a strategy leaves out."""
    train = arm.config.train
    return arm.first + round(train.steps * train.prompts * train.group_size * arm.recipe.plays)


def updates(arm: Arm) -> int:
    train = arm.config.train
    return train.steps * train.minibatches * train.epochs


def passes(arm: Arm) -> float:
    """Mean visits of a prompt, a tracker's first response among them."""
    train = arm.config.train
    return train.steps * train.prompts / arm.pool + (arm.first > 0)


def _schedule(arm: Arm) -> str:
    train = arm.config.train
    end = train.lr if train.lr_end is None else train.lr_end
    return f"{train.lr:g} to {end:g} over the run, warm-up {train.warmup}"


FACTS = (
    Fact("rollouts", spent, "rollouts"),
    Fact("optimizer updates", updates, "rollouts"),
    Fact("rollouts an update", lambda arm: round(spent(arm) / updates(arm), 2), "rollouts"),
    Fact("updates a step", lambda arm: arm.config.train.minibatches * arm.config.train.epochs),
    Fact("passes over a step", lambda arm: arm.config.train.epochs, "train.epochs"),
    Fact("passes over the prompts", lambda arm: round(passes(arm), 2), "rollouts"),
    Fact("different prompts", lambda arm: arm.pool, inherent=True),
    Fact("answers a prompt gets", lambda arm: round(spent(arm) / arm.pool, 2), inherent=True),
    Fact("completions a visit", lambda arm: arm.config.train.group_size, inherent=True),
    Fact("first responses", lambda arm: arm.first, inherent=True),
    Fact("temperature", lambda arm: arm.config.policy.temperature, "policy.temperature"),
    Fact("longest completion", lambda arm: arm.config.policy.max_tokens, "policy.max_tokens"),
    Fact("gradient norm clipped at", lambda arm: arm.config.train.max_grad_norm, "train.max_grad_norm"),
    Fact("learning rate", _schedule, "train.lr"),
    Fact("optimizer", lambda arm: f"{arm.config.train.optimizer} {arm.config.train.betas} "
         f"decay {arm.config.train.weight_decay:g}", "train.optimizer"),
    Fact("model", lambda arm: arm.config.policy.model, "policy.model"),
    Fact("sampler", lambda arm: arm.config.sampler.name, "sampler"),
    Fact("rollout strategy", lambda arm: arm.config.rollouts.name, "rollouts"),
    Fact("replay", lambda arm: _names(arm.config.replay) or "none", inherent=True),
    Fact("process rewards", lambda arm: _names(arm.config.process) or "none", inherent=True),
    Fact("hooks", lambda arm: _names(arm.config.hooks) or "none", inherent=True),
    Fact("advantage", lambda arm: _names(arm.config.advantages), inherent=True),
    Fact("loss", lambda arm: _losses(arm), inherent=True),
    Fact("reward shaping", lambda arm: _names(arm.config.shaping) or "none", inherent=True),
    Fact("weighing", lambda arm: arm.config.weighing.name, inherent=True),
)  # fmt: skip


def _names(components: Sequence[Any]) -> str:
    return " + ".join(component.name for component in components)


def _losses(arm: Arm) -> str:
    """Loss terms with the numbers that a comparison of clipping needs to see."""
    said = []
    for component in arm.config.losses:
        numbers = " ".join(f"{v:g}" for k, v in component.options.items() if isinstance(v, int | float))
        said.append(f"{component.name} {numbers}".strip())
    return " + ".join(said)


def facts(arms: Sequence[Arm], passes_are_equal: bool = True) -> list[dict[str, Any]]:
    """Lines {label, values by arm, verdict: `equal`, `own`, `method` or `released`}.

    Args:
        passes_are_equal: whether the budget gives passes; else it gives prompts, and those are equal.

    Raises:
        UserError: a setting differs between recipes that neither is the method nor was declared `own`.
    """
    lines = []
    for fact in FACTS:
        values = {arm.name: fact.of(arm) for arm in arms}
        bound = [arm for arm in arms if not arm.recipe.as_released and not _kept(arm, fact)]
        swapped = {"passes over the prompts": not passes_are_equal, "different prompts": passes_are_equal}
        inherent = swapped.get(fact.label, fact.inherent)
        same = len({str(values[arm.name]) for arm in bound}) <= 1
        if not same and not inherent:
            raise UserError(f"{fact.label} cannot be made equal: {_told(values)}; mark recipes as_released: true")
        lines.append({"label": fact.label, "values": values, "verdict": _verdict(arms, values, same, fact)})
    return lines


def _kept(arm: Arm, fact: Fact) -> bool:
    section, _, key = fact.key.partition(".")
    if section in WHOLE:
        return section in arm.recipe.own
    also = {"lr": ("lr", "lr_end", "warmup"), "optimizer": ("optimizer", "betas", "weight_decay")}.get(key, (key,))
    return any(f"{section}.{each}" in arm.recipe.own for each in also) if key else False


def _verdict(arms: Sequence[Arm], values: dict[str, Any], same: bool, fact: Fact) -> str:
    if not same:
        return "method"
    if len({str(value) for value in values.values()}) == 1:
        return "equal"
    bound = {str(values[arm.name]) for arm in arms if not arm.recipe.as_released}
    return "released" if len(bound) <= 1 else "own"


def _told(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


VERDICTS = {
    "equal": "equal",
    "own": "kept by a recipe",
    "method": "the methods differ",
    "released": "differs as released",
}


def rows(lines: Sequence[dict[str, Any]]) -> list[list[str]]:
    """The table's head and lines as text."""
    names = list(lines[0]["values"])
    body = [[x["label"], VERDICTS[x["verdict"]], *(say(x["values"][name]) for name in names)] for x in lines]
    return [["", "", *names], *body]


def say(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,g}" if value == int(value) else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def text(lines: Sequence[dict[str, Any]]) -> str:
    """For a terminal: each line's values, with the arms that have them where not all agree."""
    told = []
    for line in lines:
        having: dict[str, list[str]] = {}
        for name, value in line["values"].items():
            having.setdefault(say(value), []).append(name)
        values = [f"{value} ({', '.join(names)})" for value, names in having.items()] if len(having) > 1 else having
        told.append(f"{line['label']:26}{VERDICTS[line['verdict']]:22}{'; '.join(values)}")
    return "\n".join(told)
