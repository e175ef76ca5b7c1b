"""A critic on features that the policy gives: logistic regression, trained a little at every step."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy


class Critic:
    """The value in [0, 1] of features [B, H], each standardised by all that was seen of it so far.

    Starts at 0.5 everywhere, from weights of 0: what it learns hangs on the data alone. Features are divided by
    sqrt(H): Adam moves every weight alike, and thousands of them would learn a step's few outcomes by heart.
    """

    def __init__(self, width: int, *, lr: float, epochs: int):
        self.epochs = epochs
        self.weight = torch.zeros(width + 1, requires_grad=True)  # the last one is the bias
        self.optimizer = torch.optim.AdamW([self.weight], lr=lr)
        self.count, self.total, self.squares = 0, *torch.zeros(2, width, dtype=torch.float64)

    def values(self, features: Tensor) -> Tensor:
        """-> float32 [B] in [0, 1]."""
        return self._logits(self._standard(features)).sigmoid().detach()

    def learn(self, features: Tensor, target: Tensor) -> float:
        """`epochs` steps towards targets [B] in [0, 1]. Returns the mean cross-entropy before them."""
        self.count += len(features)
        self.total += features.double().sum(0)
        self.squares += (features.double() ** 2).sum(0)
        standard, before = self._standard(features), None
        for _ in range(self.epochs):
            self.optimizer.zero_grad()
            loss = cross_entropy(self._logits(standard), target)
            before = loss.item() if before is None else before
            loss.backward()
            self.optimizer.step()
        return before

    def _standard(self, features: Tensor) -> Tensor:
        if not self.count:
            return features
        mean = self.total / self.count
        deviation = (self.squares / self.count - mean**2).clamp(min=1e-6).sqrt()
        return ((features - mean) / deviation).float() / len(mean) ** 0.5

    def _logits(self, standard: Tensor) -> Tensor:
        return standard @ self.weight[:-1] + self.weight[-1]

    def state_dict(self) -> dict[str, Any]:
        state = {
            "weight": self.weight.detach(), "optimizer": self.optimizer.state_dict(), "count": self.count,
            "total": self.total, "squares": self.squares,
        }  # fmt: skip
        return copy.deepcopy(state)  # torch's optimizers go on writing into theirs

    def load_state_dict(self, state: dict[str, Any]) -> None:
        state = copy.deepcopy(state)
        self.weight.data = state["weight"]
        self.optimizer.load_state_dict(state["optimizer"])
        self.count, self.total, self.squares = state["count"], state["total"], state["squares"]
