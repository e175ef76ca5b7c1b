"""`vlrl preferences`: draws pairs of moments, asks a judge, learns a reward from the answers and measures it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vlrl import log, registry
from vlrl.locks import hold_folder
from vlrl.offpolicy.given import check_task
from vlrl.offpolicy.passive import read
from vlrl.preferences.album import Album, Watched
from vlrl.preferences.answers import Answers
from vlrl.preferences.config import PreferencesConfig
from vlrl.preferences.frames import Frames, drawn, frames_of, split
from vlrl.preferences.judge import Judge, pair_of
from vlrl.preferences.learning import Asked, learn, measured
from vlrl.preferences.report import text
from vlrl.progress import Progress
from vlrl.strict import suggest
from vlrl.types import UserError

DRAWN = 1  # what a random generator is for, beside the seed
LEAST_ANSWERS = 10  # to learn from


def run(config: PreferencesConfig) -> dict[str, Any]:
    """The whole command -> what was measured; model, answers and report lie in `config.out`.

    Raises:
        UserError: the data is too little, the judge answers too little, or anything of the configuration is wrong.
    """
    torch.set_num_threads(config.threads)
    out, total = Path(config.out), config.pairs
    with hold_folder(out), Progress(total) as progress:
        task = registry.make_task(config)
        check_task(task, config.task.name)
        names = _names(task, config)
        progress.note("reading what is given")
        album = Album()
        frames = frames_of(read(Watched(task, album), config.offline, config.seed), album)
        parts = split(frames, config.held_out, config.seed)
        judge = registry.make("judge", config.judge, "judge", task, config.seed)
        answers = Answers(out / "answers.jsonl", config.judge, config.goal)
        sizes = [total - round(config.held_out * total), round(config.held_out * total)]
        learned, held = (
            _asked(config, frames, places, size, part, judge, answers, progress)
            for part, (places, size) in enumerate(zip(parts, sizes, strict=True))
        )
        if len(learned.pairs) < LEAST_ANSWERS:
            raise UserError(
                f"judge: answered {len(learned.pairs)} of {learned.drawn} pairs: too few to learn from; what it said "
                f"is in {out / 'answers.jsonl'}"
            )
        progress.note("learning")
        model, losses = learn(config, names, frames, parts[0], learned)
        report = measured(config, frames, model, judge, learned, held) | {"loss": float(np.mean(losses[-20:]))}
        model.save(out)
        head = "\n".join(log.provenance(config.seed))
        log.write_text(out / "config.yaml", f"{head}\n{_dump(config)}")
        log.write_text(out / "report.json", json.dumps(report, indent=1) + "\n")
    return report


def main(config: PreferencesConfig) -> int:
    print(f"{text(run(config))}; {config.out}")
    return 0


def _asked(
    config: PreferencesConfig, frames: Frames, places: np.ndarray, count: int, part: int, judge: Judge,
    answers: Answers, progress: Progress,
) -> Asked:  # fmt: skip
    """Draws pairs of the moments at these places, and has the judge answer those that are new."""
    pairs = drawn(places, max(1, count), np.random.default_rng([config.seed, DRAWN, part]))
    shown = [pair_of(frames.observation(first), frames.observation(second)) for first, second in pairs]
    what = ("to learn from", "held out")[part]
    answers.ask(judge, shown, config.asked, lambda done, n: progress.note(f"asked {done}/{n} pairs {what}"))
    given = [answers.of(pair) for pair in shown]
    known = np.array([each is not None for each in given])
    return Asked(pairs[known], np.array([each for each in given if each is not None], np.int64), len(pairs))


def _names(task: Any, config: PreferencesConfig) -> tuple[str, ...]:
    """Of the state's numbers; UserError where the model is to see others, or nothing."""
    names, wanted = tuple(task.pool.about.names), config.model.state
    if unknown := [name for name in wanted or () if name not in names]:
        raise UserError(f"model.state: the robot has no {unknown[0]!r}{suggest(unknown[0], list(names))}")
    if wanted == [] and config.model.encoder is None:
        raise UserError("model: sees nothing: name numbers under state, or an encoder")
    return names


def _dump(config: PreferencesConfig) -> str:
    import yaml

    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, width=120)
