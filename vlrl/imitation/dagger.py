"""DAgger: a policy learns from takeovers while it runs."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vlrl.imitation.behaviour_cloning import cloning_read, started
from vlrl.imitation.configs import LearnConfig
from vlrl.imitation.datasets import (
    PERSON,
    DatasetEpisode,
    DatasetInfo,
    Example,
    UnreadableError,
    by_person,
    by_policy,
    chances,
    check_fit,
    draw_batches,
    episodes,
    examples,
    imitate,
    read_info,
)
from vlrl.policies.discrete import ControlPolicy
from vlrl.runner import Learner, Runner, StepMetrics
from vlrl.types import UserError, wilson

# What a policy learns from, in three groups: demonstrations, a person's corrections, the policy's own successes.

GROUPS = ("demonstrations", "corrections", "successes")


class Pools:
    """The examples so far, and how they are drawn.

    Args:
        shares: of each group in a batch; a group without examples leaves its share to the others.
        apart: corrections come as data sets of their own, so that those within episodes are the same once more.
    """

    def __init__(self, policy: ControlPolicy, shares: dict[str, float], *, apart: bool):
        self.policy, self.shares, self.apart = policy, shares, apart
        self.groups: dict[str, list[Example]] = {name: [] for name in GROUPS}
        self.fps: float | None = None

    def add_whole(self, group: str, found: Iterable[tuple[DatasetInfo, DatasetEpisode]]) -> None:
        """Every frame of these episodes."""
        for data, episode in found:
            self._add(group, data, episode, np.arange(len(episode)))

    def add_played(self, found: Iterable[tuple[DatasetInfo, DatasetEpisode]]) -> None:
        """Episodes that the policy played, with or without a person."""
        for data, episode in found:
            if not self.apart:
                self._add("corrections", data, episode, by_person(episode))
            self._add("successes", data, episode, by_policy(episode, data.fps))

    def sampling_chances(self) -> tuple[list[Example], np.ndarray]:
        """All examples and the chance float64 [N] of each."""
        sizes = {name: len(group) for name, group in self.groups.items()}
        return list(self._all()), chances(sizes, self.shares)

    def _all(self) -> Iterator[Example]:
        for group in self.groups.values():
            yield from group

    def _add(self, group: str, data: DatasetInfo, episode: DatasetEpisode, frames: np.ndarray) -> None:
        """
        Raises:
            UserError: the data set does not fit the policy, or has another rate than the others.
        """
        check_fit(data, self.policy.shape)
        if self.fps not in (None, data.fps):
            raise UserError(f"{data.path}: {data.fps:g} frames a second; the others have {self.fps:g}")
        self.fps = data.fps
        self.groups[group] += examples(self.policy, self.policy.shape.chunk, episode, frames.tolist())


def compute_outcomes(played: Iterable[DatasetEpisode]) -> dict[str, float]:
    """How the policy fared in the episodes: success, success without a person's help, the share that a person drove."""
    played = list(played)
    alone = sum(each.won and not (each.driver == PERSON).any() for each in played)
    low, high = wilson(alone, len(played)) if played else (0.0, 1.0)
    frames = sum(map(len, played))
    return {
        "success": sum(each.won for each in played) / max(1, len(played)),
        "alone": alone / max(1, len(played)), "alone_low": low, "alone_high": high,
        "person": sum(int((each.driver == PERSON).sum()) for each in played) / max(1, frames),
    }  # fmt: skip


# Folders in which data sets grow while we look: each whole episode is found once, and nothing half written is read.


def data_sets(folder: Path) -> list[Path]:
    """The folder itself where it is a data set, or else those in it. Hidden ones are somebody's unfinished work."""
    if (folder / "meta" / "info.json").is_file():
        return [folder]
    try:
        inside = sorted(folder.iterdir())
    except OSError:  # not there yet
        return []
    return [path for path in inside if not path.name.startswith(".") and (path / "meta" / "info.json").is_file()]


class DatasetWatcher:
    """What was found in some folders so far.

    An episode is known by its data set's folder and its number: a data set may grow, but not be made anew in place.
    """

    def __init__(self, folders: Iterable[str]):
        self._folders = [Path(folder) for folder in folders]
        self._found: dict[str, set[int]] = {}
        self._whole: dict[str, tuple[int, ...]] = {}  # the state of each info.json up to which all was read
        self._told: set[str] = set()

    @property
    def episode_numbers(self) -> dict[str, list[int]]:
        """Data set -> numbers of its episodes."""
        return {path: sorted(numbers) for path, numbers in self._found.items()}

    def new(self) -> Iterator[tuple[DatasetInfo, DatasetEpisode]]:
        """The episodes that were not there when this was last asked. What cannot be read now is left for later."""
        for path in [path for folder in self._folders for path in data_sets(folder)]:
            try:
                data, read = self._read(path)
            except UnreadableError as error:
                self._tell(str(error))
                continue
            self._found.setdefault(str(path), set()).update(episode.number for episode in read)
            if data is not None:
                yield from ((data, episode) for episode in read)

    def _read(self, path: Path) -> tuple[DatasetInfo | None, Sequence[DatasetEpisode]]:
        state = _state(path / "meta" / "info.json")
        if self._whole.get(str(path)) == state:
            return None, []
        data, known = read_info(path), self._found.get(str(path), set())
        read = list(episodes(data, known))
        if len(read) + len(known) >= data.episodes:
            self._whole[str(path)] = state
        return data, read

    def _tell(self, problem: str) -> None:
        """Once: it may be there for long."""
        if problem not in self._told:
            self._told.add(problem)
            print(f"not read yet: {problem}", file=sys.stderr)


