"""Tasks by how well they go: those that succeed now and then are drawn most often."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from vlrl.methods import method
from vlrl.samplers.domains import ByDomain, Domains, weighed
from vlrl.strict import Count
from vlrl.types import Episode

Weight = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(gt=0, le=1)]


@method(source="VLA-RL, arXiv 2505.18719: a reconstruction of its curriculum, whose code is not published")
class Curriculum(ByDomain):
    """Tasks by the spread of their outcome: a task of success rate p has the weight `p (1 - p) + eps`.

    A task is all samples that share a tag's value. p is an exponential mean of `correct`, 0.5 before anything is known.
    Within a task samples come in shuffled epochs. The paper draws by success rates; its formula is not at hand, so the
    weight is ours.

    Args:
        n: samples in the training split.
        seed: of the run.
        tag: of the samples; `job` of the task `manipulation`.
        eps: what a task weighs at least: the share of what is solved, or hopeless, so that none is given up. At most
            0.25 comes of the spread.
        rate: weight of one rollout in p: 0.02 remembers about 50.
        limit: use only the first so many samples (a pool that recurs).
    """

    def __init__(
        self, n: int, seed: int, *, tag: str = "job", eps: Weight = 0.05, rate: Share = 0.02, limit: Count | None = None
    ):
        self.domains, self.eps, self.rate = Domains(n, seed, tag, limit), eps, rate
        self.success: dict[str, float] = {}  # p of the tasks that were met
        self.metrics: dict[str, float] = {}  # of the latest step, for the log

    def shares(self) -> dict[str, float]:
        """The chance of each task to be drawn."""
        rates = [self.success.get(task, 0.5) for task in self.domains.names]
        return weighed(self.domains.names, [p * (1 - p) + self.eps for p in rates])

    def observe(self, episodes: Sequence[Episode]) -> None:
        """What came of a step's rollouts. Their order within a step does not matter."""
        for task, correct in self.domains.correct(episodes).items():
            kept = (1 - self.rate) ** len(correct)
            self.success[task] = kept * self.success.get(task, 0.5) + (1 - kept) * sum(correct) / len(correct)
        self.metrics = {f"curriculum/{task}": p for task, p in sorted(self.success.items())}

    def state_dict(self) -> dict[str, Any]:
        return {"domains": self.domains.state_dict(), "success": dict(self.success)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.domains.load_state_dict(state["domains"])
        self.success = dict(state["success"])


curriculum = Curriculum
