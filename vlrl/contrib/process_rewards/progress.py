"""Process rewards from progress: gates, potentials, the simulator's state."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from vlrl.config import Count, Rate
from vlrl.contrib import encoders
from vlrl.methods import Fact, ProcessReward, Recipe, RecipePart, method
from vlrl.types import Episode, Policy, Step, UserError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from vlrl.algorithms.critics import Critic


# What process rewards share: how a value of everything that was shown becomes what the steps earned.

Form = Literal["reward", "potential"]
Discount = Annotated[float, Field(ge=0, le=1)]
Chosen = str | Mapping[str, Any]  # an encoder, by its name or with options


def won(episode: Episode) -> bool:
    """Whether the episode counts as a success."""
    return bool(episode.score) and episode.score.is_correct


def earning(episode: Episode, values: Sequence[float], *, coef: float, form: Form, gamma: float) -> Episode:
    """The episode, each step of which earned what its end is worth, or the difference that it made.

    With `potential` (Ng, Harada and Russell, ICML 1999) step t earns `coef * (gamma * v[t + 1] - v[t])`. Discounted and
    summed that is `coef * (gamma^n * v[n] - v[0])`, whatever lies between: going to and fro earns nothing.

    Args:
        values: [turns + 1], of everything shown, what the last step led to included.
        gamma: should be the discount of the estimator that sums what was earned.
    """
    turns = []
    for turn, before, after in zip(episode.turns, values[:-1], values[1:], strict=True):
        gain = after if form == "reward" else gamma * after - before
        turns.append(replace(turn, process_reward=turn.process_reward + coef * float(gain)))
    return replace(episode, turns=turns)


# What steps earned counts only where the episode's outcome is good enough.


def paid_by_form(options: Mapping[str, Any]) -> tuple[Fact, ...]:
    """What a process reward gives by its option `form`."""
    if options["form"] == "outcome":
        return ()
    return ("step_rewards", "potential") if options["form"] == "potential" else ("step_rewards",)


def check_gated(recipe: Recipe, part: RecipePart) -> str | None:
    """A gate lets through what came before it."""
    if recipe.of("process_rewards")[0] is part:
        return f"{part.label} gates what earlier parts of process_rewards gave to steps: put one before it"
    return None


@method(
    gives=("step_rewards",),
    check_recipe=check_gated,
    source="G-RA, gated reward accumulation: arXiv 2508.10548 (abstract); the form is a reconstruction",
)
def g_ra_steps(episodes: Sequence[Episode], step: int, *, threshold: float, high: str = "") -> list[Episode]:
    """Steps keep what earlier parts of `process` gave them where the outcome reaches `threshold`; else they lose it.

    Published: immediate rewards accumulate only where the long-term reward meets a threshold, so that a policy cannot
    live on them. What steps had to pay is lost with what they gained. The paper's several levels are several of these
    in a row. For parts of the reward instead of steps: shaping `g_ra`.

    Args:
        threshold: least outcome at which steps count.
        high: the outcome: a part of the task's reward, as `reward/NAME` in the log; by default the whole reward.

    Raises:
        UserError: the task's reward has no such part.
    """
    return [e if _outcome(e, high) >= threshold else _unpaid(e) for e in episodes]


def _outcome(episode: Episode, high: str) -> float:
    if not high:
        return episode.reward
    parts = episode.score.parts if episode.score else {}
    if high not in parts:
        raise UserError(
            f"process_rewards: g_ra_steps: the reward has no part {high!r} (one of: {', '.join(sorted(parts))})"
        )
    return parts[high]


def _unpaid(episode: Episode) -> Episode:
    return replace(episode, turns=[replace(turn, process_reward=0.0) for turn in episode.turns])


# Progress times penalties: CaRL's simple reward, for any environment whose steps tell numbers.

Amount = Annotated[float, Field(ge=0)]


@dataclass(frozen=True)
class Soft:
    """A factor of 1 up to `limit`, that falls to 0 at `limit + fall`."""

    limit: float
    fall: Rate

    def factor(self, value: float) -> float:
        return min(1.0, max(0.0, 1 - (value - self.limit) / self.fall))


@method(
    gives=("step_rewards",),
    source="CaRL, arXiv 2504.17838; github.com/autonomousvision/CaRL, team_code_roach/reward/simple_reward.py",
)
class CaRL(ProcessReward):
    """A step earns the progress it made, times a factor in [0, 1] for each soft penalty; nothing after a hard one.

    Progress p is a number of `Step.info` over `span`, what it changes by from start to goal (below 0 for a distance,
    which falls). A step earns `coef max(0, p_t - b) prod_k factor_k`, with b the best p before it: as route completion
    in the paper, what was reached is paid once, so that going to and fro earns nothing. A number above its limit in
    `hard` ends all earning: that step earns `-penalty`, the others 0, and the outcome is at most 0.

    Published: the form, for driving, in place of sums of shaped rewards, which large batches of PPO get stuck on; there
    a hard infraction ends the episode. Ours: numbers by name; the episode goes on, but pays no more.

    Args:
        progress: name of a number in `Step.info`, as robots report them behind every turn.
        span: what it changes by from start to goal.
        start: the number before the first turn, where all episodes have the same; null: the first turn earns nothing.
        soft: name -> {limit, fall}: factor 1 up to `limit`, 0 from `limit + fall` on, linear between them. A step that
            does not tell the number has a factor of 1.
        hard: name -> limit. A name that is told only when it happens, such as `failure`, has the limit 0.
        penalty: what the step of a hard violation pays.
        coef: worth of the whole way.

    Raises:
        UserError: span is 0; no step of the first episodes tells `progress`, or a number of `soft`.
    """

    def __init__(
        self, policy: Policy, task: Any, seed: int, *, progress: str, span: float, start: float | None = None,
        soft: Mapping[str, Soft] | None = None, hard: Mapping[str, float] | None = None, penalty: Amount = 0.0,
        coef: float = 1.0,
    ):  # fmt: skip
        if span == 0 or not math.isfinite(span):
            raise UserError(
                f"process_rewards: carl: span = {span:g}: must be what the number changes by from start to goal"
            )
        self.progress, self.span, self.start, self.coef = progress, span, start, coef
        self.soft, self.hard, self.penalty = soft or {}, hard or {}, penalty

    def __call__(self, episodes: Sequence[Episode], step: int) -> list[Episode]:
        self._check(episodes)
        made = [self._paid(episode) for episode in episodes]
        n = len(episodes)
        self.metrics = {
            "carl/progress": sum(gained for _, gained, _ in made) / n,
            "carl/violated": sum(violated for *_, violated in made) / n,
        }
        return [episode for episode, *_ in made]

    def _paid(self, episode: Episode) -> tuple[Episode, float, bool]:
        """The episode with what its steps earned, its share of the way before penalties, and if it broke a limit."""
        best = None if self.start is None else self.start / self.span
        turns, way, broken = [], 0.0, False
        for turn in episode.turns:
            payment, info = 0.0, turn.step.info
            if not broken and (broken := self._breaks(turn.step)):
                payment = -self.penalty
            elif not broken and self.progress in info:
                now = info[self.progress] / self.span
                gain = 0.0 if best is None else max(0.0, now - best)
                best, way = now if best is None else max(best, now), way + gain
                payment = self.coef * gain * self._factor(turn.step)
            turns.append(replace(turn, process_reward=turn.process_reward + payment))
        return replace(episode, turns=turns, reward=min(episode.reward, 0.0) if broken else episode.reward), way, broken

    def _breaks(self, step: Step) -> bool:
        return any(step.info.get(name, -math.inf) > limit for name, limit in self.hard.items())

    def _factor(self, step: Step) -> float:
        return math.prod(soft.factor(step.info[name]) for name, soft in self.soft.items() if name in step.info)

    def _check(self, episodes: Sequence[Episode]) -> None:
        """UserError for a name that no step of the batch tells, which would quietly do nothing."""
        reported = {name for episode in episodes for turn in episode.turns for name in turn.step.info}
        for name in (self.progress, *self.soft):
            if name not in reported:
                raise UserError(
                    f"process_rewards: carl: no step tells {name!r} (one of: {', '.join(sorted(reported)) or 'none'})"
                )


carl = CaRL


# What the simulator itself paid for a step: for those that shape their rewards.


def check_paid_once(recipe: Recipe, part: RecipePart) -> str | None:
    """The simulator's rewards are a part of the task's reward, or what steps earn."""
    if (recipe.config.task.options.get("weights") or {}).get("shaped", 0):
        return "process_rewards: simulator pays what task.weights.shaped pays already: set that to 0"
    return None


@method(
    gives=("step_rewards",),
    check_recipe=check_paid_once,
    source="shaped rewards of a simulator, for example robosuite's reward_shaping",
)
def simulator(episodes: Sequence[Episode], step: int, *, coef: float = 1.0) -> list[Episode]:
    """Every step earns `coef` times what the simulator gave for it; a task's part `shaped` would count it once more."""
    return [
        replace(
            e, turns=[replace(turn, process_reward=turn.process_reward + coef * turn.step.reward) for turn in e.turns]
        )
        for e in episodes
    ]


