"""The task as the arms of a comparison play it: a policy, the robot's script, chance. Same scenes, same scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from robot.outcomes import fault
from robot.process import WorkerError
from tasks.robots.speech import write
from vlrl.types import Decision, Environment, Episode, Frame, Observation, Sample, Step, UserError

UNKNOWN = np.zeros(0, np.float32)  # log-probabilities of what is no policy
SCRIPTS = ("expert", "random")


class Arm:
    """A task as one arm plays it: what `vlrl.rollout.collect` asks of a task, and who acts.

    Args:
        task: `tasks.manipulation.Manipulation`.
        script: `expert`, the robot's script, `chunk` ticks at a time; `random`, controls drawn evenly within the
            limits, the same for a scene whatever is played beside it; '': a policy, which the caller has. Where the
            task is played in words, so are these.
        videos: sample id -> what `robot.video.Film` takes, of episodes to film.

    Raises:
        UserError: no such script, or the robot has none.
    """

    def __init__(self, task: Any, script: str = "", videos: Mapping[str, Mapping[str, Any]] | None = None):
        if script and script not in SCRIPTS:
            raise UserError(f"an arm {script!r}: must be of {', '.join(SCRIPTS)}")
        if script == "expert" and not task.pool.about.script:
            raise UserError(f"--against expert: the robot {task.name} has no script that could show the job")
        self.policy = {"": None, "expert": Nobody(), "random": Chance(task)}[script]
        self.at_once, self.hz, self.score, self.reward = task.at_once, task.pool.about.hz, task.score, task.reward
        self._task, self._scripted, self._videos = task, script == "expert", dict(videos or {})

    def environment(self, sample: Sample) -> Environment:
        played = self._task.environment(sample, self._videos.get(sample.id))
        return Scripted(played) if self._scripted else played

    def warm(self, samples: Sequence[Sample]) -> None:
        """Starts all workers, and asks a script once: neither is time of an episode, and what fails, fails now."""
        opened = [self.environment(sample) for sample in samples[: self.at_once]]
        try:
            for environment in opened:
                environment.reset()
            if self._scripted:
                opened[0].plan()
        finally:
            for environment in opened:
                environment.close()


class Scripted:
    """An episode (`vlrl.types.Environment`) that the robot's script plays; decisions are ignored."""

    def __init__(self, played: Any):
        self._played = played
        self._shown: Observation | None = None

    def reset(self) -> Observation:
        self._shown = self._played.reset()
        return self._shown

    def plan(self) -> str | np.ndarray:
        """The script's next action, as the episode takes it."""
        return self._played.gold(())

    def step(self, action: str | np.ndarray, frames: Sequence[Frame] = ()) -> Step:
        try:
            step = self._played.step(self.plan(), frames)
        except WorkerError as error:  # while it planned
            ending = fault(error)
            return Step(self._shown, cut=True, info=ending.info(), void=ending.void)
        self._shown = step.observation
        return step

    def close(self) -> None:
        self._played.close()


class Nobody:
    """A policy that decides nothing."""

    def act(self, episodes: Sequence[Episode], observations: Sequence[Observation], **how: Any) -> list[Decision]:
        return [Decision("", UNKNOWN, UNKNOWN, False) for _ in episodes]


class Chance:
    """A policy that draws its actions evenly within the limits, from the scene's seed and the number of the turn."""

    def __init__(self, task: Any):
        self._controls, self._chunk, self._speech = task.controls, task.chunk, task.speech

    def act(self, episodes: Sequence[Episode], observations: Sequence[Observation], **how: Any) -> list[Decision]:
        return [Decision(self._draw(episode), UNKNOWN, UNKNOWN, False) for episode in episodes]

    def _draw(self, episode: Episode) -> str | np.ndarray:
        rng = np.random.default_rng([episode.sample.answer, len(episode.turns)])
        low, high = self._controls.low, self._controls.high
        chunk = rng.uniform(low, high, (self._chunk, len(low))).astype(np.float32)
        return write(chunk, self._controls, self._speech) if self._speech else chunk
