"""Goes on training a policy while it is at work, from what was recorded of it and of a person's hand.

HG-DAgger (Kelly et al. 2019, arXiv 1810.02890): a person takes over where the policy goes wrong, and what they did
there is imitated. Demonstrations keep a fixed share of every batch (RLPD, arXiv 2302.02948): nothing is unlearned.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vlrl import checkpoint
from vlrl.decoders import parse_log_row
from vlrl.learning.cloning import read, started
from vlrl.learning.config import LearnConfig
from vlrl.learning.dataset import About, Recorded
from vlrl.learning.imitate import drawn, imitate
from vlrl.learning.pools import Pools, told
from vlrl.learning.watch import Watched, data_sets, fresh
from vlrl.types import UserError

Found = list[tuple[About, Recorded]]


class Learner:
    """One policy and what it has learned from. Goes on from the newest checkpoint of `config.out`.

    Args:
        update: changes the policy in place by batches (`vlrl.learning.imitate.imitate`); an off-policy one fits here.

    Raises:
        UserError: no policy, or data sets that do not fit it.
    """

    def __init__(self, config: LearnConfig, update: Callable[..., dict[str, float]] = imitate):
        self.config, self.update, self.folder = config, update, Path(config.out) / "checkpoints"
        newest = checkpoint.newest_whole(self.folder)
        state = checkpoint.load_state(newest) if newest else {"round": 0, "used": {}, "row": {}}
        self.round, self.used = state["round"], state["used"]
        self.policy = started(str(newest or config.start), config.seed)
        self.pools = Pools(self.policy, config.shares.model_dump(), apart=bool(config.corrections))
        self.played, self.corrected = Watched(config.episodes), Watched(config.corrections)
        self.waiting: list[Recorded] = []  # episodes that no round has used
        self.pools.add_whole("demonstrations", _shown(config.demonstrations))
        if newest:
            self._log(state["row"])
        else:
            self._save({})

    def gather(self) -> int:
        """Reads what is new -> how many episodes no round has used yet."""
        self.pools.add_whole("corrections", self.corrected.new())
        found = list(self.played.new())
        self.pools.add_played(found)
        self.waiting += [each[1] for each in found if fresh([each], self.used)]
        return len(self.waiting)

    def learn(self) -> dict[str, Any]:
        """One round, saved when it returns -> its row of metrics."""
        config, begun = self.config, time.monotonic()
        self.round += 1
        examples, chance = self.pools.drawn()
        row = {"round": self.round, "episodes": len(self.waiting), **told(self.waiting)}
        row |= {name: len(group) for name, group in self.pools.groups.items()}
        if chance.any():
            rng = np.random.default_rng([config.seed, self.round])
            batches = drawn(examples, chance, steps=config.steps, size=config.batch, rng=rng)
            row |= self.update(self.policy, batches, steps=config.steps, lr=config.lr)
        row["seconds"] = round(time.monotonic() - begun, 2)
        self.used, self.waiting = self.played.found, []
        self._save(row)
        return row

    def _save(self, row: dict[str, Any]) -> None:
        state = {"round": self.round, "used": self.used, "row": row}
        checkpoint.save(self.folder / f"step_{self.round:06d}", state, self.policy.save)
        self._log(row)
        checkpoint.prune(self.folder, self.config.keep, None)

    def _log(self, row: dict[str, Any]) -> None:
        """Appends the row, once: a kill may have come between a checkpoint and its row."""
        file = self.folder.parent / "metrics.jsonl"
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        if row and not any(parse_log_row(line)["round"] == row["round"] for line in whole.splitlines()):
            part = file.with_name(f".{file.name}.part")
            part.write_text(f"{whole}{json.dumps(row)}\n", encoding="utf-8")
            part.replace(file)


def _shown(folders: Sequence[str]) -> Found:
    """The demonstrations, which are there from the start.

    Raises:
        UserError: a folder holds none, or one cannot be read.
    """
    for folder in folders:
        if not data_sets(Path(folder)):
            raise UserError(f"demonstrations: no data set in {folder}")
    paths = [str(path) for folder in folders for path in data_sets(Path(folder))]
    return [(source.about, episode) for source in (read(paths) if paths else []) for episode in source.episodes]


def run(learner: Learner, stopped: Callable[[], bool]) -> None:
    """Rounds, whenever `every` new episodes are there, until there were `rounds` or somebody stops it."""
    config = learner.config
    while not stopped() and (config.rounds is None or learner.round < config.rounds):
        if learner.gather() < config.every:
            time.sleep(config.poll_s)
            continue
        print(line(learner.learn()), flush=True)


def line(row: dict[str, Any]) -> str:
    """A round in one line."""
    loss = f", loss {row['loss']:.3f}" if "loss" in row else ""
    return (
        f"round {row['round']}: {row['episodes']} episodes, alone {row['alone']:.2f} [{row['alone_low']:.2f}, "
        f"{row['alone_high']:.2f}], a person drove {row['person']:.0%}; {row['demonstrations']} demonstrated, "
        f"{row['corrections']} corrected, {row['successes']} successful frames{loss}, {row['seconds']:.0f} s"
    )
