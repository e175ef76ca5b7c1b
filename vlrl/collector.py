"""Episodes for one step after the other, played while earlier steps learn (docs/asynchronous.md)."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from vlrl.config import Config
from vlrl.parallel.away import asked_by
from vlrl.players import Player, twin, weights_of
from vlrl.policies import streams
from vlrl.types import Episode


@dataclass(frozen=True, eq=False)
class Job:
    """A step's episodes, being played or to be played."""

    step: int
    version: int  # training steps that had made the weights
    positions: list[int]  # of the samples
    seed: int
    player: Player
    episodes: Callable[[], list[Episode]]


class Collector:
    """Plays for each step t by the weights that t - staleness steps made, or none had: a schedule and no race.

    What a run gives therefore hangs on its configuration and seed alone, not on which thread was faster. With staleness
    0 a step is played when it is asked for, by the first player itself. Else each of up to staleness + 1 steps is
    played in a thread of its own, by a twin of the first player with a copy of the weights. Of several processes each
    has the same twins, and those of one place in the round talk to each other alone.

    Args:
        sampler: draws a step's samples when it is begun, so that it has seen outcomes up to step t - staleness - 1.
        first: the run's own policy, task and strategy.
    """

    def __init__(self, config: Config, sampler: Any, first: Player):
        self.config, self.sampler, self.first = config, sampler, first
        self.staleness = config.train.staleness
        self.metrics: dict[str, float] = {}
        self._pending: deque[Job] = deque()
        self._twins: list[Player] = []
        self._threads: ThreadPoolExecutor | None = None

    def collect(self, step: int, keep: bool) -> tuple[Player, list[Episode]]:
        """The episodes of a step and who played them, once all that may be is under way by the present weights.

        Args:
            keep: as `vlrl.policies.vlm.VLM.act`; for staleness 0.
        """
        last = max(step, min(step + self.staleness, self.config.train.steps - 1))
        for ahead in range(step + len(self._pending), last + 1):
            self._begin(ahead, step, keep)
        job = self._pending.popleft()
        age = step - job.version
        assert job.step == step and 0 <= age <= self.staleness, (job.step, job.version, step)
        episodes = job.episodes()
        if self.staleness:
            self.metrics = {"staleness": float(age)}
            asked_by(self.first.policy, episodes)
            if hasattr(self.first.policy, "work"):
                self.first.policy.work.absorb(job.player.policy.work)
        return job.player, episodes

    def cpu_s(self) -> float:
        """Processor seconds of all tasks' simulators."""
        own = [player.task for player in self._twins if getattr(player.task, "at_once", None) is not None]
        return sum(task.cpu_s() for task in (self.first.task, *own) if hasattr(task, "cpu_s"))

    def __enter__(self) -> Collector:
        return self

    def __exit__(self, *error: object) -> None:
        """Ends what is under way, where it is: between two turns."""
        for player in self._twins:
            player.end()
        if self._threads:
            self._threads.shutdown(cancel_futures=True)

    def state_dict(self) -> dict[str, Any]:
        """What is under way, to be played again: drawn samples, seeds, and the weights of each version once.

        With what the sampler said of its latest draw, after which there may be no other.
        """
        told, before = [], None
        for job in self._pending:
            fresh = None if job.version == before else weights_of(job.player.policy)
            told.append({"step": job.step, "version": job.version, "positions": job.positions, "seed": job.seed,
                         "weights": fresh})  # fmt: skip
            before = job.version
        return {"pending": told, "sampler": dict(getattr(self.sampler, "metrics", {})) if told else {}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        weights: dict[str, Any] = {}
        for saved in state["pending"]:
            weights = saved["weights"] or weights
            self._submit(saved["step"], saved["version"], saved["positions"], saved["seed"], weights)
        if state["pending"] and hasattr(self.sampler, "metrics"):
            self.sampler.metrics = state["sampler"]

    def _begin(self, step: int, version: int, keep: bool) -> None:
        """Draws a step's samples and has them played by the present weights."""
        self.first.tell(step)  # a sampler may look at samples
        positions = self.sampler.draw(self.config.train.prompts)
        if self.staleness:
            seed = streams.key(self.first.policy)
            self._submit(step, version, positions, seed, weights_of(self.first.policy))
        else:
            play = functools.partial(self.first.play, positions, self.config.train.group_size, step, keep)
            self._pending.append(Job(step, version, positions, 0, self.first, play))

    def _submit(self, step: int, version: int, positions: list[int], seed: int, weights: dict[str, Any]) -> None:
        player = self._twin(step)
        player.put(weights, seed)
        player.tell(step)
        future = self._pool().submit(player.play, positions, self.config.train.group_size, step)
        self._pending.append(Job(step, version, positions, seed, player, future.result))

    def _twin(self, step: int) -> Player:
        """The twin of a step's place in the round: what it played last has been collected."""
        place = step % (self.staleness + 1)
        while len(self._twins) <= place:
            self._twins.append(twin(self.config, self.first))
        return self._twins[place]

    def _pool(self) -> ThreadPoolExecutor:
        """Threads for all that may be under way; one where an engine writes, which has one copy of the weights."""
        if self._threads is None:
            engine = getattr(self.first.policy, "engine", None)
            self._threads = ThreadPoolExecutor(1 if engine else self.staleness + 1, "rollouts")
        return self._threads
