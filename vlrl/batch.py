"""From episodes to the columns that estimators read, and back to the decisions that are trained."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vlrl.distributed.world import fingerprint
from vlrl.types import OVERLONG, Decision, Episode, Observation, Rollouts, TrainingEpisode, plain


def decisions_of(episodes: Sequence[Episode]) -> list[Decision]:
    """All decisions, episode by episode: the rows B of every [B, T] column."""
    return [turn.decision for episode in episodes for turn in episode.turns]


def padded(rows: Sequence[Tensor]) -> Tensor:
    """[B, T] from B rows of up to T values, zeros behind."""
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)


def name_candidates(decisions: Sequence[Decision], ids: Iterable[Tensor]) -> list[Decision]:
    """Decisions, of each of which an evaluation also gives the log-probabilities of these tokens, int64 [>= T, K]."""
    return [
        replace(d, inputs=replace(d.inputs, candidates=tokens[: len(d.inputs.tokens)]))
        for d, tokens in zip(decisions, ids, strict=True)
    ]


def mask_of(decisions: Sequence[Decision]) -> Tensor:
    lengths = torch.tensor([len(d.logprobs) for d in decisions])
    return torch.arange(int(lengths.max())) < lengths[:, None]


def carried(episodes: Sequence[Episode]) -> Tensor:
    """Which units carry credit [B, T]: those of the part of each action that was carried out, and not forced."""
    turns = [turn for episode in episodes for turn in episode.turns]
    # 1e-6: 3 of 8 ticks of 3 numbers each are 9 units, not 10
    lengths = torch.tensor([math.ceil(turn.step.executed * len(turn.decision.logprobs) - 1e-6) for turn in turns])
    longest = max(len(turn.decision.logprobs) for turn in turns)
    mask = torch.arange(longest) < lengths[:, None]
    for row, turn in zip(mask, turns, strict=True):
        if turn.decision.forced_mask is not None:
            row[: len(turn.decision.forced_mask)] &= ~turn.decision.forced_mask
    return mask


def columns(
    episodes: Sequence[Episode], reference: Tensor | None = None, features: Tensor | None = None, step: int = 0,
    final: Tensor | None = None, anchors: bool = False, teacher: Tensor | None = None,
    candidates: Tensor | None = None, teacher_candidates: Tensor | None = None,
) -> Rollouts:  # fmt: skip
    """One step's episodes as columns on the CPU, in float32; with `anchors` also the keys of what was seen and done."""
    decisions = decisions_of(episodes)
    owner = [i for i, episode in enumerate(episodes) for _ in episode.turns]
    turns = [turn for episode in episodes for turn in episode.turns]
    states = [turn.observation.state for turn in turns]
    return Rollouts(
        sample_ids=tuple(episode.sample.id for episode in episodes),
        reward=torch.tensor([episode.reward for episode in episodes], dtype=torch.float32),
        group=torch.tensor([episode.group for episode in episodes]),
        episode=torch.tensor(owner),
        mask=carried(episodes),
        logprobs=padded([d.logprobs for d in decisions]),
        entropy=padded([d.entropy for d in decisions]),
        reference=reference,
        weight=torch.tensor([episode.sample.weight for episode in episodes], dtype=torch.float32),
        features=features,
        buckets=tuple(episode.sample.key for episode in episodes),
        parts=stack_reward_parts(episodes),
        step=step,
        correct=torch.tensor([e.score.correct if e.score else e.reward for e in episodes], dtype=torch.float32),
        texts=tuple(action if isinstance(action := e.turns[-1].decision.action, str) else "" for e in episodes),
        process_reward=torch.tensor([turn.process_reward for turn in turns], dtype=torch.float32),
        truncated=torch.tensor([episode.turns[-1].step.truncated for episode in episodes]),
        final=final,
        states=None if any(state is None for state in states) else torch.from_numpy(np.stack(states)),
        observation_keys=tuple(observation_key(turn.observation) for turn in turns) if anchors else (),
        action_keys=tuple(action_key(turn.decision.action) for turn in turns) if anchors else (),
        answers=tuple(answered(episode) for episode in episodes),
        roles=tuple(turn.observation.role for turn in turns),
        teacher=teacher,
        candidates=candidates,
        teacher_candidates=teacher_candidates,
        is_demonstration=torch.tensor([e.is_demonstration for e in episodes])
        if any(e.is_demonstration for e in episodes)
        else None,
    )


def last_features(policy: Any, episodes: Sequence[Episode]) -> Tensor | None:
    """What the policy makes of what the episodes that were cut showed last, float32 [N, H], else 0; None: none was."""
    cut = [i for i, episode in enumerate(episodes) if episode.turns[-1].step.truncated]
    if not cut:
        return None
    ends = []
    for i in cut:
        *before, end = episodes[i].turns
        if OVERLONG in end.step.info:  # the policy cannot be shown what followed: what it saw last stands for it
            ends.append(policy.decide(end.observation, end.decision.action, before=before))
        else:  # any action: features have none
            ends.append(policy.decide(end.step.observation, end.decision.action, before=episodes[i].turns))
    features = policy.features(ends).cpu()
    return features.new_zeros(len(episodes), features.shape[1]).index_copy(0, torch.tensor(cut), features)


def observation_key(shown: Observation) -> str:
    """A key of the text and pictures: equal for equal ones, in every process."""
    digest = hashlib.sha256(shown.text.encode())
    for image in shown.images:
        digest.update(f"{image.size} {fingerprint(image)}".encode())
    for video in shown.videos:
        digest.update(str(video.times).encode() + video.frames.tobytes())
    return digest.hexdigest()[:16]


def action_key(action: str | np.ndarray) -> str:
    """A key of an action: its text, or of its numbers."""
    return action if isinstance(action, str) else hashlib.sha256(action.tobytes()).hexdigest()[:16]


def answered(episode: Episode) -> str:
    """An episode's answer as parsed, in one spelling for equal ones; "" where none could be parsed."""
    if episode.score is None or episode.score.answer is None:
        return ""
    return json.dumps(plain(episode.score.answer), sort_keys=True, default=str)


def stack_reward_parts(episodes: Sequence[Episode]) -> dict[str, Tensor]:
    """Each part of the reward that every episode's score has, float32 [N]."""
    scores = [episode.score.parts if episode.score else {} for episode in episodes]
    shared = [name for name in scores[0] if all(name in parts for parts in scores)]
    return {name: torch.tensor([parts[name] for parts in scores], dtype=torch.float32) for name in shared}


def shaped(rollouts: Rollouts, shapings: Sequence) -> Rollouts:
    """The columns with the reward passed through the shapings in order."""
    for shaping in shapings:
        rollouts = replace(rollouts, reward=shaping(rollouts))
    return rollouts


def lessons_of(episodes: Sequence[Episode], advantage: Tensor) -> list[TrainingEpisode]:
    """Episodes with the rows of the advantage [B, T] that are their decisions'."""
    rows = iter(advantage)
    return [
        TrainingEpisode(e, tuple(row[: len(t.decision.logprobs)] for t, row in zip(e.turns, rows, strict=False)))
        for e in episodes
    ]


def estimate(rollouts: Rollouts, estimators: Sequence) -> Tensor:
    """The advantage [B, T]: the episode's reward, passed through the estimators in order."""
    advantage = rollouts.reward[rollouts.episode]
    for estimator in estimators:
        advantage = estimator(rollouts, advantage)
    return advantage[:, None] * rollouts.mask if advantage.ndim == 1 else advantage * rollouts.mask
