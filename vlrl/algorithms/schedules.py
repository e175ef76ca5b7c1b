"""Schedules: the learning rate, reference resets, soft updates."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from vlrl.config import Count, Rate
from vlrl.methods import BoundFunction, Callback, Recipe, RecipePart, method
from vlrl.types import UserError

if TYPE_CHECKING:
    from torch import Tensor


# A reference that changes during a run, and comes back from a checkpoint as it was.


class Reference:
    """What a policy's reference has become: the values of the parameters that train, on the CPU; None: still the start.

    What does not train is the same in both. They are part of the checkpoint.
    """

    def __init__(self, policy: Any):
        self.policy = policy
        self.weights: dict[str, Tensor] | None = None

    def take(self) -> None:
        """The present policy becomes the reference."""
        self.policy.freeze_reference()
        self.weights = present(self.policy)

    def become(self, weights: Mapping[str, Tensor]) -> None:
        """Values of the parameters, by name, become the reference's; the policy keeps its own."""
        from vlrl.policies.weights import swapped

        self.weights = dict(weights)
        with swapped(self.policy.model, self.weights):
            self.policy.freeze_reference()

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["weights"] is not None:
            self.become(state["weights"])


def present(policy: Any) -> dict[str, Tensor]:
    """The values of the parameters that train, by name, on the CPU."""
    from vlrl.policies.weights import learned

    return {name: value.cpu() for name, value in learned(policy.model).items()}


# A coefficient that changes with the steps: hook `schedule`.

Steps = Annotated[int, Field(ge=0)]


def check_scheduled(recipe: Recipe, part: RecipePart) -> str | None:
    """A schedule is of an option that a loss term has."""
    loss, option = part.options.get("loss"), part.options["option"]
    term = next((term for term in recipe.of("losses") if term.name == loss), None)
    if term is None:
        known = ", ".join(term.name for term in recipe.of("losses"))
        return f"{part.label}: loss: losses has no {loss!r}, but {known}"
    if option not in inspect.signature(term.target).parameters:
        return f"{part.label}: option: {loss} has no {option!r}"
    return None


@method(
    check_recipe=check_scheduled,
    source="linear and cosine schedules, as of learning rates; cosine: SGDR, arXiv 1608.03983",
)
class Schedule(Callback):
    """An option of a loss term goes from `start` to `end` over `steps` steps, from step `after` on.

    At share t of the way it is start + (end - start) s(t), with s = t (`linear`) or (1 - cos(pi t)) / 2 (`cosine`).
    Before and behind it stays at the ends. It hangs on the step alone. Several options: several hooks.

    Args:
        loss: a term under `losses`, by its name there; all terms of that name.
        option: one of the term's options that is a number.
        after: steps that pass before it starts to change.

    Raises:
        UserError: no such term, or the term has no such option.
    """

    def __init__(
        self, policy: Any, task: Any, updater: Any, seed: int, *,
        loss: str, start: float, end: float, steps: Count, option: str = "coef", after: Steps = 0,
        shape: Literal["linear", "cosine"] = "linear",
    ):  # fmt: skip
        self.updater, self.loss, self.option, self.shape = updater, loss, option, shape
        self.start, self.end, self.steps, self.first = start, end, steps, after
        terms = [term for term in updater.terms if isinstance(term, BoundFunction)]
        places = [i for i, term in enumerate(updater.terms) if term in terms and term.name == loss.rpartition(":")[2]]
        if not places:
            known = ", ".join(term.name for term in terms)
            raise UserError(f"callbacks: schedule: loss: no term {loss!r} under losses, which has {known}")
        if any(option not in updater.terms[i].options for i in places):
            raise UserError(f"callbacks: schedule: option: {loss} has no option {option!r}")
        self.places = places

    def on_step_begin(self, step: int) -> None:
        """Gives the terms the step's value."""
        value = self.value(step)
        terms = list(self.updater.terms)
        for i in self.places:
            terms[i] = terms[i].replace(**{self.option: value})
        self.updater.terms = terms
        self.metrics = {f"schedule/{self.loss}.{self.option}": value}

    def value(self, step: int) -> float:
        """What the option is in the update of a step, counted from 0."""
        share = min(1.0, max(0.0, (step - self.first) / self.steps))
        if self.shape == "cosine":
            share = (1 - math.cos(math.pi * share)) / 2
        return self.start + (self.end - self.start) * share


schedule = Schedule


# The reference moves up to the policy from time to time, and the optimizer begins anew: hook `reference_reset`.


