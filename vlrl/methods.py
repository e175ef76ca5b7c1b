"""What a method declares of itself, so that a wrong recipe fails when it is read and not at step 40."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from vlrl.types import UserError, suggest

if TYPE_CHECKING:
    from vlrl.config import Component, Config

Need = Literal[
    "group", "reference", "features", "sequence_mean", "one_forward", "one_turn", "one_answer", "sampled", "anchors",
    "teacher",
]  # fmt: skip
Level = Literal["sequence", "token"]
Fact = Literal[  # what one part of a recipe reads and another gives; vlrl/recipe_checks.py says what goes together
    "reward",  # an estimator reads it, not an earlier one's advantage; a shaping gives one made without gold answers
    "step_rewards",  # what process rewards pay for single steps
    "steps",  # compares the steps of episodes
    "returns",  # sums of step rewards, discounted by the option `gamma` (1 without the option)
    "potential",  # step rewards that cancel out of a sum of the same `gamma`
    "baseline",  # a mean of rewards or advantages is subtracted
    "scale",  # divides by a deviation
    "whole_step",  # compares all completions of a step
    "token_shaping",  # adds to each token by its own size
    "prompt_values",  # a state for each prompt
    "sampling_weights",  # the ratio of the policy that trains to the one that sampled
    "unfinished",  # episodes whose reward is not known
    "old_logprobs",  # log-probabilities under the policy that sampled
    "reference",  # log-probabilities under a frozen copy; a callback gives another copy
    "regularisation",  # a loss that does not follow the advantage
    "demonstrations",  # episodes to imitate
    "truth",  # gold answers, or whether an answer is right
    "latest_draw",  # outcomes of its latest draw, before the next
    "all_episodes",  # episodes of all processes in one place
    "all_turns",  # the same, where episodes take several turns
    "all_weights",  # whole weights, which FSDP has in parts
    "optimizer",  # a new optimizer
]
Facts = tuple[Fact, ...] | Callable[[Mapping[str, Any]], tuple[Fact, ...]]  # a function: of the options
T = TypeVar("T", bound=Callable)

# what a recipe is told that does not give it: behind the method's name
ALTERNATIVES = {
    "group": "needs several completions per prompt: set train.group_size to 2 or more, or use beta_tracker",
    "reference": "needs log-probabilities under a frozen copy, which this policy does not keep: leave it out",
    "features": "needs what a policy makes of its prompts, for critics, which this one does not give: "
    "use grpo or beta_tracker",
    "sequence_mean": "is a loss of whole completions, which count the same: set loss_aggregation to sequence_mean",
    "one_forward": "compares all tokens of an optimizer step: leave train.micro_batch_size out (smaller steps: "
    "train.num_minibatches)",
    "one_turn": "compares whole completions, but episodes of this task take several turns: use ppo_clip",
    "one_answer": "works on one answer, but episodes of this task take several turns: use guide_turns",
    "anchors": "compares steps of different episodes that saw, or did, the same: for episodes of several turns",
    "teacher": "needs log-probabilities of a teacher: name a model with policy.teacher",
    "sampled": "needs log-probabilities of the behaviour policy, which replayed episodes do not have: "
    "use likelihood, or rollout_strategy: plain",
}


# kind -> the positional parameters that its methods are called with: functions, or `__call__` of their classes
CALLS: Mapping[str, tuple[str, ...]] = {
    "advantages": ("rollouts", "advantage"),
    "losses": ("now", "batch"),
    "loss_aggregation": ("mask",),
    "rollout_strategy": ("policy", "task", "samples", "group_size", "step"),
    "process_rewards": ("episodes", "step"),
    "reward_shaping": ("rollouts",),
    "replay_mixing": ("lessons", "step"),
    "source": ("task", "seed"),
}
# kind -> what its classes have one of; those of agents may only make one (`__new__`)
CLASSES: Mapping[str, tuple[str, ...]] = {
    "sampler": ("draw",), "callbacks": ("before", "after"), "agent": (), "judge": ("prefer",),
}  # fmt: skip


@dataclass(frozen=True)
class Method:
    """What a plug-in says of itself.

    needs: what the run must give. lacks: what a rollout strategy, a replay or a shaping takes from it. reads, gives:
    what it has from, and for, other parts of the recipe, or a function of its options that says so. level: `sequence`
    works on one value per decision, `token` on [B, T]. vanishes: of a loss, that a decision whose advantages are all 0
    and that is not `shown` has the value 0 and no gradient, and that what the others have does not depend on it
    (tests/vlrl/test_losses.py holds it to that). check: asked about the options before a run loads anything; raises
    UserError for what could only fail later, such as weights that are nowhere. check_options: asked about the options,
    and the path that messages name them by, when a configuration is read; raises UserError. check_recipe: asked about
    the whole recipe and the method's own part of it; returns what is wrong and what to do, or None.
    """

    needs: tuple[Need, ...] = ()
    level: Level = "sequence"
    source: str = ""
    lacks: tuple[Need, ...] = ()
    vanishes: bool = False
    check: Callable[[Mapping[str, Any]], None] | None = None
    check_options: Callable[[Mapping[str, Any], str], None] | None = None
    reads: Facts = ()
    gives: Facts = ()
    check_recipe: Callable[[Recipe, RecipePart], str | None] | None = None


def method(
    function: Callable | None = None, /, *, needs: tuple[Need, ...] = (), level: Level = "sequence", source: str = "",
    lacks: tuple[Need, ...] = (), vanishes: bool = False, check: Callable[[Mapping[str, Any]], None] | None = None,
    check_options: Callable[[Mapping[str, Any], str], None] | None = None, reads: Facts = (), gives: Facts = (),
    check_recipe: Callable[[Recipe, RecipePart], str | None] | None = None,
) -> Callable:  # fmt: skip
    """Marks a function or class as a plug-in and states its needs and its source (paper, equation or repository).

    Written bare, `@method`, or with arguments, `@method(source="...")`; the arguments are the fields of `Method`.
    """

    def mark(target: T) -> T:
        target.method = Method(
            needs, level, source, lacks, vanishes, check, check_options, reads, gives, check_recipe
        )  # fmt: skip
        return target

    return mark if function is None else mark(function)


@dataclass(frozen=True)
class RecipePart:
    """One component of a recipe and the plug-in that it names."""

    kind: str
    component: Component
    target: Any
    path: str  # in messages: `losses.0`

    @property
    def name(self) -> str:
        return self.component.name

    @property
    def label(self) -> str:
        """`losses.0 (kl)`"""
        return f"{self.path} ({self.name})"

    @cached_property
    def options(self) -> Mapping[str, Any]:
        """As written, with the defaults of the others."""
        signature = inspect.signature(self.target).parameters.values()
        defaults = {p.name: p.default for p in signature if p.kind is p.KEYWORD_ONLY and p.default is not p.empty}
        return defaults | self.component.options

    @property
    def method(self) -> Method:
        return of(self.target)

    @cached_property
    def reads(self) -> frozenset[str]:
        return self._facts(self.method.reads)

    @cached_property
    def gives(self) -> frozenset[str]:
        return self._facts(self.method.gives)

    @property
    def undeclared(self) -> bool:
        """A user's own method that says nothing of what it reads and gives: nothing is held against it."""
        return ":" in self.name and not self.method.reads and not self.method.gives

    def _facts(self, facts: Facts) -> frozenset[str]:
        stated = facts(self.options) if callable(facts) else facts
        for fact in stated:
            if fact not in get_args(Fact):
                raise UserError(
                    f"{self.label}: @method: reads or gives: unknown {fact!r}{suggest(fact, get_args(Fact))}"
                )
        return frozenset(stated)


