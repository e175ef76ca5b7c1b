"""Earlier episodes as if the present policy had just played them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vlrl.recorded import Recorded
from vlrl.types import MALFORMED, Decision, Episode, Frame, Policy, UserError

BATCH = 32  # recorded decisions that are evaluated at a time


def replayed(policy: Any, task: Any, recorded: Recorded, index: int) -> Episode:
    """A recorded episode with the policy's own decisions in place of the recorded ones, rewarded as the task does now.

    Raises:
        UserError: it was recorded for another task or in other coordinates; it is too long for the model.
    """
    episode, place = recorded[index], f"{recorded.place}: row {index + 1}"
    missing = sorted(set(task.weights) - {MALFORMED, *episode.score.parts})
    if missing:
        raise UserError(f"{place}: the task rewards {missing[0]!r}, of which the episode says nothing: record it anew")
    turns = []
    for number, turn in enumerate(episode.turns, start=1):
        decision = policy.decide(turn.observation, turn.decision.action, key=f"{place}, turn {number}")
        _check_frames(place, decision, turn.decision)
        turns.append(replace(turn, decision=replace(decision, cut=turn.decision.cut)))
    return replace(episode, turns=turns, reward=task.reward(episode.score))


def _check_frames(place: str, decision: Decision, recorded: Decision) -> None:
    """The recorded text means the same place when this policy writes it."""
    for own, then in zip(decision.frames, recorded.frames, strict=True):
        if _meaning(own) != _meaning(then):
            raise UserError(f"{place}: written in {_told(then)}, but the policy writes in {_told(own)}: record anew")


def _meaning(frame: Frame) -> tuple:
    return frame.space, frame.original, frame.shown if frame.space == "resized_px" else None


def _told(frame: Frame) -> str:
    return f"{frame.space} of an image shown as {frame.shown[0]}x{frame.shown[1]}"


def evaluated(policy: Policy, episodes: Sequence[Episode]) -> list[Episode]:
    """The episodes with the log-probabilities and entropies that their decisions have under the present weights."""
    import torch

    decisions = [turn.decision for episode in episodes for turn in episode.turns]
    made: list[Decision] = []
    for start in range(0, len(decisions), BATCH):
        part = decisions[start : start + BATCH]
        with torch.no_grad():
            now = policy.evaluate(part)
        for decision, logprobs, entropy, mask in zip(part, now.logprobs, now.entropy, now.mask, strict=True):
            made.append(replace(decision, logprobs=logprobs[mask].cpu(), entropy=entropy[mask].cpu()))
    rows = iter(made)
    return [replace(e, turns=[replace(t, decision=next(rows)) for t in e.turns]) for e in episodes]
