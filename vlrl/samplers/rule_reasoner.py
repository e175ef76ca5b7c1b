"""Domains by how far they are from a target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from vlrl.methods import method
from vlrl.samplers.domains import ByDomain, Domains, softmax
from vlrl.strict import Count, Rate
from vlrl.types import Episode

Target = Annotated[float, Field(gt=0, le=1)]


@method(source="RuleReasoner, arXiv 2506.08672; github.com/bigai-nlco/RuleReasoner")
class RuleReasoner(ByDomain):
    """Domains by what they lack: `v = max(0, target - r)`, share `softmax(v / temperature)`.

    r is the mean correctness of the domain in the latest steps that drew it, the k-th latest with the weight 1 / k, and
    0 before it was drawn. The released code leaves these weights unnormalised, so that its v is 0.52 of this one. The
    paper adds an eps to every v, which cancels out of the shares.

    Args:
        n: samples in the training split.
        seed: of the run.
        tag: of the samples, whose values are the domains; `task` of a mixture.
        target: correctness that a domain should reach.
        temperature: of the shares.
        window: so many latest steps count.
        every: steps between two changes of the shares; the first ones are equal.
        limit: use only the first so many samples (a pool that recurs).
    """

    def __init__(
        self, n: int, seed: int, *, tag: str = "task", target: Target = 1.0, temperature: Rate = 0.3,
        window: Count = 4, every: Count = 8, limit: Count | None = None,
    ):  # fmt: skip
        self.domains, self.target = Domains(n, seed, tag, limit), target
        self.temperature, self.window, self.every = temperature, window, every
        self.steps = 0
        self.latest: dict[str, list[float]] = {}  # mean correctness by domain, the newest last
        self.reached: dict[str, float] = {}  # r, as of the latest change
        self.metrics: dict[str, float] = {}  # of the latest step, for the log

    def shares(self) -> dict[str, float]:
        """The chance of each domain to be drawn."""
        names = self.domains.names
        lacks = [max(0.0, self.target - self.reached.get(name, 0.0)) for name in names]
        return softmax(names, lacks, self.temperature)

    def observe(self, episodes: Sequence[Episode]) -> None:
        """What came of a step's rollouts."""
        for name, correct in self.domains.correct(episodes).items():
            mean = sum(correct) / len(correct)
            self.latest[name] = [*self.latest.get(name, []), mean][-self.window :]
        self.steps += 1
        if self.steps % self.every == 0:
            self.reached = {name: harmonic(own) for name, own in self.latest.items()}
        self.metrics = {f"rule_reasoner/{name}": share for name, share in self.shares().items()}

    def state_dict(self) -> dict[str, Any]:
        latest = {name: list(own) for name, own in self.latest.items()}
        told = {"steps": self.steps, "latest": latest, "reached": dict(self.reached)}
        return {"domains": self.domains.state_dict(), **told}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.domains.load_state_dict(state["domains"])
        self.steps, self.latest, self.reached = state["steps"], state["latest"], dict(state["reached"])


def harmonic(values: Sequence[float]) -> float:
    """The mean in which the k-th value from the end weighs 1 / k."""
    weights = [1 / k for k in range(len(values), 0, -1)]
    return sum(w * value for w, value in zip(weights, values, strict=True)) / sum(weights)


rule_reasoner = RuleReasoner
