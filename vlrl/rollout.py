"""Collecting episodes: draw samples, let the policy act until every environment is done, score."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

from vlrl.types import Environment, Episode, Observation, Policy, Sample, Turn


def collect(policy: Policy, task: Any, samples: Sequence[Sample], group_size: int, **act: Any) -> list[Episode]:
    """`group_size` scored episodes of each sample, in order. Environments are made for one episode and always closed.

    A task's `at_once` says how many of its environments may be open: they are then reset and stepped in as many
    threads, and the next episode starts when one has ended. None: all at once, in this thread.

    Args:
        act: passed on to `policy.act`, for example `greedy=True`.
    """
    episodes = [Episode(sample, group) for group, sample in enumerate(samples) for _ in range(group_size)]
    at_once = getattr(task, "at_once", None)
    with _Stepper(at_once) as stepper:
        _play(policy, task, episodes, at_once or len(episodes), stepper, act)
    for episode in episodes:
        episode.score = task.score(episode)
        episode.reward = task.reward(episode.score)
    return episodes


def _play(
    policy: Policy, task: Any, episodes: list[Episode], at_once: int, stepper: _Stepper, act: dict[str, Any]
) -> None:
    """Takes every episode to its end; at most `at_once` environments are open."""
    waiting = iter(range(len(episodes)))
    opened: dict[int, Environment] = {}
    shown: dict[int, Observation] = {}
    try:
        while True:
            started = list(islice(waiting, at_once - len(opened)))
            opened.update((i, task.environment(episodes[i].sample)) for i in started)
            shown.update(zip(started, stepper.map(lambda i: opened[i].reset(), started), strict=True))
            if not opened:
                return
            active = list(opened)
            decisions = policy.act([episodes[i] for i in active], [shown[i] for i in active], **act)
            steps = stepper.map(lambda i, d: opened[i].step(d.action, d.frames), active, decisions)
            for i, decision, step in zip(active, decisions, steps, strict=True):
                episodes[i].turns.append(Turn(shown[i], decision, step))
                shown[i] = step.observation
                if step.done or step.cut:
                    opened.pop(i).close()
    finally:
        for environment in opened.values():
            environment.close()


class _Stepper:
    """Calls a function on each item: in this thread, or in `threads` at a time. The first error is raised."""

    def __init__(self, threads: int | None):
        self._pool = ThreadPoolExecutor(threads) if threads else None

    def map(self, function: Callable, *items: Iterable) -> list[Any]:
        return list((self._pool.map if self._pool else map)(function, *items))

    def __enter__(self) -> _Stepper:
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool:
            self._pool.shutdown()