def fresh(found: Iterable[tuple[DatasetInfo, DatasetEpisode]], used: Mapping[str, Sequence[int]]) -> int:
    """How many of these episodes earlier rounds did not use."""
    return sum(episode.number not in used.get(str(data.path), ()) for data, episode in found)


def _state(file: Path) -> tuple[int, ...]:
    try:
        stat = file.stat()
    except OSError:
        raise UnreadableError(f"{file.parent.parent}: is gone") from None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


# Goes on training a policy while it is at work, from what was recorded of it and of a person's hand.
#
# HG-DAgger (Kelly et al. 2019, arXiv 1810.02890): a person takes over where the policy goes wrong, and what they did
# there is imitated. Demonstrations keep a fixed share of every batch (RLPD, arXiv 2302.02948): nothing is unlearned.

Found = list[tuple[DatasetInfo, DatasetEpisode]]


class DaggerLearner(Learner):
    """One policy and what it has learned from; a step is a round (`vlrl learn`).

    Args:
        update: changes the policy in place by batches (`vlrl.imitation.datasets.imitate`); an off-policy one fits here.
    """

    command = "learn"
    progress_metrics = ("alone", "loss")
    evaluates_before = False
    name = "corrections"
    config: LearnConfig
    policy: ControlPolicy

    def __init__(self, config: LearnConfig, update: Callable[..., dict[str, float]] = imitate):
        super().__init__(config)
        self.update = update

    @property
    def steps(self) -> float:
        return math.inf if self.config.rounds is None else self.config.rounds

    def setup(self, saved: Path | None = None) -> None:
        """
        Raises:
            UserError: no policy, or data sets that do not fit it.
        """
        config = self.config
        torch.set_num_threads(config.threads)
        self.policy = started(str(saved or config.start), config.seed)
        self.pools = Pools(self.policy, config.shares.model_dump(), apart=bool(config.corrections))
        self.played, self.corrected = DatasetWatcher(config.episodes), DatasetWatcher(config.corrections)
        self.waiting: list[DatasetEpisode] = []  # episodes that no round has used
        self.used: dict[str, list[int]] = {}
        self.pools.add_whole("demonstrations", _list_demonstrations(config.demonstrations))
        where = f"goes on after round {int(saved.name[5:])}" if saved else f"starts from {config.start}"
        watched = ", ".join(config.episodes)
        print(f"{config.out}: {where}; waits for {config.every} new episodes in {watched}", flush=True)

    def begin(self, run: Runner) -> None:
        run.save()  # to be served from the first second

    def is_ready(self, stopping: Callable[[], bool]) -> bool:
        while self.gather() < self.config.every:
            if stopping():
                return False
            time.sleep(self.config.poll_s)
        return True

    def gather(self) -> int:
        """Reads what is new -> how many episodes no round has used yet."""
        self.pools.add_whole("corrections", self.corrected.new())
        episodes = list(self.played.new())
        self.pools.add_played(episodes)
        self.waiting += [each[1] for each in episodes if fresh([each], self.used)]
        return len(self.waiting)

    def step(self, i: int) -> StepMetrics:
        """One round."""
        config, start = self.config, time.monotonic()
        examples, chance = self.pools.sampling_chances()
        row = {"step": i + 1, "round": i + 1, "episodes": len(self.waiting), **compute_outcomes(self.waiting)}
        row |= {name: len(group) for name, group in self.pools.groups.items()}
        if chance.any():
            rng = np.random.default_rng([config.seed, i + 1])
            batches = draw_batches(examples, chance, steps=config.steps, size=config.batch_size, rng=rng)
            row |= self.update(self.policy, batches, steps=config.steps, lr=config.lr)
        self.used, self.waiting = self.played.episode_numbers, []
        print(learner_line(row, time.monotonic() - start), flush=True)
        return StepMetrics(row)

    def evaluate(self, i: int, progress: Callable[[int, int], None]) -> None:
        """Nothing: the robot's own episodes are what shows how good it is."""

    def state_dict(self) -> dict[str, Any]:
        return {"used": self.used}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.used = state["used"]


def _list_demonstrations(folders: Sequence[str]) -> Found:
    """The demonstrations, which are there from the start.

    Raises:
        UserError: a folder holds none, or one cannot be read.
    """
    for folder in folders:
        if not data_sets(Path(folder)):
            raise UserError(f"demonstrations: no data set in {folder}")
    paths = [str(path) for folder in folders for path in data_sets(Path(folder))]
    return [(source.about, episode) for source in (cloning_read(paths) if paths else []) for episode in source.episodes]


def learner_line(row: dict[str, Any], seconds: float) -> str:
    """A round in one line."""
    loss = f", loss {row['loss']:.3f}" if "loss" in row else ""
    return (
        f"round {row['round']}: {row['episodes']} episodes, alone {row['alone']:.2f} [{row['alone_low']:.2f}, "
        f"{row['alone_high']:.2f}], a person drove {row['person']:.0%}; {row['demonstrations']} demonstrated, "
        f"{row['corrections']} corrected, {row['successes']} successful frames{loss}, {seconds:.0f} s"
    )
