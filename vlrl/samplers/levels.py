"""From easy to hard: levels of difficulty one after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from vlrl.methods import method
from vlrl.samplers.domains import ByDomain, Domains
from vlrl.strict import Count
from vlrl.types import Episode, UserError

Share = Annotated[float, Field(gt=0, le=1)]
Mixed = Annotated[float, Field(ge=0, lt=1)]


@method(source="Observe-R1, arXiv 2505.12432, and Jigsaw-R1, arXiv 2505.23590: a reconstruction, shares are not given")
class Levels(ByDomain):
    """Samples of one level of difficulty, then of the next; a share comes from the levels beside it.

    A level is all samples that share a tag's value. The next one begins at a step of `begin`; without these as soon as
    the latest `window` rollouts of the present level are right at the rate `reach`. Observe-R1 mixes each level with
    the four beside it and does not say how much; Jigsaw-R1 does not say when it goes on.

    Args:
        n: samples in the training split.
        seed: of the run.
        tag: of the samples; `count` of the task `counting`, `level` of many files.
        order: the tag's values from easy to hard; none: numbers by size, then texts by alphabet.
        begin: the steps, from 0, at which the second level begins, the third and so on.
        reach: mean correctness at which the next level begins.
        window: rollouts that this mean is over.
        mix: share of the levels beside the present one, in equal parts.
        width: so many levels on either side are beside it.
        limit: use only the first so many samples (a pool that recurs).
    """

    def __init__(
        self, n: int, seed: int, *, tag: str = "level", order: tuple[str, ...] = (), begin: tuple[Count, ...] = (),
        reach: Share = 0.7, window: Count = 128, mix: Mixed = 0.2, width: Count = 2, limit: Count | None = None,
    ):  # fmt: skip
        self.domains, self.order, self.begin = Domains(n, seed, tag, limit), order, begin
        self.reach, self.window, self.mix, self.width = reach, window, mix, width
        if list(begin) != sorted(set(begin)):
            raise UserError(f"sampler.begin: {list(begin)} should ascend")
        self.level = 0
        self.latest: list[float] = []  # correctness of the present level's rollouts
        self.metrics: dict[str, float] = {}  # of the latest step, for the log

    def draw(self, count: int) -> list[int]:
        """`count` positions: a level for each, and its next sample."""
        if self.begin:
            level = min(sum(step <= self.domains.draws for step in self.begin), len(self.names) - 1)
            self.level, self.latest = level, self.latest if level == self.level else []
        return super().draw(count)

    @property
    def names(self) -> list[str]:
        """The levels from easy to hard. UserError where `order` leaves one out, or names one that is not there."""
        found = self.domains.names
        if self.order and set(self.order) != set(found):
            raise UserError(f"sampler.order: the samples' levels are {', '.join(sorted(found, key=_rank))}")
        return list(self.order) or sorted(found, key=_rank)

    def shares(self) -> dict[str, float]:
        """The chance of each level to be drawn."""
        names = self.names
        beside = [i for i in range(len(names)) if 0 < abs(i - self.level) <= self.width]
        present = 1 - self.mix if beside else 1.0
        return {
            name: present if i == self.level else (self.mix / len(beside) if i in beside else 0.0)
            for i, name in enumerate(names)
        }

    def observe(self, episodes: Sequence[Episode]) -> None:
        """What came of a step's rollouts."""
        correct = self.domains.correct(episodes).get(self.names[self.level], [])
        self.latest = [*self.latest, *correct][-self.window :]
        self.metrics = {"levels/level": float(self.level)}
        if self.latest:
            self.metrics["levels/correct"] = sum(self.latest) / len(self.latest)
        reached = len(self.latest) == self.window and sum(self.latest) / self.window >= self.reach
        if reached and not self.begin and self.level < len(self.names) - 1:
            self.level, self.latest = self.level + 1, []

    def state_dict(self) -> dict[str, Any]:
        return {"domains": self.domains.state_dict(), "level": self.level, "latest": list(self.latest)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.domains.load_state_dict(state["domains"])
        self.level, self.latest = state["level"], list(state["latest"])


def _rank(name: str) -> tuple[bool, float, str]:
    """Numbers by size, before texts."""
    try:
        return False, float(name), name
    except ValueError:
        return True, 0.0, name


levels = Levels
