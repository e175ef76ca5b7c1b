"""`vlrl preferences`: draws pairs of moments, asks a judge, learns a reward from the answers and measures it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vlrl import registry
from vlrl.config import Component
from vlrl.contrib.preferences.labelling import (
    Answer,
    Pair,
    PreferenceJudge,
    PreferencesConfig,
    StateAlbum,
    frames_of,
    pair_of,
    sample_pairs,
    split,
    with_album,
)
from vlrl.contrib.preferences.reward_model import (
    DECAY,
    LabelledPairs,
    PreferenceModel,
    ensemble_loss,
    make_model,
    measured,
)
from vlrl.decoders import parse_log_row
from vlrl.logging import StoppedError
from vlrl.metrics import append_row, write_text
from vlrl.offpolicy.config import passive_read
from vlrl.offpolicy.learner import check_task
from vlrl.runner import EvalResult, Runner, SupervisedLearner
from vlrl.types import Estimate, UserError, suggest
from vlrl.update import linear_schedule

# What a judge answered, in a file that grows as the answers come: a killed run goes on, and no pair is asked twice.

POSSIBLE = (0, 1, None)


class Answers:
    """The answers in a file, by pair, goal and judge. A line that cannot be read, as a killed run leaves, is dropped.

    Args:
        path: JSON lines {pair, answer, said}.
        judge: its name and options: another judge's answers are not taken for its own.
    """

    def __init__(self, path: Path, judge: Component, goal: str):
        fields = json.dumps([goal, judge.name, judge.options], sort_keys=True)
        self._path, self._goal = path, goal
        self._asked = hashlib.sha256(fields.encode()).hexdigest()[:16]
        self._known = _read(path)

    def of(self, pair: Pair) -> Answer:
        """KeyError of a pair that was not asked."""
        return self._known[self._key(pair)]["answer"]

    def explain(self, pair: Pair) -> str:
        """The judge's words, '' where it had none."""
        return self._known[self._key(pair)].get("said", "")

    def ask(
        self, judge: PreferenceJudge, pairs: Sequence[Pair], size: int, progress: Callable[[int, int], None]
    ) -> None:
        """Asks what is not known, `size` pairs at a time, and writes each batch down.

        Args:
            progress: called before each batch with how many pairs are known and how many there are.

        Raises:
            UserError: the judge did not answer 0, 1 or None once for each pair.
        """
        distinct = {self._key(pair): pair for pair in pairs}
        missing = [pair for key, pair in distinct.items() if key not in self._known]
        for start in range(0, len(missing), size):
            progress(len(distinct) - len(missing) + start, len(distinct))
            batch = missing[start : start + size]
            preferences = list(judge.prefer(batch, self._goal))
            if len(preferences) != len(batch) or any(each not in POSSIBLE for each in preferences):
                raise UserError(
                    f"judge: gave {preferences[:8]!r} for {len(batch)} pairs: each takes one answer, 0, 1 or None"
                )
            reasons = judge.said or [""] * len(batch)
            for pair, answer, words in zip(batch, preferences, reasons, strict=True):
                self._add(self._key(pair), None if answer is None else int(answer), words)

    def write(self) -> None:
        """All that are known into the file, where the folder is a new one."""
        if self._known:
            write_text(self._path, "".join(json.dumps(row) + "\n" for row in self._known.values()))

    def _add(self, key: str, answer: Answer, said: str) -> None:
        row = {"pair": key, "answer": answer, **({"said": said} if said else {})}
        append_row(self._path, row)
        self._known[key] = row

    def _key(self, pair: Pair) -> str:
        return f"{pair.key}/{self._asked}"


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """The file's good rows; it then holds nothing else."""
    if not path.exists():
        return {}
    lines = path.read_bytes().decode("utf-8", "replace").splitlines()
    rows = [row for row in map(_row, lines) if row is not None]
    if len(rows) < len(lines):
        write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
    return {row["pair"]: row for row in rows}


def _row(line: str) -> dict[str, Any] | None:
    try:
        row = parse_log_row(line)
    except ValueError:
        return None
    good = isinstance(row, dict) and isinstance(row.get("pair"), str) and "answer" in row
    return row if good and row["answer"] in POSSIBLE else None


DRAWN = 1  # what a random generator is for, beside the seed
LEAST_ANSWERS = 10  # to learn from


