"""Tournaments: who plays, how often, and what places are worth."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlrl.contrib.judges.tournament import bracket, play, rank_scores, round_robin, single_elimination, swiss

ALL = [single_elimination, round_robin, swiss]


def played(topology, strength, coins=None, anchor=0):
    """Places by a judge that knows, and the rounds' pairs."""
    rounds = []

    def judge(asked):
        rounds.append([pair for _, pair in asked])
        return [(strength[one], strength[other]) for _, (one, other) in asked]

    coins = coins or [random.Random(i).random() for i in range(len(strength))]
    (places,) = play([topology(coins, anchor)], judge)
    return places, rounds


def test_the_bracket_keeps_the_best_apart():
    """The two best answers would meet first, and the second best come out as a loser of round one."""
    assert bracket(8) == [0, 7, 3, 4, 1, 6, 2, 5]
    assert bracket(1) == [0] and bracket(3) == [0, 3, 1, 2]


def test_single_elimination_equals_the_worked_example():
    """Ranks would be other than the released code's."""
    # Scores out of 1, strengths 8 .. 1 tenths of players 0 .. 7 in the order 5 2 8 1 7 4 6 3; anchor 0 (.5).
    # Seeds by strength: players 2 4 6 0 5 7 1 3. Pairs: 2-3, 0-5, 4-1, 6-7; then 2-0, 4-6; then 2-4.
    # Ranks: 2, then 4, then the losers of the semi-finals 6 (.6), 0 (.5), then 5 (.4), 7 (.3), 1 (.2), 3 (.1).
    strength = [0.5, 0.2, 0.8, 0.1, 0.7, 0.4, 0.6, 0.3]
    places, rounds = played(single_elimination, strength)
    assert rounds[1:] == [[(2, 3), (0, 5), (4, 1), (6, 7)], [(2, 0), (4, 6)], [(2, 4)]]
    assert sum(map(len, rounds)) == 2 * 8 - 2
    assert rank_scores(places) == pytest.approx([4 / 7, 1 / 7, 1, 0, 6 / 7, 3 / 7, 5 / 7, 2 / 7])


@pytest.mark.parametrize("n", [2, 3, 5, 6, 7, 12])
@pytest.mark.parametrize("topology", ALL)
def test_everybody_plays_and_the_best_is_first(topology, n):
    """A group of a size that is no power of two would lose answers, or the best one to a bye."""
    strength = [(i * 7 + 3) % n / n for i in range(n)] if math.gcd(7, n) == 1 else [i / n for i in range(n)]
    places, rounds = played(topology, strength)
    count = {single_elimination: 2 * n - 2, round_robin: n * (n - 1) // 2}
    most = min(n - 1, math.ceil(math.log2(n))) * (n // 2)
    assert sum(map(len, rounds)) == count.get(topology, most)
    paid = rank_scores(places)
    assert max(range(n), key=paid.__getitem__) == max(range(n), key=strength.__getitem__)
    assert paid.count(max(paid)) == 1 and sum(paid) == pytest.approx(n / 2)
    if topology is round_robin:
        assert sorted(range(n), key=paid.__getitem__) == sorted(range(n), key=strength.__getitem__)


@settings(max_examples=60)
@given(st.sampled_from(ALL), st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=2, max_size=9), st.randoms())
def test_the_order_of_the_answers_does_not_count(topology, strength, drawn):
    """An answer would be paid for where in the batch it stands."""
    n, coins = len(strength), drawn.sample(range(100), len(strength))
    order = drawn.sample(range(n), n)
    here = rank_scores(played(topology, strength, coins, 0)[0])
    there = rank_scores(played(topology, [strength[i] for i in order], [coins[i] for i in order], order.index(0))[0])
    assert there == pytest.approx([here[i] for i in order])
    assert sum(here) == pytest.approx(n / 2)


@pytest.mark.parametrize("n", [2, 5, 8])
@pytest.mark.parametrize("topology", ALL)
def test_a_judge_that_cannot_tell_pays_all_the_same(topology, n):
    """A judge that is away would be a lottery that the policy learns from."""
    assert rank_scores(played(topology, [0.5] * n)[0]) == [0.5] * n


def test_nobody_meets_twice_in_a_swiss_tournament():
    """Comparisons would be spent on what is known."""
    _, rounds = played(swiss, [i / 8 for i in range(8)])
    pairs = [frozenset(pair) for each in rounds for pair in each]
    assert len(rounds) == 3 and len(set(pairs)) == len(pairs) == 12


def test_several_play_their_rounds_at_once():
    """A step's groups would be judged one behind the other."""
    calls = []

    def judge(asked):
        calls.append(len(asked))
        return [(0.9 if one < other else 0.1, 0.5) for _, (one, other) in asked]

    coins = [0.1, 0.2, 0.3, 0.4]
    many = play([single_elimination(coins, 0) for _ in range(5)] + [round_robin(coins[:3], 0)], judge)
    assert calls == [5 * 3 + 3, 5 * 2, 5 * 1] and len({tuple(places) for places in many[:5]}) == 1


def test_equal_places_share_their_ranks():
    """Of two that are as good the one that stands first would be paid more."""
    assert rank_scores([(1, 0), (0, 0), (1, 0), (2, 0)]) == pytest.approx([0.5, 0.0, 0.5, 1.0])
    assert rank_scores([(0, 0)] * 3) == [0.5] * 3
