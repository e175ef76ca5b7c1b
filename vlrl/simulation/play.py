"""One arm plays its scenes; what came of each is a row."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlrl.rollout import collect
from vlrl.simulation.arms import Arm
from vlrl.types import Decision, Episode, Policy, Sample

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Played:
    """Scenes played by an arm, in their order."""

    arm: Arm
    episodes: list[Episode]
    rows: list[Row]
    wall_s: float  # of all episodes; the start of workers and of renderers is not in it
    policy_s: float  # of it, in which the policy decided


class Watched:
    """A policy whose time is taken, and that says which episode it is at."""

    def __init__(self, policy: Policy, say: Callable[[int], None]):
        self._policy, self._say, self.seconds = policy, say, 0.0

    def act(self, episodes: Sequence[Episode], observations: Sequence[Any], **how: Any) -> list[Decision]:
        self._say(max(episode.group for episode in episodes) + 1)
        started = time.perf_counter()
        decisions = self._policy.act(episodes, observations, **how)
        self.seconds += time.perf_counter() - started
        return decisions


def play(arm: Arm, samples: Sequence[Sample], say: Callable[[int], None]) -> Played:
    """Greedy episodes, as training's evaluation plays them; workers should be warm. `say` gets the newest's number.

    Raises:
        UserError: what `collect` raises.
    """
    watched, started = Watched(arm.policy, say), time.perf_counter()
    episodes = collect(watched, arm.task, samples, group_size=1, greedy=True)
    seconds = time.perf_counter() - started
    return Played(arm, episodes, [row(arm.name, episode) for episode in episodes], seconds, watched.seconds)


def row(arm: str, episode: Episode) -> Row:
    """One episode as `result.json` has it; numbers of smoothness are None where there were too few ticks."""
    infos = [turn.step.info for turn in episode.turns]
    outcome, last = episode.score.answer["outcome"], infos[-1]
    named = (key.removeprefix(f"{outcome}: ") for key in last if key.startswith(f"{outcome}: "))
    return {
        "arm": arm, "seed": episode.sample.answer, "sample": episode.sample.id,
        "outcome": outcome, "reason": next(named, ""), "success": outcome == "success",
        "ticks": int(sum(info.get("ticks", 0) for info in infos)), "decisions": len(infos),
        "reward": episode.reward, "clipped": int(sum(info.get("clipped", 0) for info in infos)),
        "action_rate": last.get("action_rate"), "action_jerk": last.get("action_jerk"), "faults": list(episode.faults),
    }  # fmt: skip
