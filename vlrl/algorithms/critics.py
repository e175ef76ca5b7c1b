"""Critics on features that the policy gives: linear or with a hidden layer, trained a little at every step.

`Critic` gives a chance of success by logistic regression, `ValueCritic` an expected return of any size.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

from vlrl.algorithms.auxiliary_losses import clipped_squares, expected, hl_gauss
from vlrl.update import fit_supervised


class FeatureScaler:
    """Standardises features [B, H] by all that was seen of them, and divides by sqrt(H): Adam moves every weight alike,
    and thousands of them would learn a step's few outcomes by heart."""

    def __init__(self, width: int):
        self.count, self.total, self.squares = 0, *torch.zeros(2, width, dtype=torch.float64)

    def see(self, features: Tensor) -> None:
        self.count += len(features)
        self.total += features.double().sum(0)
        self.squares += (features.double() ** 2).sum(0)

    def __call__(self, features: Tensor) -> Tensor:
        if not self.count:
            return features
        mean = self.total / self.count
        deviation = (self.squares / self.count - mean**2).clamp(min=1e-6).sqrt()
        return ((features - mean) / deviation).float() / len(mean) ** 0.5

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "total": self.total, "squares": self.squares}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self.total, self.squares = state["count"], state["total"], state["squares"]


class Critic:
    """The value in [0, 1] of features [B, H]. Starts at 0.5 everywhere, from weights of 0: what it learns hangs on the
    data alone."""

    def __init__(self, width: int, *, lr: float, epochs: int):
        self.epochs, self.scale = epochs, FeatureScaler(width)
        self.weight = torch.zeros(width + 1, requires_grad=True)  # the last one is the bias
        self.optimizer = torch.optim.AdamW([self.weight], lr=lr)

    def values(self, features: Tensor) -> Tensor:
        """-> float32 [B] in [0, 1]."""
        return self._logits(self.scale(features)).sigmoid().detach()

    def learn(self, features: Tensor, target: Tensor) -> float:
        """`epochs` steps towards targets [B] in [0, 1]. Returns the mean cross-entropy before them."""
        self.scale.see(features)
        standard = self.scale(features)
        return fit_supervised(
            self.optimizer, range(self.epochs), lambda _: cross_entropy(self._logits(standard), target)
        )[0]

    def _logits(self, standard: Tensor) -> Tensor:
        return standard @ self.weight[:-1] + self.weight[-1]

    def state_dict(self) -> dict[str, Any]:
        return saved(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        restore(self, state)


@dataclass(frozen=True)
class Squares:
    """The value is one number, fitted by (clipped) least squares."""

    clip: float | None = None
    width: int = 1

    def values(self, output: Tensor) -> Tensor:
        return output[:, 0]

    def loss(self, output: Tensor, target: Tensor, old: Tensor) -> Tensor:
        return clipped_squares(self.values(output), target, old, self.clip).mean()


@dataclass(frozen=True)
class HLGauss:
    """The value is the mean of a distribution over bins, fitted by cross-entropy to `hl_gauss` of the targets.

    Starts evenly over the bins: at the middle of [low, high]. Values are not clipped: the loss bounds its gradient.
    """

    low: float
    high: float
    width: int = 51  # bins
    sigma: float = 0.75

    def values(self, output: Tensor) -> Tensor:
        return expected(output.softmax(1), self.low, self.high)

    def loss(self, output: Tensor, target: Tensor, old: Tensor) -> Tensor:
        goal = hl_gauss(target, self.low, self.high, self.width, self.sigma)
        return -(goal * output.log_softmax(1)).sum(1).mean()


class ValueCritic:
    """The expected return of features [B, H], read off by a head: linear, or through a layer of `hidden` units.

    The last weights start at 0, those of a hidden layer are drawn from a generator of its own: what it learns hangs on
    the data alone.
    """

    def __init__(self, width: int, *, lr: float, epochs: int, head: Squares | HLGauss, hidden: int = 0):
        self.epochs, self.head, self.scale = epochs, head, FeatureScaler(width)
        self.inner: Tensor | None = None
        if hidden:
            projection = torch.randn(width + 1, hidden, generator=torch.Generator().manual_seed(0))
            self.inner = projection.requires_grad_()  # the last row is the bias, as below
        self.weight = torch.zeros((hidden or width) + 1, head.width, requires_grad=True)
        self.optimizer = torch.optim.AdamW([self.weight, *([] if self.inner is None else [self.inner])], lr=lr)

    def values(self, features: Tensor) -> Tensor:
        """-> float32 [B]."""
        return self.head.values(self._output(self.scale(features))).detach()

    def learn(self, features: Tensor, target: Tensor) -> float:
        """`epochs` steps towards targets [B]. Returns the mean loss before them."""
        self.scale.see(features)
        standard = self.scale(features)
        old = self.head.values(self._output(standard)).detach()
        return fit_supervised(
            self.optimizer, range(self.epochs), lambda _: self.head.loss(self._output(standard), target, old)
        )[0]

    def _output(self, standard: Tensor) -> Tensor:
        if self.inner is not None:
            units = torch.nn.functional.silu(standard @ self.inner[:-1] + self.inner[-1])
            standard = units / units.shape[1] ** 0.5  # as `FeatureScaler` does for Adam
        return standard @ self.weight[:-1] + self.weight[-1]

    def state_dict(self) -> dict[str, Any]:
        return saved(self) | ({} if self.inner is None else {"inner": self.inner.detach().clone()})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        restore(self, state)
        if self.inner is not None:
            self.inner.data = state["inner"].clone()


def saved(critic: Critic | ValueCritic) -> dict[str, Any]:
    """A critic's state; copied, because torch's optimizers go on writing into theirs."""
    own = {"weight": critic.weight.detach(), "optimizer": critic.optimizer.state_dict()}
    return copy.deepcopy(own | critic.scale.state_dict())


def restore(critic: Critic | ValueCritic, state: dict[str, Any]) -> None:
    state = copy.deepcopy(state)
    critic.weight.data = state["weight"]
    critic.optimizer.load_state_dict(state["optimizer"])
    critic.scale.load_state_dict(state)


# What ArCHer learns from and with: a memory of turns, critics of turns (Q) and of what is shown (V) (2402.19446).


class Turns(NamedTuple):
    """M turns, each with what followed it."""

    features: Tensor  # float32 [M, H], of what was shown
    actions: Tensor  # float32 [M, P], what was answered
    rewards: Tensor  # float32 [M]
    following: Tensor  # float32 [M, H], features of what was shown then
    ended: Tensor  # float32 [M], 1 where nothing followed, else 0


class UtteranceCritics:
    """Heads with one hidden layer on [features, action]: 0 and 1 are Q, 2 and 3 are V and see no action.

    Their first weights come from a generator of their own and the last are 0: what they learn hangs on the data alone.
    """

    def __init__(self, features: int, actions: int, *, hidden: int, lr: float, tau: float):
        self.scale, self.tau = FeatureScaler(features), tau
        projection = torch.Generator().manual_seed(0)
        self.inner = torch.randn(4, features + actions + 1, hidden, generator=projection).requires_grad_()
        self.outer = torch.zeros(4, hidden + 1, 1, requires_grad=True)
        self.optimizer = torch.optim.Adam([self.inner, self.outer], lr=lr)
        self.slow = [self.inner.detach().clone(), self.outer.detach().clone()]

    def values(self, features: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """-> the smaller Q and the smaller V, float32 [B] each."""
        with torch.no_grad():
            heads = self._heads(features, actions, self.inner, self.outer)
        return heads[:2].amin(0), heads[2:].amin(0)

    def learn(self, turns: Turns, gamma: float) -> tuple[float, float]:
        """One gradient step, and the copies one step after it. Returns the losses of Q and V before it."""
        with torch.no_grad():
            then = self._heads(turns.following, torch.zeros_like(turns.actions), *self.slow)[2:]
            target_q = turns.rewards + gamma * (1 - turns.ended) * then
            target_v = self._heads(turns.features, turns.actions, *self.slow)[:2]
        heads = self._heads(turns.features, turns.actions, self.inner, self.outer)
        q_loss, v_loss = (heads[:2] - target_q).square().mean(), (heads[2:] - target_v).square().mean()
        both = 2 * (q_loss + v_loss)  # the sum over both of each pair, as published
        fit_supervised(self.optimizer, [both], lambda loss: loss)
        for slow, fast in zip(self.slow, (self.inner, self.outer), strict=True):
            slow.lerp_(fast.detach(), self.tau)
        return q_loss.item(), v_loss.item()

    def _heads(self, features: Tensor, actions: Tensor, inner: Tensor, outer: Tensor) -> Tensor:
        """[4, M]"""
        scaled, width = self.scale(features), features.shape[1]
        of_features = scaled @ inner[:, :width] + inner[:, -1:]
        of_action = actions @ inner[:2, width:-1]
        units = torch.cat([of_features[:2] + of_action, of_features[2:]])
        units = torch.nn.functional.silu(units) / units.shape[-1] ** 0.5
        return (units @ outer[:, :-1] + outer[:, -1:])[..., 0]

    def state_dict(self) -> dict[str, Any]:
        own = {"inner": self.inner.detach(), "outer": self.outer.detach(), "slow": self.slow}
        return copy.deepcopy({**own, "optimizer": self.optimizer.state_dict(), **self.scale.state_dict()})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        state = copy.deepcopy(state)
        self.inner.data, self.outer.data, self.slow = state["inner"], state["outer"], list(state["slow"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scale.load_state_dict(state)


class TurnMemory:
    """The newest turns of a run: at most `capacity`; the oldest make room. Draws by a generator of its own."""

    def __init__(self, capacity: int):
        self.capacity, self.turns = capacity, None
        self._drawn = torch.Generator().manual_seed(0)

    def __len__(self) -> int:
        return 0 if self.turns is None else len(self.turns.rewards)

    def add(self, *columns: Tensor) -> None:
        """Turns as the columns of `Turns`."""
        if self.turns is not None:
            columns = [torch.cat(pair) for pair in zip(self.turns, columns, strict=True)]
        self.turns = Turns(*(column[-self.capacity :].clone() for column in columns))

    def sample(self, count: int) -> Turns:
        """So many different ones; all of them where there are no more."""
        if count >= len(self):
            return self.turns
        chosen = torch.randperm(len(self), generator=self._drawn)[:count]
        return Turns(*(column[chosen] for column in self.turns or ()))

    def state_dict(self) -> dict[str, Any]:
        kept = {} if self.turns is None else self.turns._asdict()
        return {"generator": self._drawn.get_state(), "turns": kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._drawn.set_state(state["generator"])
        self.turns = Turns(**state["turns"]) if state["turns"] else None
