"""Categories by how much they teach at present: a bandit whose pay is the size of the advantages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from vlrl.methods import method
from vlrl.samplers import credit
from vlrl.samplers.domains import ByDomain, Domains, softmax
from vlrl.strict import Count, Rate
from vlrl.types import Episode

Share = Annotated[float, Field(gt=0, le=1)]


@method(needs=("group",), source="SEC, arXiv 2505.14970; its released scripts: rate 0.5, temperature 1.0, 0.4 and 0.2")
class Sec(ByDomain):
    """Categories by what they teach: `Q <- rate * r + (1 - rate) * Q`, share `softmax(Q / temperature)`.

    r is the mean |A| of the category's rollouts in this step, with GRPO's A, whatever the run's own estimators make of
    the rewards. Q begins with 0. A category that was not drawn keeps its Q, as in the paper; the released code lets it
    fall towards 0.

    Args:
        n: samples in the training split.
        seed: of the run.
        tag: of the samples, whose values are the categories; `task` of a mixture.
        rate: how fast Q follows.
        temperature: published: 1 for Countdown, 0.4 for mathematics, 0.2 for two kinds of puzzles at once.
        limit: use only the first so many samples (a pool that recurs).
    """

    def __init__(
        self, n: int, seed: int, *, tag: str = "task", rate: Share = 0.5, temperature: Rate = 1.0,
        limit: Count | None = None,
    ):  # fmt: skip
        self.domains, self.rate, self.temperature = Domains(n, seed, tag, limit), rate, temperature
        self.values: dict[str, float] = {}  # Q of the categories that were met
        self.metrics: dict[str, float] = {}  # of the latest step, for the log

    def shares(self) -> dict[str, float]:
        """The chance of each category to be drawn."""
        names = self.domains.names
        return softmax(names, [self.values.get(name, 0.0) for name in names], self.temperature)

    def observe(self, episodes: Sequence[Episode]) -> None:
        """What came of a step's rollouts."""
        for name, own in self.domains.met(episodes, credit.sizes(episodes)).items():
            self.values[name] = self.rate * sum(own) / len(own) + (1 - self.rate) * self.values.get(name, 0.0)
        self.metrics = {f"sec/{name}": share for name, share in self.shares().items()}

    def state_dict(self) -> dict[str, Any]:
        return {"domains": self.domains.state_dict(), "values": dict(self.values)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.domains.load_state_dict(state["domains"])
        self.values = dict(state["values"])


sec = Sec
