"""Tournaments of a group's answers: who plays whom, and what each place earns (ArenaRL, arXiv 2601.06487).

A tournament is a generator: it yields the pairs of a round, is sent each pair's two scores, and returns a place for
each player, where larger is better and equal places were not told apart. So several play their rounds at once (`play`).
`coins` [n], numbers drawn without regard to the order of the players, decide what the scores leave open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from itertools import combinations
from statistics import fmean

Pair = tuple[int, int]
Scores = tuple[float, float]
Places = list[tuple[float, float]]
Tournament = Generator[list[Pair], list[Scores], Places]


def single_elimination(coins: Sequence[float], anchor: int) -> Tournament:
    """Seeded by a comparison of each with the anchor: 2 n - 2 comparisons. Place: rounds survived, then mean score.

    The best seeds meet last, and are those without an opponent in the first round where n is no power of 2.
    """
    n = len(coins)
    scores: list[list[float]] = [[] for _ in coins]
    others = [i for i in range(n) if i != anchor]
    against = yield [(i, anchor) for i in others]
    for i, (own, _) in zip(others, against, strict=True):
        scores[i].append(own)
    scores[anchor] = [fmean(score for _, score in against)]
    told = any(own != other for own, other in against)

    def strength(i: int) -> tuple[float, float]:
        return fmean(scores[i]), coins[i]

    seeds = sorted(range(n), key=strength, reverse=True)
    standing = [seeds[k] if k < n else None for k in bracket(n)]
    survived, rounds = [0] * n, 0
    while len(standing) > 1:
        pairs = list(zip(standing[::2], standing[1::2], strict=True))
        real = [(a, b) for a, b in pairs if a is not None and b is not None]
        results = dict(zip(real, (yield real), strict=True))
        rounds, standing = rounds + 1, []
        for pair in pairs:
            if pair not in results:
                standing.append(pair[0] if pair[1] is None else pair[1])
                continue
            (one, other), (a, b) = pair, results[pair]
            told |= a != b
            better = (a > b) if a != b else strength(one) > strength(other)
            scores[one].append(a)
            scores[other].append(b)
            standing.append(one if better else other)
            survived[other if better else one] = rounds
        survived[standing[0]] = rounds + 1
    return [(survived[i], fmean(scores[i])) if told else (0.0, 0.0) for i in range(n)]


def round_robin(coins: Sequence[float], anchor: int) -> Tournament:
    """Each against each: n (n - 1) / 2 comparisons. Place: wins, a draw counts half."""
    pairs = list(combinations(range(len(coins)), 2))
    wins = [0.0] * len(coins)
    for (one, other), (a, b) in zip(pairs, (yield pairs), strict=True):
        _count(wins, one, other, a, b)
    return [(won, 0.0) for won in wins]


def swiss(coins: Sequence[float], anchor: int) -> Tournament:
    """Rounded-up log2 n rounds of those with as many points, none twice. Place: points, then the opponents' points.

    Of an odd number the last who has not yet had one gets a point without a match.
    """
    n = len(coins)
    points, met, idle = [0.0] * n, [set[int]() for _ in coins], set[int]()
    told = False
    for _ in range(min(n - 1, math.ceil(math.log2(n)))):
        waiting = sorted(range(n), key=lambda i: (points[i], coins[i]), reverse=True)
        if n % 2:
            free = next(i for i in reversed(waiting) if i not in idle)
            waiting.remove(free)
            idle.add(free)
        pairs = []
        while waiting:
            one = waiting.pop(0)
            other = next((i for i in waiting if i not in met[one]), waiting[0])
            waiting.remove(other)
            pairs.append((one, other))
        for (one, other), (a, b) in zip(pairs, (yield pairs), strict=True):
            told |= a != b
            _count(points, one, other, a, b)
            met[one].add(other)
            met[other].add(one)
        if n % 2:
            points[free] += 1
    return [(points[i], sum(points[j] for j in met[i])) if told else (0.0, 0.0) for i in range(n)]


def _count(points: list[float], one: int, other: int, a: float, b: float) -> None:
    points[one] += 1.0 if a > b else 0.5 if a == b else 0.0
    points[other] += 1.0 if b > a else 0.5 if a == b else 0.0


def bracket(n: int) -> list[int]:
    """Seeds from 0 in the order in which they stand in the first round; those from n on are nobody."""
    order = [0]
    while len(order) < n:
        order = [seed for each in order for seed in (each, 2 * len(order) - 1 - each)]
    return order


def play(tournaments: Sequence[Tournament], judge: Callable[[list[tuple[int, Pair]]], list[Scores]]) -> list[Places]:
    """All to their ends, a round of each at a time. `judge` takes pairs with their tournament's number."""
    places: list[Places] = [[] for _ in tournaments]
    waiting: dict[int, list[Pair]] = {}

    def go_on(number: int, results: list[Scores] | None) -> None:
        try:
            waiting[number] = tournaments[number].send(results)
        except StopIteration as end:
            places[number] = end.value
            waiting.pop(number, None)

    for number in range(len(tournaments)):
        go_on(number, None)
    while waiting:
        asked = [(number, pair) for number, pairs in waiting.items() for pair in pairs]
        found = iter(judge(asked))
        for number, pairs in list(waiting.items()):
            go_on(number, [next(found) for _ in pairs])
    return places


def earned(places: Sequence[tuple[float, float]]) -> list[float]:
    """`1 - rank / (n - 1)` of each, rank 0 the best; equal places share the mean of their ranks."""
    ordered = sorted(places, reverse=True)
    first, count = {place: ordered.index(place) for place in places}, {place: ordered.count(place) for place in places}
    return [1 - (first[place] + (count[place] - 1) / 2) / max(1, len(places) - 1) for place in places]
