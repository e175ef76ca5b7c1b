"""Episodes that a behaviour plays tick by tick, the task's script or what is made of it, with what it did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vlrl.offpolicy.recorded import Recording
from vlrl.types import Decision, Episode, Frame, Observation, Sample, Step, UserError

# the episode and how many ticks it has had -> a control float [1, A], which is then held to the limits
Control = Callable[[Any, int], np.ndarray]
Behaviour = Callable[[Sample, np.random.Generator], Control]  # who plays a scene, with random numbers of its own


def behaved(
    task: Any,
    seed: int,
    name: str,
    chosen: Sequence[Sample],
    behaviour: Callable[[Sample, np.random.Generator], Control],
) -> list[Recording]:
    """An episode of each scene.

    Args:
        name: of the source, for errors.

    Raises:
        UserError: the task has no script.
    """
    from vlrl.rollout import collect

    played = _Played(task, seed, name, behaviour)
    return [_recording(each, played.done[each.sample.id]) for each in collect(_Nobody(), played, chosen, 1)]


def scenes(task: Any, episodes: int, told: str) -> list[Sample]:
    """The first training scenes. UserError, beginning with what is `told`, where there are fewer."""
    samples = task.samples("train")
    if episodes > len(samples):
        raise UserError(f"offline: {told}, but {len(samples)} training scenes: set task.scenes")
    return [samples[i] for i in range(episodes)]


def _recording(episode: Episode, controls: list[np.ndarray]) -> Recording:
    last = episode.turns[-1].step
    shown = [turn.observation for turn in episode.turns] + [last.observation]
    return Recording(
        np.stack([each.state for each in shown]), np.concatenate(controls), won=episode.score.is_correct,
        ended=last.done and not last.cut, paid=np.array([turn.step.reward for turn in episode.turns], np.float32),
    )  # fmt: skip


def planned(played: Any, spread: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """What the script does next, which looks again at every tick, with normal noise of `spread`: [1, A]."""
    plan = played.gold(())[:1]
    return plan + spread * rng.standard_normal(plan.shape)


class _Played:
    """The task (as `vlrl.rollout.collect` asks of one), played by a behaviour; it keeps what was done."""

    def __init__(self, task: Any, seed: int, name: str, behaviour: Behaviour):
        self.at_once, self.score, self.reward = task.at_once, task.score, task.reward
        self._task, self._seed, self._name, self._behaviour = task, seed, name, behaviour
        self.done: dict[str, list[np.ndarray]] = {}

    def environment(self, sample: Sample) -> _Behaving:
        played = self._task.environment(sample)
        if not hasattr(played, "gold") or not self._task.pool.about.script:
            raise UserError(f"offline: {self._name}: this task has no script that could show the job")
        self.done[sample.id] = []  # an episode that was void begins anew
        rng = np.random.default_rng([self._seed, *sample.id.encode()])
        return _Behaving(played, self._task.controls, self._behaviour(sample, rng), self.done[sample.id])


class _Behaving:
    """An episode (`vlrl.types.Environment`) that a behaviour plays, a tick a turn."""

    def __init__(self, played: Any, limits: Any, control: Control, done: list[np.ndarray]):
        self._played, self._low, self._high, self._control, self._done = played, limits.low, limits.high, control, done
        self._shown: Observation | None = None

    def reset(self) -> Observation:
        self._shown = self._played.reset()
        return self._shown

    def step(self, action: Any, frames: Sequence[Frame] = ()) -> Step:
        try:
            control = self._control(self._played, len(self._done))
        except UserError:
            raise
        except Exception as error:  # the border to simulators, which raise what they like
            return Step(self._shown, cut=True, void=f"the script: {error}")
        self._done.append(control.clip(self._low, self._high).astype(np.float32))
        step = self._played.step(self._done[-1], frames)
        self._shown = step.observation
        return step

    def close(self) -> None:
        self._played.close()


class _Nobody:
    """A policy that decides nothing."""

    def act(self, episodes: Sequence[Episode], observations: Sequence[Observation], **how: Any) -> list[Decision]:
        return [Decision("", None, None, False) for _ in episodes]