class PreferencesLearner(SupervisedLearner):
    """A reward model from a judge's answers, which are asked for before its first step (`vlrl preferences`)."""

    command = "preferences"
    config: PreferencesConfig
    policy: PreferenceModel

    def __init__(self, config: PreferencesConfig):
        super().__init__(config)
        self.rngs = [np.random.default_rng([config.seed, member]) for member in range(config.model.members)]
        self.parts = config.model.members

    @property
    def steps(self) -> float:
        return self.config.model.steps

    def rate(self) -> Callable[[int], float]:
        return linear_schedule(self.config.model.lr, self.config.model.steps)

    def setup(self, saved: Path | None = None) -> None:
        """
        Raises:
            UserError: the data is too little, or anything of the configuration is wrong.
        """
        super().setup(saved)
        config = self.config
        self.task = registry.make_task(config)
        check_task(self.task, config.task.name)
        self.names, album = _names(self.task, config), StateAlbum()
        self.frames = frames_of(passive_read(with_album(self.task, album), config.offline, config.seed), album)
        self.places = split(self.frames, config.held_out, config.seed)
        self.judge = registry.make("judge", config.judge, "judge", self.task, config.seed)
        self.answers = Answers(Path(config.out) / "answers.jsonl", config.judge, config.goal)
        if saved:
            self._make(lambda done, n: None)

    def prepare(self, run: Runner) -> int:
        """Asks the judge what it has not answered yet.

        Raises:
            UserError: it answers too little; StoppedError, which is one, on a signal between two batches.
        """

        def tell(done: int, n: int) -> None:
            if run.is_stopping():
                again = f"vlrl preferences --resume {run.out}"
                raise StoppedError(f"stopped after {done} of {n} pairs; go on with: {again}", exit_code=130)
            run.progress.note(f"asked {done}/{n} pairs")

        self.answers.write()
        self._make(tell)
        return 0

    def _make(self, tell: Callable[[int, int], None]) -> None:
        """The answers, and a model that is to learn from them."""
        config = self.config
        held = round(config.held_out * config.pairs)
        sizes = (config.pairs - held, held)
        self.learned, self.held = (self._ask(part, size, tell) for part, size in enumerate(sizes))
        if len(self.learned.pairs) < LEAST_ANSWERS:
            raise UserError(
                f"judge: answered {len(self.learned.pairs)} of {self.learned.drawn} pairs: too few to learn from; what "
                f"it said is in {Path(config.out) / 'answers.jsonl'}"
            )
        self.policy, self.moments = make_model(config, self.names, self.frames, self.places[0])
        self.optimizer = torch.optim.AdamW(
            self.policy.network.parameters(), lr=config.model.lr, weight_decay=DECAY
        )  # fmt: skip

    def _ask(self, part: int, count: int, tell: Callable[[int, int], None]) -> LabelledPairs:
        """Draws pairs of a part's moments, and has the judge answer those that are new."""
        rng = np.random.default_rng([self.config.seed, DRAWN, part])
        pairs = sample_pairs(self.places[part], max(1, count), rng)
        observed_pairs = [
            pair_of(self.frames.observation(first), self.frames.observation(second)) for first, second in pairs
        ]
        self.answers.ask(self.judge, observed_pairs, self.config.asked, tell)
        answers = [self.answers.of(pair) for pair in observed_pairs]
        known = np.array([each is not None for each in answers])
        return LabelledPairs(
            pairs[known], np.array([each for each in answers if each is not None], np.int64), len(pairs)
        )

    def draw(self) -> list[np.ndarray]:
        """Each member's own answers."""
        return [rng.integers(len(self.learned.pairs), size=self.config.model.batch) for rng in self.rngs]

    def loss(self, batch: Sequence[np.ndarray]) -> Tensor:
        return ensemble_loss(self.policy.network, self.moments, self.learned, batch)

    def evaluate(self, i: int, progress: Callable[[int, int], None]) -> EvalResult | None:
        """On how many held-out pairs it agrees with the judge."""
        k, n, low, high = self.measure()["agreement"]
        return EvalResult(Estimate(k / n, low, high, int(n))) if n else None

    def measure(self) -> dict[str, Any]:
        """What the model says of the pairs."""
        return measured(self.config, self.frames, self.policy, self.judge, self.learned, self.held)

    def report(self) -> dict[str, Any]:
        return self.measure() | super().summary({})


def _names(task: Any, config: PreferencesConfig) -> tuple[str, ...]:
    """Of the state's numbers; UserError where the model is to see others, or nothing."""
    names, chosen = tuple(task.pool.info.names), config.model.state
    if unknown := [name for name in chosen or () if name not in names]:
        raise UserError(f"model.state: the robot has no {unknown[0]!r}{suggest(unknown[0], list(names))}")
    if chosen == [] and config.model.encoder is None:
        raise UserError("model: sees nothing: name numbers under state, or an encoder")
    return names