@dataclass(frozen=True)
class Recipe:
    """A configuration and its parts, as the rules of methods read them."""

    config: Config
    parts: tuple[RecipePart, ...]  # in the order of the configuration
    takes_turns: bool  # episodes of its task may have several turns

    def of(self, *kinds: str) -> list[RecipePart]:
        return [part for part in self.parts if part.kind in kinds]

    def one(self, kind: str) -> RecipePart:
        (part,) = self.of(kind)
        return part


def is_method(target: object) -> bool:
    """Whether a function or class carries `@method`, its own or that of a class it extends."""
    return isinstance(getattr(target, "method", None), Method)


def contract_problem(kind: str, target: Any) -> str | None:
    """Why `target` cannot be a method of a kind; None: it can.

    Parameters may have other names, but not all those of another kind: it would be called with the wrong values.
    """
    if kind in CLASSES:
        names = CLASSES[kind]
        fits = inspect.isclass(target) and (not names or any(name in dir(target) for name in names))
        return None if fits else " with ".join(filter(None, [f"{kind} needs a class", " or ".join(names)]))
    called = target.__call__ if inspect.isclass(target) and "__call__" in dir(target) else target
    if inspect.isclass(called):
        return f"{kind} needs a function or a class with __call__({', '.join(CALLS[kind])})"
    parameters = list(inspect.signature(called).parameters.values())[called is not target :]  # without `self`
    placed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = sum(p.default is p.empty for p in placed)
    taken = tuple(p.name for p in placed)
    fits = required <= len(CALLS[kind]) and (
        len(placed) >= len(CALLS[kind]) or any(p.kind is p.VAR_POSITIONAL for p in parameters)
    )
    other = next((other for other, names in CALLS.items() if names == taken and names != CALLS[kind]), None)
    if fits and other is None:
        return None
    like = f", as a method of {other}" if other else ""
    return f"it takes ({', '.join(taken)}){like}; {kind} calls it with ({', '.join(CALLS[kind])})"


def of(target: object) -> Method:
    """What a plug-in declares, also with its options filled in (functools.partial)."""
    return getattr(getattr(target, "func", target), "method", Method())
