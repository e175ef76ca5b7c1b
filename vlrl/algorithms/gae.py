"""Returns and generalised advantage estimation, with and without a critic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from vlrl.algorithms.advantages import by_token, ends, last_of, returns
from vlrl.config import Count, Rate
from vlrl.methods import Estimator, method
from vlrl.types import Decision, Episode, Rollouts, UserError

if TYPE_CHECKING:
    from torch import Tensor

    from vlrl.algorithms.critics import ValueCritic


# Generalised advantage estimation.


def rewards_of(rollouts: Rollouts, outcome: Tensor) -> tuple[Tensor, Tensor]:
    """What each decision earned [B], the outcome [B] at its episode's last one included, and which are last, bool [B].

    An episode's decisions stand together, in order.
    """
    last = last_of(rollouts.episode)
    process_reward = 0.0 if rollouts.process_reward is None else rollouts.process_reward.to(outcome.dtype)
    return outcome * last + process_reward, last


def generalized(
    values: Tensor, rewards: Tensor, last: Tensor, gamma: float, lam: float, *, cut: bool = False,
    behind: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Generalised advantages [M] (GAE, arXiv 1506.02438): the discounted sum, by gamma lam, of

        delta_t = r_t + gamma V_(t+1) - V_t

    over what is left of each episode. Behind the end V is 0; or with `cut` that of the last step: the episodes were
    broken off and would have gone on (T-PPO's EGAE, arXiv 2506.15050); or what `behind` [M] says, read at the ends.
    """
    beyond = values if cut else values.new_zeros(()) if behind is None else behind
    following = values.roll(-1).where(~last, beyond)
    return returns(rewards + gamma * following - values, last, gamma * lam)


# Truncated importance weights between the engine that samples and the policy that trains: `truncated_weights`.


@method(
    gives=("sampling_weights",),
    level="token",
    source="TIS: Yao et al. 2025, Your Efficient RL Framework Secretly Brings You Off-Policy RL Training; by sequence "
    "and masked: TRL 1.16, vllm_importance_sampling_mode",
)
class TruncatedWeights(Estimator):
    """Each token's advantage times `min(p / q, most)`, p its probability by the trainer's weights, q by the engine's.

    Both are of the same weights, so that without rounding all weights are 1; where kernels, types or batches differ,
    the gradient is again the policy's own, up to the tokens that are cut off. As the weight is a constant and not
    negative, a surrogate such as `ppo_clip` is weighed as a whole by it. Terms that do not read advantages are not
    weighed. With `policy.engine: local` nothing changes, but a kept prefill is given up: leave it out there.

    Published: the weight per token, whose gradient is biased by what stands before it; that of a whole completion is
    not, but is far from 1 sooner (TRL's default: by sequence, masked, most 3).

    Args:
        most: 2 is ms-swift's and verl's threshold; 1 lets no token count more than once.
        least: smallest weight; null: none.
        of: what has a weight: each `token`, or each completion (`sequence`), by the product of its tokens'.
        outside: weights beyond the bounds are set to the nearest one (`cut`, TIS), or to 0 (`drop`, MIS).

    Raises:
        UserError: the engine's log-probabilities are not compared with the trainer's (`rescore: false`): the
            surrogate's own ratio is then p / q already.
    """

    def __init__(
        self, *, most: Rate = 2.0, least: Rate | None = None, of: Literal["token", "sequence"] = "token",
        outside: Literal["cut", "drop"] = "cut",
    ):  # fmt: skip
        self.most, self.least, self.of, self.outside = most, least or 0.0, of, outside
        self._ratios: list[Tensor | None] = []

    def revisit(self, policy: Any, episodes: Sequence[Episode]) -> None:
        """Reads both log-probabilities of what was played."""
        if policy.engine is not None and not policy.engine.rescore:
            raise UserError("advantages: truncated_weights: the ratio of the loss is p / q already: leave it out, or "
                            "set policy.engine.rescore: true")  # fmt: skip
        self._ratios = [_ratio(turn.decision) for episode in episodes for turn in episode.turns]

    def __call__(self, rollouts: Rollouts, advantage: Tensor) -> Tensor:
        if len(self._ratios) != len(rollouts.mask) or all(ratio is None for ratio in self._ratios):
            self.metrics = {}
            return advantage
        mask, weight = rollouts.mask, ratios_of(self._ratios, rollouts)
        if self.of == "sequence":
            whole = (weight.log() * mask).sum(1, keepdim=True).clamp(-20.0, 20.0)
            weight = whole.exp().expand(mask.shape)
        beyond = (weight > self.most) | (weight < self.least)
        kept = weight.masked_fill(beyond, 0.0) if self.outside == "drop" else weight.clamp(self.least, self.most)
        self.metrics = {
            "engine/weight": float(kept[mask].mean()), "engine/truncated": float(beyond[mask].to(kept.dtype).mean()),
        }  # fmt: skip
        return by_token(advantage, rollouts) * kept


