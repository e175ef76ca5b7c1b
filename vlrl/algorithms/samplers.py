"""Samplers of prompts."""

from __future__ import annotations

import copy
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, ValidationError

from vlrl.config import Count, Rate, Section, explain
from vlrl.methods import Sampler, method
from vlrl.types import Episode, Sample, TaggedSamples, UserError

# How much a step's episodes could teach: the size of their advantages, as a group gives them.

EPS = 1e-6  # added to a group's spread, as in GRPO


def sizes(episodes: Sequence[Episode]) -> list[float]:
    """|A| of each episode, in order, A = (r - mean) / (std + eps) over its group, ddof 1; of a group of one: 0.

    Samplers see episodes before the run's own estimators do, which may be others than GRPO's.
    """
    groups: dict[int, list[int]] = {}
    for place, episode in enumerate(episodes):
        groups.setdefault(episode.group, []).append(place)
    scores = [0.0] * len(episodes)
    for places in groups.values():
        rewards = np.array([episodes[place].reward for place in places])
        if len(places) > 1 and rewards.min() < rewards.max():  # rounding of the mean must not look like a difference
            apart = np.abs(rewards - rewards.mean()) / (rewards.std(ddof=1) + EPS)
            for place, size in zip(places, apart.tolist(), strict=True):
                scores[place] = size
    return scores


# Shuffled epochs.


@method(source="shuffled epochs")
class Shuffled(Sampler):
    """Every sample once per epoch, in a new random order each time.

    Args:
        n: samples in the training split.
        seed: of the run.
        limit: use only the first so many samples (a pool that recurs, for methods with per-prompt state).
    """

    def __init__(self, n: int, seed: int, *, limit: int | None = None):
        self.n = min(n, limit) if limit else n
        self.seed, self.epoch, self.position = seed, 0, 0
        self._cached: tuple[int, np.ndarray] | None = None  # an epoch and its order

    def draw(self, count: int) -> list[int]:
        """The next positions. A draw may run over the end of an epoch; none repeats within an epoch."""
        indices: list[int] = []
        while len(indices) < count:
            order = self._order()
            part = order[self.position : self.position + count - len(indices)].tolist()
            indices += part
            self.position += len(part)
            if self.position >= self.n:
                self.epoch, self.position = self.epoch + 1, 0
        return indices

    def peek(self, count: int) -> list[int]:
        return copy.copy(self).draw(count)

    def _order(self) -> np.ndarray:
        if self._cached is None or self._cached[0] != self.epoch:
            rng = np.random.default_rng([self.seed, self.epoch])
            self._cached = (self.epoch, rng.permutation(self.n))
        return self._cached[1]

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.position = state["epoch"], state["position"]


shuffled = Shuffled


# Which samples teach: how often a policy's answers to each were rewarded alike, and the file that says so.

Finite = Annotated[float, Field(allow_inf_nan=False)]


class Row(Section):
    """One sample as measured: a line of the file."""

    id: str
    position: Annotated[int, Field(ge=0)]  # in the training split
    repeats: Count  # completions it was given
    mean: Finite  # of their rewards
    variance: Annotated[float, Field(ge=0, allow_inf_nan=False)]  # of their rewards, ddof 0
    accuracy: Annotated[float, Field(ge=0, le=1)]
    alignment: Finite | None = None  # of its course over a run's epochs with the average one (sampler `limr`)
    kept: bool = False


@dataclass(frozen=True)
class MeasuredShares:
    """Shares of the measured samples."""

    measured: int
    right: float  # every completion is right
    wrong: float  # none is
    kept: int

    def __str__(self) -> str:
        mixed = 1 - self.right - self.wrong
        return (
            f"{self.measured} samples: {self.right:.1%} all right, {self.wrong:.1%} all wrong, {mixed:.1%} mixed; "
            f"kept {self.kept}"
        )


def measured(sample_id: str, position: int, rewards: Sequence[float], correct: Sequence[float]) -> Row:
    """The row of a sample from its completions' rewards and correctness."""
    n = len(rewards)
    mean = sum(rewards) / n
    equal = min(rewards) == max(rewards)  # rounding of the mean must not look like disagreement
    variance = 0.0 if equal else sum((reward - mean) ** 2 for reward in rewards) / n
    return Row(
        id=sample_id, position=position, repeats=n, mean=mean, variance=variance,
        accuracy=min(1.0, sum(correct) / n),
    )  # fmt: skip


def chosen(rows: Sequence[Row], *, keep: float = 0.25, least_variance: float | None = None) -> list[Row]:
    """The rows with `kept` set for those whose rewards disagree most; never where all rewards are equal.

    Args:
        keep: this share of the rows, at least one: those of the largest variance, of equal ones the first.
        least_variance: instead, every row of at least this variance.
    """
    mixed = [i for i, row in enumerate(rows) if row.variance > 0]
    if least_variance is not None:
        best = {i for i in mixed if rows[i].variance >= least_variance}
    else:
        best = set(sorted(mixed, key=lambda i: -rows[i].variance)[: max(1, round(keep * len(rows)))])
    return [row.model_copy(update={"kept": i in best}) for i, row in enumerate(rows)]


def summary(rows: Sequence[Row]) -> MeasuredShares:
    n = len(rows)
    right, wrong = (sum(row.accuracy == end for row in rows) / n for end in (1.0, 0.0))
    return MeasuredShares(n, right, wrong, sum(row.kept for row in rows))


