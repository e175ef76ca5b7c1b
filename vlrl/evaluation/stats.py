"""Statistics of runs: histograms, paired tests, and which differences between arms are real."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from vlrl.types import wilson

# A small bar chart as an image, drawn without further packages.

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 480, 300, 56, 20, 40, 48
BINS, GAP, FONT = 20, 2, 12
ALL, KEPT, INK = (190, 196, 204), (37, 99, 160), (50, 54, 60)


LEAST = 1e-100  # below it bins have no width in floating point


def histogram(values: Sequence[float], kept: Sequence[bool], label: str) -> Image.Image:
    """Counts of values >= 0 in equal bins from 0 to the largest; those that were kept in blue.

    Args:
        values: [N], at least one.
        kept: [N].
        label: of the horizontal axis.
    """
    top = max(values) if max(values) > LEAST else 1.0
    every, edges = np.histogram(values, bins=BINS, range=(0, top))
    blue, _ = np.histogram(np.asarray(values)[np.asarray(kept, bool)], bins=edges)
    image = Image.new("RGB", (WIDTH, HEIGHT), "white")
    draw, step = ImageDraw.Draw(image), (WIDTH - LEFT - RIGHT) / BINS
    floor, room = HEIGHT - BOTTOM, HEIGHT - BOTTOM - TOP
    for counts, colour in ((every, ALL), (blue, KEPT)):
        for i, count in enumerate(counts.tolist()):
            if count:
                corner = LEFT + i * step + GAP, floor - max(1, room * count / every.max())
                draw.rectangle((*corner, LEFT + (i + 1) * step - GAP, floor), fill=colour)
    draw.line((LEFT, floor, WIDTH - RIGHT, floor), fill=INK)
    font = ImageFont.load_default(FONT)
    for x, text, anchor in ((LEFT, "0", "ma"), (WIDTH - RIGHT, f"{top:.3g}", "ra")):
        draw.text((x, floor + 5), text, INK, font, anchor)
    draw.text(((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8), label, INK, font, "ms")
    draw.text((LEFT - 6, TOP), str(every.max()), INK, font, "rm")
    draw.text((LEFT, 10), f"{len(values)} samples, ", INK, font, "la")
    draw.text((LEFT + draw.textlength(f"{len(values)} samples, ", font), 10), f"{sum(kept)} kept", KEPT, font, "la")
    return image


DRAWS = 1000  # bootstrap samples


def bootstrap(statistic: Callable[[Sequence], float], values: Sequence, seed: int = 0) -> tuple[float, float]:
    """95 % percentile interval of a statistic of N values, which are drawn anew with repetition.

    Draws of which the statistic is nan, as those without a category that it needs, say nothing.
    """
    draws = np.random.default_rng(seed).integers(len(values), size=(DRAWS, len(values)))
    low, high = np.nanpercentile([statistic([values[i] for i in draw]) for draw in draws], (2.5, 97.5))
    return float(low), float(high)


# Statistics of two arms that played the same scenes: an exact test, an interval, how many to play.

Z_TWO_SIDED, Z_POWER = 1.959964, 0.841621  # normal quantiles of 0.975 and of a power of 0.8


@dataclass(frozen=True)
class Pairs:
    """In how many scenes which of two arms, A and B, succeeded."""

    both: int
    only_a: int
    only_b: int
    neither: int

    @property
    def n(self) -> int:
        return self.both + self.only_a + self.only_b + self.neither

    @property
    def difference(self) -> float:
        """Share of successes of A less that of B."""
        return (self.only_a - self.only_b) / self.n

    @property
    def discordant(self) -> float:
        """The share of scenes in which the arms differ."""
        return (self.only_a + self.only_b) / self.n


def count(a: Sequence[bool], b: Sequence[bool]) -> Pairs:
    """Successes of A and B, [n] each in the order of the scenes, at least one."""
    pairs = list(zip(a, b, strict=True))
    return Pairs(*(pairs.count(pair) for pair in ((True, True), (True, False), (False, True), (False, False))))


def mcnemar(pairs: Pairs) -> float:
    """Two-sided p-value of McNemar's exact conditional test: are successes of one arm alone as likely as of the other?

    Binomial, with a chance of one half, over the scenes in which the arms differ (McNemar, Psychometrika 12 (1947);
    Fagerland, Lydersen and Laake, BMC Medical Research Methodology 13 (2013), 91). 1 where they differ in none.
    """
    differ = pairs.only_a + pairs.only_b
    tail = sum(math.comb(differ, k) for k in range(min(pairs.only_a, pairs.only_b) + 1))
    return min(1.0, 2 * tail / 2**differ)


def newcombe(pairs: Pairs) -> tuple[float, float]:
    """95 % interval of `pairs.difference`, within [-1, 1]: method 10 of Newcombe, Stat. Med. 17 (1998), 2635-2650.

    The distances of both arms' Wilson limits from their shares, combined as sides of a triangle whose angle is the
    correlation of the pairs. It stays honest for few scenes and for shares of 0 and 1.
    """
    n, d = pairs.n, pairs.difference
    won_a, won_b = pairs.both + pairs.only_a, pairs.both + pairs.only_b
    (low_a, high_a), (low_b, high_b) = wilson(won_a, n), wilson(won_b, n)
    phi, a, b = _phi(pairs), won_a / n, won_b / n
    below = _side(a - low_a, high_b - b, phi)
    above = _side(high_a - a, b - low_b, phi)
    return max(-1.0, d - below), min(1.0, d + above)


def needed(discordant: float, difference: float) -> int:
    """Scenes after which McNemar's test at 5 % sees a difference with a power of 80 %.

    Connor, Biometrics 43 (1987), 207-211, page 209.

    Args:
        discordant: the share of scenes in which the arms differ; at least the difference, since no fewer can make it.
        difference: of the shares of successes, above 0.
    """
    share = max(discordant, difference)
    spread = Z_TWO_SIDED * math.sqrt(share) + Z_POWER * math.sqrt(share - difference**2)
    return math.ceil((spread / difference) ** 2)


def _phi(pairs: Pairs) -> float:
    """Correlation of the pairs, corrected for continuity; 0 where an arm won all or none."""
    won_a, won_b, n = pairs.both + pairs.only_a, pairs.both + pairs.only_b, pairs.n
    margins = won_a * (n - won_a) * won_b * (n - won_b)
    if margins == 0:
        return 0.0
    product = pairs.both * pairs.neither - pairs.only_a * pairs.only_b
    return (max(0.0, product - n / 2) if product > 0 else product) / math.sqrt(margins)


def _side(one: float, other: float, phi: float) -> float:
    return math.sqrt(max(0.0, one * one - 2 * phi * one * other + other * other))


# Two arms by their seeds: how far apart they are, and what so many seeds could have shown.


def welch(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the mean of `a` less that of `b`, variances unequal (Welch, Biometrika 34 (1947), 28-35).

    Args:
        a, b: at least two values each, as one held-out accuracy a seed.
    """
    from scipy.stats import t

    first, second = (float(np.var(values, ddof=1)) / len(values) for values in (a, b))
    difference, variance = float(np.mean(a) - np.mean(b)), first + second
    if variance == 0:
        return difference, difference
    freedom = variance**2 / (first**2 / (len(a) - 1) + second**2 / (len(b) - 1))
    half = float(t.ppf(0.975, freedom)) * math.sqrt(variance)
    return difference - half, difference + half


