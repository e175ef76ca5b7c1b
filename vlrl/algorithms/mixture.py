"""Several tasks in one run: one policy, and every sample knows whose it is."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vlrl import registry
from vlrl.config import TAG, MixturePart, Parts, named
from vlrl.types import (
    BadRow,
    BaseTask,
    Environment,
    Episode,
    Frame,
    Sample,
    Score,
    Split,
    TaggedSamples,
    UserError,
    wilson,
)

# The samples of several tasks as one sequence.


def find_position(id: str) -> int | None:
    """The number that an id ends in, which of a generated sample is its position; None: it ends in none."""
    number = id.rpartition("/")[2]
    return int(number) if number.isdecimal() else None


class Mixed(TaggedSamples):
    """The samples of several tasks, which take turns.

    Args:
        found: name -> samples.
        shares: name -> how many follow each other.
        again: whether those of a task begin anew until all tasks are through; else each comes once.
    """

    def __init__(self, found: Mapping[str, Sequence[Sample]], shares: Mapping[str, int], again: bool):
        self.names, self._found = list(found), found
        sizes = [len(found[name]) for name in self.names]
        taken = [shares[name] for name in self.names]
        rounds = max(-(-size // share) for size, share in zip(sizes, taken, strict=True))
        counts = [rounds * share if again else size for size, share in zip(sizes, taken, strict=True)]
        part = np.repeat(np.arange(len(counts)), counts)
        index = np.concatenate([np.arange(count) for count in counts])
        order = np.lexsort((index, part, index // np.array(taken)[part]))
        self._part, self._index = part[order], (index % np.array(sizes)[part])[order]

    def __len__(self) -> int:
        return len(self._part)

    def __getitem__(self, position):
        if isinstance(position, slice):
            return [self[i] for i in range(*position.indices(len(self)))]
        name = self.names[self._part[position]]
        sample = self._found[name][int(self._index[position])]
        bucket = sample.bucket and f"{name}/{sample.bucket}"
        return replace(sample, id=f"{name}/{sample.id}", bucket=bucket, tags={**sample.tags, TAG: name})

    def find(self, id: str) -> int | None:
        """Where the sample of this id stands, if its own task numbers its samples; None: not known."""
        name, _, own = id.partition("/")
        index = find_position(own)
        if name not in self.names or index is None:
            return None
        places = np.flatnonzero((self._part == self.names.index(name)) & (self._index == index))
        return int(places[0]) if len(places) else None

    def tag_of(self, position: int, tag: str) -> str | None:
        """A tag that is known without making the sample; None for others."""
        return self.names[self._part[position]] if tag == TAG else None


class Mixture(BaseTask):
    """A mixture of tasks. Each sample's own task plays it, scores it and pays it.

    A sample has the tag `task`, the name of its part, by which samplers may draw (`sec`, `dump`, `rule_reasoner`,
    `curriculum`). Its id begins with that name, and so do the parts of its reward: `clicks/hit`. No part of the reward
    is common to all, so that `weights` is empty. Metrics of an evaluation: those of each task under `task/NAME/`, with
    its `accuracy`, the 95 % interval `low` and `high`, `n` and `reward`.

    Args:
        parts: name -> task, data and share. Training samples take turns, `share` of each part after the other, and
            those of a smaller task come again until the largest is through; held-out ones take turns one by one, none
            twice. A part of share 0 is never trained on: what the others teach for it is measured.
    """

    def __init__(self, *, parts: Parts):
        if not any(part.share for part in parts.values()):
            raise UserError("task.parts: every share is 0, so that nothing is trained on: give one of them 1")
        self.parts = parts
        self.tasks = {name: _make_part_task(name, part) for name, part in parts.items()}
        limits = [task.max_parallel_envs for task in self.tasks.values() if task.max_parallel_envs is not None]
        self.max_parallel_envs = min(limits) if limits else None

    def __copy__(self) -> Mixture:
        """One whose tasks are told of steps apart from this one's."""
        mixture = object.__new__(type(self))
        mixture.__dict__ |= self.__dict__ | {"tasks": {name: copy.copy(task) for name, task in self.tasks.items()}}
        return mixture

    @property
    def bad_rows(self) -> tuple[BadRow, ...]:
        return tuple(row for task in self.tasks.values() for row in task.bad_rows)

    @bad_rows.setter
    def bad_rows(self, rows: Sequence[BadRow]) -> None:
        raise AttributeError("a mixture's bad rows are those of its tasks")

    def samples(self, split: Split) -> Mixed:
        shares = {name: part.share if split == "train" else 1 for name, part in self.parts.items()}
        samples_of = {name: self.tasks[name].samples(split) for name, share in shares.items() if share}
        return Mixed(samples_of, shares, again=split == "train")

    def environment(self, sample: Sample) -> Environment:
        return self._of(sample).environment(sample)

    def score(self, episode: Episode) -> Score:
        """The own task's, with the names of its parts of the reward behind its own."""
        score = self._of(episode.sample).score(episode)
        return replace(score, parts=named(episode.sample.tags[TAG], score.parts))

    def reward(self, score: Score) -> float:
        """What the own task pays."""
        return self.tasks[score.task].reward(_own(score))

    def gold(self, sample: Sample, frames: Sequence[Frame]) -> str:
        return self._of(sample).gold(sample, frames)

    def metrics(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Per task: accuracy with its interval, reward, and the task's own metrics."""
        return _merged(self._each(episodes, _measured))

    def facts(self, episodes: Sequence[Episode]) -> dict[str, str]:
        """What was measured on, per task."""
        return _merged(self._each(episodes, lambda task, own: task.facts(own)))

    def at_step(self, step: int) -> None:
        for task in self.tasks.values():
            task.at_step(step)

    def fits(self, policy: Any) -> None:
        """UserError where the policy's actions are none of a task's, or its first prompt is longer than it takes."""
        for name, task in self.tasks.items():
            try:
                task.fits(policy)
                policy.check(task.samples("train")[0])
            except UserError as error:
                raise UserError(f"task.parts.{name}: {error}") from None

    def cpu_s(self) -> float:
        """Processor seconds of the tasks' simulators."""
        return sum(task.cpu_s() for task in self.tasks.values())

    def close(self) -> None:
        for task in self.tasks.values():
            task.close()

    def _of(self, sample: Sample) -> Any:
        return self.tasks[sample.tags[TAG]]

    def _each(self, episodes: Sequence[Episode], measure: Any) -> dict[str, Mapping[str, Any]]:
        """What `measure` says of each task and its own episodes, as that task scored them."""
        own: dict[str, list[Episode]] = {}
        for episode in episodes:
            own.setdefault(episode.sample.tags[TAG], []).append(replace(episode, score=_own(episode.score)))
        return {name: measure(task, own[name]) for name, task in self.tasks.items() if name in own}


def _make_part_task(name: str, part: MixturePart) -> Any:
    path = f"task.parts.{name}"
    try:
        return registry.make_task(part, f"{path}.task")
    except UserError as error:
        raise UserError(str(error) if str(error).startswith(path) else f"{path}: {error}") from None


def _own(score: Score) -> Score:
    """A score with the parts of the reward as the task that gave it names them."""
    before = f"{score.task}/"
    return replace(score, parts={k.removeprefix(before): v for k, v in score.parts.items() if k.startswith(before)})


def _measured(task: Any, episodes: Sequence[Episode]) -> dict[str, float]:
    n, correct = len(episodes), sum(episode.score.correct for episode in episodes)
    low, high = wilson(correct, n)
    return {
        "accuracy": correct / n, "low": low, "high": high, "n": n, "reward": sum(e.reward for e in episodes) / n,
        **task.metrics(episodes),
    }  # fmt: skip


def _merged(reports: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {f"task/{name}/{key}": value for name, each in reports.items() for key, value in each.items()}