# Asymmetric self-play: what a proposal is worth, by how its answers went.


@method(
    gives=("step_rewards",),
    source="regret: eva, arXiv 2411.00062; opposed: search self-play, 2510.18821",
)
def proposer_solver(
    episodes: Sequence[Episode], step: int, *, rule: Literal["regret", "opposed"] = "regret", proposer: str = "proposer"
) -> list[Episode]:
    """An answer earns what the environment gave for it (`Step.reward`), a proposal by what its answers earned.

    `regret`: best - mean, eva's informativeness: something can be learned where one answer was better than the others,
    and nothing where all or none are right. `opposed`: 1 - mean, the solvers' loss in search self-play: the harder the
    better, as long as the question can be checked at all. A proposal that nobody could answer earns 0. Published with
    prompts that are rewritten from the most informative ones (eva) and with search tools; here the environment draws
    what is proposed. For estimators of step rewards that tell roles apart: `hierarchical`, `mars`.

    Args:
        rule: how a proposal is paid.
        proposer: the role that proposes; all others answer.
    """
    paid = []
    for episode in episodes:
        answers = [turn.step.reward for turn in episode.turns if turn.observation.role != proposer]
        mean = sum(answers) / max(1, len(answers))
        worth = (max(answers) if rule == "regret" else 1.0) - mean if answers else 0.0
        turns = [
            replace(turn, process_reward=turn.process_reward + (
                worth if turn.observation.role == proposer else turn.step.reward
            )) for turn in episode.turns
        ]  # fmt: skip
        paid.append(replace(episode, turns=turns))
    return paid