def detectable(groups: Sequence[Sequence[float]]) -> float:
    """The difference of two means that a two-sided t-test at 5 % would find with a power of about 80 %.

    Args:
        groups: each arm's values, equally many, at least two; their pooled variance is taken.
    """
    from scipy.stats import t

    n, freedom = len(groups[0]), 2 * len(groups[0]) - 2
    spread = math.sqrt(float(np.mean([np.var(values, ddof=1) for values in groups])))
    return float(t.ppf(0.975, freedom) + t.ppf(0.8, freedom)) * spread * math.sqrt(2 / n)


# Which differences between arms are real, and when enough seeds have run: after AdaStop, arXiv 2306.10882.
#
# A group-sequential permutation test. At look k every arm that is still in question has k blocks of n measurements; if
# the arms of a family of pairs do not differ, the measurements of a block may be exchanged among them. The statistic is
# the family's largest `T_k = |sum of a's - sum of b's|` over all blocks. Of the level, k / looks may be spent by look
# k, and exchanges that would have been rejected earlier count no more. Where the family is rejected, its pair with the
# largest T is decided, and the smaller family that is left is tested (step-down).
#
# Ours: the exchange is among all arms of a family at once, and a smaller family is tested afresh at the earlier looks
# too. For two arms both are the paper's test. For more, as we understand the paper, it exchanges two arms' places for
# all pairs: our implementation of that errs in 7.4 % at a level of 5 % (8 equal arms, 28 pairs, 5 seeds, 2,000
# repetitions). Exchanged jointly the level holds exactly while no arm differs; where some do,
# tests/vlrl/evaluation/test_adastop.py measures it. The published package (adastop 0.1.3) compares |T| with a bound on
# the signed T: 9.7 % at 5 % with two equal arms.

ROWS = 20_000  # exchanges that are drawn, the data as they are among them: so the test is exact for any number
Pair = tuple[str, str]


