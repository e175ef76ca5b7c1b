"""Collecting episodes: draw samples, let the policy act until every environment is done, score."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from vlrl.parallel import here
from vlrl.parallel.episodes import gathered
from vlrl.policies import streams
from vlrl.types import Environment, Episode, Observation, Policy, Sample, Turn, UserError
from vlrl.work import timed

TRIES = 3  # of an episode whose environment fails


def collect(
    policy: Policy, task: Any, samples: Sequence[Sample], group_size: int,
    begun: Sequence[Sequence[int]] | None = None, **act: Any,
) -> list[Episode]:  # fmt: skip
    """`group_size` scored episodes of each sample, in order. Environments are made for one episode and always closed.

    An episode that its environment's fault made void is played anew; `faults` keeps the reasons.

    A task's `at_once` says how many of its environments may be open: they are then reset and stepped in as many
    threads, and the next episode starts when one has ended. None: all at once, in this thread.

    Of several processes each plays its part of the groups and gets the others' episodes from those that played them.
    What is sampled hangs on the episode's place alone, so that all of this is the same in one process.

    Args:
        begun: per episode, the tokens that its first completion begins with (`vlrl.policies.vlm.VLM.act`).
        act: passed on to `policy.act`, for example `greedy=True`.

    Raises:
        UserError: an episode was void TRIES times.
    """
    episodes = [Episode(sample, group) for group, sample in enumerate(samples) for _ in range(group_size)]
    if not act.get("greedy"):
        key = streams.key(policy)
        for place, episode in enumerate(episodes):
            episode.stream = (key, place)
    groups, at_once = here().part(len(samples)), getattr(task, "at_once", None)
    own = range(groups.start * group_size, groups.stop * group_size)
    with _Stepper(at_once) as stepper:
        mine = None if begun is None else [begun[i] for i in own]
        _play(policy, task, episodes[own.start : own.stop], at_once or len(own), stepper, mine, act)
    with timed(policy, "reward"):
        for episode in episodes[own.start : own.stop]:
            episode.score = task.score(episode)
            episode.reward = task.reward(episode.score)
    return gathered(policy, episodes, own)


def _play(
    policy: Policy, task: Any, episodes: list[Episode], at_once: int, stepper: _Stepper,
    begun: Sequence[Sequence[int]] | None, act: dict[str, Any],
) -> None:  # fmt: skip
    """Takes every episode to its end; at most `at_once` environments are open."""
    waiting = deque(range(len(episodes)))
    opened: dict[int, Environment] = {}
    shown: dict[int, Observation] = {}
    try:
        while True:
            started = [waiting.popleft() for _ in range(min(len(waiting), at_once - len(opened)))]
            with timed(policy, "environment"):
                opened.update((i, task.environment(episodes[i].sample)) for i in started)
                shown.update(zip(started, stepper.map(lambda i: opened[i].reset(), started), strict=True))
            if not opened:
                return
            active = list(opened)
            if begun is not None:
                act = act | {"begun": [() if episodes[i].turns else begun[i] for i in active]}
            decisions = policy.act([episodes[i] for i in active], [shown[i] for i in active], **act)
            with timed(policy, "environment"):
                steps = stepper.map(lambda i, d: opened[i].step(d.action, d.frames), active, decisions)
            for i, decision, step in zip(active, decisions, steps, strict=True):
                episodes[i].turns.append(Turn(shown[i], decision, step))
                shown[i] = step.observation
                if step.done or step.cut:
                    opened.pop(i).close()
                if step.void:
                    _forget(episodes[i], step.void)
                    waiting.appendleft(i)
    finally:
        for environment in opened.values():
            environment.close()


def _forget(episode: Episode, fault: str) -> None:
    """Makes a void episode one that has not begun."""
    episode.faults.append(fault)
    episode.turns.clear()
    if len(episode.faults) == TRIES:
        raise UserError(f"sample {episode.sample.id}: failed {TRIES} times: {fault}")


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
