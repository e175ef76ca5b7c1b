"""`vlrl reward-model`: a success classifier from recorded episodes."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vlrl.learning import cloning
from vlrl.learning.dataset import About, Recorded
from vlrl.learning.labels import split
from vlrl.learning.reward_config import RewardConfig
from vlrl.learning.reward_report import measured, text, threshold_for
from vlrl.learning.reward_training import Frames, frames_of, train
from vlrl.locks import hold_folder
from vlrl.policies.reward_network import RewardNetwork, RewardShape
from vlrl.reward_model import RewardModel
from vlrl.strict import load_as, suggest
from vlrl.types import UserError

Found = list[tuple[About, Recorded]]


def made(config: RewardConfig) -> tuple[RewardModel, dict[str, Any]]:
    """A reward model and what was measured of it on held-out episodes.

    Raises:
        UserError: data sets that cannot be read, differ, show no pictures, say nothing of success, or hold too little.
    """
    found = _read(config)
    parts = split([episode for _, episode in found], config.held_out, config.seed)
    learned, told, held = (frames_of([found[place] for place in part], config.spans) for part in parts)
    torch.manual_seed(config.seed)
    network = RewardNetwork(_shape(found[0][0], config.state))
    network.mean.copy_(learned.state.mean(0))
    network.spread.copy_(learned.state.std(0).clamp(min=1e-3))
    sizes = {"steps": config.steps, "batch": config.batch, "lr": config.lr, "seed": config.seed}
    losses = train(network, learned, **sizes)
    model = RewardModel(network)
    model.threshold = threshold_for(*_scored(model, told), config.false_successes)
    report = measured(*_scored(model, held), model.threshold)
    failures = sum(not episode.won for _, episode in found)
    return model, {"episodes": len(found), "failures": failures, "loss": float(np.mean(losses[-20:])), **report}


def main(path: str | None, changes: Sequence[str], data: Sequence[str] = (), out: str | None = None) -> int:
    """`vlrl reward-model [CONFIG [CHANGE ...]] [--data DIR ...] [--out DIR]`: makes, saves and measures a model."""
    given = {"datasets": list(data) or None, "out": out}
    values = {name: value for name, value in given.items() if value is not None}
    if path is None and len(values) < 2:
        raise UserError("reward-model: name a config, or --data DIR and --out DIR")
    changes = [*changes, *(f"{name}={json.dumps(value)}" for name, value in values.items())]
    config = load_as(RewardConfig, path, changes) if path else RewardConfig(**values)
    torch.set_num_threads(config.threads)
    begun, folder = time.monotonic(), Path(config.out)
    with hold_folder(folder):
        model, told = made(config)
        model.save(folder)
        (folder / "report.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    print(f"{told['episodes']} episodes, {told['failures']} of them failures; {text(told)}; "
          f"{time.monotonic() - begun:.0f} s; {folder}")  # fmt: skip
    if not told["failures"]:
        print("no failures among the episodes: what a failure looks like at its end was not learned; record some")
    return 0


def _read(config: RewardConfig) -> Found:
    sources = cloning.read(config.datasets)
    first = sources[0].about
    for source in sources:
        told = source.about
        if "next.success" not in told.columns:
            raise UserError(f"{told.path}: has no column next.success")
        if not told.cameras:
            raise UserError(f"{told.path}: has no pictures (columns observation.images.*)")
        if (told.cameras, told.state) != (first.cameras, first.state):
            raise UserError(f"{told.path}: its pictures or its state are others than those of {first.path}")
    return [(source.about, episode) for source in sources for episode in source.episodes]


def _shape(data: About, state: Sequence[str]) -> RewardShape:
    unknown = [name for name in state if name not in data.state]
    if unknown:
        raise UserError(f"state: {data.path} has no {unknown[0]!r}{suggest(unknown[0], list(data.state))}")
    return RewardShape(data.cameras, data.state, tuple(data.state.index(name) for name in state))


def _scored(model: RewardModel, frames: Frames, size: int = 256) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probability, label and episode of each frame."""
    starts = range(0, len(frames.label), size)
    parts = [([camera[a : a + size] for camera in frames.pixels], frames.state[a : a + size]) for a in starts]
    scores = [model.probability(*part) for part in parts]
    return torch.cat(scores).numpy(), frames.label.numpy(), frames.episode.numpy()
