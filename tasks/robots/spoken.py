"""An episode of a robot that is moved by words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from robot.controls import Controls
from robot.outcomes import Ending
from robot.pooled import PooledPlay
from tasks.robots.speech import Speech, read, told, write
from vlrl.types import Frame, Observation, Step


class Spoken:
    """An episode (`vlrl.types.Environment`) whose actions are words. What is no action ends it, as a failure.

    Args:
        chunk: ticks of an action.
        names: of the numbers of the state.
    """

    def __init__(self, play: PooledPlay, speech: Speech, controls: Controls, chunk: int, names: Sequence[str]):
        self._play, self._speech, self._controls, self._chunk, self._names = play, speech, controls, chunk, names
        self._shown: Observation | None = None

    def reset(self) -> Observation:
        self._shown = heard(self._play.reset(), self._names, self._speech)
        return self._shown

    def step(self, action: str | np.ndarray, frames: Sequence[Frame] = ()) -> Step:
        chunk = read(str(action), self._chunk, self._controls, self._speech)
        if chunk is None:
            self._play.close()
            ending = Ending("bad_action", "no action in these words")
            return Step(self._shown, done=True, info={"ticks": 0.0, "clipped": 0.0, "repeats": 0.0} | ending.info())
        step = self._play.step(chunk)
        self._shown = heard(step.observation, self._names, self._speech)
        # frequencies are of the whole chunk: all of them earn the credit
        used = step.used if self._speech.words == "bins" else 1.0
        return replace(step, observation=self._shown, used=used)

    def gold(self, frames: Sequence[Frame]) -> str:
        """What the robot's script would do next, in words."""
        return write(self._play.plan(self._chunk), self._controls, self._speech)

    def close(self) -> None:
        self._play.close()


def heard(shown: Observation, names: Sequence[str], speech: Speech) -> Observation:
    """The observation with what is told of the state behind the instruction."""
    if not speech.state:
        return shown
    *pictures, instruction = shown.content
    return Observation((*pictures, f"{instruction} {told(shown.state, names, speech)}"), shown.state)