def selection_line(row: Row) -> str:
    return json.dumps(row.model_dump()) + "\n"


def selection_read(file: str | Path) -> list[Row]:
    """The rows that `vlrl select` wrote.

    Raises:
        UserError: no such file, or a line that is no such row, with its number.
    """
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise UserError(f"cannot read {file}: {reason}; make it with `vlrl select`") from None
    return [_row(file, number, text) for number, text in enumerate(lines, start=1)]


def _row(file: str | Path, number: int, text: str) -> Row:
    try:
        return Row.model_validate_json(text)
    except ValidationError as error:
        bad = error.errors()[0]["type"] == "json_invalid"
        raise UserError(f"{file}: row {number}: {'not JSON' if bad else explain(error, Row)}") from None


# The samples divided by a tag, for samplers that choose among parts: tasks, levels, categories.


class Domains:
    """The first samples of a split by the value of a tag; within each domain they come in shuffled epochs.

    Dividing looks at the tag of every sample, not before it is needed, because making a sample may mean decoding a
    video; `vlrl.types.TaggedSamples` know their tags without it.

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
        known = self._samples.tag_of(position, self.tag) if isinstance(self._samples, TaggedSamples) else None
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
        values_of: dict[str, list[T]] = {}
        for episode, value in zip(episodes, values, strict=True):
            if self.tag in episode.sample.tags:
                values_of.setdefault(episode.sample.tags[self.tag], []).append(value)
        return values_of

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


class ByDomain(Sampler):
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


# Domains by how much they teach and how little is known of them: an upper confidence bound.


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
        for name, own in self.domains.met(episodes, sizes(episodes)).items():
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


# The samples of a list.

LOOKS = 16  # samples whose ids are compared with a list's: making one may mean decoding a video


@method(source="variance-aware selection: Temporal-R1, github.com/appletea233/Temporal-R1; see `vlrl select`")
class Listed(Sampler):
    """Shuffled epochs over the samples that `vlrl select` kept, and no others.

    Args:
        n: samples in the training split.
        seed: of the run.
        file: what `vlrl select --out` wrote.

    Raises:
        UserError: the file cannot be read, keeps nothing, or names samples that the split does not have.
    """

    def __init__(self, n: int, seed: int, *, file: str):
        self.n, self.file = n, file
        self.rows = [row for row in selection_read(file) if row.kept]
        if not self.rows:
            raise UserError(f"sampler: {file} keeps no sample: choose with a lower --least-variance, or more --samples")
        beyond = [row.position for row in self.rows if row.position >= n]
        if beyond:
            raise UserError(
                f"sampler: {file} names sample {beyond[0]}, but the training split ends at {n - 1}: select anew"
            )
        self._shuffled = Shuffled(len(self.rows), seed)

    def check(self, samples: Sequence[Sample]) -> None:
        """Compares some of the ids with the split's own, so that a list made for other data is refused.

        Raises:
            UserError: another sample stands in a row's place.
        """
        for row in self.rows[:: -(-len(self.rows) // LOOKS)]:
            own = samples[row.position].id
            if own != row.id:
                raise UserError(
                    f"sampler: {self.file} was made for other data: sample {row.position} is {row.id!r} there and "
                    f"{own!r} here: select anew"
                )

    @property
    def positions(self) -> Sequence[int]:
        """All that are ever drawn."""
        return [row.position for row in self.rows]

    def draw(self, count: int) -> list[int]:
        """The next positions in the split."""
        return [self.rows[i].position for i in self._shuffled.draw(count)]

    def peek(self, count: int) -> list[int]:
        return [self.rows[i].position for i in self._shuffled.peek(count)]

    def _digest(self) -> int:
        return zlib.crc32(repr(self.positions).encode())

    def state_dict(self) -> dict[str, Any]:
        return self._shuffled.state_dict() | {"list": self._digest()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["list"] != self._digest():
            raise UserError(f"sampler: {self.file} is not the list that this run began with: put the old one back")
        self._shuffled.load_state_dict(state)


listed = Listed


# Domains by how far they are from a target.

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
        state = {"steps": self.steps, "latest": latest, "reached": dict(self.reached)}
        return {"domains": self.domains.state_dict(), **state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.domains.load_state_dict(state["domains"])
        self.steps, self.latest, self.reached = state["steps"], state["latest"], dict(state["reached"])


def harmonic(values: Sequence[float]) -> float:
    """The mean in which the k-th value from the end weighs 1 / k."""
    weights = [1 / k for k in range(len(values), 0, -1)]
    return sum(w * value for w, value in zip(weights, values, strict=True)) / sum(weights)


rule_reasoner = RuleReasoner


# Categories by how much they teach at present: a bandit whose pay is the size of the advantages.

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

    def shares(self) -> dict[str, float]:
        """The chance of each category to be drawn."""
        names = self.domains.names
        return softmax(names, [self.values.get(name, 0.0) for name in names], self.temperature)

    def observe(self, episodes: Sequence[Episode]) -> None:
        """What came of a step's rollouts."""
        for name, own in self.domains.met(episodes, sizes(episodes)).items():
            self.values[name] = self.rate * sum(own) / len(own) + (1 - self.rate) * self.values.get(name, 0.0)
        self.metrics = {f"sec/{name}": share for name, share in self.shares().items()}

    def state_dict(self) -> dict[str, Any]:
        return {"domains": self.domains.state_dict(), "values": dict(self.values)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.domains.load_state_dict(state["domains"])
        self.values = dict(state["values"])


sec = Sec
