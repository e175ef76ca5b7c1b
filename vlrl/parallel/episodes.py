"""Sharing out what is played and looked at, and putting it together again: the same in every process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vlrl.parallel import away
from vlrl.parallel.world import here
from vlrl.types import Decision, Episode

if TYPE_CHECKING:
    from torch import Tensor

Columns = Mapping[str, "Tensor | None"]


def gathered(policy: Any, episodes: Sequence[Episode], own: range) -> list[Episode]:
    """All episodes of a collection, of which this process has played those of the range; its own stay as they are."""
    world = here()
    if world.size == 1:
        return list(episodes)
    rows = world.gather([away.told(episodes[i], policy) for i in own])
    made, place = [], 0
    for rank, of_rank in enumerate(rows):
        for row in of_rank:
            asked = episodes[place]
            if rank == world.rank:
                for i, turn in enumerate(asked.turns):
                    asked.turns[i] = replace(turn, decision=replace(turn.decision, home=rank))
                made.append(asked)
            else:
                made.append(away.remade(row, asked.sample, asked.group, policy, rank))
            place += 1
    return made


def to_show(policy: Any, episodes: Sequence[Episode]) -> list[Episode]:
    """The episodes with small copies of the pictures that lie in other processes."""
    world, made = here(), list(episodes)
    if world.size == 1:
        return made
    own = {i: away.told(e, policy, small=True) for i, e in enumerate(made) if e.turns[0].decision.home == world.rank}
    for rank, rows in enumerate(world.gather(own)):
        if rank != world.rank:
            for i, row in rows.items():
                made[i] = away.remade(row, made[i].sample, made[i].group, policy, rank)
    return made


def mine(decisions: Sequence[Decision]) -> list[Decision]:
    """The decisions that are this process's to evaluate."""
    world = here()
    return [decision for number, decision in enumerate(decisions) if world.keeps(decision, number)]


def columns_of(
    find: Callable[[Sequence[Episode]], Columns], episodes: Sequence[Episode], once: Sequence[str] = ()
) -> Columns:
    """What `find` says of episodes, each asked where it was played.

    Args:
        find: episodes -> columns by name, [B, width] with a row for each decision; None: nothing to say.
        once: columns with a row for each episode.
    """
    world = here()
    if world.size == 1:
        return find(episodes)
    own = [i for i, episode in enumerate(episodes) if world.keeps(episode.turns[0].decision, i)]
    found = find([episodes[i] for i in own]) if own else {}
    rows: dict[str, dict[int, Tensor]] = {}
    for places, part in world.gather([own, {name: value for name, value in found.items() if value is not None}]):
        for name, value in part.items():
            counts = [1 if name in once else len(episodes[i].turns) for i in places]
            rows.setdefault(name, {}).update(zip(places, value.split(counts), strict=True))
    counts = {name: [1 if name in once else len(e.turns) for e in episodes] for name in rows}
    return {name: _stacked(of, counts[name]) for name, of in rows.items()}


def _stacked(rows: Mapping[int, Tensor], counts: Sequence[int]) -> Tensor:
    """Rows in the order of the episodes; zeros for episodes of which nothing was said, and behind shorter rows."""
    like, width = next(iter(rows.values())), max(value.shape[1] for value in rows.values())
    made = like.new_zeros(sum(counts), width)
    for i, part in enumerate(made.split(list(counts))):
        if i in rows:
            part[:, : rows[i].shape[1]] = rows[i]
    return made
