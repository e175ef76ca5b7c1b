"""What looking at a trial after every round costs: false claims, and episodes until a decision.

    python bench/bridge.py trial                          # the tables of docs/trial.md, about a minute
    python bench/bridge.py trial --trials 4000 --json trial.json

False claims: two policies of the same share, looked at after every round until 100 rounds. Episodes: all policies
together, until the test of `vlrl trial` says which policy is better, beside the fixed number with a power of 80 %.
No difference: the same until it says that two equal policies differ by no more than delta.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from robot.trial.stats import fisher, pairs, streams

ALPHA = 0.05
LOOKS = 100  # rounds
SAME = (0.1, 0.5, 0.9)
FIXED = {(0.5, 0.7): 90, (0.8, 0.9): 196, (0.9, 0.94): 718}  # episodes of each policy, power 80 %, two-sided 5 %
LONGEST = 4  # times the fixed number: then a trial is given up
BLOCK = 250  # trials at a time, for memory
NONE = np.zeros(1)
PAPER = 0.18  # the prior that arXiv 2106.02693 recommends
EQUAL = {(0.5, 0.2): 400, (0.9, 0.2): 300, (0.9, 0.1): 800}  # share of both, delta -> rounds until it is given up
GRID = 0.02  # between the differences that must be refuted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=2000, help="simulated trials of each row, default %(default)s")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    claims = [false_claims(share, options.trials, rng) for share in SAME]
    lengths = [lengths_of(*shares, n, options.trials, rng) for shares, n in FIXED.items()]
    none = [no_difference(*case, rounds, options.trials // 10, rng) for case, rounds in EQUAL.items()]
    print(table(claims), table(lengths), table(none), sep="\n\n")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            rows = {"claims": claims, "lengths": lengths, "no_difference": none}
            json.dump({"trials": options.trials, "seed": options.seed, **rows}, file)


def false_claims(share: float, trials: int, rng: np.random.Generator) -> dict[str, Any]:
    """Shares of trials of two equal policies in which a difference was claimed at some look."""
    a, b = rng.random((2, trials, LOOKS)) < share
    return {
        "both succeed in": share,
        "e-value, streams": float(np.mean(first(streams, a, b) <= LOOKS)),
        "e-value, pairs": float(np.mean(first(pairs, a, b) <= LOOKS)),
        "Fisher after every round": peeking(a, b, range(1, LOOKS + 1)),
        "Fisher every 10 rounds": peeking(a, b, range(10, LOOKS + 1, 10)),
        "Fisher once, at the end": peeking(a, b, [LOOKS]),
    }


def peeking(a: np.ndarray, b: np.ndarray, looks: Sequence[int]) -> float:
    """The share of trials in which Fisher's exact test has p < alpha at one of the looks, counted in rounds."""
    won_a, won_b = np.cumsum(a, axis=1), np.cumsum(b, axis=1)
    found = [
        any(fisher(int(x[n - 1]), n, int(y[n - 1]), n) < ALPHA for n in looks)
        for x, y in zip(won_a, won_b, strict=True)
    ]
    return float(np.mean(found))


def first(process, a: np.ndarray, b: np.ndarray, differences: np.ndarray = NONE) -> np.ndarray:
    """The first round, from 1, by which all differences are refuted; the number of rounds + 1 where none is."""
    stops, size = [], max(1, BLOCK // len(differences))
    for i in range(0, len(a), size):
        best = np.maximum.accumulate(process(a[i : i + size], b[i : i + size], differences), axis=1)
        reached = (best >= -math.log(ALPHA)).all(axis=2)
        stops.append(np.where(reached.any(axis=1), reached.argmax(axis=1) + 1, a.shape[1] + 1))
    return np.concatenate(stops)


def no_difference(share: float, delta: float, rounds: int, trials: int, rng: np.random.Generator) -> dict[str, Any]:
    """How long it takes to see that two equal policies differ by no more than delta."""
    a, b = rng.random((2, trials, rounds)) < share
    beyond = np.arange(delta, 1, GRID) + 1e-6
    row: dict[str, Any] = {"both succeed in, delta": f"{share:.0%}, {delta:g}"}
    for name, process in (("streams", streams), ("pairs", pairs)):
        stops = first(process, a, b, np.concatenate([-beyond, beyond]))
        row |= {f"{name}: median": float(np.median(2 * np.minimum(stops, rounds)))}
        row |= {f"{name}: 90 % by": float(np.quantile(2 * np.minimum(stops, rounds), 0.9))}
    return row


def lengths_of(low: float, high: float, fixed: int, trials: int, rng: np.random.Generator) -> dict[str, Any]:
    """How long trials of two policies of such shares last, in episodes of both together."""
    rounds = LONGEST * fixed
    a, b = rng.random((trials, rounds)) < high, rng.random((trials, rounds)) < low
    row = {"shares": f"{low:.0%}, {high:.0%}", "fixed number": 2 * fixed}
    stops = first(streams, a, b)
    row |= _lengths("streams", stops, fixed) | {"streams: the worse one named": _wrong(a, b, stops)}
    for name, process in (("streams, prior 0.18", partial(streams, prior=PAPER)), ("pairs, all starts alike", pairs)):
        row[f"{name}: mean"] = float(np.mean(2 * np.minimum(first(process, a, b), rounds)))
    return row | _shared(low, high, fixed, trials, rng)


def _shared(low: float, high: float, fixed: int, trials: int, rng: np.random.Generator) -> dict[str, Any]:
    """Of pairs, where half of the failures of the better policy are of starts that are too hard for both."""
    hard = (1 - high) / 2
    easy = rng.random((trials, LONGEST * fixed)) >= hard
    a, b = (easy & (rng.random(easy.shape) < share / (1 - hard)) for share in (high, low))
    return {"pairs: starts too hard for both": f"{hard:.0%}"} | _lengths("pairs", first(pairs, a, b), fixed)


def _wrong(a: np.ndarray, b: np.ndarray, stops: np.ndarray) -> float:
    """The share of trials that ended with more successes of B, [trials, rounds] each."""
    lead = np.cumsum(a * 1 - b * 1, axis=1)
    done = stops <= lead.shape[1]
    return float(np.mean(done & (lead[np.arange(len(stops)), np.minimum(stops, lead.shape[1]) - 1] < 0)))


def _lengths(name: str, stops: np.ndarray, fixed: int) -> dict[str, Any]:
    rounds = LONGEST * fixed
    episodes = 2 * np.minimum(stops, rounds)
    return {
        f"{name}: mean": float(np.mean(episodes)),
        f"{name}: median": float(np.median(episodes)),
        f"{name}: 90 % by": float(np.quantile(episodes, 0.9)),
        f"{name}: decided by the fixed number": float(np.mean(stops <= fixed)),
        f"{name}: decided by {LONGEST} times it": float(np.mean(stops <= rounds)),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """As Markdown, a column for each row: what is measured goes down."""
    names = list(rows[0])
    lines = [[name, *(_said(row[name]) for row in rows)] for name in names]
    rule = ["---"] * len(lines[0])
    return "\n".join("| " + " | ".join(line) + " |" for line in (lines[0], rule, *lines[1:]))


def _said(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.4f}".removesuffix("0") if value <= 1 else f"{value:.0f}"


if __name__ == "__main__":
    main()
