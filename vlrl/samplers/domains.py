"""The samples divided by a tag, for samplers that choose among parts: tasks, levels, categories."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vlrl.samplers.shuffled import Shuffled
from vlrl.types import Episode, Sample, UserError


class Domains:
    """The first samples of a split by the value of a tag; within each domain they come in shuffled epochs.

    Dividing looks at the tag of every sample, not before it is needed, because making a sample may mean decoding a
    video. A split that knows its tags without making samples has `tag_of(position, tag) -> str | None`.

    Args:
        n: samples in the split.
        seed: of the run.
        tag: whose values are the domains.
        limit: only the first so many samples.
    """

    def __init__(self, n: int, seed: int, tag: str, limit: int | None = None):
        self.n, self.seed, self.tag = min(n, limit) if limit else n, seed, tag
        self.draws = 0
        self._positions: dict[str, list[int]] = {}
        self._orders: dict[str, Shuffled] = {}

    def follow(self, samples: Sequence[Sample]) -> None:
        """Tells what the tags are of. UserError where the samples have no such tag."""
        self._samples = samples
        self.at(0)

    def of(self, sample: Sample) -> str:
        """A sample's domain. UserError where it has no such tag."""
        if self.tag not in sample.tags:
            known = ", ".join(sample.tags) or "none"
            raise UserError(f"sampler.tag: the sample {sample.id} has no tag {self.tag!r}; it has {known}")
        return sample.tags[self.tag]

    def at(self, position: int) -> str:
        """The domain of the sample at a position."""
        tag_of = getattr(self._samples, "tag_of", None)
        known = tag_of(position, self.tag) if tag_of else None
        return known if known is not None else self.of(self._samples[position])

    @property
    def names(self) -> list[str]:
        """The domains, in the order in which the split begins with them."""
        if not self._positions:
            self._divide()
        return list(self._positions)

    def _divide(self) -> None:
        for position in range(self.n):
            self._positions.setdefault(self.at(position), []).append(position)
        for name, own in self._positions.items():
            self._orders[name] = Shuffled(len(own), zlib.crc32(f"{self.seed} {name}".encode()))

    def draw(self, shares: Mapping[str, float], count: int) -> list[int]:
        """`count` positions: a domain for each, by its share, and that domain's next sample."""
        rng = np.random.default_rng([self.seed, self.draws])
        self.draws += 1
        chosen = rng.choice(list(shares), count, p=list(shares.values())).tolist()
        return [self._positions[name][self._orders[name].draw(1)[0]] for name in chosen]

    def met[T](self, episodes: Sequence[Episode], values: Sequence[T]) -> dict[str, list[T]]:
        """A value of each of a step's episodes, by domain; without earlier ones that a strategy replays."""
        found: dict[str, list[T]] = {}
        for episode, value in zip(episodes, values, strict=True):
            if self.tag in episode.sample.tags:
                found.setdefault(episode.sample.tags[self.tag], []).append(value)
        return found

    def correct(self, episodes: Sequence[Episode]) -> dict[str, list[float]]:
        """How right a step's episodes are, by domain."""
        return self.met(episodes, [episode.score.correct for episode in episodes])

    def state_dict(self) -> dict[str, Any]:
        return {"draws": self.draws, "orders": {name: order.state_dict() for name, order in self._orders.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.draws = state["draws"]
        if state["orders"] and not self._positions:
            self._divide()
        for name, order in state["orders"].items():
            self._orders[name].load_state_dict(order)


class ByDomain:
    """A sampler that draws a domain for each place of a step, by `shares()`, and then that domain's next sample."""

    domains: Domains

    def shares(self) -> dict[str, float]:
        """The chance of each domain to be drawn."""
        raise NotImplementedError

    def follow(self, samples: Sequence[Sample], estimators: Sequence[Any]) -> None:
        """Tells the sampler what the tags are of. UserError where the samples have no such tag."""
        self.domains.follow(samples)

    @property
    def positions(self) -> Sequence[int]:
        """All that are ever drawn."""
        return range(self.domains.n)

    def draw(self, count: int) -> list[int]:
        """`count` positions."""
        return self.domains.draw(self.shares(), count)


def weighed(names: Sequence[str], weights: Sequence[float]) -> dict[str, float]:
    """Shares that sum to 1, in the proportion of the weights."""
    values = np.asarray(weights, dtype=np.float64)
    return dict(zip(names, (values / values.sum()).tolist(), strict=True))


def softmax(names: Sequence[str], values: Sequence[float], temperature: float) -> dict[str, float]:
    """Shares `exp(value / temperature)`, normalised."""
    scaled = np.asarray(values, dtype=np.float64) / temperature
    return weighed(names, np.exp(scaled - scaled.max()))
