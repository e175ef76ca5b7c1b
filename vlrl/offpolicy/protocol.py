"""How offline learning is judged: beside who made the data (NeoRL-2) and between chance and the script (D4RL).

`given.json` of the run folder holds what the data are; the numbers of it that matter go into summary.json.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vlrl import log
from vlrl.decoders import load_json
from vlrl.offpolicy.config import OffPolicyConfig
from vlrl.offpolicy.properties import Properties, properties
from vlrl.offpolicy.transitions import Replay
from vlrl.types import UserError, wilson

FILE = "given.json"


def normalised(score: float, random: float, expert: float) -> float:
    """100 * (J - J_random) / (J_expert - J_random): 0 is chance, 100 the expert (D4RL, arXiv 2004.07219).

    Raises:
        ValueError: the expert is no better than chance.
    """
    if not expert > random:
        raise ValueError(f"an expert of {expert:g} is no better than chance of {random:g}")
    return 100 * (score - random) / (expert - random)


def keep(out: Path, given: Replay, config: OffPolicyConfig, task: Any) -> None:
    """Says what is given, if anything is, and writes it into the run folder with what chance and the script reach.

    Raises:
        UserError: more is given than is remembered.
    """
    if not given.added:
        return
    if given.added > len(given):
        raise UserError(f"capacity: {config.capacity}, but {given.added} transitions are given: set capacity to that")
    rows = given.all()
    found = properties(rows, config.reward, task.controls.low, task.controls.high)
    aside = [asdict(each) for each in getattr(task, "bad_rows", ())]
    print(_line(found, len(rows), len(aside), rewarded=bool(rows.reward.any())), file=sys.stderr)
    kept = {"properties": asdict(found), "references": references(task, config), "set_aside": aside}
    log.write_text(out / FILE, json.dumps(kept, indent=2) + "\n")


def references(task: Any, config: OffPolicyConfig) -> dict[str, float]:
    """Success of `random` and `expert` on the scenes of the evaluation, where the task can play them."""
    from vlrl.evaluate import evaluate

    if not (config.updates and hasattr(task, "arm") and task.pool.about.script):
        return {}
    arms = {name: task.arm(name) for name in ("random", "expert")}
    return {name: evaluate(arm.policy, _Split(arm, task), samples=config.eval.samples).accuracy.value
            for name, arm in arms.items()}  # fmt: skip


class _Split:
    """An arm with the task's scenes, as `evaluate` asks of a task."""

    def __init__(self, arm: Any, task: Any):
        self.at_once, self.score, self.reward, self.environment = arm.at_once, arm.score, arm.reward, arm.environment
        self.samples = task.samples


def told(out: Path, results: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """For the summary: the behaviour policy's success and return, what the data are, the score; {} without data."""
    path = out / FILE
    if not path.is_file():
        return {}
    kept = load_json(path, finite=False)
    found, reached = kept["properties"], results["after"]["value"]
    said = {"given_episodes": found["episodes"], "behaviour_return": found["returns"],
            "state_coverage": found["coverage"], "action_entropy": found["entropy"]}  # fmt: skip
    if found["success"] is not None:
        low, high = wilson(round(found["success"] * found["episodes"]), found["episodes"])
        said |= {"behaviour_success": found["success"], "behaviour_low": low, "behaviour_high": high,
                 "over_behaviour": reached - found["success"]}  # fmt: skip
    random, expert = (kept["references"].get(name) for name in ("random", "expert"))
    if random is not None and expert is not None:
        said |= {"random_success": random, "expert_success": expert}
        if expert > random:
            said["normalised_score"] = normalised(reached, random, expert)
    return said


def _line(found: Properties, rows: int, aside: int, rewarded: bool) -> str:
    won = "" if found.success is None else f", {100 * found.success:.0f} % won"
    return (
        f"given: {found.episodes} episodes{won}, {rows} transitions, return {found.returns:.3g}, state coverage "
        f"{found.coverage:.2f}, action entropy {found.entropy:.2f}, {100 * found.at_limits:.0f} % at limits"
        + f", {aside} episodes set aside" * bool(aside)
        + ("" if rewarded else "; NOTHING of it is rewarded: see reward.shaped, or the source's success")
    )