truncated_weights = TruncatedWeights


def ratios_of(rows: Sequence[Tensor | None], rollouts: Rollouts) -> Tensor:
    """Each decision's ratios [T] as rows of [B, T], 1 behind them and where there are none."""
    ratios = rollouts.logprobs.new_ones(rollouts.mask.shape)
    for row, ratio in zip(ratios, rows, strict=True):
        if ratio is not None:
            row[: len(ratio)] = ratio.to(row)
    return ratios


def _ratio(decision: Any) -> Tensor | None:
    """p / q [T] of a decision's tokens; None where the policy itself sampled them."""
    sampled = decision.engine_logprobs
    return None if sampled is None else ratio(decision.logprobs, sampled)


def ratio(logprobs: Tensor, sampled: Tensor) -> Tensor:
    """p / q [T] of log-probabilities, between exp(-20) and exp(20)."""
    return (logprobs - sampled).clamp(-20.0, 20.0).exp()


# PPO's advantages: what a turn brought beyond what a learned critic expected.

Share = Annotated[float, Field(ge=0, le=1)]
Steps = Annotated[int, Field(ge=0)]


def check_discount(options: Mapping[str, Any], path: str) -> None:
    """UserError: undiscounted values behind time limits, which have only successes to learn from."""
    if options.get("bootstrap") and options.get("gamma", 1.0) == 1:
        raise UserError(f"{path}: bootstrap needs gamma below 1: without a discount a time-out costs nothing")


