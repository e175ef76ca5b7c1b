"""Tasks by how well they go: those that succeed now and then are drawn most often."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from vlrl.algorithms.samplers import ByDomain, Domains, Shuffled, weighed
from vlrl.config import Count, Rate
from vlrl.methods import PromptTracker, Recipe, RecipePart, Sampler, method
from vlrl.types import Episode, Sample, UserError

if TYPE_CHECKING:
    from torch import Tensor

    from vlrl.algorithms.critics import Critic

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


# From easy to hard: levels of difficulty one after another.

LevelsShare = Annotated[float, Field(gt=0, le=1)]
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
        reach: LevelsShare = 0.7, window: Count = 128, mix: Mixed = 0.2, width: Count = 2, limit: Count | None = None,
    ):  # fmt: skip
        self.domains, self.order, self.begin = Domains(n, seed, tag, limit), order, begin
        self.reach, self.window, self.mix, self.width = reach, window, mix, width
        if list(begin) != sorted(set(begin)):
            raise UserError(f"sampler.begin: {list(begin)} should ascend")
        self.level = 0
        self.latest: list[float] = []  # correctness of the present level's rollouts

    def draw(self, count: int) -> list[int]:
        """`count` positions: a level for each, and its next sample."""
        if self.begin:
            level = min(sum(step <= self.domains.draws for step in self.begin), len(self.names) - 1)
            self.level, self.latest = level, self.latest if level == self.level else []
        return super().draw(count)

    @property
    def names(self) -> list[str]:
        """The levels from easy to hard. UserError where `order` leaves one out, or names one that is not there."""
        known = self.domains.names
        if self.order and set(self.order) != set(known):
            raise UserError(f"sampler.order: the samples' levels are {', '.join(sorted(known, key=_rank))}")
        return list(self.order) or sorted(known, key=_rank)

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


# How each sample of a pool went, epoch by epoch.


class Trajectories:
    """Shuffled epochs over the first samples that note each sample's mean correctness in each epoch.

    `noted[position][epoch]` is None where a rollout strategy left the sample out.
    """

    def __init__(self, n: int, seed: int, limit: int | None = None):
        self.order = Shuffled(n, seed, limit=limit)
        self.noted: dict[int, list[float | None]] = {}
        self._drawn: dict[str, list[tuple[int, int]]] = {}  # id -> positions and epochs, of the latest draw

    def draw(self, samples: Sequence[Sample], count: int) -> list[int]:
        """The next positions."""
        indices, self._drawn = [], {}
        for _ in range(count):
            epoch = self.order.epoch
            (position,) = self.order.draw(1)
            self._drawn.setdefault(samples[position].id, []).append((position, epoch))
            indices.append(position)
        return indices

    def observe(self, episodes: Sequence[Episode]) -> None:
        """Notes what came of the samples that were drawn."""
        outcomes: dict[str, list[float]] = {}
        for episode in episodes:
            outcomes.setdefault(episode.sample.id, []).append(episode.score.correct)
        for name, correct in outcomes.items():
            for position, epoch in self._drawn.get(name, ()):
                own = self.noted.setdefault(position, [])
                own += [None] * (epoch + 1 - len(own))
                own[epoch] = sum(correct) / len(correct)

    @property
    def epochs(self) -> int:
        """Those that every sample has gone through."""
        return self.order.epoch

    def complete(self, last: int | None = None) -> dict[int, list[float]]:
        """The courses of all epochs, or the `last` ones, gaps filled by what follows; none whose end is missing."""
        outcomes: dict[int, list[float]] = {}
        for position, own in sorted(self.noted.items()):
            values = filled((own + [None] * self.epochs)[: self.epochs])
            kept = values[-last:] if last else values
            ends = [value for value in kept if value is not None]
            if kept and len(ends) == len(kept):
                outcomes[position] = ends
        return outcomes

    def state_dict(self) -> dict[str, Any]:
        return {"order": self.order.state_dict(), "noted": [[i, list(own)] for i, own in self.noted.items()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.order.load_state_dict(state["order"])
        self.noted = {position: list(own) for position, own in state["noted"]}


def filled(values: Sequence[float | None]) -> list[float | None]:
    """Each missing value replaced by the next known one; those at the end stay missing."""
    positions, after = [], None
    for value in reversed(values):
        after = value if value is not None else after
        positions.append(after)
    return positions[::-1]


def alignment(trajectories: Mapping[int, Sequence[float]]) -> dict[int, float]:
    """How alike each sample learns to the average: `1 - sum (r - m)^2 / sum (1 - m)^2`, m the mean over samples.

    1: the average's own course. 0 for all where the average was right from the beginning, for nothing was learned.
    """
    if not trajectories:
        return {}
    courses = np.array(list(trajectories.values()), dtype=np.float64)
    mean = courses.mean(0)
    room = ((1 - mean) ** 2).sum()
    scores = 1 - ((courses - mean) ** 2).sum(1) / room if room > 0 else np.zeros(len(courses))
    return dict(zip(trajectories, scores.tolist(), strict=True))


def failed(trajectory: Sequence[float]) -> bool:
    """Whether a sample was never right half of the time and falls: the slope of its regression line is below 0."""
    if max(trajectory) >= 0.5 or len(trajectory) < 2:
        return False
    times = np.arange(len(trajectory)) - (len(trajectory) - 1) / 2
    return bool(times @ np.asarray(trajectory) < 0)


# Samples of which it is not yet known whether they are solved.

UncertaintyShare = Annotated[float, Field(gt=0)]
Power = Annotated[float, Field(ge=0)]


def check_tracked(recipe: Recipe, part: RecipePart) -> str | None:
    """Uncertainty is what a tracker knows."""
    if any("prompt_values" in estimator.gives or estimator.undeclared for estimator in recipe.of("advantages")):
        return None
    return "sampler: uncertainty draws by what a tracker knows: add spo_tracker or beta_tracker to advantages"


@method(check_recipe=check_tracked, source="SPO, arXiv 2509.13232; github.com/volcengine/verl, recipe/spo")
class Uncertainty(Sampler):
    """Samples by the spread of their outcome: `w = sqrt(v (1 - v)) / N^gamma + eps`, none twice in a step.

    v is what the run's tracker (`spo_tracker`, `beta_tracker`) takes for the sample's success rate at the moment of the
    draw, N the observations it rests on. A value outside [0, 1] counts as the nearest inside.

    Args:
        n: samples in the training split.
        seed: of the run.
        eps: what every sample weighs at least: the share of exploration, so that none is given up. At most 0.5 comes
            of the spread, so 0.05 draws a sample that is always solved about a tenth as often as an even one.
        gamma: power of N; above 0, seldom seen samples are drawn more often. Published code: 0.
        limit: use only the first so many samples (a pool that recurs).
    """

    def __init__(
        self, n: int, seed: int, *, eps: UncertaintyShare = 0.05, gamma: Power = 0.0, limit: Count | None = None
    ):
        self.n, self.seed, self.eps, self.gamma = min(n, limit) if limit else n, seed, eps, gamma
        self.draws = 0

    def follow(self, samples: Sequence[Sample], estimators: Sequence[Any]) -> None:
        """Tells the sampler whose values it goes by.

        Raises:
            UserError: no estimator keeps any.
        """
        trackers = [each for each in estimators if isinstance(each, PromptTracker)]
        if not trackers:
            raise UserError(
                "sampler: uncertainty draws by what a tracker knows: add spo_tracker or beta_tracker to advantages"
            )
        self._samples, self._tracker, self._keys = samples, trackers[0], None

    def draw(self, count: int) -> list[int]:
        """`count` positions, none twice; where there are fewer samples, all of them over and over."""
        rng = np.random.default_rng([self.seed, self.draws])
        self.draws += 1
        share = self.shares()
        indices: list[int] = []
        while len(indices) < count:
            indices += rng.choice(self.n, min(self.n, count - len(indices)), replace=False, p=share).tolist()
        return indices

    def shares(self) -> np.ndarray:
        """float64 [n]: the chance of each sample to be drawn first."""
        if self._keys is None:  # not before it is needed: making a sample may mean decoding a video
            self._keys = [self._samples[i].key for i in self.positions]
        value = np.clip([self._tracker.value(key) for key in self._keys], 0.0, 1.0)
        weights = np.array([self._tracker.weight(key) for key in self._keys])
        weight = np.sqrt(value * (1 - value)) / weights**self.gamma + self.eps
        return weight / weight.sum()

    def state_dict(self) -> dict[str, Any]:
        return {"draws": self.draws}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.draws = state["draws"]


uncertainty = Uncertainty


# Samples that the policy does not always solve.

Times = Annotated[int, Field(ge=0)]


@method(source="RIPT-VLA, arXiv 2505.17016; github.com/Ariostgx/ript-vla")
class Unsolved(Sampler):
    """Shuffled epochs in which a sample is passed over whose latest rollouts all succeeded.

    `passes` times, then it is tried again: what was once solved may be lost. Where a step finds too few others, those
    that were passed over first fill it.

    Args:
        n: samples in the training split.
        seed: of the run.
        latest: so many rollouts of a sample must have succeeded, the latest; null: all of its latest draw.
        passes: how often it is then passed over, before it is tried again.
        limit: use only the first so many samples (a pool that recurs).
    """

    def __init__(
        self, n: int, seed: int, *, latest: Count | None = None, passes: Times = 4, limit: Count | None = None
    ):
        self._shuffled = Shuffled(n, seed, limit=limit)
        self.latest, self.passes = latest, passes
        self.outcomes: dict[str, list[float]] = {}  # the latest, by sample id
        self.left: dict[str, int] = {}  # how often a solved sample is still to be passed over

    def follow(self, samples: Sequence[Any], estimators: Sequence[Any]) -> None:
        """Tells the sampler the samples' ids, which outlive a resumed run."""
        self._samples = samples

    @property
    def positions(self) -> Sequence[int]:
        """All that are ever drawn."""
        return self._shuffled.positions

    def draw(self, count: int) -> list[int]:
        """The next positions. After one epoch's looks, those that were passed over fill up."""
        indices: list[int] = []
        passed: list[int] = []
        for _ in range(self._shuffled.n):
            if len(indices) == count:
                break
            (position,) = self._shuffled.draw(1)
            (passed if self._passes(self._samples[position].id) else indices).append(position)
        self.metrics = {"sampler/passed": float(len(passed)), "sampler/solved": float(len(self.left))}
        rest = itertools.cycle(passed or indices)
        return indices + list(itertools.islice(rest, count - len(indices)))

    def _passes(self, key: str) -> bool:
        """Whether a sample is passed over this time; counts it."""
        if not self.left.get(key):
            return False
        self.left[key] -= 1
        return True

    def observe(self, episodes: Sequence[Episode]) -> None:
        """What came of a step's rollouts."""
        now: dict[str, list[float]] = {}
        for episode in episodes:
            now.setdefault(episode.sample.id, []).append(episode.score.correct)
        for key, correct in now.items():
            before = self.outcomes.get(key, []) if self.latest else []
            known = (before + correct)[-(self.latest or len(correct)) :]
            solved = len(known) >= (self.latest or 1) and min(known) >= 1
            self.left.pop(key, None)
            if solved and self.passes:
                self.left[key] = self.passes
            if self.latest:
                self.outcomes[key] = known

    def state_dict(self) -> dict[str, Any]:
        return {"order": self._shuffled.state_dict(), "outcomes": self.outcomes, "left": self.left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._shuffled.load_state_dict(state["order"])
        self.outcomes, self.left = state["outcomes"], state["left"]


unsolved = Unsolved


# Samples by what one more look at them could tell: Thompson sampling over their success rates.

Kept = Annotated[float, Field(ge=0, le=1)]


@method(
    reads=("latest_draw",),
    source="VADE, arXiv 2511.18902; VADE-RL.github.io: the decays are deduced from its figure's numbers",
)
class Vade(Sampler):
    """The samples of the largest information gain `I = t (1 - t)^2`, `t ~ Beta(a + 1, b + 1)` drawn for each.

    I is largest at a success rate of 1/3. Of a drawn sample's rollouts s succeed and f fail: `a <- keep a + s`, `b <-
    keep b + f`; of all others `a <- fade a`, `b <- fade b`, because the policy changes. Counts begin with 0, which the
    paper does not say. Samples must recur for counts to mean anything: use `limit` where the split is large.

    Args:
        n: samples in the training split.
        seed: of the run.
        keep: share of a drawn sample's earlier counts that stays.
        fade: of every other one's, each step.
        limit: use only the first so many samples (a pool that recurs).
    """

    def __init__(self, n: int, seed: int, *, keep: Kept = 0.2, fade: Kept = 0.999, limit: Count | None = None):
        self.n, self.seed, self.keep, self.fade = min(n, limit) if limit else n, seed, keep, fade
        self.draws = 0
        self.won, self.lost = np.zeros(self.n), np.zeros(self.n)  # a and b
        self._drawn: dict[str, int] = {}  # id -> position, of the latest draw

    def follow(self, samples: Sequence[Sample], estimators: Sequence[Any]) -> None:
        """Tells the sampler the samples' ids."""
        self._samples = samples

    def draw(self, count: int) -> list[int]:
        """`count` positions, none twice; where there are fewer samples, all of them over and over."""
        rng = np.random.default_rng([self.seed, self.draws])
        self.draws += 1
        gains = gain(rng.beta(self.won + 1, self.lost + 1))
        best = np.argsort(-gains, kind="stable")[:count]
        self._drawn = {self._samples[i].id: i for i in best.tolist()}
        rate = (self.won[best] + 1) / (self.won[best] + self.lost[best] + 2)
        known = float((self.won + self.lost > 0).mean())
        self.metrics = {"vade/gain": float(gains[best].mean()), "vade/success": float(rate.mean()), "vade/known": known}
        return list(itertools.islice(itertools.cycle(best.tolist()), count))

    def observe(self, episodes: Sequence[Episode]) -> None:
        """What came of a step's rollouts; those of samples that were not drawn do not count."""
        won, lost, kept = np.zeros(self.n), np.zeros(self.n), np.full(self.n, self.fade)
        for episode in episodes:
            position = self._drawn.get(episode.sample.id)
            if position is not None:
                won[position] += episode.score.correct
                lost[position] += 1 - episode.score.correct
                kept[position] = self.keep
        self.won, self.lost = kept * self.won + won, kept * self.lost + lost

    def state_dict(self) -> dict[str, Any]:
        positions = (self.won + self.lost).nonzero()[0].tolist()
        return {"draws": self.draws, "counts": [[i, float(self.won[i]), float(self.lost[i])] for i in positions]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.draws = state["draws"]
        self.won, self.lost = np.zeros(self.n), np.zeros(self.n)
        for position, won, lost in state["counts"]:
            self.won[position], self.lost[position] = won, lost


def gain(rate: np.ndarray) -> np.ndarray:
    """What a rollout of a sample of this success rate is expected to tell."""
    return rate * (1 - rate) ** 2


vade = Vade


# Shuffled epochs that note how each sample was learned, so that `vlrl select` can choose by it.

Score = Annotated[float, Field(le=1)]


@method(reads=("latest_draw",), source="LIMR, arXiv 2502.11886; github.com/GAIR-NLP/LIMR")
class Limr(Sampler):
    """Shuffled epochs in which each sample's mean correctness r is noted, to keep those that learn as the average does.

    Learning impact measurement: over the epochs of a run `score = 1 - sum (r - m)^2 / sum (1 - m)^2`, m the mean of all
    samples. `vlrl select RUN --out FILE.jsonl` then lists the samples of at least `score`, and a new run with `sampler:
    {name: listed, file: FILE.jsonl}` trains on them. The paper measures 21 epochs of 8,523 samples.

    Args:
        n: samples in the training split.
        seed: of the run.
        score: from which a sample counts as kept, in the log and for `vlrl select`.
        limit: use only the first so many samples (a pool that recurs).
    """

    def __init__(self, n: int, seed: int, *, score: Score = 0.6, limit: Count | None = None):
        self.trajectories, self.score = Trajectories(n, seed, limit), score

    def follow(self, samples: Sequence[Sample], estimators: Sequence[Any]) -> None:
        """Tells the sampler the samples' ids."""
        self._samples = samples

    @property
    def positions(self) -> Sequence[int]:
        """All that are ever drawn."""
        return self.trajectories.order.positions

    def draw(self, count: int) -> list[int]:
        """The next positions."""
        return self.trajectories.draw(self._samples, count)

    def observe(self, episodes: Sequence[Episode]) -> None:
        """What came of a step's rollouts."""
        self.trajectories.observe(episodes)
        scores = alignment(self.trajectories.complete())
        kept = sum(value >= self.score for value in scores.values()) / max(1, len(scores))
        self.metrics = {"limr/epochs": float(self.trajectories.epochs), "limr/kept": kept}

    def state_dict(self) -> dict[str, Any]:
        return self.trajectories.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.trajectories.load_state_dict(state)


limr = Limr


# Further samples of the kinds that the policy fails at.

SwsShare = Annotated[float, Field(gt=0, lt=1)]
Several = Annotated[int, Field(ge=2)]


class FurtherSamples:
    """Samples of a kind, a tag's value, that lie behind a pool: what a task that draws its samples has without end.

    Raises:
        UserError: there is nothing behind the pool.
    """

    def __init__(self, n: int, seed: int, tag: str, first: int):
        if first >= n:
            raise UserError(f"sampler.limit: {first}: the split has {n} samples, and new ones must lie behind the pool")
        self.n, self.first, self._domains = n, first, Domains(n, seed, tag, first)
        self.used: dict[str, int] = {}  # kind -> position of its latest new sample

    def follow(self, samples: Sequence[Sample]) -> None:
        """Tells what the tags are of. UserError where the samples have no such tag."""
        self._kinds: dict[int, str] = {}
        self._domains.follow(samples)

    def kind(self, position: int) -> str:
        if position not in self._kinds:
            self._kinds[position] = self._domains.at(position)
        return self._kinds[position]

    def find(self, kind: str) -> int | None:
        """The next sample of a kind behind the pool, over and over; None where there is none."""
        size = self.n - self.first
        start = self.used.get(kind, self.first - 1) + 1 - self.first
        for offset in range(size):
            position = self.first + (start + offset) % size
            if self.kind(position) == kind:
                self.used[kind] = position
                return position
        return None


@method(
    reads=("latest_draw",),
    source="SwS, arXiv 2506.08989; github.com/MasterVito/SwS: a reconstruction, new samples in place of synthesis",
)
class Sws(Sampler):
    """Epochs over a pool, and, where samples of it are weaknesses, a share of new samples of their kinds.

    A weakness is a sample whose mean correctness stayed below one half in the latest `epochs` epochs, and fell. Kinds
    are drawn in proportion to the share of their samples that are weaknesses. The paper has a model write new problems
    from the concepts of failed ones, once, after a first run; here they are samples of the split behind the pool, which
    a task that draws its samples makes without end, and what is weak is asked again every step.

    Args:
        n: samples in the training split.
        seed: of the run.
        tag: of the samples, whose values are the kinds; `task` of a mixture.
        limit: the pool: the first so many samples. Those behind it are the new ones.
        epochs: over the pool, before what is weak is known.
        share: of a step's samples that are new ones.

    Raises:
        UserError: there is nothing behind the pool.
    """

    def __init__(
        self, n: int, seed: int, *, tag: str = "task", limit: Count = 512, epochs: Several = 5, share: SwsShare = 0.5
    ):
        self.seed, self.epochs, self.share = seed, epochs, share
        self.further, self.pool = FurtherSamples(n, seed, tag, limit), Trajectories(n, seed, limit)
        self.draws = 0

    def follow(self, samples: Sequence[Sample], estimators: Sequence[Any]) -> None:
        """Tells the sampler what the tags are of. UserError where the samples have no such tag."""
        self._samples = samples
        self.further.follow(samples)

    @property
    def positions(self) -> Sequence[int]:
        """All of the pool."""
        return range(self.further.first)

    def draw(self, count: int) -> list[int]:
        """The pool's next positions, and new ones of the weak kinds."""
        shares = self.shares()
        rng = np.random.default_rng([self.seed, self.draws])
        self.draws += 1
        wanted = rng.choice(list(shares), round(self.share * count), p=list(shares.values())).tolist() if shares else []
        new = [position for kind in wanted if (position := self.further.find(kind)) is not None]
        self.metrics = {"sws/new": len(new) / count, **{f"sws/{kind}": share for kind, share in shares.items()}}
        return [*new, *self.pool.draw(self._samples, count - len(new))]

    def shares(self) -> dict[str, float]:
        """The chance of each kind to be drawn; {} while no weakness is known."""
        if self.pool.epochs < self.epochs:
            return {}
        known = {position: failed(course) for position, course in self.pool.complete(self.epochs).items()}
        sizes = Counter(map(self.further.kind, known))
        weak = Counter(self.further.kind(position) for position, weakness in known.items() if weakness)
        return weighed(list(weak), [weak[kind] / sizes[kind] for kind in weak]) if weak else {}

    def observe(self, episodes: Sequence[Episode]) -> None:
        """What came of a step's rollouts; those of new samples do not change what is weak."""
        self.pool.observe(episodes)

    def state_dict(self) -> dict[str, Any]:
        return {"pool": self.pool.state_dict(), "draws": self.draws, "used": dict(self.further.used)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.pool.load_state_dict(state["pool"])
        self.draws, self.further.used = state["draws"], dict(state["used"])


sws = Sws


# Further samples like those that failed, of which a critic expects neither too much nor too little.

WebShare = Annotated[float, Field(ge=0, le=1)]


@method(
    reads=("latest_draw",),
    source="WebRL, arXiv 2411.02337; github.com/THUDM/WebRL, scripts/gen_task.py: a reconstruction by a rule",
)
class WebRL(Sampler):
    """Epochs over a pool, and a `share` of new instructions like those that failed, neither hopeless nor easy.

    For each new one an instruction that failed is drawn from the latest `window`. Of the next `tries` samples of its
    kind behind the pool those stay whose success a critic puts within [`low`, `high`]; the one whose words are most
    like the failed one's is played. Where none stays, the pool's next sample is.

    Published: GPT-4o writes the new instructions after examples of failed ones, once a phase; the critic of the
    policy's own values keeps those from 0.05 to 0.75; a model drops what cannot be done. Ours: the task's own
    generator writes (what it draws can be done), in every step; the critic is a linear one over the trigrams of the
    instruction's text, trained by cross-entropy on the outcomes of all that was played.

    Args:
        n: samples in the training split.
        seed: of the run.
        tag: of the samples, whose values are the kinds.
        limit: the pool: the first so many samples. Those behind it are the new ones.
        share: of a step's samples that are to be new ones.
        low, high: the critic's value of a new instruction.
        tries: candidates of each new one.
        window: latest failures.
        width: numbers that stand for an instruction's text.
        lr, epochs: of the critic: its learning rate, and its gradient steps a step.

    Raises:
        UserError: there is nothing behind the pool, or low is above high.
    """

    def __init__(
        self, n: int, seed: int, *, tag: str = "page", limit: Count = 256, share: WebShare = 0.5, low: WebShare = 0.05,
        high: WebShare = 0.75, tries: Count = 8, window: Count = 64, width: Count = 256, lr: Rate = 3e-2,
        epochs: Count = 5,
    ):  # fmt: skip
        if low > high:
            raise UserError(f"sampler: webrl: low = {low:g} is above high = {high:g}")
        self.further, self.pool = FurtherSamples(n, seed, tag, limit), Shuffled(n, seed, limit=limit)
        self.seed, self.tag, self.share, self.low, self.high = seed, tag, share, low, high
        self.tries, self.window, self.width, self.lr, self.epochs = tries, window, width, lr, epochs
        self.draws = 0
        self.failures: list[tuple[str, str]] = []  # kind and instruction, the latest at the end
        self._critic: Critic | None = None  # made when it is needed, for it needs torch

    def follow(self, samples: Sequence[Sample], estimators: Sequence[Any]) -> None:
        """Tells the sampler the samples. UserError where they have no such tag."""
        self._samples = samples
        self.further.follow(samples)

    @property
    def positions(self) -> Sequence[int]:
        """All of the pool."""
        return self.pool.positions

    @property
    def critic(self) -> Critic:
        """The chance of success by an instruction's words."""
        if self._critic is None:
            from vlrl.algorithms.critics import Critic

            self._critic = Critic(self.width, lr=self.lr, epochs=self.epochs)
        return self._critic

    def draw(self, count: int) -> list[int]:
        """New positions, and the pool's next ones."""
        rng = np.random.default_rng([self.seed, self.draws])
        self.draws += 1
        new: list[int] = []
        for _ in range(round(self.share * count) if self.failures else 0):
            kind, text = self.failures[int(rng.integers(len(self.failures)))]
            if (position := self.choose(kind, text)) is not None:
                new.append(position)
        self.metrics = {"webrl/new": len(new) / count, "webrl/failures": float(len(self.failures))}
        return [*new, *self.pool.draw(count - len(new))]

    def choose(self, kind: str, text: str) -> int | None:
        """The candidate most like an instruction that failed; None: the critic lets none pass."""
        positions = [self.further.find(kind) for _ in range(self.tries)]
        candidates = list(dict.fromkeys(position for position in positions if position is not None))
        if not candidates:
            return None
        words = self._words([text, *(self._samples[position].prompt.text for position in candidates)])
        values, likeness = self.critic.values(words[1:]).tolist(), (words[1:] @ words[0]).tolist()
        passing = [i for i, value in enumerate(values) if self.low <= value <= self.high]
        return candidates[max(passing, key=likeness.__getitem__)] if passing else None

    def observe(self, episodes: Sequence[Episode]) -> None:
        """What came of a step's rollouts: the critic learns, failures are remembered."""
        import torch

        played = [episode for episode in episodes if self.tag in episode.sample.tags]
        outcome = torch.tensor([float(episode.score.is_correct) for episode in played])
        loss = self.critic.learn(self._words([episode.sample.prompt.text for episode in played]), outcome)
        for episode in played:
            about = (episode.sample.tags[self.tag], episode.sample.prompt.text)
            self.failures = [each for each in self.failures if each != about]
            self.failures += [] if episode.score.is_correct else [about]
        self.failures = self.failures[-self.window :]
        self.metrics = self.metrics | {"webrl/critic_loss": loss}

    def _words(self, texts: Sequence[str]) -> Tensor:
        """float32 [texts, width], of length 1."""
        from vlrl.algorithms.multi_turn import hashed

        return hashed(texts, self.width)

    def state_dict(self) -> dict[str, Any]:
        return {
            "pool": self.pool.state_dict(), "draws": self.draws, "used": dict(self.further.used),
            "failures": [list(each) for each in self.failures], "critic": self.critic.state_dict(),
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.pool.load_state_dict(state["pool"])
        self.draws, self.further.used = state["draws"], dict(state["used"])
        self.failures = [(kind, text) for kind, text in state["failures"]]
        self.critic.load_state_dict(state["critic"])


webrl = WebRL
