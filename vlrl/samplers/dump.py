"""Domains by how much they teach and how little is known of them: an upper confidence bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from vlrl.methods import method
from vlrl.samplers import credit
from vlrl.samplers.domains import ByDomain, Domains, softmax
from vlrl.strict import Count, Rate
from vlrl.types import Episode


@method(needs=("group",), source="DUMP, arXiv 2504.09710; github.com/ZhentingWang/DUMP")
class Dump(ByDomain):
    """Domains by an upper confidence bound of what they teach, share `softmax(U / temperature)`.

    `U = mean |A| over the domain's latest rollouts + sqrt(2 ln(N + 1) / (n + 1))`, n the rollouts of the domain so far,
    N those of all; with GRPO's A, whatever the run's own estimators make of the rewards. Unlike the released code the
    bounds follow every step, not every validation, and advantages are advantages: there raw rewards take their place.

    Args:
        n: samples in the training split.
        seed: of the run.
        tag: of the samples, whose values are the domains; `task` of a mixture.
        window: so many latest rollouts of a domain count.
        temperature: of the shares.
        limit: use only the first so many samples (a pool that recurs).
    """

    def __init__(
        self, n: int, seed: int, *, tag: str = "task", window: Count = 300, temperature: Rate = 0.1,
        limit: Count | None = None,
    ):  # fmt: skip
        self.domains, self.window, self.temperature = Domains(n, seed, tag, limit), window, temperature
        self.latest: dict[str, list[float]] = {}  # |A| by domain, the newest last
        self.counts: dict[str, int] = {}  # rollouts so far
        self.metrics: dict[str, float] = {}  # of the latest step, for the log

    def bound(self, name: str) -> float:
        """U of a domain."""
        own, total = self.latest.get(name, []), sum(self.counts.values())
        taught = sum(own) / len(own) if own else 0.0
        return taught + math.sqrt(2 * math.log(total + 1) / (self.counts.get(name, 0) + 1))

    def shares(self) -> dict[str, float]:
        """The chance of each domain to be drawn."""
        names = self.domains.names
        return softmax(names, [self.bound(name) for name in names], self.temperature)

    def observe(self, episodes: Sequence[Episode]) -> None:
        """What came of a step's rollouts."""
        for name, own in self.domains.met(episodes, credit.sizes(episodes)).items():
            self.latest[name] = [*self.latest.get(name, []), *own][-self.window :]
            self.counts[name] = self.counts.get(name, 0) + len(own)
        self.metrics = {f"dump/{name}": share for name, share in self.shares().items()}

    def state_dict(self) -> dict[str, Any]:
        latest = {name: list(own) for name, own in self.latest.items()}
        return {"domains": self.domains.state_dict(), "latest": latest, "counts": dict(self.counts)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.domains.load_state_dict(state["domains"])
        self.latest, self.counts = state["latest"], dict(state["counts"])


dump = Dump
