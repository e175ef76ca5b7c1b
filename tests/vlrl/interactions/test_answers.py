"""Rollout strategies and unlabelled rewards beside parts that they do not go with."""

from __future__ import annotations

import pytest

from vlrl.config import load
from vlrl.types import UserError


@pytest.mark.parametrize(
    ("base", "changes", "told"),
    [
        ("manipulation", ["rollouts=ghpo"], "rollouts (ghpo) works on one answer"),
        ("gui_grounding", ["rollouts={name: guide_turns, turns: 2}"], "this task has one: use guide"),
        ("gui_grounding", ["rollouts=snapshots"], "begins between two turns, but this task has one: use plain"),
        ("manipulation", ["rollouts=snapshots", "shaping=[ttrl]"], "rollouts: snapshots looks at them: use plain"),
        ("manipulation", ["rollouts=snapshots", "train.staleness=1"], "rollouts: snapshots goes on from its last step"),
        ("gui_grounding", ["rollouts=seele", "train.group_size=3"], "at most train.group_size = 3"),
        ("gui_grounding", ["rollouts=rethink"], "rollouts (rethink) goes on with thoughts"),
        ("gui_grounding", ["shaping=[dast, ttrl]"], "shaping.1 (ttrl) replaces the reward: put it first"),
        ("gui_grounding", ["shaping=[scope]", "rollouts=filter_refill"], "shaping.0 (scope) does without true answers"),
    ],
)
def test_what_cannot_work_is_named(base, changes, told):
    """The run would stop at its first step, or learn something else than it says."""
    with pytest.raises(UserError) as problem:
        load(f"configs/{base}.yaml", changes)
    assert told in str(problem.value)


def test_what_works_is_let_through():
    """A good recipe would be refused."""
    for name in ("ghpo", "seele", "igrpo", "vl_rethinker", "odf", "rlgf", "ttrl", "scope", "snapshot_rl"):
        load(f"configs/recipes/{name}.yaml")
    load("configs/manipulation.yaml", ["rollouts={name: guide_turns, turns: 2}"])
    load("configs/gui_grounding.yaml", ["shaping=[ttrl, dast]"])
