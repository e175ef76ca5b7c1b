"""DigiRL (arXiv 2406.11896): imitate the good steps of the episodes that went better than their start promised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from vlrl.methods import method
from vlrl.strict import Count, Rate
from vlrl.types import Rollouts

if TYPE_CHECKING:
    from torch import Tensor

    from vlrl.critics import Critic

Share = Annotated[float, Field(gt=0, le=1)]
Cost = Annotated[float, Field(ge=0)]
Discount = Annotated[float, Field(ge=0, le=1)]


@method(needs=("features",), source="DigiRL, arXiv 2406.11896; github.com/DigiRL-agent/digirl")
class DigiRL:
    """1 for decisions to imitate, else 0: steps that advanced, of episodes that went better than their start promised.

    Two critics estimate the chance of success, one from an episode's start, one from every turn. Kept are the episodes
    with the largest outcome - V(start) above 0: what the policy is just learning to do, which makes a curriculum over
    tasks by itself. Of these, the turns with V(next) - V(now) - cost + r + G > 0, where r is the outcome at the last
    turn and 0 before, G the outcome discounted to this turn, and V behind the last turn 0. Both critics learn by
    cross-entropy from the step's outcomes, the first after it was asked, the second before.

    Unlike the published code: failed episodes are never kept (there they fill the share where too few succeed, and a
    policy that seldom succeeds unlearns what it can); the critics are linear in the policy's own features instead of
    models of their own; there is one for the turns instead of the smaller of two; and episodes are compared within a
    step, earlier ones among them where the run replays them (`rollouts: replay`), not with all at once.

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
        top: Share = 0.1,
        cost: Cost = 0.05,
        gamma: Discount = 0.5,
        critic_lr: Rate = 1e-2,
        critic_epochs: Count = 5,
    ):
        self.top, self.cost, self.gamma = top, cost, gamma
        self.critic_lr, self.critic_epochs = critic_lr, critic_epochs
        self.start: Critic | None = None  # both are made when the features' width is known
        self.turn: Critic | None = None
        self.metrics: dict[str, float] = {}  # of the latest step, for the log

    def __call__(self, rollouts: Rollouts, advantage: Tensor) -> Tensor:
        """-> [B] of 0 and 1, and both critics trained."""
        features, episode = rollouts.features, rollouts.episode
        if self.start is None:
            self._make(features.shape[1])
        outcome = rollouts.is_correct.to(features.dtype)
        first = features[episode.diff(prepend=episode[:1] - 1) != 0]  # [N, H], at each episode's first turn
        promised = self.start.values(first)
        kept = best(outcome - promised, self.top) & (outcome > promised)
        start_loss, turn_loss = self.start.learn(first, outcome), self.turn.learn(features, outcome[episode])
        chosen = kept[episode] & (gains(self.turn.values(features), outcome, episode, self.gamma) > self.cost)
        self.metrics = {
            "digirl/start_loss": start_loss, "digirl/turn_loss": turn_loss, "digirl/promised": float(promised.mean()),
            "digirl/imitated": float(chosen.to(features.dtype).mean()),
        }  # fmt: skip
        return chosen.to(advantage.dtype)

    def _make(self, width: int) -> None:
        from vlrl.critics import Critic

        self.start, self.turn = (Critic(width, lr=self.critic_lr, epochs=self.critic_epochs) for _ in range(2))

    def state_dict(self) -> dict[str, Any]:
        return {} if self.start is None else {"start": self.start.state_dict(), "turn": self.turn.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self._make(len(state["start"]["total"]))
            self.start.load_state_dict(state["start"])
            self.turn.load_state_dict(state["turn"])


digirl = DigiRL


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
