"""Which rollouts a page shows when there are more than it can hold: an even sample, and those worth reading."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
EVEN = "even"


def choose(rows: Sequence[Row], count: int) -> dict[int, str]:
    """Places of at most `count` rows, in their order -> why each was chosen; '' where all are shown.

    Half are an even sample. The others are, in turn, a parse failure (each reason in turn), the best reward, the
    worst reward of those that parsed, and the most surprising: the reward that is farthest from the mean of the other
    rollouts of its sample. The same sample comes twice only where there is no other; of equals the newest comes first.
    """
    if len(rows) <= count:
        return dict.fromkeys(range(len(rows)), "")
    picked: dict[int, str] = {}
    queues = {why: iter(_fresh(ranked, rows)) for why, ranked in _ranked(rows).items()}
    while queues and len(picked) < count // 2:
        for why, queue in list(queues.items()):
            place = next((place for place in queue if place not in picked), None)
            if place is None:
                del queues[why]
            elif len(picked) < count // 2:
                picked[place] = why
    rest = [place for place in range(len(rows)) if place not in picked]
    picked |= dict.fromkeys(spread(rest, count - len(picked)), EVEN)
    return dict(sorted(picked.items()))


def spread(items: Sequence, count: int) -> list:
    """At most `count` >= 2 items: the first, the last and evenly between."""
    if len(items) <= count:
        return list(items)
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def _ranked(rows: Sequence[Row]) -> dict[str, list[int]]:
    """Kind -> places, the ones most worth reading first."""
    newest = range(len(rows) - 1, -1, -1)
    parsed = [place for place in newest if not rows[place].get("reason") and _reward(rows[place]) is not None]
    odd = _surprise(rows)
    return {
        "failure": _in_turn((place for place in newest if rows[place].get("reason")), lambda p: rows[p]["reason"]),
        "best": sorted(parsed, key=lambda place: -_reward(rows[place])),
        "worst": sorted(parsed, key=lambda place: _reward(rows[place])),
        "surprising": sorted((place for place in newest if odd.get(place)), key=lambda place: -odd[place]),
    }


def _surprise(rows: Sequence[Row]) -> dict[int, float]:
    """Place -> distance of the reward from the mean of the sample's other rollouts; samples met once have none."""
    of_sample: dict[str, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        if _reward(row) is not None and row.get("sample_id") is not None:
            of_sample[str(row["sample_id"])].append(place)
    found = {}
    for places in of_sample.values():
        total, others = sum(_reward(rows[place]) for place in places), len(places) - 1
        for place in places if others else ():
            found[place] = abs(_reward(rows[place]) - (total - _reward(rows[place])) / others)
    return found


def _in_turn(places: Iterable[int], kind: Callable[[int], Any]) -> list[int]:
    """One of each kind, then a second of each, and so on."""
    kinds: dict[str, list[int]] = defaultdict(list)
    for place in places:
        kinds[str(kind(place))].append(place)
    turns = itertools.zip_longest(*kinds.values())
    return [place for turn in turns for place in turn if place is not None]


def _fresh(places: Sequence[int], rows: Sequence[Row]) -> list[int]:
    """First each sample once, then the rest."""
    met: set[str] = set()
    first, again = [], []
    for place in places:
        sample = str(rows[place].get("sample_id", place))
        (again if sample in met else first).append(place)
        met.add(sample)
    return first + again


def _reward(row: Row) -> float | None:
    value = row.get("reward")
    return value if isinstance(value, int | float) else None
