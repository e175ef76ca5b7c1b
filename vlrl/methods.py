"""What a method declares of itself, so that a wrong recipe fails when it is read and not at step 40."""

from __future__ import annotations

import functools
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from vlrl.plugins import base_problem, load_object
from vlrl.types import Batch, Episode, Evaluation, Sample, UserError, suggest

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from torch import Tensor

    from vlrl.config import Component, Config

Need = Literal[
    "group", "reference", "features", "sequence_mean", "one_forward", "one_turn", "one_answer", "sampled", "anchors",
    "teacher", "candidates",
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
    "candidates": "compares the likeliest tokens with a teacher's: name one with policy.teacher",
    "teacher": "needs log-probabilities of a teacher: name a model, policy or reference with policy.teacher",
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


NOTHING = Method()


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


def of(target: object) -> Method:
    """What a plug-in declares; of one without `@method`, nothing."""
    declaration = getattr(target.func if isinstance(target, functools.partial) else target, "method", None)
    return declaration if isinstance(declaration, Method) else NOTHING


def is_method(target: object) -> bool:
    """Whether a function or class carries `@method`, its own or that of a class it extends."""
    return of(target) is not NOTHING


# What the parts of a training step are: small bases whose hooks do nothing. A class extends the one of its kind; a
# function with `@method` is put into one when it is made (`bind`).


NO_METRICS: Any = MappingProxyType({})


class StepMethod:
    """What all parts of a step share: numbers for the log, and a memory that a resumed run goes on with."""

    method: Method = NOTHING
    metrics: dict[str, float] = NO_METRICS  # of the latest step: a step assigns new ones

    def state_dict(self) -> dict[str, Any]:
        """What it remembers from step to step, as a checkpoint holds it: keyed by sample ids, never by positions."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """What `state_dict` returned."""

    @classmethod
    def is_stateful(cls) -> bool:
        return cls.state_dict is not StepMethod.state_dict


class Sampler(StepMethod, ABC):
    """Chooses the prompts of each step. Made with `(n, seed)`: samples of the training split, the run's seed."""

    n: int  # samples that it draws from

    @property
    def positions(self) -> Sequence[int]:
        """All that are ever drawn."""
        return range(self.n)

    @abstractmethod
    def draw(self, count: int) -> list[int]:
        """Positions of the next step's samples."""

    def peek(self, count: int) -> list[int]:
        """What `draw` is likely to answer next, without drawing; []: that hangs on what is observed until then."""
        return []

    def check(self, samples: Sequence[Sample]) -> None:
        """UserError where it was made for other samples. Called once, before anything is written."""

    def follow(self, samples: Sequence[Sample], estimators: Sequence[Any]) -> None:
        """Takes note of the samples and of the estimators, whose values it may draw by. Called once."""

    def observe(self, episodes: Sequence[Episode]) -> None:
        """Learns from a step's episodes, before process rewards."""


class RolloutStrategy(StepMethod):
    """Plays a step's episodes. Made with `(policy, task, seed)`; called with CALLS["rollout_strategy"] and `**act`."""

    pool: Sequence[Sample] | None = None  # the sampler's prompts, once it is part of a run
    played: int | None = None  # episodes of the latest step, with those that it left out; None: what it returned


class ProcessReward(StepMethod):
    """Pays the steps of episodes. Made with `(policy, task, seed)`."""


class RewardShaping(StepMethod):
    """Changes the rewards of a step's episodes."""


class Estimator(StepMethod):
    """Estimates advantages.

    Args:
        start: responses of the initial policy to each prompt that it wants before the first step, of `start_limit`
            prompts at most.
    """

    start: int = 0
    start_limit: int = 0

    @property
    def needs(self) -> tuple[Need, ...]:
        """What the run must give, where it depends on the options; by default what the class declares."""
        return self.method.needs

    def compute_outcome(self, reward: float, correct: float) -> float:
        """What one of those responses counts as, from its reward and from `Score.correct`."""
        return reward

    def begin(self, key: str, outcomes: list[float]) -> None:
        """Takes the outcomes of the responses to one prompt, by `Sample.key`."""

    def revisit(self, policy: Any, episodes: Sequence[Episode]) -> None:
        """Asks the policy about the episodes, or changes their decisions, before their columns are made."""

    @classmethod
    def revisits(cls) -> bool:
        return cls.revisit is not Estimator.revisit


class PromptTracker(Estimator):
    """An estimator that knows what each prompt is worth before it is answered."""

    def value(self, key: str) -> float:
        """The running success rate of a prompt, by `Sample.key`."""
        raise NotImplementedError

    def weight(self, key: str) -> float:
        """Observations that it rests on."""
        raise NotImplementedError


class ReplayMixing(StepMethod):
    """Changes what a step learns from. Made with `(policy, task, seed)`."""


class Callback(StepMethod):
    """Acts between steps. Made with `(policy, task, updater, seed)`."""

    def on_step_begin(self, step: int) -> None:
        """Before the update of a step, counted from 0."""

    def on_step_end(self, step: int, row: dict[str, Any]) -> None:
        """Behind it, with the number of steps made and the step's row of metrics.jsonl."""


class Agent(StepMethod, ABC):
    """Learns off-policy from transitions (`vlrl offpolicy`). Made with `(about, seed)`: vlrl.offpolicy.base.AgentSpec.

    Nothing but the seed and what went through the methods decides what it does: its generators are its own and part
    of its state, so that a killed run resumes exactly.
    """

    requires: tuple[Literal["offline", "start"], ...] = ()  # what a configuration must give
    learns_images = False  # whether it can learn an encoder of images (`AgentSpec.encoder`)
    learns_returns = False  # whether it reads `Transitions.returns`, which are computed for it alone
    looks = False  # whether `act` and `warm` also take what was shown, a sequence of B observations

    @abstractmethod
    def act(self, state: np.ndarray, explore: bool) -> np.ndarray:
        """Chunks float32 [B, K, A] in physical units, within the limits, for states float32 [B, S].

        Args:
            explore: as it plays to learn; else its best, without chance.
        """

    def warm(self, state: np.ndarray, *observations: Any) -> np.ndarray | None:
        """What to play in the warm-up; None: controls drawn evenly within the limits."""
        return None

    @abstractmethod
    def update(self, online: Any, offline: Any) -> dict[str, float]:
        """One gradient step on a batch, `vlrl.offpolicy.base.Transitions`.

        The loop has drawn the batch: one half `online`, what the agent did (a person's steps among them), and one half
        `offline`, what was given and a person's steps (symmetric sampling, RLPD: arXiv 2302.02948); where one of them
        does not exist it is None and the other the whole batch. Never both None.

        Returns:
            Numbers for the log, such as losses; the same names at every call or a subset. A number that is not finite
            stops the run.
        """

    @abstractmethod
    def save(self, folder: Path) -> None:
        """A policy that `vlrl.policies.loading` reads: config.json and model.safetensors. The folder exists."""


class BoundFunction:
    """A function with `@method` and its options, as a part of a step."""

    def __init__(self, function: Callable, options: Mapping[str, Any]):
        self.function, self.options, self.method = function, dict(options), of(function)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self.function(*given, **self.options, **named)

    @property
    def name(self) -> str:
        return self.function.__name__

    def replace(self, **options: Any) -> BoundFunction:
        """The same with other options."""
        return type(self)(self.function, self.options | options)


BASES: Mapping[str, type[StepMethod]] = {
    "sampler": Sampler, "rollout_strategy": RolloutStrategy, "process_rewards": ProcessReward,
    "reward_shaping": RewardShaping, "advantages": Estimator, "replay_mixing": ReplayMixing, "callbacks": Callback,
    "agent": Agent,
}  # fmt: skip
JUDGE = "vlrl.contrib.preferences.labelling:PreferenceJudge"  # of contrib, so by name
BOUND = {kind: type(f"Bound{base.__name__}", (BoundFunction, base), {}) for kind, base in BASES.items()}


def bind(kind: str, function: Callable, options: Mapping[str, Any]) -> BoundFunction:
    """A function as a part of a step, with the hooks of its kind."""
    return BOUND.get(kind, BoundFunction)(function, options)


def contract_problem(kind: str, target: Any) -> str | None:
    """Why `target` cannot be a method of a kind; None: it can.

    Parameters may have other names, but not all those of another kind: it would be called with the wrong values.
    """
    base: Any = load_object(JUDGE, kind) if kind == "judge" else BASES.get(kind)
    if kind not in CALLS and not inspect.isclass(target):
        return f"{kind} needs a class that extends {base.__module__}.{base.__qualname__}"
    if base and inspect.isclass(target) and (problem := base_problem(target, base)):
        return problem
    if kind not in CALLS:
        return None
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


# How likely an action is now, against when it was sampled.


def log_ratio(now: Evaluation, batch: Batch) -> Tensor:
    """log(p_now / p_old) [b, T], 0 outside the mask, clamped to [-20, 20] before anyone takes its exponential."""
    return (now.logprobs - batch.old_logprobs).masked_fill(~batch.mask, 0.0).clamp(-20.0, 20.0)


def clip_fraction(now: Evaluation, batch: Batch, low: float, high: float) -> float:
    """Share of units whose ratio lies outside [1 - low, 1 + high]."""
    outside = log_ratio(now, batch)
    least = math.log1p(-low) if low < 1 else -math.inf  # no ratio lies below 0
    hit = (outside < least) | (outside > math.log1p(high))
    return float(hit[batch.mask].float().mean())
