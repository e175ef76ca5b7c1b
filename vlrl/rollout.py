"""Collecting episodes: draw samples, let the policy act until every environment is done, score."""

from __future__ import annotations

import math
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from threading import Lock
from typing import Any

from vlrl.distributed.episodes import gathered
from vlrl.distributed.world import get_world
from vlrl.io import OverdueError, deadline
from vlrl.performance import oom
from vlrl.performance.profiling import timed
from vlrl.policies import rng
from vlrl.types import Environment, Episode, Observation, Policy, Sample, Score, Turn, UserError

# What episodes have earned. A reward that fails costs its own episode its credit, and no other anything.

RAISED, LATE, ODD = "reward_raised", "reward_late", "reward_not_finite"  # reasons in the log: `parse_fail/reward_late`
IN_A_ROW = 16  # rewards that may fail one after the other: then it is no matter of a sample


def scored(task: Any, episodes: Sequence[Episode]) -> None:
    """Gives every episode its score and reward, in place.

    A reward that raises, takes longer than the task's `reward_timeout_s` seconds (None: no limit) or is not finite says
    nothing of its episode: that gets no credit, and what the others of its group got on average, so that it moves
    nothing; one without others counts as wrong. The score's `reason` says why; the first is told on stderr.

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
    limit, where = getattr(task, "reward_timeout_s", None), f"sample {episode.sample.id}"
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
        return f"{where}: not done in train.reward_timeout_s = {limit:g} s"
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
        episode.turns[i] = replace(turn, decision=replace(turn.decision, forced_mask=_all(turn.decision)))


def _all(decision: Any) -> Any:
    """Every unit of a decision."""
    return decision.logprobs.new_ones(len(decision.logprobs)).bool() if decision.logprobs is not None else None


def one_line(error: Exception) -> str:
    """An error in one line, with the place that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    text = (str(error).strip().splitlines() or [""])[0][:200]
    return f"{type(error).__name__}: {text}{place}"


TRIES = 3  # of an episode whose environment fails


class HaltedError(Exception):
    """Whoever plays in another thread has been told to end."""


def collect(
    policy: Policy, task: Any, samples: Sequence[Sample], group_size: int,
    begun: Sequence[Sequence[int]] | None = None, lanes: int = 1, **act: Any,
) -> list[Episode]:  # fmt: skip
    """`group_size` scored episodes of each sample, in order. Environments are made for one episode and always closed.

    An episode that its environment's fault made void is played anew; `faults` keeps the reasons.

    A task's `max_parallel_envs` says how many of its environments may be open: they are then reset and stepped in as
    many threads, and the next episode starts when one has ended. None: all at once, in this thread.

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
        key = rng.key(policy)
        for place, episode in enumerate(episodes):
            episode.stream = (key, place)
    groups, max_parallel_envs = get_world().part(len(samples)), getattr(task, "max_parallel_envs", None)
    own = range(groups.start * group_size, groups.stop * group_size)
    with _Stepper(max_parallel_envs) as stepper:

        def lane(asked: Policy, part: range, size: int) -> None:
            mine = None if begun is None else [begun[i] for i in part]
            _play(asked, task, [episodes[i] for i in part], size, stepper, mine, act)

        if lanes == 1:
            lane(policy, own, max_parallel_envs or len(own))
        else:
            act["keep"] = False  # a prefill is of all episodes
            _each(lane, _Shared(policy), _parts(own, lanes), max_parallel_envs)
    with timed(policy, "reward"):
        scored(task, episodes[own.start : own.stop])
    return gathered(policy, episodes, own)


def _play(
    policy: Policy, task: Any, episodes: list[Episode], max_parallel_envs: int, stepper: _Stepper,
    begun: Sequence[Sequence[int]] | None, act: dict[str, Any],
) -> None:  # fmt: skip
    """Takes every episode to its end; at most `max_parallel_envs` environments are open."""
    waiting = deque(range(len(episodes)))
    opened: dict[int, Environment] = {}
    shown: dict[int, Observation] = {}
    try:
        while True:
            if getattr(policy, "halted", False):
                raise HaltedError
            started = [waiting.popleft() for _ in range(min(len(waiting), max_parallel_envs - len(opened)))]
            with timed(policy, "environment"):
                opened.update((i, task.environment(episodes[i].sample)) for i in started)
                shown.update(zip(started, stepper.map(lambda i: opened[i].reset(), started), strict=True))
            if not opened:
                return
            active = list(opened)
            if begun is not None:
                act = act | {"begun": [() if episodes[i].turns else begun[i] for i in active]}
            decisions = oom.act(policy, [episodes[i] for i in active], [shown[i] for i in active], **act)
            with timed(policy, "environment"):
                steps = stepper.map(lambda i, d: opened[i].step(d.action, d.frames), active, decisions)
            for i, decision, step in zip(active, decisions, steps, strict=True):
                episodes[i].turns.append(Turn(shown[i], decision, step))
                shown[i] = step.observation
                if step.terminated or step.truncated:
                    opened.pop(i).close()
                if step.fault:
                    _forget(episodes[i], step.fault)
                    waiting.appendleft(i)
    finally:
        for environment in opened.values():
            environment.close()


def _each(lane: Callable, policy: Policy, parts: Sequence[range], max_parallel_envs: int | None) -> None:
    """Plays every part in a thread of its own, by its share of the environments.

    Raises:
        UserError: there are too few.
    """
    if max_parallel_envs is not None and max_parallel_envs < len(parts):
        raise UserError(
            f"rollout_strategy.lanes: {len(parts)}, but the task opens {max_parallel_envs} environments at a time: "
            f"lower it"
        )
    sizes = [
        len(part) for part in (parts if max_parallel_envs is None else _parts(range(max_parallel_envs), len(parts)))
    ]
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
