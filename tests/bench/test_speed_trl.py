"""The benchmark beside TRL: that both arms do the same work, step by step."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench" / "speed"))  # scripts, not a package

import vs_trl  # noqa: E402
import vs_trl_arms  # noqa: E402


def test_our_worker_tells_what_its_steps_cost(tmp_path):
    """A policy that changes under the benchmark would leave the published table without a way to check it."""
    row = vs_trl_arms.Row("tiny", 16, 2, 3, 2)
    assert vs_trl_arms.row_of(row.name) == row
    vs_trl_arms.write_work(row, 2, tmp_path)
    with contextlib.closing(vs_trl_arms.Arm(sys.executable, "vs_trl_ours.py", tmp_path)) as arm:
        timed, counted = arm.turn("step"), arm.turn("count")
    assert timed["cpu"] > 0 and timed["mib"] > 0 and "flops" not in timed
    assert timed["tokens"] == counted["tokens"] and timed["tokens"] % 4 == 0
    found = vs_trl.summary([timed, counted], 0)
    assert found["cpu"] == timed["cpu"] and found["flops"] > 1e8


def test_a_dead_worker_shows_its_log(tmp_path):
    """Otherwise a failing TRL is a benchmark that hangs, or an error without a reason."""
    with pytest.raises(SystemExit, match=r"gone\.py died:\n.*No such file"):
        vs_trl_arms.Arm(sys.executable, "gone.py", tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not (vs_trl_arms.trl_folder() / "made").exists(), reason="vs_trl has not installed TRL")
def test_both_arms_do_the_same_work():
    """A ratio between different amounts of work says nothing."""
    told = vs_trl.in_turns(vs_trl_arms.Row("tiny", 16, 2, 3, 2), 1)
    assert {one["tokens"] for each in told.values() for one in each} == {told["trl"][0]["tokens"]}
    trl, own = (vs_trl.summary(told[arm], 0) for arm in ("trl", "vlrl"))
    assert trl["flops"] > 1.5 * own["flops"]