@method(
    reads=("all_weights",), gives=("reference", "optimizer"), source="reference policy reset: ProRL, arXiv 2505.24864"
)
class ReferenceReset(Callback):
    """Every `every` steps, and where the KL is above `kl`, the present policy becomes the reference.

    The optimizer's state is made anew with it, as published: its moments would pull on against the old reference. KL is
    the log's `kl`, between the policy that played the step and the reference; with a reset it falls to 0, and with it
    the term that had come to outweigh the rewards.

    Published: that both are reset when validation stagnates or the KL spikes. The rule and its numbers are those of
    third-party recipes, without the validation. Trap: estimators that measure drift from the reference
    (`beta_tracker` with eta: paper) take a reset for a policy that stands still.

    Args:
        every: steps between two resets, counted from the latest; null: by the KL alone.
        kl: nats a token; null: by the steps alone.
        optimizer: whether the optimizer is made anew.

    Raises:
        UserError: neither every nor kl.
    """

    def __init__(
        self, policy: Any, task: Any, updater: Any, seed: int, *,
        every: Count | None = 100, kl: Rate | None = 0.1, optimizer: bool = True,
    ):  # fmt: skip
        if every is None and kl is None:
            raise UserError("callbacks: reference_reset: set every or kl, or leave the callback out")
        self.every, self.kl, self.updater = every, kl, updater
        self.reference, self.resets, self.since = Reference(policy), 0, 0
        # made before a checkpoint is read: the state that every run begins with
        self.new = copy.deepcopy(updater.optimizer.state_dict()) if optimizer else None

    def on_step_end(self, step: int, row: dict[str, Any]) -> None:
        """Behind an update, so that the next step is the first with both."""
        self.since += 1
        over = self.kl is not None and row.get("kl", 0.0) > self.kl
        if over or self.since == self.every:
            self.reference.take()
            if self.new is not None:
                self.updater.optimizer.load_state_dict(copy.deepcopy(self.new))
            self.resets, self.since = self.resets + 1, 0
        self.metrics = {"reference/resets": float(self.resets)}

    def state_dict(self) -> dict[str, Any]:
        return {"resets": self.resets, "since": self.since} | self.reference.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.resets, self.since = state["resets"], state["since"]
        self.reference.load_state_dict(state)


reference_reset = ReferenceReset


# The reference follows the policy at a distance: hook `soft_sync`.


def check_whole_weights(recipe: Recipe, part: RecipePart) -> str | None:
    """The mean of two adapters' factors does not do the mean of what they do."""
    if recipe.config.policy.lora:
        return "callbacks: soft_sync mixes weights that train whole: remove policy.lora, or use reference_reset"
    return None


@method(
    reads=("all_weights",),
    gives=("reference",),
    check_recipe=check_whole_weights,
    source="TR-DPO, arXiv 2404.09656; TRL: sync_ref_model, ref_model_mixup_alpha, ref_model_sync_steps",
)
class SoftSync(Callback):
    """Every `every` steps the reference becomes `mix` policy + (1 - mix) reference, weight by weight.

    With mix 1 it is the policy of that step. Published for weights that train whole: the mean of two adapters is no
    adapter that does the mean of both.

    Args:
        mix: the policy's share; TRL's 0.6.
        every: steps; TRL's 512.

    Raises:
        UserError: the policy trains an adapter.
    """

    def __init__(
        self, policy: Any, task: Any, updater: Any, seed: int, *,
        mix: Annotated[float, Field(gt=0, le=1)] = 0.6, every: Count = 512,
    ):  # fmt: skip
        from vlrl.policies.generation import has_adapter

        if has_adapter(policy.model):
            raise UserError("callbacks: soft_sync mixes weights that train whole: use reference_reset for policy.lora")
        self.mix, self.every, self.reference, self.syncs = mix, every, Reference(policy), 0
        self.start = present(policy)  # made before a checkpoint is read: the reference until the first time

    def on_step_end(self, step: int, row: dict[str, Any]) -> None:
        """Behind an update, so that the next step is the first with the new reference."""
        if step % self.every == 0:
            self._mix()
        self.metrics = {"reference/syncs": float(self.syncs)}

    def _mix(self) -> None:
        own, old = present(self.reference.policy), self.reference.weights or self.start
        self.reference.become({name: self.mix * value + (1 - self.mix) * old[name] for name, value in own.items()})
        self.start, self.syncs = {}, self.syncs + 1

    def state_dict(self) -> dict[str, Any]:
        return {"syncs": self.syncs} | self.reference.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.syncs = state["syncs"]
        self.reference.load_state_dict(state)


soft_sync = SoftSync
