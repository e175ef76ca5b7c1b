"""Recorded data sets as the source of a policy: what they must have in common, its shape, what it is to imitate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vlrl.config import PolicySection
from vlrl.decoders import load_json
from vlrl.learning.dataset import About, Recorded, about
from vlrl.learning.examples import Example, check_fit, examples
from vlrl.learning.reading import episodes
from vlrl.policies.control import ControlPolicy
from vlrl.policies.control_network import Network, Shape
from vlrl.policies.load import load
from vlrl.strict import Rate, Section
from vlrl.types import UserError


class Recordings(Section):
    """A LeRobotDataset v3."""

    path: str
    weight: Rate = 1.0  # of each of its frames: how often it is drawn, beside those of the others


@dataclass(frozen=True, eq=False)
class Source:
    """A data set that was read."""

    about: About
    episodes: tuple[Recorded, ...]


def read(paths: Sequence[str]) -> list[Source]:
    """
    Raises:
        UserError: one cannot be read or is empty, or their rates or sizes differ.
    """
    sources = [Source(each, tuple(episodes(each))) for each in map(about, paths)]
    first = sources[0].about
    for source in sources:
        told = source.about
        if not source.episodes:
            raise UserError(f"{told.path}: has no episodes")
        if told.fps != first.fps:
            raise UserError(f"{told.path}: {told.fps:g} frames a second; {first.path} has {first.fps:g}")
        for name, mine, others in (("state", told.state, first.state), ("action", told.action, first.action)):
            if len(mine) != len(others):
                raise UserError(f"{told.path}: its {name} has {len(mine)} numbers; that of {first.path} {len(others)}")
    return sources


def shape_of(sources: Sequence[Source], controls: Any, **sizes: int) -> Shape:
    """A policy for what the first data set shows and does.

    Its controls are `controls` (robot.controls), else those that the data set tells (meta/vlrl.json), else as wide as
    its actions range. Names of cameras are kept but for camera1, ..., which only count.
    """
    told = sources[0].about
    names, units, low, high = _controls(sources) if controls is None else _parts(controls)
    pictures = tuple(name for name, _, _ in told.cameras)
    counted = all(name == f"camera{place}" for place, name in enumerate(pictures, 1))
    return Shape(
        len(told.state), names, low, high,
        cameras=tuple((width, height) for _, width, height in told.cameras),
        names=told.state if all(told.state) else (), units=units, pictures=() if counted else pictures, hz=told.fps,
        **sizes,
    )  # fmt: skip


def fresh(shape: Shape, sources: Sequence[Source], seed: int) -> ControlPolicy:
    """An untrained policy, its state scaled by the data sets' own."""
    policy = ControlPolicy(Network(shape), seed=seed)
    states = torch.as_tensor(np.concatenate([each.state for source in sources for each in source.episodes]))
    policy.model.mean.copy_(states.mean(0))
    policy.model.spread.copy_(states.std(0).clamp(min=1e-3))
    return policy


def started(folder: str, seed: int) -> ControlPolicy:
    """A policy to go on from.

    Raises:
        UserError: there is none, or it is of another kind.
    """
    policy = load(PolicySection(model=folder), seed=seed)
    if not isinstance(policy, ControlPolicy):
        raise UserError(f"start: {folder} holds no small robot policy, as `vlrl clone` makes them")
    return policy


def imitated(policy: ControlPolicy, sources: Sequence[Source], weights: Sequence[float]) -> tuple[list[Example], Any]:
    """Every frame of the data sets, and the chance float64 [N] of each.

    Raises:
        UserError: a data set does not fit the policy.
    """
    found, chance = [], []
    for source, weight in zip(sources, weights, strict=True):
        check_fit(source.about, policy.shape)
        for episode in source.episodes:
            found += examples(policy, episode, range(len(episode)))
            chance += [weight] * len(episode)
    return found, np.array(chance) / sum(chance)


Parts = tuple[tuple[str, ...], tuple[str, ...], tuple[float, ...], tuple[float, ...]]  # names, units, low, high


def _parts(controls: Any) -> Parts:
    return tuple(controls.names), tuple(controls.units), tuple(controls.low.tolist()), tuple(controls.high.tolist())


def _controls(sources: Sequence[Source]) -> Parts:
    told, data = _told(sources[0].about.path), sources[0].about
    names = tuple(name or f"action {place}" for place, name in enumerate(data.action))
    if tuple(each["name"] for each in told) == names:
        units, low, high = (tuple(each[part] for each in told) for part in ("unit", "low", "high"))
        return names, units, low, high
    actions = np.concatenate([each.action for source in sources for each in source.episodes])
    low, high = actions.min(0), actions.max(0)
    return names, (), tuple(low.tolist()), tuple(np.maximum(high, low + 1e-3).tolist())


def _told(path: Path) -> list[dict[str, Any]]:
    """The controls in meta/vlrl.json, which `vlrl demos` writes; [] without it."""
    try:
        return list(load_json(path / "meta" / "vlrl.json")["controls"])
    except (OSError, ValueError, KeyError):
        return []
