"""How good a reward model is on episodes that it has not seen, and where its threshold should be.

A policy that is rewarded by a model finds its errors: what counts is how many EPISODES are taken for won once, in any
of their frames, that are not. The frames of an episode are much alike, so that intervals by frames are too narrow.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from vlrl.learning.labels import NEGATIVE, POSITIVE
from vlrl.types import wilson

LOWEST = 0.5  # of a threshold


def threshold_for(scores: np.ndarray, label: np.ndarray, episode: np.ndarray, share: float) -> float:
    """The lowest threshold, at least 0.5, at which at most `share` of these episodes are taken for won wrongly.

    Args:
        scores: float [N], probabilities of the frames; label: [N]; episode: int [N].
    """
    most = [scores[mine].max() for mine in _each(label == NEGATIVE, episode)]
    allowed = math.floor(share * len(most))
    highest = sorted(most, reverse=True)[allowed] if allowed < len(most) else 0.0
    return max(LOWEST, float(np.nextafter(np.float32(highest), np.float32(2))))


def measured(scores: np.ndarray, label: np.ndarray, episode: np.ndarray, threshold: float) -> dict[str, Any]:
    """What the model says of frames and episodes at a threshold; counts as [k, n, low, high] with Wilson's 95 %."""
    said, negative, positive = scores >= threshold, label == NEGATIVE, label == POSITIVE
    wrongly = [bool(said[mine].any()) for mine in _each(negative, episode)]
    seen = [bool(said[mine].any()) for mine in _each(positive, episode)]
    sure = negative | positive
    return {
        "threshold": threshold,
        "auc": auc(scores[positive], scores[negative]),
        "accuracy": _counted((said == positive)[sure]),
        "false_success_frames": _counted(said[negative]),
        "found_success_frames": _counted(said[positive]),
        "false_success_episodes": _counted(np.array(wrongly)),
        "found_success_episodes": _counted(np.array(seen)),
    }


def auc(positive: np.ndarray, negative: np.ndarray) -> float:
    """The chance that a success scores above another frame; a tie counts half. NaN without either."""
    if not len(positive) or not len(negative):
        return math.nan
    ordered = np.sort(negative)
    below, upto = (np.searchsorted(ordered, positive, side=side) for side in ("left", "right"))
    return float((below + upto).mean() / 2 / len(negative))


def text(told: dict[str, Any]) -> str:
    """The measurement in one line."""

    def share(name: str) -> str:
        k, n, low, high = told[name]
        return f"{k}/{n} [{low:.2f}, {high:.2f}]"

    return (
        f"held out: AUC {told['auc']:.3f}; at threshold {told['threshold']:.3f} success is found in "
        f"{share('found_success_episodes')} episodes, false in {share('false_success_episodes')} episodes and "
        f"{share('false_success_frames')} frames, accuracy {share('accuracy')}"
    )


def _each(chosen: np.ndarray, episode: np.ndarray) -> list[np.ndarray]:
    """The chosen frames' places, episode by episode, where there are any."""
    places = np.flatnonzero(chosen)
    return [places[episode[places] == number] for number in np.unique(episode[places])]


def _counted(said: np.ndarray) -> list[float]:
    k, n = int(said.sum()), len(said)
    return [k, n, *(wilson(k, n) if n else (0.0, 1.0))]
