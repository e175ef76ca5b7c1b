"""What episodes have earned. A reward that fails costs its own episode its credit, and no other anything."""

from __future__ import annotations

import math
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from vlrl.deadline import OverdueError, deadline
from vlrl.types import Episode, Score, UserError

RAISED, LATE, ODD = "reward_raised", "reward_late", "reward_not_finite"  # reasons in the log: `parse_fail/reward_late`
IN_A_ROW = 16  # rewards that may fail one after the other: then it is no matter of a sample


def scored(task: Any, episodes: Sequence[Episode]) -> None:
    """Gives every episode its score and reward, in place.

    A reward that raises, takes longer than the task's `reward_s` seconds (None: no limit) or is not finite says nothing
    of its episode: that gets no credit, and what the others of its group got on average, so that it moves nothing; one
    without others counts as wrong. The score's `reason` says why; the first is told on stderr.

    Raises:
        UserError: from the task; IN_A_ROW rewards failed one after the other.
    """
    failed: dict[int, str] = {}
    for number, episode in enumerate(episodes):
        problem = _tried(task, episode)
        task.failed_rewards = getattr(task, "failed_rewards", 0) + 1 if problem else 0
        if problem:
            failed[number] = problem
        if task.failed_rewards >= IN_A_ROW:
            raise UserError(f"the reward failed {IN_A_ROW} times in a row, last for {problem}: mend it")
    if not failed:
        return
    groups: dict[int, list[Episode]] = {}
    for number, episode in enumerate(episodes):
        if number not in failed:
            groups.setdefault(episode.group, []).append(episode)
    for number in failed:
        _stand_in(task, episodes[number], groups.get(episodes[number].group, []))
    told = f"{len(failed)} of {len(episodes)} rewards failed and give no credit; the first: {failed[min(failed)]}"
    print(f"\nvlrl: {told}", file=sys.stderr)


def _tried(task: Any, episode: Episode) -> str | None:
    """Scores one episode; what went wrong, which the score's reason then names."""
    limit, where = getattr(task, "reward_s", None), f"sample {episode.sample.id}"
    try:
        with deadline(limit):
            episode.score = task.score(episode)
            episode.reward = task.reward(episode.score)
            numbers = {"reward": episode.reward, "correct": episode.score.correct, **episode.score.parts}
            odd = next((name for name, value in numbers.items() if not math.isfinite(value)), None)
    except UserError:
        raise
    except OverdueError:
        episode.score = Score({}, 0.0, reason=LATE)
        return f"{where}: not done in train.reward_s = {limit:g} s"
    except Exception as error:
        episode.score = Score({}, 0.0, reason=RAISED)
        return f"{where}: {one_line(error)}"
    if odd is None:
        return None
    episode.score = Score({}, 0.0, reason=ODD)
    return f"{where}: {odd} is {numbers[odd]}"


def _stand_in(task: Any, episode: Episode, others: Sequence[Episode]) -> None:
    """Makes an episode one that says nothing: the mean of the others of its group, and no credit for any unit."""
    parts = dict.fromkeys(getattr(task, "weights", ()), 0.0)
    correct = episode.reward = 0.0
    if others:
        shared = [name for name in others[0].score.parts if all(name in other.score.parts for other in others)]
        parts = {name: fmean([other.score.parts[name] for other in others]) for name in shared}
        correct = fmean([other.score.correct for other in others])
        episode.reward = fmean([other.reward for other in others])
    episode.score = replace(episode.score, parts=parts, correct=correct)
    for i, turn in enumerate(episode.turns):
        episode.turns[i] = replace(turn, decision=replace(turn.decision, forced=_all(turn.decision)))


def _all(decision: Any) -> Any:
    """Every unit of a decision."""
    return decision.logprobs.new_ones(len(decision.logprobs)).bool() if decision.logprobs is not None else None


def one_line(error: Exception) -> str:
    """An error in one line, with the place that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    text = (str(error).strip().splitlines() or [""])[0][:200]
    return f"{type(error).__name__}: {text}{place}"
