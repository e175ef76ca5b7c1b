"""What a method declares of itself, so that a wrong recipe fails when it is read and not at step 40."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

Need = Literal[
    "group", "reference", "features", "sequence_mean", "one_forward", "one_turn", "sampled", "anchors", "teacher"
]
Level = Literal["sequence", "token"]
T = TypeVar("T", bound=Callable)

# what a recipe is told that does not give it: behind the method's name
ALTERNATIVES = {
    "group": "needs several completions per prompt: set train.group_size to 2 or more, or use beta_tracker",
    "reference": "needs log-probabilities under a frozen copy, which this policy does not keep: leave it out",
    "features": "needs what a policy makes of its prompts, for critics, which this one does not give: "
    "use group or beta_tracker",
    "sequence_mean": "is a loss of whole completions, which count the same: set weighing to sequence_mean",
    "one_forward": "compares all tokens of an optimizer step: leave train.microbatch out (smaller steps: "
    "train.minibatches)",
    "one_turn": "compares whole completions, but episodes of this task take several turns: use ppo_clip",
    "anchors": "compares steps of different episodes that saw, or did, the same: for episodes of several turns",
    "teacher": "needs log-probabilities of a teacher: name a model with policy.teacher",
    "sampled": "needs log-probabilities of the law that sampled, which replayed episodes do not have: "
    "use likelihood, or rollouts: plain",
}


@dataclass(frozen=True)
class Method:
    """What a plug-in says of itself.

    needs: what the run must give. lacks: what a rollout strategy takes from it. level: `sequence` works on one value
    per decision, `token` on [B, T]. vanishes: of a loss, that a decision whose advantages are all 0 and that is not
    `shown` has the value 0 and no gradient, and that what the others have does not depend on it
    (tests/vlrl/test_losses.py holds it to that). check: asked about the options before a run loads anything; raises
    UserError for what could only fail later, such as weights that are nowhere.
    """

    needs: tuple[Need, ...] = ()
    level: Level = "sequence"
    source: str = ""
    lacks: tuple[Need, ...] = ()
    vanishes: bool = False
    check: Callable[[Mapping[str, Any]], None] | None = None


def method(
    function: Callable | None = None, /, *, needs: tuple[Need, ...] = (), level: Level = "sequence", source: str = "",
    lacks: tuple[Need, ...] = (), vanishes: bool = False, check: Callable[[Mapping[str, Any]], None] | None = None,
) -> Callable:  # fmt: skip
    """Marks a function or class as a plug-in and states its needs and its source (paper, equation or repository).

    Written bare, `@method`, or with arguments, `@method(source="...")`.
    """

    def mark(target: T) -> T:
        target.method = Method(needs, level, source, lacks, vanishes, check)
        return target

    return mark if function is None else mark(function)


def is_method(target: object) -> bool:
    """Whether a function or class carries `@method`, its own or that of a class it extends."""
    return isinstance(getattr(target, "method", None), Method)


def of(target: object) -> Method:
    """What a plug-in declares, also with its options filled in (functools.partial)."""
    return getattr(getattr(target, "func", target), "method", Method())
