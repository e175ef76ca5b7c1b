"""Collecting episodes: draw samples, let the policy act until every environment is done, score."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any

from vlrl import exhausted
from vlrl.parallel import here
from vlrl.parallel.episodes import gathered
from vlrl.policies import streams
from vlrl.scoring import scored
from vlrl.types import Environment, Episode, Observation, Policy, Sample, Turn, UserError
from vlrl.work import timed

TRIES = 3  # of an episode whose environment fails


class HaltedError(Exception):
    """Whoever plays in another thread has been told to end."""


def collect(
    policy: Policy, task: Any, samples: Sequence[Sample], group_size: int,
    begun: Sequence[Sequence[int]] | None = None, lanes: int = 1, **act: Any,
) -> list[Episode]:  # fmt: skip
    """`group_size` scored episodes of each sample, in order. Environments are made for one episode and always closed.

    An episode that its environment's fault made void is played anew; `faults` keeps the reasons.

    A task's `at_once` says how many of its environments may be open: they are then reset and stepped in as many
    threads, and the next episode starts when one has ended. None: all at once, in this thread.

    The open episodes take their turns together, so that each waits for the slowest one's environment. Several lanes,
    each of its own episodes and environments, do not wait for one another.

    Of several processes each plays its part of the groups and gets the others' episodes from those that played them.
    What is sampled hangs on the episode's place alone, so that all of this is the same in one process.

    Args:
        begun: per episode, the tokens that its first completion begins with (`vlrl.policies.vlm.VLM.act`).
        lanes: into so many the episodes are divided, in order. The policy is asked for one lane at a time.
        act: passed on to `policy.act`, for example `greedy=True`.

    Raises:
        UserError: an episode was void TRIES times; there are fewer environments than lanes.
        HaltedError: the policy's attribute `halted` was set meanwhile.
    """
    episodes = [Episode(sample, group) for group, sample in enumerate(samples) for _ in range(group_size)]
    if not act.get("greedy"):
        key = streams.key(policy)
        for place, episode in enumerate(episodes):
            episode.stream = (key, place)
    groups, at_once = here().part(len(samples)), getattr(task, "at_once", None)
    own = range(groups.start * group_size, groups.stop * group_size)
    with _Stepper(at_once) as stepper:

        def lane(asked: Policy, part: range, size: int) -> None:
            mine = None if begun is None else [begun[i] for i in part]
            _play(asked, task, [episodes[i] for i in part], size, stepper, mine, act)

        if lanes == 1:
            lane(policy, own, at_once or len(own))
        else:
            act["keep"] = False  # a prefill is of all episodes
            _each(lane, _Shared(policy), _parts(own, lanes), at_once)
    with timed(policy, "reward"):
        scored(task, episodes[own.start : own.stop])
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
            if getattr(policy, "halted", False):
                raise HaltedError
            started = [waiting.popleft() for _ in range(min(len(waiting), at_once - len(opened)))]
            with timed(policy, "environment"):
                opened.update((i, task.environment(episodes[i].sample)) for i in started)
                shown.update(zip(started, stepper.map(lambda i: opened[i].reset(), started), strict=True))
            if not opened:
                return
            active = list(opened)
            if begun is not None:
                act = act | {"begun": [() if episodes[i].turns else begun[i] for i in active]}
            decisions = exhausted.act(policy, [episodes[i] for i in active], [shown[i] for i in active], **act)
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


def _each(lane: Callable, policy: Policy, parts: Sequence[range], at_once: int | None) -> None:
    """Plays every part in a thread of its own, by its share of the environments.

    Raises:
        UserError: there are too few.
    """
    if at_once is not None and at_once < len(parts):
        raise UserError(f"rollouts.lanes: {len(parts)}, but the task opens {at_once} environments at a time: lower it")
    sizes = [len(part) for part in (parts if at_once is None else _parts(range(at_once), len(parts)))]
    with ThreadPoolExecutor(len(parts)) as threads:
        for played in [threads.submit(lane, policy, *each) for each in zip(parts, sizes, strict=True)]:
            played.result()


def _parts(whole: range, count: int) -> list[range]:
    """A range in so many parts, or as it has numbers, whose lengths differ by 1 at most."""
    count = min(count, len(whole))
    return [whole[len(whole) * i // count : len(whole) * (i + 1) // count] for i in range(count)]


class _Shared:
    """A policy that threads ask one after the other."""

    def __init__(self, policy: Policy):
        self._policy, self._turn = policy, Lock()

    @property
    def halted(self) -> bool:
        return getattr(self._policy, "halted", False)

    def act(self, episodes: Sequence[Episode], shown: Sequence[Observation], **options: Any) -> list[Any]:
        with self._turn:
            return self._policy.act(episodes, shown, **options)


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
