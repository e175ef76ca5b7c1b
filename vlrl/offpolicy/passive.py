"""Sources that are read for their states alone: by `vlrl preferences` and `vlrl pretrain`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from vlrl import registry
from vlrl.offpolicy.transitions import Transitions, concat
from vlrl.strict import Component
from vlrl.types import UserError


def check(named: Sequence[tuple[str, Component, str]], sources: Sequence[Component]) -> None:
    """UserError unless (kind, component, key) and the sources under `offline` exist and have such options."""
    for kind, component, key in [*named, *(("source", each, f"offline.{i}") for i, each in enumerate(sources))]:
        registry.check_component(kind, component, key)


def read(task: Any, sources: Sequence[Component], seed: int) -> Transitions:
    """What the sources give, together.

    Raises:
        UserError: nothing, states that are not finite, or of different robots.
    """
    parts = [registry.make("source", each, f"offline.{i}")(task, seed) for i, each in enumerate(sources)]
    for i, part in enumerate(parts):
        if not len(part) or not (np.isfinite(part.state).all() and np.isfinite(part.next_state).all()):
            raise UserError(f"offline.{i}: {sources[i].name} gave nothing, or states that are not finite")
    if len({(part.state.shape[1], part.action.shape[1:]) for part in parts}) > 1:
        raise UserError("offline: sources of different robots")
    return concat(parts)


def sequences(given: Transitions) -> list[np.ndarray]:
    """What transitions lead from and to, one after another: float32 [T, S] each, T at least 2. No action is read.

    Overlapping chunks of K ticks make K sequences of an episode, each a decision apart.
    """
    leads = {state.tobytes(): row for row, state in reversed(list(enumerate(given.state)))}
    arrived = {state.tobytes() for state in given.next_state}
    starts = sorted(row for state, row in leads.items() if state not in arrived)
    found, seen = [], np.zeros(len(given), bool)
    for start in (*starts, *range(len(given))):  # the latter: what goes in a circle has no beginning
        row, rows = start, []
        while row is not None and not seen[row]:
            seen[row] = True
            rows.append(row)
            row = leads.get(given.next_state[row].tobytes())
        if rows:
            found.append(np.concatenate([given.state[rows], given.next_state[rows[-1:]]]))
    return found