# An estimator of what each step contributed to the outcome, learned beside the policy.


def check_spread(recipe: Recipe, part: RecipePart) -> str | None:
    """Of an outcome that was spread over the steps only the rest is left, for others to misread."""
    if recipe.of("process_rewards")[-1].name != part.name:
        return f"{part.label} spreads the outcome: what changes it must come before"
    for reader in recipe.of("advantages"):
        if "baseline" in reader.gives and "whole_step" not in reader.reads:
            return f"{reader.label} reads an outcome that spa has spread over the steps: remove it"
    return None


@method(
    reads=("all_episodes",),
    gives=("step_rewards",),
    check_recipe=check_spread,
    source="SPA, stepwise progress attribution: arXiv 2505.20732; github.com/WangHanLinHenry/SPA-RL-Agent, prm",
)
class SPA(ProcessReward):
    """Spreads the outcome over the steps: each earns what it is estimated to have contributed.

    The estimator gives a contribution c for every step, and its sums over episodes are fitted to their outcomes by
    least squares. It is asked first and then learns from the step's episodes. Of the outcome remains what was not
    spread, `R - share sum c`, so that an episode's sum is R whatever the estimator knows: at first, when it knows
    nothing, the outcome alone. `reward` in the log is that remainder. `spa/explained` is the share of the outcomes'
    variance that the sums told beforehand.

    Published: the sum's fit to the outcome, by a language model with a linear layer at the end of each turn, trained
    before the policy on recorded episodes; PPO on what it says. (In the released script for WebShop the outcome minus
    the others' mean takes the place of what it says.) Ours: a linear layer on the policy's own features of what was
    shown before and after a step, trained while the policy is; and the remainder. Left out: the paper's 0.5 for every
    step that could be executed, which pays for length; where a task has a part for it, such as `format`, use that.

    Args:
        share: how much of what is estimated is spread.
        lr: learning rate of the estimator.
        epochs: its gradient steps a step.

    Raises:
        UserError: the policy gives no features.
    """

    def __init__(
        self, policy: Policy, task: Any, seed: int, *, share: Annotated[float, Field(gt=0, le=1)] = 1.0,
        lr: Rate = 1e-2, epochs: Count = 5,
    ):  # fmt: skip
        if not policy.has_features:
            raise UserError(
                "process_rewards: spa: needs what a policy makes of its prompts, which this one does not give"
            )
        self.policy, self.share, self.lr, self.epochs = policy, share, lr, epochs
        self.weight: Tensor | None = None  # made when the features' width is known, with the scale and the optimizer

    def __call__(self, episodes: Sequence[Episode], step: int) -> list[Episode]:
        import torch

        from vlrl.algorithms.gae import explained

        shown = changes(self.policy, episodes)
        if self.weight is None:
            self._make(shown.shape[1])
        owner = torch.tensor([i for i, episode in enumerate(episodes) for _ in episode.turns])
        outcome = torch.tensor([episode.reward for episode in episodes])
        given = self._contributions(self.scale(shown)).detach()
        told = outcome.new_zeros(len(outcome)).index_add(0, owner, given)
        loss = self._learn(shown, owner, outcome)
        self.metrics = {
            "spa/explained": explained(told, outcome), "spa/loss": loss, "spa/outcome": float(outcome.mean()),
        }  # fmt: skip
        return _spread(episodes, (self.share * given).tolist())

    def _learn(self, shown: Tensor, owner: Tensor, outcome: Tensor) -> float:
        """Some steps towards sums that are the outcomes [N]. Returns the mean square error before them."""
        from vlrl.update import fit_supervised

        self.scale.see(shown)
        standard = self.scale(shown)

        def error(_: int) -> Tensor:
            sums = outcome.new_zeros(len(outcome)).index_add(0, owner, self._contributions(standard))
            return ((sums - outcome) ** 2).mean()

        return fit_supervised(self.optimizer, range(self.epochs), error)[0]

    def _contributions(self, standard: Tensor) -> Tensor:
        return standard @ self.weight[:-1] + self.weight[-1]

    def _make(self, width: int) -> None:
        import torch

        from vlrl.algorithms.critics import FeatureScaler

        self.scale, self.weight = (
            FeatureScaler(width),
            torch.zeros(width + 1, requires_grad=True),
        )  # the last one is the bias
        self.optimizer = torch.optim.AdamW([self.weight], lr=self.lr)

    def state_dict(self) -> dict[str, Any]:
        from vlrl.algorithms.critics import saved

        return {} if self.weight is None else saved(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        from vlrl.algorithms.critics import restore

        if state:
            self._make(len(state["total"]))
            restore(self, state)


spa = SPA


# A model of outcomes, learned from episodes whose verdict is known, that gives the others theirs.

VERDICT = 0.5  # a chance of success from which on the model says yes


@method(
    reads=("all_episodes",),
    source="outcome-supervised reward model of WebRL, arXiv 2411.02337; github.com/THUDM/WebRL",
)
class OutcomeModel(ProcessReward):
    """Pays 1 or 0 by a model's verdict on the whole episode; the model learns from a `labelled` share of the groups.

    It reads what the policy makes of all that it was shown at the last turn, its earlier actions included, and the last
    action's text. In each step it is asked about the groups without a label, then learns from those with one, whose
    reward stays the task's.
    `outcome_model/agreement` in the log is its agreement with the task on what it was asked about.

    Published: a language model that answers YES or NO to the instruction, the actions and the last page, trained once
    on 12,000 labelled trajectories (about 80 % agree with people). Ours: logistic regression on the policy's own
    features, which move as it trains: so the labels go on.

    Args:
        labelled: share of the groups, known from their samples' names.
        lr, epochs: the model's learning rate, and its gradient steps a step.
        width: numbers that stand for the last action's text.

    Raises:
        UserError: the policy gives no features, or its actions are no texts.
    """

    def __init__(
        self, policy: Policy, task: Any, seed: int, *, labelled: Annotated[float, Field(gt=0, le=1)] = 0.5,
        lr: Rate = 1e-2, epochs: Count = 20, width: Count = 128,
    ):  # fmt: skip
        if not policy.has_features:
            raise UserError(
                "process_rewards: outcome_model: needs what a policy makes of its prompts, which this one does not give"
            )
        self.policy, self.seed, self.labelled = policy, seed, labelled
        self.lr, self.epochs, self.width = lr, epochs, width
        self.model: Critic | None = None  # made when the features' width is known

    def __call__(self, episodes: Sequence[Episode], step: int) -> list[Episode]:
        ends = self._ends(episodes)
        model = self._get_model(ends.shape[1])
        is_labelled = [self.has_label(episode.sample.id) for episode in episodes]
        chance = model.values(ends).tolist()
        rows = [i for i, known in enumerate(is_labelled) if known]
        agreed = [(chance[i] > VERDICT) == won(episodes[i]) for i, known in enumerate(is_labelled) if not known]
        self.metrics = {
            "outcome_model/labelled": len(rows) / len(episodes),
            "outcome_model/agreement": fmean(agreed) if agreed else 1.0,
        }
        if rows:  # a step without a labelled episode has no loss
            labels = ends.new_tensor([float(won(episodes[i])) for i in rows])
            self.metrics["outcome_model/loss"] = model.learn(ends[rows], labels)
        return [
            episode if known else replace(episode, reward=float(value > VERDICT))
            for episode, known, value in zip(episodes, is_labelled, chance, strict=True)
        ]

    def has_label(self, name: str) -> bool:
        """Whether the task's verdict on a sample's episodes may be read."""
        return zlib.crc32(f"{self.seed}/{name}".encode()) < self.labelled * 2**32

    def _ends(self, episodes: Sequence[Episode]) -> Tensor:
        """float32 [N, H + width]: the policy's features of the last turn's prompt, and the last action's trigrams."""
        import torch

        from vlrl.algorithms.multi_turn import hashed

        for episode in episodes:
            if not isinstance(episode.turns[-1].decision.action, str):
                raise UserError("process_rewards: outcome_model reads actions as texts, but this policy moves a robot")
        features = self.policy.features([episode.turns[-1].decision for episode in episodes]).cpu()
        return torch.cat([features, hashed([e.completion for e in episodes], self.width)], 1)

    def _get_model(self, width: int) -> Critic:
        from vlrl.algorithms.critics import Critic

        if self.model is None:
            self.model = Critic(width, lr=self.lr, epochs=self.epochs)
        return self.model

    def state_dict(self) -> dict[str, Any]:
        return {} if self.model is None else self.model.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self._get_model(len(state["total"])).load_state_dict(state)


outcome_model = OutcomeModel


def changes(policy: Any, episodes: Sequence[Episode]) -> Tensor:
    """What the policy makes of what was shown before each step, and how that changed by it: float32 [B, 2 H]."""
    import torch

    ends = [policy.decide(e.turns[-1].step.observation, e.turns[-1].decision.action, before=e.turns) for e in episodes]
    decisions = [decision for e, end in zip(episodes, ends, strict=True) for decision in (*_decisions(e), end)]
    features = policy.features(decisions).cpu()
    places, first = [], 0
    for episode in episodes:
        places += range(first, first + len(episode.turns))
        first += len(episode.turns) + 1
    before, after = features[places], features[[place + 1 for place in places]]
    return torch.cat([before, after - before], 1)


def _decisions(episode: Episode) -> list[Any]:
    return [turn.decision for turn in episode.turns]


def _spread(episodes: Sequence[Episode], given: Sequence[float]) -> list[Episode]:
    """The episodes with what their steps are given beside, and taken out of the outcome."""
    each = iter(given)
    shares = []
    for episode in episodes:
        own = [next(each) for _ in episode.turns]
        turns = [replace(t, process_reward=t.process_reward + c) for t, c in zip(episode.turns, own, strict=True)]
        shares.append(replace(episode, turns=turns, reward=episode.reward - sum(own)))
    return shares


# Successes as SRPO compares with them: where they lie, how far apart they are, and how far along them one is.

LEAST = 2  # successes: of one alone nobody knows how far apart they are
MOST = 32  # the newest that are compared with
TIE = 1e-9


@dataclass(frozen=True, eq=False)
class RememberedSuccess:
    """What is remembered of a success."""

    task: str
    key: str  # of its start
    path: np.ndarray  # float32 [turns + 1, D], or [1, W] of the whole


class Successes:
    """At most `capacity` of them; the oldest make room."""

    def __init__(self, capacity: int):
        self.capacity = capacity
        self.kept: list[RememberedSuccess] = []

    def add(self, found: Sequence[RememberedSuccess]) -> None:
        self.kept = [*self.kept, *found][-self.capacity :]

    def like(self, task: str, key: str) -> list[np.ndarray]:
        """The newest from the same start if there are two; else those of the same task, if there are two; else []."""
        same = [each for each in self.kept if each.task == task]
        for candidates in ([each for each in same if each.key == key], same):
            if len(candidates) >= LEAST:
                return [each.path for each in candidates[-MOST:]]
        return []

    def state_dict(self) -> dict[str, Any]:
        import torch

        return {"kept": [[each.task, each.key, torch.from_numpy(each.path)] for each in self.kept]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kept = [RememberedSuccess(task, key, path.numpy()) for task, key, path in state["kept"]]


def nearness(points: np.ndarray, successes: np.ndarray) -> np.ndarray:
    """How near points [M, W] are to successes [S, W]: float64 [M] in [0, 1], `s / (s + d)`.

    d is the distance to the nearest centre. Successes no farther apart than twice the median distance of a success to
    its nearest neighbour make a cluster, and so do chains of them; a cluster's centre is its medoid (all of them where
    several are as central). s is the median distance of two successes of one cluster: a point at s has 1/2. It hangs on
    the successes alone, not on which other points are asked for. Equal successes count as one; where there is no other
    s is 0: a point is there, or is not.
    """
    import numpy as np
    from scipy.sparse.csgraph import connected_components
    from scipy.spatial.distance import cdist

    successes = np.unique(successes, axis=0)
    if len(successes) == 1:
        return _fading(cdist(points, successes)[:, 0], 0.0)
    apart = cdist(successes, successes)
    radius = 2 * np.median((apart + np.diag(np.full(len(apart), np.inf))).min(1))
    _, cluster = connected_components(apart <= radius, directed=False)
    together = cluster[:, None] == cluster[None]
    centrality = (apart * together).sum(1)
    least = np.array([centrality[row].min() for row in together])
    centres = successes[centrality <= least + TIE]
    scale = np.median(apart[np.triu(together, 1)])
    return _fading(cdist(points, centres).min(1), float(scale))


def along(points: np.ndarray, paths: Sequence[np.ndarray]) -> np.ndarray:
    """How far along the successes points [M, D] are: float64 [M] in [0, 1].

    That is the share of its way at which the nearest success was when it was nearest, times `s / (s + d)` for the
    distance d to there. s is the median distance of what a success showed to the nearest that another one showed, where
    it is not the same; 0 where there is no other.
    """
    import numpy as np
    from scipy.spatial.distance import cdist

    paths = list({path.tobytes(): path for path in paths}.values())  # equal ones would make s 0
    frames, owner = np.concatenate(paths), np.repeat(np.arange(len(paths)), [len(path) for path in paths])
    share = np.concatenate([np.arange(len(path)) / max(1, len(path) - 1) for path in paths])
    others = np.where(owner[:, None] == owner[None], np.inf, cdist(frames, frames)).min(1)
    apart = others[np.isfinite(others) & (others > TIE)]
    distance = cdist(points, frames)
    nearest = distance.min(1)
    reached = np.where(distance <= nearest[:, None] + TIE, share, 0.0).max(1)  # of several: the farthest
    return reached * _fading(nearest, float(np.median(apart)) if len(apart) else 0.0)


def _fading(distance: np.ndarray, scale: float) -> np.ndarray:
    return scale / (scale + distance) if scale > TIE else (distance <= TIE).astype(float)


# SRPO: what failures got done is measured on what successes did, with the released code's flaws put right.


@method(
    gives=paid_by_form,
    reads=("all_episodes",),
    source="SRPO, arXiv 2511.15605; potentials: Ng, Harada and Russell, ICML 1999",
)
class SRPO(ProcessReward):
    """Progress, measured on successes from the same start where there are two, else on those of the same task.

    These are successes of this step and the newest of earlier ones. While there are fewer than two, nothing changes.

    `outcome`: a failure is rewarded with `cap` times its nearness to them (`srpo_successes.nearness`), beside its own
    reward. Equal failures get equal rewards, whatever else the step holds, and none gets more than `cap`: where the
    outcome is 0 or 1 no failure overtakes a success.

    `potential`: step t earns `cap (gamma phi(t + 1) - phi(t))`, where phi in [0, 1] says how far along the successes
    the episode is (`srpo_successes.along`), and is 1 at a success's end. Summed with that discount an episode earns
    `cap (gamma^n phi(n) - phi(0))`, whatever it did between. Of all that began alike phi(0) is the same; so with gamma
    = 1 every success earns the same and their order stays that of their outcomes, with gamma < 1 the sooner one earns
    more; and as |cap| < 1, no failure overtakes a success. It is no pure potential, which would be 0 at every end:
    failures that got farther are preferred to others, on purpose.

    Args:
        encoder: of whole episodes, or for `potential` of everything they showed.
        cap: what progress is worth at most, where a success is worth 1.
        gamma: of `potential`: the discount of the estimator that sums what was earned.
        memory: successes to remember. For `potential` all of what they showed is in every checkpoint, as vectors.
        task_tag: the tag of a sample that names its task; samples without it are one task.
    """

    def __init__(
        self, policy: Policy, task: Any, seed: int, *,
        encoder: Chosen = "classical", form: Literal["outcome", "potential"] = "outcome",
        cap: Annotated[float, Field(gt=0, lt=1)] = 0.6, gamma: Discount = 1.0, memory: Count = 256,
        task_tag: str = "job",
    ):  # fmt: skip
        self.encoder = encoders.make(encoder, "process_rewards: srpo: encoder")
        self.form, self.cap, self.gamma, self.task_tag = form, cap, gamma, task_tag
        self.successes = Successes(memory)

    def __call__(self, episodes: Sequence[Episode], step: int) -> list[Episode]:
        paths, starts = self._paths(episodes), [self._start(e) for e in episodes]
        known = zip(episodes, starts, paths, strict=True)
        self.successes.add([RememberedSuccess(*start, path.copy()) for e, start, path in known if won(e)])
        values: dict[int, np.ndarray] = {}  # of the episodes that there is something to measure on
        for start in dict.fromkeys(starts):
            alike = [i for i, each in enumerate(starts) if each == start]
            if successes := self.successes.like(*start):
                values |= zip(alike, self._measured([paths[i] for i in alike], successes), strict=True)
        self._tell(episodes, values)
        return [self._rewarded(e, values[i]) if i in values else e for i, e in enumerate(episodes)]

    def _start(self, episode: Episode) -> tuple[str, str]:
        return episode.sample.tags.get(self.task_tag, ""), episode.sample.key

    def _paths(self, episodes: Sequence[Episode]) -> list[np.ndarray]:
        if self.form == "outcome":
            return [vector[None] for vector in self.encoder.embed_episodes(episodes)]
        return self.encoder.encode(episodes)

    def _measured(self, paths: Sequence[np.ndarray], successes: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The progress of everything in each path, float64 [turns + 1] or [1]."""
        import numpy as np

        points, ends = np.concatenate(paths), np.cumsum([len(path) for path in paths])[:-1]
        progress = nearness(points, np.concatenate(successes)) if self.form == "outcome" else along(points, successes)
        return np.split(progress, ends)

    def _rewarded(self, episode: Episode, progress: np.ndarray) -> Episode:
        if self.form == "potential":
            values = [*progress[:-1], 1.0 if won(episode) else progress[-1]]
            return earning(episode, values, coef=self.cap, form="potential", gamma=self.gamma)
        return episode if won(episode) else replace(episode, reward=episode.reward + self.cap * float(progress[0]))

    def _tell(self, episodes: Sequence[Episode], values: dict[int, np.ndarray]) -> None:
        failed = [i for i, e in enumerate(episodes) if not won(e)]
        measured = [float(values[i][-1]) for i in failed if i in values]
        self.metrics = {
            "srpo/measured": len(measured) / max(1, len(failed)),
            "srpo/progress": sum(measured) / max(1, len(measured)),
        }

    def state_dict(self) -> dict[str, Any]:
        return {"successes": self.successes.state_dict(), "encoder": self.encoder.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.successes.load_state_dict(state["successes"])
        if "encoder" in state:
            self.encoder.load_state_dict(state["encoder"])


srpo = SRPO


# SRPO's reward of failures, number for number as its released code gives it.

CAP, STEEPNESS, OFFSET, SAME = 0.6, 10.0, 0.5, 1e-6


@method(
    reads=("all_episodes",), source="SRPO, arXiv 2511.15605, as released: github.com/sii-research/siiRL, embodied.py"
)
class SRPOReleased(ProcessReward):
    """Failures are rewarded by how near they came to this step's successes, from 0.004 to 0.596; successes get 1.

    Of each task, all starts together: the successes are standardised and clustered (DBSCAN, radius 0.5, two to a
    cluster); a failure's distance is that to the nearest cluster's mean, or to the mean of all where there are no
    clusters; distances are stretched over the step's failures to 0..1, and the reward is 0.6 sigmoid(10 (0.5 - d)).
    Without a success, or a failure, of the task failures get 0. An episode whose vector is 0 gets 0.

    What that means: 0.5 is so small for vectors of a thousand standardised numbers that there are never clusters; the
    nearest failure always gets 0.596 and the farthest 0.004, be they equally bad but for a hair; a single failure gets
    0.3. `srpo` is the same idea without these.

    Args:
        encoder: of whole episodes; the paper's is {name: vjepa2, model: facebook/vjepa2-vitg-fpc64-384}.
        task_tag: the tag of a sample that names its task; samples without it are one task.
    """

    def __init__(
        self, policy: Policy, task: Any, seed: int, *, encoder: Chosen = "classical", task_tag: str = "job"
    ):  # fmt: skip
        self.encoder, self.task_tag = encoders.make(encoder, "process_rewards: srpo_released: encoder"), task_tag

    def __call__(self, episodes: Sequence[Episode], step: int) -> list[Episode]:
        import numpy as np

        vectors, success = self.encoder.embed_episodes(episodes), np.array([won(e) for e in episodes])
        tasks = np.array([e.sample.tags.get(self.task_tag, "") for e in episodes])
        rewards = np.zeros(len(episodes))
        for name in sorted(set(tasks.tolist())):
            rewards[tasks == name] = released(vectors[tasks == name], success[tasks == name])
        self.metrics = {"srpo/failures": float(rewards[~success].mean()) if not success.all() else 0.0}
        return [replace(e, reward=float(reward)) for e, reward in zip(episodes, rewards, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        return {"encoder": self.encoder.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if "encoder" in state:
            self.encoder.load_state_dict(state["encoder"])


srpo_released = SRPOReleased


def released(vectors: np.ndarray, success: np.ndarray) -> np.ndarray:
    """Rewards float64 [N] of one task's episodes, from vectors [N, W] and which were successes, bool [N]."""
    import numpy as np
    from scipy.special import expit

    valid = (vectors != 0).any(1)
    rewards = (success & valid).astype(np.float64)
    won_, lost = vectors[success & valid], vectors[~success & valid]
    if not len(won_) or not len(lost):
        return rewards
    distance = np.linalg.norm(lost[:, None].astype(np.float64) - _centres(won_)[None], axis=-1).min(1)
    span = distance.max() - distance.min()
    share = (distance - distance.min()) / span if span >= SAME else np.full_like(distance, 0.5)
    rewards[~success & valid] = CAP * expit(STEEPNESS * (OFFSET - share))
    return rewards


def _centres(vectors: np.ndarray) -> np.ndarray:
    """The means of the clusters [K, W], or of all vectors [1, W]."""
    import numpy as np
    from sklearn.cluster import DBSCAN
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler()
    scaled = scaler.fit_transform(vectors)
    labels = DBSCAN(eps=0.5, min_samples=2).fit(scaled).labels_
    means = [scaled[labels == label].mean(0) for label in sorted(set(labels.tolist()) - {-1})]
    return scaler.inverse_transform(np.stack(means)) if means else vectors.mean(0, keepdims=True)
