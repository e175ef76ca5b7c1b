"""Tournaments and votes of judges."""

from __future__ import annotations

import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import combinations
from queue import Empty, SimpleQueue
from statistics import fmean, median
from typing import Literal

# Many requests at a time, at a bounded rate, until a deadline. Clocks are monotonic.


def concurrently[T, R](do: Callable[[T], R], items: Sequence[T], workers: int, until: float) -> list[R | None]:
    """What `do` makes of each item, `workers` at a time; None where it was not done at the time `until`.

    The threads are daemons: one that hangs holds up neither the caller nor the program's end. An error of `do` is
    raised here.
    """
    waiting: SimpleQueue[tuple[int, T]] = SimpleQueue()
    done: SimpleQueue[tuple[int, R | None, Exception | None]] = SimpleQueue()
    for each in enumerate(items):
        waiting.put(each)

    def work() -> None:
        while time.monotonic() < until:
            try:
                number, item = waiting.get_nowait()
            except Empty:
                return
            try:
                done.put((number, do(item), None))
            except Exception as error:
                done.put((number, None, error))

    for _ in range(min(workers, len(items))):
        threading.Thread(target=work, daemon=True).start()
    results: list[R | None] = [None] * len(items)
    for _ in items:
        try:
            number, result, error = done.get(timeout=max(0.0, until - time.monotonic()))
        except Empty:
            break
        if error:
            raise error
        results[number] = result
    return results


class RequestPacer:
    """Spreads requests of several threads: one every `60 / per_minute` seconds, none while the server asks to wait."""

    def __init__(self, per_minute: int | None):
        self._gap = 60 / per_minute if per_minute else 0.0
        self._next, self._lock = 0.0, threading.Lock()

    def wait(self, until: float) -> bool:
        """Sleeps until it is this request's turn; False, at once, where that is not before `until`."""
        with self._lock:
            turn = max(self._next, time.monotonic())
            if turn >= until:
                return False
            self._next = turn + self._gap
        time.sleep(max(0.0, turn - time.monotonic()))
        return True

    def hold(self, seconds: float) -> None:
        """No request before so many seconds have passed."""
        with self._lock:
            self._next = max(self._next, time.monotonic() + seconds)


# Tournaments of a group's answers: who plays whom, and what each place earns (ArenaRL, arXiv 2601.06487).
#
# A tournament is a generator: it yields the pairs of a round, is sent each pair's two scores, and returns a place for
# each player, where larger is better and equal places were not told apart. So several play their rounds at once
# (`play`).
# `coins` [n], numbers drawn without regard to the order of the players, decide what the scores leave open.

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
    is_decided = any(own != other for own, other in against)

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
            is_decided |= a != b
            better = (a > b) if a != b else strength(one) > strength(other)
            scores[one].append(a)
            scores[other].append(b)
            standing.append(one if better else other)
            survived[other if better else one] = rounds
        survived[standing[0]] = rounds + 1
    return [(survived[i], fmean(scores[i])) if is_decided else (0.0, 0.0) for i in range(n)]


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
    is_decided = False
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
            is_decided |= a != b
            _count(points, one, other, a, b)
            met[one].add(other)
            met[other].add(one)
        if n % 2:
            points[free] += 1
    return [(points[i], sum(points[j] for j in met[i])) if is_decided else (0.0, 0.0) for i in range(n)]


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
        questions = [(number, pair) for number, pairs in waiting.items() for pair in pairs]
        verdicts = iter(judge(questions))
        for number, pairs in list(waiting.items()):
            go_on(number, [next(verdicts) for _ in pairs])
    return places


def rank_scores(places: Sequence[tuple[float, float]]) -> list[float]:
    """`1 - rank / (n - 1)` of each, rank 0 the best; equal places share the mean of their ranks."""
    ordered = sorted(places, reverse=True)
    first, count = {place: ordered.index(place) for place in places}, {place: ordered.count(place) for place in places}
    return [1 - (first[place] + (count[place] - 1) / 2) / max(1, len(places) - 1) for place in places]


# Several votes on the same answers: in which order they are shown, and what comes of it.

Vote = Literal["mean", "majority"]


def ballots(answers: Sequence[str], votes: int, together: bool, seed: int) -> Iterator[tuple[int, tuple[str, ...]]]:
    """(vote, answers to show) of each question: all together, in another order for each vote; or one by one.

    The order hangs on the answers and the seed alone.
    """
    for vote in range(votes):
        if not together:
            yield from ((vote, (answer,)) for answer in answers)
            continue
        listed = list(answers)
        random.Random(f"{seed}/{vote}/{answers}").shuffle(listed)
        yield vote, tuple(listed)


def counted(cast: Mapping[str, Mapping[int, float]], how: Vote, kept: int | None) -> dict[str, float]:
    """The score of each answer that has a vote.

    Args:
        cast: answer -> vote -> score in [0, 1].
        kept: votes that count: those whose scores lie nearest to the answers' medians, on average over the answers.
    """
    centre = {answer: median(scores.values()) for answer, scores in cast.items()}
    far: dict[int, list[float]] = {}
    for answer, scores in cast.items():
        for vote, score in scores.items():
            far.setdefault(vote, []).append(abs(score - centre[answer]))
    nearest = sorted(far, key=lambda vote: (fmean(far[vote]), vote))[:kept]
    values = {answer: [scores[vote] for vote in nearest if vote in scores] for answer, scores in cast.items()}
    result = fmean if how == "mean" else _majority
    return {answer: result(scores) for answer, scores in values.items() if scores}


def _majority(scores: Sequence[float]) -> float:
    often = Counter(round(score, 1) for score in scores)
    most = max(often.values())
    return fmean(score for score, count in often.items() if count == most)
