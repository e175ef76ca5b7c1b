"""Advantages of episodes with several turns."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from vlrl.algorithms.advantages import (
    baseline_and_scale,
    group_centred,
    group_deviations,
    group_sizes,
    last_of,
    returns,
)
from vlrl.algorithms.gae import rewards_of
from vlrl.config import Count, Rate
from vlrl.methods import Estimator, Recipe, RecipePart, method
from vlrl.types import Rollouts, UserError

if TYPE_CHECKING:
    from torch import Tensor

    from vlrl.algorithms.critics import Critic, TurnMemory, UtteranceCritics


# Steps of different episodes that stood at the same place.

By = Literal["seen", "state"]


def places(rollouts: Rollouts, by: By, cell: float) -> Tensor:
    """A number for each decision, int64 [B]: equal where two of one group stood at the same place.

    `seen`: they were shown the same text and pictures and, where there is a body, its state is the same number by
    number. `state`: the body's state lies in the same cell of a grid; a cell is `cell` standard deviations of each
    number over the step wide, and begins at its least. What was shown counts for nothing then.

    Raises:
        UserError: `state`, but there is no body.
    """
    groups = rollouts.group[rollouts.episode]
    if by == "state":
        if rollouts.states is None:
            raise UserError("advantages: by: state needs a body's state, which this task does not show: use by: seen")
        return numbered(groups, *cells(rollouts.states, cell).unbind(1))
    states = [()] * len(groups) if rollouts.states is None else map(tuple, rollouts.states.tolist())
    return named(list(zip(groups.tolist(), rollouts.observation_keys, states, strict=True)), groups)


def cells(states: Tensor, size: float) -> Tensor:
    """The cell of each state, int64 [B, S], for states [B, S]; a number that never changes has one cell."""
    ordered = states.double().sort(0).values  # sums in the order of the values: no episode's place in the batch counts
    spread = ordered.std(0, correction=0)
    counted = (states.double() - ordered[0]) / (size * spread.where(spread > 0, 1.0))
    return counted.floor().long()


def numbered(*columns: Tensor) -> Tensor:
    """int64 [B]: equal where all of some int64 columns [B] are equal."""
    import torch

    return torch.stack(columns, 1).unique(dim=0, return_inverse=True)[1]


def named(keys: list, like: Tensor) -> Tensor:
    """int64 [B]: equal where two of B keys are, on the device of `like`."""
    numbers: dict = {}
    return like.new_tensor([numbers.setdefault(key, len(numbers)) for key in keys])


def shared(place: Tensor) -> float:
    """The share of decisions at a place, int64 [B], where another one stood as well."""
    return float((group_sizes(place) > 1).double().mean())


# ArCHer: a critic of whole turns learns off-policy, and each turn's tokens have its advantage (arXiv 2402.19446).

ArcherShare = Annotated[float, Field(ge=0, le=1)]
Steps = Annotated[int, Field(ge=0)]


@method(
    reads=("step_rewards", "returns"),
    needs=("features", "anchors"),
    source="ArCHer, arXiv 2402.19446; github.com/YifeiZhou02/ArCHer, algorithms/archer",
)
class Archer(Estimator):
    """`A_t = min(Q1, Q2)(s_t, a_t) - min(V1, V2)(s_t)` of each turn, by critics that learn from a replay of turns.

    s is what was shown, a the whole answer, r what the turn earned (`process`), at the last turn also the outcome, or
    what an earlier estimator made of it. In `epochs` gradient steps a step, on `batch` turns of the memory each,

        Q_i(s, a) -> r + gamma V_i'(s'),   V_i(s) -> Q_i'(s, a),   by squares,

    where ' are copies that follow by `tau`, and nothing follows the last turn; behind one that was cut stands what was
    shown last. Then all tokens of a turn share A_t: the low level is the policy gradient of whatever loss the recipe
    has, on what the policy just played.

    Published: the two levels, TD from replayed turns, double critics with copies, the minimum, warm-up. Ours: critics
    are small heads on the policy's own features of s and on the trigrams of a's text, hashed to `width` numbers
    (released: RoBERTa with heads); V learns from the action that was taken where the paper samples another one, so V is
    that of the policies of the memory, which is therefore short; features of the memory are those of their time. Left
    out: the token-level baseline, and the actor's own passes over replayed observations.

    Args:
        gamma: per turn.
        tau: share of the way that the copies go at a gradient step.
        capacity: turns that are remembered, the newest.
        batch, epochs: turns of a gradient step, and gradient steps a step.
        lr: of the critics. hidden: units of their hidden layer.
        width: numbers that stand for an answer's text.
        warmup: first steps in which only the critics learn: the advantage is 0.

    Raises:
        UserError: the policy's actions are no texts.
    """

    def __init__(
        self,
        *,
        gamma: ArcherShare = 0.9,
        tau: ArcherShare = 0.1,
        capacity: Count = 4096,
        batch: Count = 256,
        epochs: Count = 20,
        lr: Rate = 1e-3,
        hidden: Count = 128,
        width: Count = 256,
        warmup: Steps = 10,
    ):
        self.gamma, self.capacity, self.batch, self.epochs = gamma, capacity, batch, epochs
        self.tau, self.lr, self.hidden, self.width, self.warmup = tau, lr, hidden, width, warmup
        self.steps = 0
        self.critics: UtteranceCritics | None = None  # both are made when the features' width is known
        self.memory: TurnMemory | None = None

    def __call__(self, rollouts: Rollouts, advantage: Tensor) -> Tensor:
        """-> [B], and the critics trained."""
        if rollouts.states is not None and not any(rollouts.texts):
            raise UserError("advantages: archer reads answers as texts, but this policy moves a robot: use gae")
        if self.critics is None:
            self._make(rollouts.features.shape[1])
        features, actions = rollouts.features, hashed(rollouts.action_keys, self.width).to(rollouts.features)
        self._remember(rollouts, actions, advantage)
        losses = [self.critics.learn(self.memory.sample(self.batch), self.gamma) for _ in range(self.epochs)]
        q, v = self.critics.values(features, actions)
        gap = (q - v).to(advantage.dtype)
        self.steps += 1
        self.metrics = {
            "archer/q_loss": losses[-1][0], "archer/v_loss": losses[-1][1], "archer/value": float(v.mean()),
            "archer/advantage": float(gap.abs().mean()), "archer/remembered": float(len(self.memory)),
        }  # fmt: skip
        return gap if self.steps > self.warmup else 0 * gap

    def _remember(self, rollouts: Rollouts, actions: Tensor, outcome: Tensor) -> None:
        """The step's turns, each with what followed it."""
        rewards, last = rewards_of(rollouts, outcome)
        features, ended = rollouts.features, last.clone()
        following = features.roll(-1, 0)
        if rollouts.final is not None and rollouts.truncated is not None:
            cut = last & rollouts.truncated[rollouts.episode]
            following, ended = following.where(~cut[:, None], rollouts.final[rollouts.episode]), last & ~cut
        self.memory.add(features, actions, rewards.to(features), following, ended.to(features))
        self.critics.scale.see(features)

    def _make(self, features: int) -> None:
        from vlrl.algorithms.critics import TurnMemory, UtteranceCritics

        self.critics = UtteranceCritics(features, self.width, hidden=self.hidden, lr=self.lr, tau=self.tau)
        self.memory = TurnMemory(self.capacity)

    def state_dict(self) -> dict[str, Any]:
        if self.critics is None:
            return {"steps": self.steps}
        return {"steps": self.steps, "critics": self.critics.state_dict(), "memory": self.memory.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        if "critics" in state:
            self._make(len(state["critics"]["total"]))
            self.critics.load_state_dict(state["critics"])
            self.memory.load_state_dict(state["memory"])


archer = Archer


def hashed(texts: Sequence[str], width: int) -> Tensor:
    """float32 [B, width]: how often each trigram of characters stands in a text, of length 1; 0 of an empty text."""
    import torch

    counts = torch.zeros(len(texts), width)
    for row, text in zip(counts, texts, strict=True):
        padded = f" {text} " if text else ""
        for i in range(len(padded) - 2):
            row[zlib.crc32(padded[i : i + 3].encode()) % width] += 1
    return counts / counts.norm(dim=1, keepdim=True).clamp(min=1e-6)


# DigiRL (arXiv 2406.11896): imitate the good steps of the episodes that went better than their start promised.

DigirlShare = Annotated[float, Field(gt=0, le=1)]
Cost = Annotated[float, Field(ge=0)]
Discount = Annotated[float, Field(ge=0, le=1)]


@method(needs=("features",), source="DigiRL, arXiv 2406.11896; github.com/DigiRL-agent/digirl")
class DigiRL(Estimator):
    """1 for decisions to imitate, else 0: steps that advanced, of episodes that went better than their start promised.

    Two critics estimate the chance of success, one from an episode's start, one from every turn. Kept are the episodes
    with the largest outcome - V(start) above 0: what the policy is just learning to do, which makes a curriculum over
    tasks by itself. Of these, the turns with V(next) - V(now) - cost + r + G > 0, where r is the outcome at the last
    turn and 0 before, G the outcome discounted to this turn, and V behind the last turn 0. Both critics learn by
    cross-entropy from the step's outcomes, the first after it was asked, the second before.

    Unlike the published code: failed episodes are never kept (there they fill the share where too few succeed, and a
    policy that seldom succeeds unlearns what it can); the critics are linear in the policy's own features instead of
    models of their own; there is one for the turns instead of the smaller of two; and episodes are compared within a
    step, earlier ones among them where the run replays them (`rollout_strategy: replay`), not with all at once.

    Args:
        top: share of the step's episodes to keep: those at or above its quantile; equal ones are kept or left alike.
        cost: what a turn must gain at least.
        gamma: discount of G for each turn that is still to come.
        critic_lr: learning rate of the critics.
        critic_epochs: gradient steps of each critic a step.
    """

    def __init__(
        self,
        *,
        top: DigirlShare = 0.1,
        cost: Cost = 0.05,
        gamma: Discount = 0.5,
        critic_lr: Rate = 1e-2,
        critic_epochs: Count = 5,
    ):
        self.top, self.cost, self.gamma = top, cost, gamma
        self.critic_lr, self.critic_epochs = critic_lr, critic_epochs
        self.first: Critic | None = None  # both are made when the features' width is known
        self.turn: Critic | None = None

    def __call__(self, rollouts: Rollouts, advantage: Tensor) -> Tensor:
        """-> [B] of 0 and 1, and both critics trained."""
        features, episode = rollouts.features, rollouts.episode
        if self.first is None:
            self._make(features.shape[1])
        outcome = rollouts.is_correct.to(features.dtype)
        first = features[episode.diff(prepend=episode[:1] - 1) != 0]  # [N, H], at each episode's first turn
        promised = self.first.values(first)
        kept = best(outcome - promised, self.top) & (outcome > promised)
        start_loss, turn_loss = self.first.learn(first, outcome), self.turn.learn(features, outcome[episode])
        chosen = kept[episode] & (gains(self.turn.values(features), outcome, episode, self.gamma) > self.cost)
        self.metrics = {
            "digirl/start_loss": start_loss, "digirl/turn_loss": turn_loss, "digirl/promised": float(promised.mean()),
            "digirl/imitated": float(chosen.to(features.dtype).mean()),
        }  # fmt: skip
        return chosen.to(advantage.dtype)

    def _make(self, width: int) -> None:
        from vlrl.algorithms.critics import Critic

        self.first, self.turn = (Critic(width, lr=self.critic_lr, epochs=self.critic_epochs) for _ in range(2))

    def state_dict(self) -> dict[str, Any]:
        return {} if self.first is None else {"start": self.first.state_dict(), "turn": self.turn.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self._make(len(state["start"]["total"]))
            self.first.load_state_dict(state["start"])
            self.turn.load_state_dict(state["turn"])


digirl = DigiRL


# WebRL (arXiv 2411.02337): what a turn gained, and what came of it, against a critic of the chance of success.


@method(
    reads=("reward",),
    gives=("baseline",),
    needs=("features",),
    source="WebRL, arXiv 2411.02337, Eq. 9; github.com/THUDM/WebRL",
)
class WebRLAdvantage(Estimator):
    """`A_t = lam (V_(t+1) - V_t + r_t) + (1 - lam) (R - V_t)`, V the chance of success from what was shown.

    r is the outcome R at the last turn and 0 before, V behind the last turn 0; R is the episode's reward within [0, 1],
    that of an outcome model where the recipe has one. V is asked first, then learns R by cross-entropy. One turn gets
    `R - V`. Published: V is a language model's head, trained over a replay buffer. Ours: it is linear in the policy's
    own features. With the loss `direct_advantage` this is the paper's KL-constrained update.

    Args:
        lam: weight of the one-step gain; what it lacks is the whole outcome's.
        critic_lr, critic_epochs: the critic's learning rate, and its gradient steps a step.
    """

    def __init__(self, *, lam: DigirlShare = 0.5, critic_lr: Rate = 1e-2, critic_epochs: Count = 5):
        self.lam, self.critic_lr, self.critic_epochs = lam, critic_lr, critic_epochs
        self.critic: Critic | None = None  # made when the features' width is known

    def __call__(self, rollouts: Rollouts, advantage: Tensor) -> Tensor:
        """-> [B], and the critic trained."""
        if self.critic is None:
            self._make(rollouts.features.shape[1])
        outcome = rollouts.reward.clamp(0, 1)[rollouts.episode]
        value = self.critic.values(rollouts.features).to(outcome)
        last = last_of(rollouts.episode)
        loss = self.critic.learn(rollouts.features, outcome.to(rollouts.features))
        self.metrics = {"webrl/value": float(value.mean()), "webrl/value_loss": loss}
        gain = value.roll(-1).masked_fill(last, 0.0) - value + outcome * last
        return (self.lam * gain + (1 - self.lam) * (outcome - value)).to(advantage.dtype)

    def _make(self, width: int) -> None:
        from vlrl.algorithms.critics import Critic

        self.critic = Critic(width, lr=self.critic_lr, epochs=self.critic_epochs)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.critic is None else self.critic.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self._make(len(state["total"]))
            self.critic.load_state_dict(state)


webrl_advantage = WebRLAdvantage


def turns_left(episode: Tensor) -> Tensor:
    """int64 [B]: how many turns of its episode follow each one. An episode's turns stand together, in order."""
    _, counts = episode.unique_consecutive(return_counts=True)
    behind = counts.cumsum(0).repeat_interleave(counts)  # the row behind the episode's last
    return behind - behind.new_ones(len(behind)).cumsum(0)


def gains(value: Tensor, outcome: Tensor, episode: Tensor, gamma: float) -> Tensor:
    """[B]: V(next) - V(now) + r + G of each turn, for values [B] and outcomes [N]."""
    left = turns_left(episode)
    following = value.roll(-1).masked_fill(left == 0, 0.0)
    return following - value + outcome[episode] * ((left == 0) + gamma**left)


def best(values: Tensor, share: float) -> Tensor:
    """bool [N]: at or above the quantile 1 - share, so at least the largest, and equal values alike."""
    return values >= values.quantile(1 - share)


# Group-in-group advantages: an episode against its group, and a step against those that stood at the same place.

GigpoShare = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[float, Field(ge=0)]


@method(
    reads=("reward", "step_rewards", "steps"),
    needs=("group", "anchors"),
    source="GiGPO, arXiv 2505.10978; github.com/langfengQ/verl-agent, gigpo",
)
class GiGPO(Estimator):
    """`A = A_E + weight A_S`: a whole episode against those of its group, a step against steps from the same place.

    With r what a step earned (`process`), at an episode's last also the outcome: `A_E` is the sum of r minus its mean
    over the group, `A_S` is `G_t = sum_k gamma^k r_(t+k)` minus its mean over the steps of the group that stood at the
    same place (`vlrl.algorithms.multi_turn.places`). A place where only one step stood says nothing: 0 there, as where
    all had the same return. What an earlier estimator made is not read. `gigpo/shared` in the log is the share of
    steps that had company; near 0, A_S does nothing: make cells larger.

    Published: both, for agents whose pages recur exactly. Ours: places as cells of a robot's state, which never recurs.

    Args:
        gamma: per turn.
        weight: of A_S.
        over: A_E's mean over the group's episodes, as in the paper, or over their steps, as in the released code, where
            an episode counts as often as it took steps.
        std: `group`: both are divided by their deviation (ddof 1) + eps, over what their means are taken of.
        by: `seen` for agents, `state` for robots.
        cell: with `state`: width of a cell, in standard deviations of the step's states.
    """

    def __init__(
        self, *, gamma: GigpoShare = 0.95, weight: Weight = 1.0, over: Literal["episodes", "steps"] = "episodes",
        std: Literal["none", "group"] = "none", by: By = "seen", cell: Rate = 1.0, eps: Rate = 1e-6,
    ):  # fmt: skip
        self.gamma, self.weight, self.over, self.std, self.eps = gamma, weight, over, std, eps
        self.by, self.cell = by, cell

    def __call__(self, rollouts: Rollouts, advantage: Tensor) -> Tensor:
        """-> [B]. Raises UserError: `by: state` for a task without a body."""
        rewards, last = rewards_of(rollouts, rollouts.reward[rollouts.episode])
        place = places(rollouts, self.by, self.cell)
        self.metrics = {"gigpo/shared": shared(place)}
        return self._episode_advantages(rollouts, rewards) + self.weight * self._against(
            returns(rewards, last, self.gamma), place
        )

    def _episode_advantages(self, rollouts: Rollouts, rewards: Tensor) -> Tensor:
        """A_E [B]."""
        episode, group = rollouts.episode, rollouts.group
        total = rewards.new_zeros(len(rollouts.reward)).index_add(0, episode, rewards)
        if self.over == "episodes":
            return self._against(total, group)[episode]
        return self._against(total[episode], group[episode])

    def _against(self, values: Tensor, group: Tensor) -> Tensor:
        """Each value minus its group's mean, over the group's deviation where that is asked for."""
        centred = group_centred(values, group)
        return centred if self.std == "none" else centred / (group_deviations(values, group) + self.eps)


gigpo = GiGPO


# Dr. MAS: where several agents take turns, each is compared with itself (arXiv 2602.08847).


@method(
    gives=baseline_and_scale,
    reads=("reward",),
    needs=("group",),
    source="Dr. MAS, arXiv 2602.08847; github.com/langfengQ/DrMAS: group_by_agent_id",
)
class DrMas(Estimator):
    """`A = (R - mean_k) / (std_k + eps)` over the decisions of one role k in a group; R is their episode's reward.

    A role that acts only in some episodes, or more often in those that go wrong, has rewards of its own; compared with
    the mean of all, its advantages are off by the difference, and its gradient is larger than it need be. An episode
    counts in a role's mean as often as the role acted in it. What an earlier estimator made is not read. The only
    decision of a role in its group has nothing to be compared with and gets 0 (released: its reward). With one role and
    as many turns in every episode this is `grpo`. `roles/NAME` in the log is a role's mean reward. Agents share one
    policy and are told apart by their prompts.

    Args:
        std: `group`: divided by the deviation (ddof 1), as published, or not.
    """

    def __init__(self, *, std: Literal["group", "none"] = "group", eps: Rate = 1e-6):
        self.std, self.eps = std, eps

    def __call__(self, rollouts: Rollouts, advantage: Tensor) -> Tensor:
        """-> [B]"""
        reward = rollouts.reward[rollouts.episode]
        self.metrics = compute_role_means(rollouts, reward)
        return within(reward, agents(rollouts), self.std, self.eps)


dr_mas = DrMas


def agents(rollouts: Rollouts, *, apart: bool = True) -> Tensor:
    """int64 [B]: equal for the decisions of one role in one group, or without `apart` in all groups."""
    roles = rollouts.roles or ("",) * len(rollouts.episode)
    group = rollouts.group[rollouts.episode]
    keys = zip(group.tolist() if apart else [0] * len(group), roles, strict=True)
    return named(list(keys), group)


def within(values: Tensor, agent: Tensor, std: str, eps: float) -> Tensor:
    """Each value [B] minus the mean of its agent's, over their deviation where that is asked for."""
    centred = group_centred(values, agent)
    return centred if std == "none" else centred / (group_deviations(values, agent) + eps)


def compute_role_means(rollouts: Rollouts, values: Tensor) -> dict[str, float]:
    """The mean of values [B] over each role's decisions, by name."""
    sums: dict[str, list[float]] = {}
    for role, value in zip(rollouts.roles, values.tolist(), strict=False):
        sums.setdefault(role or "agent", []).append(value)
    return {f"roles/{role}": sum(each) / len(each) for role, each in sorted(sums.items())}


# MARS (MARSHAL): what an agent still earns from a turn on, against what its role earns (arXiv 2510.15414).

MarsShare = Annotated[float, Field(ge=0, le=1)]


@method(
    gives=baseline_and_scale,
    reads=("reward", "step_rewards", "returns"),
    needs=("group",),
    source="MARS, arXiv 2510.15414; github.com/thu-nics/MARSHAL: separate_norm_for_selfplay",
)
class Mars(Estimator):
    """`A_t = G_t - mean`, G_t what the agent earns from its turn t on, the mean over the turns of its role.

    Each role's turns of an episode are a trajectory of its own: `G_t = sum_k gamma^k r_(t+k)` over them, with r what a
    turn earned (`process`), at the role's last turn also the outcome, which all roles share. Sums come before the
    normalisation, and that is per role: a turn's credit is what followed it, and an agent whose seat earns less is not
    taken for a bad one. What an earlier estimator made is not read. The only turn of a role gets 0.

    Published: both, without a discount and mean alone; means over all episodes of one game. Ours: means over a group,
    which starts from one prompt as a game does from its beginning (`over: step` for all of a step). Left out: the
    whitening of rewards and advantages that the released code adds; put `whiten` behind it. Agents whose outcomes
    differ, as in games, need them as process rewards: an episode has one outcome.

    Args:
        over: the group's turns, or all of the step's.
        std: `group`: also divided by their deviation (ddof 1) + eps.
    """

    def __init__(
        self,
        *,
        gamma: MarsShare = 1.0,
        over: Literal["group", "step"] = "group",
        std: Literal["none", "group"] = "none",
        eps: Rate = 1e-6,
    ):
        self.gamma, self.over, self.std, self.eps = gamma, over, std, eps

    def __call__(self, rollouts: Rollouts, advantage: Tensor) -> Tensor:
        """-> [B]"""
        following = left(rollouts, self.gamma)
        self.metrics = compute_role_means(rollouts, following)
        return within(following, agents(rollouts, apart=self.over == "group"), self.std, self.eps)


mars = Mars


def left(rollouts: Rollouts, gamma: float) -> Tensor:
    """G [B]: what each decision's role earns from there on in its episode."""
    episode = rollouts.episode
    roles = rollouts.roles or ("",) * len(episode)
    owner = named(list(zip(episode.tolist(), roles, strict=True)), episode)
    order = owner.argsort(stable=True)  # each role's turns of an episode one behind the other, in time's order
    last = owner[order].diff(append=owner.max()[None] + 1) != 0
    process_reward = (
        0.0 if rollouts.process_reward is None else rollouts.process_reward[order].to(rollouts.reward.dtype)
    )
    summed = returns(rollouts.reward[episode][order] * last + process_reward, last, gamma)
    return summed.new_empty(len(summed)).index_copy(0, order, summed)


# Self-play without groups: an agent against what its role usually earns (SPIRAL, arXiv 2506.24119).


@method(
    gives=("baseline",),
    reads=("reward", "step_rewards", "returns"),
    source="role-conditioned advantage estimation (RAE): SPIRAL, arXiv 2506.24119; prime-rl, rae.py",
)
class Rae(Estimator):
    """`A = R - b_k`, R what the agent of role k earns in its episode, b_k the running mean of its role's R.

    R is the sum of what the role's turns earned (`process`) and of the outcome, as in `mars`; all turns of the role
    have its advantage. In a zero-sum game the mean over a group says nothing, and one seat may earn more than another:
    a role is compared with itself alone. Needs no group. Each episode updates `b <- decay b + (1 - decay) R` once a
    role; all of a step are compared with b as the step began (published: each with what the one before it left), so
    that their order means nothing. b begins at 0 and is kept in checkpoints. One task a run: published, b is of each
    game too.

    Args:
        decay: share of the past that an episode leaves.
    """

    def __init__(self, *, decay: MarsShare = 0.95):
        self.decay, self.baselines = decay, {}

    def __call__(self, rollouts: Rollouts, advantage: Tensor) -> Tensor:
        """-> [B], and the baselines updated."""
        roles = rollouts.roles or ("",) * len(rollouts.episode)
        total, before = [], dict(self.baselines)
        sums: dict[tuple[int, str], float] = {}
        for row, value in enumerate(left(rollouts, 1.0).tolist()):
            total.append(sums.setdefault((int(rollouts.episode[row]), roles[row]), value))  # from its first turn on
        for (_, role), value in sorted(sums.items()):
            self.baselines[role] = self.decay * self.baselines.get(role, 0.0) + (1 - self.decay) * value
        values = rollouts.reward.new_tensor(total)
        self.metrics = compute_role_means(rollouts, values)
        return values - values.new_tensor([before.get(role, 0.0) for role in roles])

    def state_dict(self) -> dict[str, Any]:
        return {"baselines": dict(self.baselines)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.baselines = dict(state["baselines"])


rae = Rae


# Who proposes is compared with other proposers, who solves with other answers to the same proposal.


@method(
    gives=("baseline",),
    reads=("step_rewards", "steps"),
    needs=("group",),
    source="hierarchical GRPO of proposer and solver: github.com/PrimeIntellect-ai/prime-rl, hierarchical_grpo.py",
)
def hierarchical(rollouts: Rollouts, advantage: Tensor, *, inner: tuple[str, ...] = ("solver",)) -> Tensor:
    """`r_t - mean`, r what a turn earned (`process`), the mean over its role's turns in the episode, or in the group.

    The roles of `inner` answer what was proposed in their episode: another episode has another question, of another
    difficulty. All other roles are compared across the group. The outcome of the episode does not count; the only turn
    of its kind gets 0. No deviation, as released.

    Args:
        inner: roles that are compared within their episode.

    Returns:
        [B]
    """
    roles = rollouts.roles or ("",) * len(rollouts.episode)
    places = zip(roles, rollouts.episode.tolist(), rollouts.group[rollouts.episode].tolist(), strict=True)
    keys = [(role, episode if role in inner else -1, group) for role, episode, group in places]
    process_reward, _ = rewards_of(rollouts, 0 * rollouts.reward[rollouts.episode])
    return group_centred(process_reward, named(keys, rollouts.episode))


# Agents that learn one after another: who learns stands still for the others (MARFT, arXiv 2504.16129).


@method(source="agents trained in turn: MARFT, arXiv 2504.16129; github.com/jwliao-ai/MARFT")
def alternate(rollouts: Rollouts, advantage: Tensor, *, every: Count = 1) -> Tensor:
    """Keeps the advantages of one role, and 0 for all others; whose turn it is changes every `every` steps.

    The others' behaviour is then a part of the environment that holds still, up to what agents with one policy learn
    for each other. Roles take turns in the order of their names. Published: one after another within each step, with a
    policy each.

    Args:
        every: steps of a role's turn.

    Returns:
        [B] or [B, T], as it was.
    """
    names = sorted(set(rollouts.roles))
    if not names:
        return advantage
    now = names[rollouts.step // every % len(names)]
    learns = rollouts.mask.new_tensor([role == now for role in rollouts.roles])
    return advantage * (learns[:, None] if advantage.ndim > 1 else learns)


# Steps that good and bad episodes share are neither: their advantage is the mean of the episodes through them.


def check_averaged(recipe: Recipe, part: RecipePart) -> str | None:
    """Of plain rewards every step would be good."""
    parts = recipe.of("advantages")
    earlier = parts[: parts.index(part)]
    if any("baseline" in p.gives or "step_rewards" in p.reads or p.undeclared for p in earlier):
        return None
    return f"{part.label} averages what an earlier one gave: put group before it"


@method(
    reads=("steps",),
    check_recipe=check_averaged,
    needs=("group", "anchors"),
    source="SALT, arXiv 2510.20022 (abstract); the merging rule is a reconstruction",
)
class Salt(Estimator):
    """What an earlier estimator gave, averaged over the episodes of a group that took the same step.

    Published: the episodes of a prompt make a graph; steps that episodes of different outcome share get a merged
    advantage, others keep their own; it sits on top of GRPO or RLOO. Ours, since the rule is not known: a step is an
    edge (place, action), its advantage the mean over the episodes through it, of which each counts once however often
    it came by. In a group whose advantages have mean 0 a step that all took has 0. `salt/shared` in the log is the
    share of steps that were not taken once only.

    Args:
        by: what a place is: `seen` for agents, `state` for robots (`vlrl.algorithms.multi_turn.places`).
        action: `done`: the same text, or numbers; `next`: whatever led to the same next place, for actions of which no
            two are equal, such as a robot's. With `next` an episode's last step is its own.
        cell: with `by: state`: width of a cell, in standard deviations of the step's states.
    """

    def __init__(self, *, by: By = "seen", action: Literal["done", "next"] = "done", cell: Rate = 1.0):
        self.by, self.action, self.cell = by, action, cell

    def __call__(self, rollouts: Rollouts, advantage: Tensor) -> Tensor:
        """-> [B]. Raises UserError: `by: state` for a task without a body."""
        place = places(rollouts, self.by, self.cell)
        edge = numbered(place, self._acted(rollouts, place))
        self.metrics = {"salt/shared": shared(edge)}
        share = 1 / group_sizes(numbered(edge, rollouts.episode)).to(advantage.dtype)
        blank = advantage.new_zeros(len(edge))
        return (blank.index_add(0, edge, share * advantage) / blank.index_add(0, edge, share).clamp(min=1e-9))[edge]

    def _acted(self, rollouts: Rollouts, place: Tensor) -> Tensor:
        """A number for what each decision did, int64 [B]."""
        if self.action == "done":
            return named(list(rollouts.action_keys), place)
        rows = place.new_ones(len(place)).cumsum(0)
        return place.roll(-1).where(~last_of(rollouts.episode), -rows)


salt = Salt


# Advantages of whole episodes and of single steps, each within its group, fused.


@method(
    reads=("reward", "step_rewards", "steps", "returns"),
    needs=("group",),
    source="TGRPO, arXiv 2506.08440; the paper's weights are not known",
)
def tgrpo(
    rollouts: Rollouts, advantage: Tensor, *, episode: Weight = 1.0, step: Weight = 1.0, eps: Rate = 1e-6
) -> Tensor:
    """`A = episode T + step S_t`: T of the sum of an episode's rewards, S_t of the reward of its step t.

    With r what a step earned (`process`), at an episode's last also the outcome. T is standardised (ddof 1) over the
    group's episodes, S_t over the group's steps at the same time t. Where all are equal, or one is alone, it is 0. What
    an earlier estimator made is not read.

    Unlike the paper the episodes of a group are not all stopped when the first succeeds. That would make failures of
    those that were a little slower, the more so the more of them there are, and leave the policy without an example
    of how a late success ends. Here each plays to its own end, and S_t compares those that still play.

    Args:
        episode, step: weights; ours.

    Returns:
        [B]
    """
    rewards, _ = rewards_of(rollouts, rollouts.reward[rollouts.episode])
    total = rewards.new_zeros(len(rollouts.reward)).index_add(0, rollouts.episode, rewards)
    at_once = numbered(rollouts.group[rollouts.episode], turn_of(rollouts.episode))
    whole = _standard(total, rollouts.group, eps)[rollouts.episode]
    return episode * whole + step * _standard(rewards, at_once, eps)


def turn_of(episode: Tensor) -> Tensor:
    """int64 [B]: which turn of its episode each decision is, from 0. An episode's turns stand together, in order."""
    _, counts = episode.unique_consecutive(return_counts=True)
    begins = counts.cumsum(0) - counts
    return episode.new_ones(len(episode)).cumsum(0) - 1 - begins.repeat_interleave(counts)


def _standard(values: Tensor, group: Tensor, eps: float) -> Tensor:
    return group_centred(values, group) / (group_deviations(values, group) + eps)