@dataclass(frozen=True)
class PairVerdict:
    """`larger` or `smaller`: a's mean beside b's; `open`: no difference shown. look: the first that decided, from 1.

    p: that an exchange is as extreme as this pair, among those of its family that no earlier look would have rejected.
    """

    pair: Pair
    verdict: str
    difference: float
    p: float
    look: int


@dataclass
class AdaStop:
    """A test; each `look` takes it one look further.

    Args:
        pairs: of arms, to be compared.
        each: measurements of an arm a look.
        looks: at most so many.
        level: the family-wise error that is allowed.
    """

    pairs: Sequence[Pair]
    each: int
    looks: int
    level: float = 0.05
    rows: int = ROWS
    seed: int = 0
    decisions: dict[Pair, PairVerdict] = field(default_factory=dict)
    done: int = 0  # looks

    @property
    def undecided(self) -> list[Pair]:
        return [pair for pair in self.pairs if pair not in self.decisions or self.decisions[pair].verdict == "open"]

    @property
    def arms(self) -> list[str]:
        """Arms that need more measurements, in the order of the pairs; none after the last look."""
        return list(dict.fromkeys(arm for pair in self.undecided for arm in pair)) if self.done < self.looks else []

    def look(self, measured: Mapping[str, Sequence[float]]) -> None:
        """Decides what can be decided.

        Args:
            measured: arm -> all its measurements so far, `each` for every look; arms that are decided may have fewer.
        """
        self.done += 1
        left = self.undecided
        while left:
            course = self._course(left, measured)
            rejected, alive = self._spend(course.max(1))
            p = (alive[:, None] & (course[:, :, -1].max(1)[:, None] >= course[0, :, -1])).mean(0)
            for i, pair in enumerate(left):
                self._decide(pair, "open", measured, float(p[i]))
            if rejected is None:
                return
            first = int(course[0, :, rejected].argmax())
            self._decide(left.pop(first), "", measured, float(p[first]))

    def _decide(self, pair: Pair, verdict: str, measured: Mapping[str, Sequence[float]], p: float) -> None:
        a, b = (float(np.mean(measured[arm][: self.done * self.each])) for arm in pair)
        verdict = verdict or ("larger" if a > b else "smaller")
        self.decisions[pair] = PairVerdict(pair, verdict, a - b, p, self.done)

    def _course(self, pairs: Sequence[Pair], measured: Mapping[str, Sequence[float]]) -> np.ndarray:
        """Each pair's statistic after each look under each exchange, float64 [rows, pairs, looks], row 0 the data's."""
        arms = list(dict.fromkeys(arm for pair in pairs for arm in pair))
        order = exchanges(len(arms), self.each, self.looks, self.rows, self.seed)
        one, other = (np.array([arms.index(pair[side]) for pair in pairs]) for side in (0, 1))
        blocks = []
        for i in range(self.done):
            values = np.concatenate([measured[arm][i * self.each : (i + 1) * self.each] for arm in arms])
            sums = values[order[i]].reshape(self.rows, len(arms), self.each).sum(2)
            blocks.append(sums[:, one] - sums[:, other])
        # equal sums that were added in another order are ties
        return np.round(np.abs(np.stack(blocks, 2).cumsum(2)), 9)

    def _spend(self, largest: np.ndarray) -> tuple[int | None, np.ndarray]:
        """The first look at which the data (row 0) are rejected; which rows no look before the last rejects [rows].

        Args:
            largest: the family's statistic [rows, looks].
        """
        alive, before, spent = np.ones(len(largest), bool), np.ones(len(largest), bool), 0.0
        for j, now in enumerate(largest.T):
            before = alive.copy()
            bound, used = _bound(now[alive], len(now), self.level * (j + 1) / self.looks - spent)
            if now[0] >= bound:
                return j, before
            alive, spent = alive & (now < bound), spent + used
        return None, before


@functools.lru_cache(maxsize=16)
def exchanges(arms: int, each: int, looks: int, rows: int, seed: int) -> np.ndarray:
    """Which measurement goes where, int16 [looks, rows, arms * each]; row 0 leaves all in place."""
    start = np.tile(np.arange(arms * each, dtype=np.int16), (looks, rows, 1))
    exchanged = np.random.default_rng([seed, arms, each]).permuted(start, axis=2)
    exchanged[:, 0] = start[:, 0]
    return exchanged


def _bound(values: np.ndarray, rows: int, allowed: float) -> tuple[float, float]:
    """The smallest value that is reached by at most the allowed share of rows, and by how many it is."""
    distinct, counts = np.unique(values, return_counts=True)
    tails = counts[::-1].cumsum()[::-1] / rows  # share of rows with at least this value
    fine = np.flatnonzero(tails <= allowed + 1e-12)
    return (float(distinct[fine[0]]), float(tails[fine[0]])) if len(fine) else (math.inf, 0.0)
