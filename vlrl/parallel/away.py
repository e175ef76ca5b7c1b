"""Episodes that another process has played: all that was said and scored, without pictures and a policy's own inputs.

A prompt that is its sample's own lies in every process, so such a decision can be evaluated in any; one of a picture
that an environment drew can be evaluated where it was made alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vlrl.types import Decision, Episode, Observation, Sample, Turn, Video

SMALL = 256  # pixels of the longer side of a picture that is sent to be shown


@dataclass(frozen=True, eq=False)
class Elsewhere:
    """A picture that lies in another process: its size and a key of what it shows, perhaps a small copy."""

    size: tuple[int, int]
    fingerprint: str
    small: np.ndarray | None = None  # uint8 [height, width, 3]

    def copy(self) -> Any:
        """The small copy, as a picture."""
        from PIL import Image

        if self.small is None:
            raise RuntimeError("this picture lies in another process")
        return Image.fromarray(self.small)


def fingerprint(image: Any) -> str:
    """A key of a picture: equal for equal ones, wherever they lie."""
    return image.fingerprint if isinstance(image, Elsewhere) else hashlib.sha256(image.tobytes()).hexdigest()


class Inputs:
    """What a policy keeps of its own decision, made anew from what was shown when it is first asked for.

    sampled: the log-probabilities of an engine that wrote it, as told.
    """

    def __init__(
        self, policy: Any, shown: Observation, made: Decision, key: str | None, tokens: Sequence[int] | None,
        sampled: Any = None,
    ):  # fmt: skip
        self.policy, self.sampled = policy, sampled
        self._again = lambda: self.policy.decide(shown, made.action, key, **({} if tokens is None else {"ids": tokens}))
        self._inputs: Any = None
        if tokens is not None:
            self.tokens = tuple(tokens)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self._inputs is None:
            self._inputs = self._again().inputs
        return getattr(self._inputs, name)


def told(episode: Episode, policy: Any, small: bool = False) -> dict[str, Any]:
    """What the other processes get of an episode. small: with small copies of its pictures, to be shown."""
    prompt = episode.sample.prompt
    turns = []
    for turn in episode.turns:
        ids = list(policy.ids(turn.decision)) if hasattr(policy, "ids") else None
        sampled = getattr(turn.decision.inputs, "sampled", None)
        step = replace(turn.step, observation=_light(turn.step.observation, prompt, small))
        shown = _light(turn.observation, prompt, small)
        turns.append([shown, replace(turn.decision, inputs=None), ids, sampled, step, turn.earned])
    return {
        "turns": turns, "score": episode.score, "reward": episode.reward, "faults": episode.faults,
        "stream": episode.stream,
    }  # fmt: skip


def remade(row: dict[str, Any], sample: Sample, group: int, policy: Any, home: int) -> Episode:
    """An episode of another process, of what that has told."""
    turns = []
    for shown, decision, ids, sampled, step, earned in row["turns"]:
        own, key = (sample.prompt, sample.id) if shown is None else (shown, None)
        inputs = Inputs(policy, own, decision, key, ids, sampled)
        after = replace(step, observation=sample.prompt if step.observation is None else step.observation)
        turns.append(Turn(own, replace(decision, inputs=inputs, home=home), after, earned))
    return Episode(
        sample, group, turns, row["score"], row["reward"], row["faults"], stream=row["stream"]
    )  # fmt: skip


def asked_by(policy: Any, episodes: Sequence[Episode]) -> None:
    """From here on this policy makes what is missing of others' decisions: who played may play again meanwhile."""
    for episode in episodes:
        for turn in episode.turns:
            if isinstance(turn.decision.inputs, Inputs):
                turn.decision.inputs.policy = policy


def _light(shown: Observation, prompt: Observation, small: bool) -> Observation | None:
    """None for the sample's own prompt; else with pictures that say where they lie. Videos are sent whole."""
    if shown is prompt:
        return None
    parts = (part if isinstance(part, str | Video) else _elsewhere(part, small) for part in shown.content)
    return replace(shown, content=tuple(parts))


def _elsewhere(image: Any, small: bool) -> Elsewhere:
    if isinstance(image, Elsewhere):
        return image
    copy = None
    if small:
        shrunk = image.convert("RGB")
        shrunk.thumbnail((SMALL, SMALL))
        copy = np.asarray(shrunk)
    return Elsewhere(tuple(image.size), fingerprint(image), copy)
