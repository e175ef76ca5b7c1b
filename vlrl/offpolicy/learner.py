"""What learns and what it remembers: rounds of playing and updating, and how that is saved and goes on exactly."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vlrl import registry
from vlrl.offpolicy.config import OffPolicyConfig
from vlrl.offpolicy.given import about, given, statistics
from vlrl.offpolicy.play import Chunks, by_chance, play, transitions_of, weighed
from vlrl.offpolicy.transitions import Replay, Transitions
from vlrl.types import Episode

PROBE = 8  # episodes played by chance to learn the states' scale, where nothing is given
PLAYED, DRAWN = 1, 2  # what a random generator is for, beside the run's seed
REPLAYS = ("online", "offline")


@dataclass(frozen=True)
class Round:
    """What one round did."""

    told: dict[str, float]  # means of what the agent said
    timing: dict[str, float]  # seconds
    episodes: list[Episode] = field(default_factory=list)


class Learner:
    """An agent, its replays, and counts. `begin` or `load` comes first.

    Args:
        task: whose episodes are played (`tasks.manipulation`).
    """

    def __init__(self, config: OffPolicyConfig, task: Any):
        self.config, self.task = config, task
        self.online, self.offline = Replay(config.capacity), Replay(config.capacity)
        # rehearsed: updates before the first tick
        self.counts = {"ticks": 0, "episodes": 0, "updates": 0, "rehearsed": 0}
        self.owed = 0.0  # updates that the decisions played so far are still to bring
        self.scale: tuple[np.ndarray, np.ndarray] | None = None  # mean and spread of the states
        self.agent: Any = None

    @property
    def step(self) -> int:
        """Updates before the first tick, and then ticks."""
        return self.counts["rehearsed"] + self.counts["ticks"]

    @property
    def over(self) -> bool:
        return self.counts["rehearsed"] >= self.config.updates and self.counts["ticks"] >= self.config.ticks

    def begin(self) -> None:
        """What is given, or else what chance plays, tells the scale of the states; then there can be an agent."""
        found = given(self.task, self.config)
        if found is None:
            _, found = self._play(self._chance(), PROBE)
        else:
            self.offline.add(found)
        self._make(*statistics(found))

    def round(self) -> Round:
        """Updates from what is given alone, before the first tick; then some episodes and the updates they bring."""
        if self.counts["rehearsed"] < self.config.updates:
            return self._rehearse()
        start = time.monotonic()
        warm = self.counts["ticks"] < self.config.warmup
        episodes, played = self._play(self._warm() if warm else self.agent.act, self.config.episodes)
        rolled = time.monotonic()
        self.owed += 0.0 if warm else self.config.utd * len(played)
        told = self.learn(int(self.owed))
        self.owed -= int(self.owed)
        return Round(told, {"rollout": rolled - start, "update": time.monotonic() - rolled}, episodes)

    def remember(self, played: Transitions, won: np.ndarray) -> None:
        """Into the replay; a person's also to what is given, for a person shows the job (HIL-SERL, 2410.21845).

        Args:
            won: bool [M], of an episode that did the job, which may show it as well (self-imitation).
        """
        self.online.add(played)
        shown = played.person | (won & self.config.give_won)
        if shown.any():
            self.offline.add(played.take(shown))

    def learn(self, count: int) -> dict[str, float]:
        """So many updates, and the means of what the agent says of them."""
        sums, seen = Counter(), Counter()
        for _ in range(count):
            for name, value in self.agent.update(*self.batch()).items():
                sums[name] += value
                seen[name] += 1
            self.counts["updates"] += 1
        return {name: sums[name] / seen[name] for name in sums}

    def batch(self) -> tuple[Transitions | None, Transitions | None]:
        """Half played and half given where there are both, drawn evenly from each; else all from the one."""
        rng, size = np.random.default_rng([self.config.seed, DRAWN, self.counts["updates"]]), self.config.batch
        half = size // 2 if len(self.online) and len(self.offline) else size
        online = self.online.sample(half, rng) if len(self.online) else None
        return online, self.offline.sample(half, rng) if len(self.offline) else None

    def save(self, folder: Path) -> None:
        """The policy and the replays; what else changes is in `state_dict`."""
        self.agent.save(folder)
        for name in REPLAYS:
            getattr(self, name).save(folder / f"{name}.npz")

    def state_dict(self) -> dict[str, Any]:
        scale = [torch.from_numpy(each) for each in self.scale]
        return {"counts": self.counts, "owed": self.owed, "scale": scale, "agent": self.agent.state_dict()}

    def load(self, folder: Path, state: dict[str, Any]) -> None:
        """What `save` and `state_dict` kept."""
        self._make(*(each.numpy() for each in state["scale"]))
        self.agent.load_state_dict(state["agent"])
        self.counts, self.owed = state["counts"], state["owed"]
        for name in REPLAYS:
            getattr(self, name).load(folder / f"{name}.npz")

    def _make(self, mean: np.ndarray, spread: np.ndarray) -> None:
        self.scale = (mean, spread)
        told = about(self.task, self.config, mean, spread)
        self.agent = registry.make("agent", self.config.agent, "agent", told, self.config.seed)

    def _rehearse(self) -> Round:
        start = time.monotonic()
        count = min(self.config.log.rows_every, self.config.updates - self.counts["rehearsed"])
        told = self.learn(count)
        self.counts["rehearsed"] += count
        return Round(told, {"update": time.monotonic() - start})

    def _play(self, chunks: Chunks, count: int) -> tuple[list[Episode], Transitions]:
        episodes = play(chunks, self.task, self.counts["episodes"], count, self.config.seed)
        played = weighed(transitions_of(episodes), self.config.reward)
        won = np.repeat([e.score.is_correct for e in episodes], [len(e.turns) for e in episodes])
        self.remember(played, won)
        self.counts["episodes"] += count
        self.counts["ticks"] += int(played.ticks().sum())
        return episodes, played

    def _chance(self) -> Chunks:
        rng = np.random.default_rng([self.config.seed, PLAYED, self.counts["episodes"]])
        return by_chance(self.task.controls.low, self.task.controls.high, self.task.chunk, rng)

    def _warm(self) -> Chunks:
        warm = getattr(self.agent, "warm", None)
        return (lambda state, explore: warm(state)) if warm else self._chance()