@method(
    reads=("step_rewards", "returns"),
    check_options=check_discount,
    needs=("features",),
    source="PPO, arXiv 1707.06347; GAE, 1506.02438; HL-Gauss: Stop Regressing, 2403.03950; time limits: 1712.00378",
)
class Gae(Estimator):
    """Generalised advantages over an episode's turns, by a critic on the policy's features.

    `A_t = sum_k (gamma lam)^k delta_(t+k)`, `delta_t = r_t + gamma V_(t+1) - V_t`, V = 0 behind the last turn. r is
    what a turn earned (`process`), at the last turn also the outcome: the reward, or what an earlier estimator made of
    it. The critic is asked first and then learns the returns `A_t + V_t` of this step.

    An episode that a limit broke off (`Step.truncated`) has not failed: behind its last turn V is that of what was
    shown last. With gamma = 1 it counts as ended all the same: where every failure is a time-out, a critic that
    discounts nothing would have only successes to go by, and learn that all succeed.

    What is offered: one value a decision, since a policy gives one row of features for each (of a language model the
    state at its prompt's end, of a robot's network the trunk's output). All tokens of a decision share its advantage,
    and a task of one turn has A = r - V(prompt), whatever gamma and lam. Values of single tokens, as in PPO for
    language models, would need features of each token, which no policy here gives. Features come without gradient: the
    critic never changes the policy.

    Published: GAE, the clipped value loss (ppo2), the categorical targets, values at time limits. Ours: the critic on
    standardised features of the policy, and that it learns at a rate of its own beside it.

    Args:
        gamma, lam: per turn.
        bootstrap: whether the value of what was shown last stands behind an episode that was cut, where gamma < 1;
            false where the limit belongs to the task.
        critic: `squares` fits a number, `hl_gauss` a distribution over `bins` of [low, high], by cross-entropy.
        clip: of `squares`: how far a step's learning may move a value with a gradient; null: as far as it likes.
        low, high: of `hl_gauss`; beyond the smallest and largest return, see
        `vlrl.algorithms.auxiliary_losses.hl_gauss`.
        sigma: of `hl_gauss`, in bins.
        warmup: first steps in which only the critic learns: the advantage is 0, so a surrogate moves nothing. Losses
            without an advantage (`entropy`) and weight decay go on.
        critic_lr: learning rate of the critic.
        critic_epochs: its gradient steps a step.
        hidden: units of a hidden layer of the critic; 0: it is linear.
        by_role: a critic for each role, where several agents take turns (MARFT, arXiv 2504.16129).
    """

    def __init__(
        self,
        *,
        gamma: Share = 1.0,
        lam: Share = 0.95,
        bootstrap: bool = True,
        critic: Literal["squares", "hl_gauss"] = "squares",
        clip: Rate | None = 0.2,
        low: float = -0.5,
        high: float = 1.5,
        bins: Annotated[int, Field(ge=2)] = 51,
        sigma: Rate = 0.75,
        warmup: Steps = 0,
        critic_lr: Rate = 1e-2,
        critic_epochs: Count = 5,
        hidden: Steps = 0,
        by_role: bool = False,
    ):
        if not low < high:
            raise UserError(f"advantages: gae: low {low} must be below high {high}")
        self.gamma, self.lam, self.critic, self.clip = gamma, lam, critic, clip
        self.support, self.warmup = {"low": low, "high": high, "width": bins, "sigma": sigma}, warmup
        self.lr, self.epochs, self.hidden, self.steps = critic_lr, critic_epochs, hidden, 0
        self.bootstrap = bootstrap and gamma < 1
        self.by_role = by_role
        self.critics: dict[str, ValueCritic] = {}  # by role, or of all as ""; made when the features' width is known

    def __call__(self, rollouts: Rollouts, advantage: Tensor) -> Tensor:
        """-> [B], and the critics trained."""
        features, roles = rollouts.features, self._roles(rollouts)
        rewards, last = rewards_of(rollouts, advantage)
        values = self._values(features, roles).to(advantage.dtype)
        behind = self._behind(rollouts, [role for role, end in zip(roles, last.tolist(), strict=True) if end])
        gained = generalized(values, rewards, last, self.gamma, self.lam, behind=behind)
        goals = gained + values
        self.metrics = {
            "gae/value": float(values.mean()), "gae/explained": explained(values, goals),
            "gae/critic_loss": self._learn(features, goals.to(features.dtype), roles),
        }  # fmt: skip
        self.steps += 1
        return gained if self.steps > self.warmup else 0 * gained

    def _roles(self, rollouts: Rollouts) -> tuple[str, ...]:
        """Whose critic each decision [B] has."""
        return rollouts.roles if self.by_role and rollouts.roles else ("",) * len(rollouts.episode)

    def _values(self, features: Tensor, roles: Sequence[str]) -> Tensor:
        values = features.new_zeros(len(features))
        for role, rows in _rows_of(roles).items():
            values[rows] = self._critic(role, features.shape[1]).values(features[rows])
        return values

    def _learn(self, features: Tensor, wanted: Tensor, roles: Sequence[str]) -> float:
        """Returns the mean of the critics' losses over the decisions."""
        parts = _rows_of(roles)
        losses = [self.critics[role].learn(features[rows], wanted[rows]) * len(rows) for role, rows in parts.items()]
        return sum(losses) / len(roles)

    def _behind(self, rollouts: Rollouts, roles: Sequence[str]) -> Tensor | None:
        """What would have followed each decision [B] if it was the last of an episode that was cut, else 0."""
        if not self.bootstrap or rollouts.final is None:
            return None
        then = self._values(rollouts.final, roles).to(rollouts.reward.dtype)
        return (then * rollouts.truncated)[rollouts.episode]

    def _critic(self, role: str, width: int) -> ValueCritic:
        from vlrl.algorithms.critics import HLGauss, Squares, ValueCritic

        if role not in self.critics:
            head = Squares(self.clip) if self.critic == "squares" else HLGauss(**self.support)
            self.critics[role] = ValueCritic(width, lr=self.lr, epochs=self.epochs, head=head, hidden=self.hidden)
        return self.critics[role]

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "critics": {role: critic.state_dict() for role, critic in self.critics.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        older = {"": state["critic"]} if "critic" in state else {}  # a checkpoint of one critic
        for role, saved in state.get("critics", older).items():
            self._critic(role, len(saved["total"])).load_state_dict(saved)


def _rows_of(roles: Sequence[str]) -> dict[str, list[int]]:
    """Each role's places, in the order in which roles first appear."""
    rows: dict[str, list[int]] = {}
    for place, role in enumerate(roles):
        rows.setdefault(role, []).append(place)
    return rows


gae = Gae


def explained(values: Tensor, wanted: Tensor) -> float:
    """Share of the returns' variance that the values told beforehand: 1 all of it, 0 none, below 0 worse than none."""
    variance = float(((wanted - wanted.mean()) ** 2).mean())
    gap = wanted - values
    return 1 - float(((gap - gap.mean()) ** 2).mean()) / variance if variance > 0 else 0.0


# Decoupled PPO, for episodes that older weights played: `decoupled`.


@method(
    reads=("all_episodes",),
    gives=("sampling_weights",),
    level="token",
    source="AReaL, arXiv 2505.24298; decoupled: Hilton et al., arXiv 2110.00641; what is left out: "
    "github.com/inclusionAI/AReaL, behav_imp_weight_cap",
)
class Decoupled(Estimator):
    """Three laws instead of two: q played the episodes, p is the policy as the update begins, p_now as it goes on.

    Each token's advantage is multiplied by w = p / q, and 0 where w > most; the losses' ratio becomes p_now / p. With
    `ppo_clip` that is `w min(u A, clip(u) A)`, u = p_now / p: clipping keeps the policy near what it is now, and not
    near an older one that it has left on purpose. One forward pass a step more. Where the engine's log-probabilities
    are known (docs/engines.md), q is the engine's.

    Published: the code's configurations leave out what is above 5. By weights that are not older all weights are 1, up
    to rounding.

    Args:
        most: null leaves nothing out.
    """

    def __init__(self, *, most: Rate | None = 5.0):
        self.most = most
        self._ratios: list[Tensor] = []

    def revisit(self, policy: Any, episodes: Sequence[Episode]) -> None:
        """Scores what was played by the present policy, whose log-probabilities become the decisions' own."""
        decisions = [turn.decision for episode in episodes for turn in episode.turns]
        present = iter(scored(policy, decisions))
        self._ratios = []
        for episode in episodes:
            for i, turn in enumerate(episode.turns):
                logprobs = next(present)
                sampled = turn.decision.engine_logprobs
                self._ratios.append(ratio(logprobs, turn.decision.logprobs if sampled is None else sampled))
                episode.turns[i] = replace(turn, decision=replace(turn.decision, logprobs=logprobs))

    def __call__(self, rollouts: Rollouts, advantage: Tensor) -> Tensor:
        """-> [B, T]; unchanged where nothing was revisited: no older weights played."""
        if len(self._ratios) != len(rollouts.mask):
            self.metrics = {}
            return advantage
        weight = ratios_of(self._ratios, rollouts)
        kept = weight <= (self.most or float("inf"))
        counted = weight[rollouts.mask]
        self.metrics = {
            "decoupled/weight": float(weight.where(kept, 0.0)[rollouts.mask].mean()),
            "decoupled/left_out": float((~kept)[rollouts.mask].to(counted.dtype).mean()),
            "decoupled/kl": float(-counted.log().mean()),  # of q from p, estimated from what q sampled
        }
        return by_token(advantage, rollouts) * weight.where(kept, 0.0)


decoupled = Decoupled


def scored(policy: Any, decisions: Sequence[Decision]) -> list[Tensor]:
    """Log-probabilities [T] of each decision under the present weights, on the CPU; 0 where forced."""
    import torch

    if policy.writes_text:
        rows = [logprobs for logprobs, _ in policy.score(decisions)]
    else:
        with torch.no_grad():
            now = policy.evaluate(decisions)
        rows = [row[mask].cpu() for row, mask in zip(now.logprobs, now.mask, strict=True)]
    forced = [decision.forced_mask for decision in decisions]
    return [row if gone is None else row.where(~gone, 0.0) for row, gone in zip(rows, forced, strict=True)]


# T-PPO's advantages: token by token, with a critic of its own, and of answers that are not finished yet.

BATCH = 32  # decisions in one forward pass


@method(
    reads=("unfinished", "all_episodes"),
    level="token",
    source="extended GAE: T-PPO, arXiv 2506.15050; GAE, 1506.02438; clipped values: PPO, 1707.06347",
)
class Egae(Estimator):
    """Generalised advantages over tokens, by a critic on the model's states; answers need not be finished.

    `A_t = sum_k (gamma lam)^k delta_(t+k)`, `delta_t = r_t + gamma V_(t+1) - V_t`, over an episode's trained tokens.
    r is what a turn earned, at its last token, and at the episode's last also the outcome. Behind that one V is 0; but
    where the episode is cut (`rollout_strategy: window`), V_(t+1) = V_t: it goes on, and its last value is all that is
    known.

    V_t is read off the last hidden state that token t was predicted from. The critic is asked first and learns then:
    from episodes that are not cut, from all their tokens, the returns themselves. So policy and critic learn from
    different tokens, as in the paper.

    Published: the bootstrap, a critic that learns from whole answers. Ours: a critic on the policy's own standardised
    states, at a rate of its own, where the paper trains a second model; gamma and lam (the paper's were not at hand).
    Costs one forward pass more a step.

    Args:
        gamma, lam: per token.
        clip: how far a step's learning may move a value with a gradient; null: as far as it likes.
        warmup: first steps in which only the critic learns: the advantage is 0.
        critic_lr: learning rate of the critic.
        critic_epochs: its gradient steps a step.
        hidden: units of a hidden layer of the critic; 0: it is linear.
    """

    def __init__(
        self, *, gamma: Share = 1.0, lam: Share = 0.95, clip: Rate | None = 0.2, warmup: Steps = 0,
        critic_lr: Rate = 1e-2, critic_epochs: Count = 5, hidden: Steps = 0,
    ):  # fmt: skip
        self.gamma, self.lam, self.clip, self.warmup = gamma, lam, clip, warmup
        self.lr, self.epochs, self.hidden, self.steps = critic_lr, critic_epochs, hidden, 0
        self.states: Tensor | None = None  # [n, H], of all tokens of the step; None: V is 0
        self.model: ValueCritic | None = None  # made when the states' width is known

    def revisit(self, policy: Any, episodes: Sequence[Episode]) -> None:
        """Takes the states of all tokens, forced ones too, under the weights that wrote the new ones.

        Raises:
            UserError: the policy writes no tokens.
        """
        import torch

        if not policy.writes_text:
            raise UserError("advantages: egae needs a policy that writes tokens: use gae")
        decisions = [turn.decision for episode in episodes for turn in episode.turns]
        parts = [policy.token_states(decisions[start : start + BATCH]) for start in range(0, len(decisions), BATCH)]
        self.states = torch.cat([states.float().cpu() for part in parts for states in part])
        self.lengths = torch.tensor([len(decision.logprobs) for decision in decisions])

    def __call__(self, rollouts: Rollouts, advantage: Tensor) -> Tensor:
        """-> [B, T], and the critic trained."""
        if advantage.ndim != 1:
            raise ValueError("egae takes one value per decision: place it before what works token by token")
        mask, rewards = rollouts.mask, rewards_of(rollouts, advantage)[0]
        tokens = mask if self.states is None else self.lengths[:, None] > mask.new_ones(mask.shape[1]).cumsum(0) - 1
        values = advantage.new_zeros(mask.shape)
        if self.states is not None:
            values = values.masked_scatter(tokens, self._values(self.states).to(values.dtype))
        behind = values * cut_of(rollouts)
        gained = generalized(
            values[mask], at_ends(rewards, mask), ends(rollouts.episode, mask), self.gamma, self.lam,
            behind=behind[mask],
        )  # fmt: skip
        if self.states is not None:
            self._learn(rollouts, rewards, tokens, values)
        self.steps += 1
        gained = gained if self.steps > self.warmup else 0 * gained
        return advantage.new_zeros(mask.shape).masked_scatter(mask, gained)

    def _values(self, states: Tensor) -> Tensor:
        if self.model is None:
            self._make(states.shape[1])
        return self.model.values(states)

    def _learn(self, rollouts: Rollouts, rewards: Tensor, written: Tensor, values: Tensor) -> None:
        """Fits the critic to the returns of the tokens [B, T] of episodes that are not cut."""
        whole = (~cut_of(rollouts)).expand(written.shape)[written]
        goals = returns(at_ends(rewards, written), ends(rollouts.episode, written), self.gamma)[whole]
        self.metrics = {"egae/value": float(values[written].mean())}
        if len(goals):
            known = values[written][whole]
            loss = self.model.learn(self.states[whole], goals.to(self.states.dtype))
            self.metrics |= {"egae/critic_loss": loss, "egae/explained": explained(known, goals)}
        self.states = None

    def _make(self, width: int) -> None:
        from vlrl.algorithms.critics import Squares, ValueCritic

        self.model = ValueCritic(width, lr=self.lr, epochs=self.epochs, head=Squares(self.clip), hidden=self.hidden)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps} | ({} if self.model is None else {"critic": self.model.state_dict()})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        if "critic" in state:
            self._make(len(state["critic"]["total"]))
            self.model.load_state_dict(state["critic"])


egae = Egae


def at_ends(rewards: Tensor, mask: Tensor) -> Tensor:
    """[M]: what each decision earned [B] at its last of the M units inside the mask [B, T], else 0."""
    rows = mask.new_ones(len(mask)).cumsum(0)[:, None].expand(mask.shape)[mask] - 1
    return rewards[rows] * (rows.diff(append=rows[-1:] + 1) != 0)


def cut_of(rollouts: Rollouts) -> Tensor:
    """bool [B, 1]: whether a decision's episode was broken off."""
    cut = rollouts.mask.new_zeros(len(rollouts.reward)) if rollouts.truncated is None else rollouts.truncated
    return cut[rollouts.episode][:, None]
