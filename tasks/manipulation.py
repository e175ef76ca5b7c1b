"""Robot manipulation: episodes of a simulated robot, won or lost by the simulator's own verdict.

A robot is a class of `robot/` or of the user's, in worker processes of its own. A policy sees its pictures, its
instruction and its state and gives chunks of controls, as numbers or, a language model, as words (`speech`). Training
and held-out scenes are disjoint ranges of seeds (robot/demos.py).
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from robot.demos import SEEDS, checksum_of
from robot.types import OUTCOMES, outcome_in
from robot.workers import RobotPool
from tasks.base import Rendered, Task, check, check_weights
from tasks.metrics import accuracy_by
from tasks.robot_helpers import (
    ArmTask,
    Demonstrated,
    Driven,
    Named,
    Speech,
    Spoken,
    add_spoken_state,
    buckets_of,
    demonstrated,
    jobs_of,
    read_speech,
)
from vlrl.types import (
    Environment,
    Episode,
    Observation,
    Policy,
    RobotTask,
    Sample,
    Score,
    Split,
    UserError,
)

WEIGHTS = {"success": 1.0, "speed": 0.0, "shaped": 0.0, "format": 0.0}


class Manipulation(Task, RobotTask):
    """Samples: scenes of `robot`, `scenes` for training and `held_out` others. Several robots share them out evenly.

    Reward parts: `success` (0 or 1), `speed` (the share of `ticks` that a success left over), `shaped` (the sum of the
    robot's rewards, for simulators that shape them) and `format` (the share of turns whose words were an action).
    Raises UserError for options out of range and where the robot cannot be made.

    Args:
        robot: a name of `vlrl list robots` or my_module:MyRobot, or with its options: {name: tabletop, job: push}; or a
            list of such, with the same controls and states: jobs that one policy is to do. A sample's tag `job` says
            which is its own.
        horizon: after so many an episode is cut: a time-out, which counts as no success and is reported apart.
        chunk: ticks of an action of the script, and of one that is spoken.
        speech: how a language model says an action; none: policies give numbers.
        part: which scenes to evaluate on: `test` for what is published, `validation` for what is chosen by.
        buckets: training scenes that begin alike share a baseline, in so many clusters of their states; none: each has
            its own.
        workers: processes, each with a robot.
    """

    def __init__(
        self,
        *,
        robot: Named | Sequence[Named] = "tabletop",
        horizon: int = 160,
        chunk: int = 8,
        speech: Speech | None = None,
        scenes: int = 1000,
        held_out: int = 100,
        part: Literal["validation", "test"] = "test",
        buckets: int | None = None,
        workers: int = 2,
        weights: Mapping[str, float] = WEIGHTS,
    ):
        check(min(horizon, chunk, workers) > 0, "horizon, chunk, workers", (horizon, chunk, workers), "at least 1")
        for key, n, name in (("scenes", scenes, "train"), ("held_out", held_out, part)):
            check(0 < n <= len(SEEDS[name]), key, n, f"between 1 and {len(SEEDS[name])}")
        check(buckets is None or 0 < buckets <= scenes, "buckets", buckets, f"between 1 and scenes = {scenes}")
        self.weights = check_weights(weights, tuple(WEIGHTS))
        self.jobs = jobs_of(robot)
        self.name, self.robot, self.options = self.jobs.name, self.jobs.target, self.jobs.options
        self.horizon, self.chunk, self.speech = horizon, chunk, speech
        self.max_parallel_envs = workers
        self._seeds: dict[Split, range] = {"train": SEEDS["train"][:scenes], "test": SEEDS[part][:held_out]}
        self._part, self._buckets = part, buckets
        self.pool = RobotPool(self.robot, self.options, size=workers)

    def samples(self, split: Split) -> Sequence[Sample]:
        buckets = self._train_buckets if split == "train" and self._buckets else ()
        return Rendered(len(self._seeds[split]), functools.partial(self._sample, split, buckets))

    def _sample(self, split: Split, buckets: Sequence[int], index: int) -> Sample:
        seed, part = self._seeds[split][index], split if split == "train" else self._part
        job = self.jobs.of(seed)
        bucket = f"manipulation/{job}/bucket/{buckets[index]}" if buckets else ""
        prompt = Observation((f"Scene {seed} of {job}.",))
        return Sample(f"manipulation/{job}/{part}/{seed:06d}", prompt, seed, bucket=bucket, tags={"job": job})

    @functools.cached_property
    def _train_buckets(self) -> Sequence[int]:
        return buckets_of(self.pool, self._seeds["train"], self._buckets)

    def environment(self, sample: Sample, video: Mapping[str, Any] | None = None) -> Environment:
        """The scene's episode. Args: video: to film it, what `robot.env.VideoWriter` takes."""
        play = self.pool.environment(sample.answer, ticks=self.horizon, video=video)
        if self.speech is None:
            return Driven(play, self.chunk)
        return Spoken(play, self.speech, self.controls, self.chunk, self.pool.info.names)

    def arm(self, script: str = "", videos: Mapping[str, Mapping[str, Any]] | None = None) -> ArmTask:
        """The task as a policy plays it, or the control arms `expert` and `random`; some episodes filmed."""
        return ArmTask(self, script, videos)

    def add_spoken_state(self, shown: Observation) -> Observation:
        """What a policy is shown of what a robot shows: where actions are spoken, with what is told of the state."""
        return add_spoken_state(shown, self.pool.info.names, self.speech) if self.speech else shown

    def understood(self, action: str | np.ndarray) -> np.ndarray | None:
        """A policy's action as controls float32 [K, A]; None where its words are no action."""
        return read_speech(str(action), self.chunk, self.controls, self.speech) if self.speech else action

    def fits(self, policy: Policy) -> None:
        """UserError where a policy could not drive the robot."""
        shape = policy.shape
        if shape is None and self.speech is None and policy.writes_text:
            raise UserError(
                "task.speech: a language model needs words for its actions, for example task.speech.words=bins"
            )
        if shape is not None and self.speech is not None:
            raise UserError("task.speech: this policy gives numbers: remove task.speech")
        if shape is not None and shape.controls != self.controls.names:
            names = self.controls.names
            raise UserError(f"policy.model: it gives {', '.join(shape.controls)}; the robot takes {', '.join(names)}")

    def demonstrations(self, count: int, noise: float, seed: int) -> Iterator[list[Demonstrated]]:
        """Episodes of the first training scenes: at each decision what the script would do from there.

        What is carried out is that with normal noise of `noise` times half the limits' width, so that what is imitated
        leads back from where a policy's own mistakes will lead it (DART, arXiv 1703.09327).
        """
        return demonstrated(
            self.pool, self._seeds["train"], self.horizon, self.chunk, count=count, noise=noise, seed=seed
        )

    def score(self, episode: Episode) -> Score:
        """Parts as above; `reason` is the outcome where it is no success."""
        steps = [turn.step for turn in episode.turns]
        outcome = outcome_of(episode)
        success, ticks = float(outcome == "success"), sum(step.info.get("ticks", 0) for step in steps)
        parts = {
            "success": success,
            "speed": success * (1 - ticks / self.horizon),
            "shaped": sum(step.reward for step in steps),
            "format": 1.0 - float("bad_action" in steps[-1].info),
        }
        unread = outcome if outcome == "bad_action" else None  # a time-out is no answer that could not be read
        return Score(parts, success, {"outcome": outcome, "ticks": ticks}, unread)

    def metrics(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """The share of each outcome, ticks of the successes, what was clipped, how many had to be repeated; of several
        robots, the success of each."""
        n, ended = len(episodes), Counter(outcome_of(episode) for episode in episodes)
        won = [e.score.answer["ticks"] for e in episodes if e.score.correct]
        infos = [turn.step.info for e in episodes for turn in e.turns]
        faults = Counter(why for e in episodes for why in e.faults)
        return {f"outcome/{name}": ended[name] / n for name in OUTCOMES if ended[name]} | {
            "ticks_of_successes": sum(won) / max(1, len(won)),
            "clipped": sum(i.get("clipped", 0) for i in infos) / max(1, sum(i.get("ticks", 0) for i in infos)),
            "repeated": float(sum(len(e.faults) for e in episodes)),
            **{f"fault/{why}": float(count) for why, count in sorted(faults.items())},
            **{f"by/{job}": value for job, value in accuracy_by(episodes, "job").items() if len(self.jobs.names) > 1},
        }  # fmt: skip

    def facts(self, episodes: Sequence[Episode]) -> dict[str, str]:
        """What the scenes were, in which two results with one checksum are alike; versions of a foreign simulator."""
        scenes = checksum_of((e.sample.answer, e.turns[0].observation) for e in episodes)
        return {"scenes": scenes, **self.pool.info.versions}

    def cpu_s(self) -> float:
        """Processor seconds of the simulators."""
        return self.pool.cpu_s()

    def close(self) -> None:
        """Ends the workers; without it they end with the program."""
        self.pool.close()


def outcome_of(episode: Episode) -> str:
    """A name of `robot.types.OUTCOMES`."""
    return outcome_in(episode.turns[-1].step.info)
