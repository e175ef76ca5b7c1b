"""What robot tasks share: arms, action buckets, demonstrations, instructions in words."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from robot import registry
from robot.types import ActionSpec, Ending, fault
from robot.workers import PooledRobotEnv, RobotPool
from tasks.base import check
from vlrl.placement.workers import WorkerError
from vlrl.types import (
    BaseTask,
    Decision,
    Environment,
    Episode,
    Frame,
    Observation,
    Policy,
    Sample,
    Score,
    Split,
    Step,
    UserError,
)

# Scenes that begin alike, found by their states: what a baseline can be shared by.


def buckets_of(pool: RobotPool, seeds: Sequence[int], count: int) -> list[int]:
    """The bucket, 0 to count - 1, of each scene: k-means over the states at home, each number divided by its spread.

    The same on every machine for the same scenes; scenes that are added may move others.
    """
    from sklearn.cluster import KMeans

    states = np.stack([_home(pool, seed) for seed in seeds]).astype(np.float64)
    spread = states.std(0)
    moves = spread > 1e-6  # what is the same in all scenes tells nothing apart
    normal = (states[:, moves] - states[:, moves].mean(0)) / spread[moves]
    return KMeans(count, n_init=4, random_state=0).fit_predict(normal).tolist()


def _home(pool: RobotPool, seed: int) -> np.ndarray:
    play = pool.environment(seed, ticks=1)
    try:
        return play.reset().state
    finally:
        play.close()


# A robot's script as a teacher: what it would do, from states that noise led to.

Demonstrated = tuple[Observation, np.ndarray]  # what was shown, and the script's chunk float32 [K, A] from there


def demonstrated(
    pool: RobotPool, seeds: Sequence[int], ticks: int, chunk: int, *, count: int, noise: float, seed: int
) -> Iterator[list[Demonstrated]]:
    """`count` episodes, won or not, decision by decision; scenes in order, from the first again when they are used up.

    Raises:
        UserError: the robot has no script.
    """
    rng, controls = np.random.default_rng(seed), pool.info.controls
    spread = noise * (controls.high - controls.low) / 2
    for index in range(count):
        play = pool.environment(seeds[index % len(seeds)], ticks=ticks)
        try:
            yield _episode(play, chunk, spread, rng)
        finally:
            play.close()


def _episode(play: PooledRobotEnv, chunk: int, spread: np.ndarray, rng: np.random.Generator) -> list[Demonstrated]:
    pairs, observation, over = [], play.reset(), False
    while not over:
        plan = play.plan(chunk)
        pairs.append((observation, plan))
        step = play.step(plan + (spread * rng.standard_normal(plan.shape)).astype(np.float32))
        observation, over = step.observation, step.terminated or step.truncated
    return pairs


# An episode of a robot that is moved by numbers.


class Driven(Environment):
    """An episode (`vlrl.types.Environment`) whose actions are chunks of controls, float32 [K, A]."""

    def __init__(self, play: PooledRobotEnv, chunk: int):
        self._play, self._chunk = play, chunk

    def reset(self) -> Observation:
        return self._play.reset()

    def step(self, action: str | np.ndarray, frames: Sequence[Frame] = ()) -> Step:
        return self._play.step(action, frames)

    def gold(self, frames: Sequence[Frame]) -> np.ndarray:
        """What the robot's script would do next, float32 [chunk, A]."""
        return self._play.plan(self._chunk)

    def close(self) -> None:
        self._play.close()


# Robots as a YAML names them: one, or several that one policy drives.

Named = str | Mapping[str, Any]  # by name, or {name: ..., options}
SEVERAL = "robot.workers:Several"


@dataclass(frozen=True)
class Jobs:
    """What is to be done, and the robot that does it. Several take turns: scene `seed` is of number `seed % n`."""

    names: tuple[str, ...]
    target: str  # `module:Class`
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        return "+".join(self.names)

    def of(self, seed: int) -> str:
        return self.names[seed % len(self.names)]


def jobs_of(robot: Named | Sequence[Named]) -> Jobs:
    """
    Raises:
        UserError: no such robot, or none at all.
    """
    if isinstance(robot, str | Mapping):
        name, target, options = registry.chosen(robot)
        return Jobs((_named(name, options),), target, options)
    check(len(robot) > 0, "robot", robot, "a robot, or a list of them")
    each = [registry.chosen(one) for one in robot]
    robots = [{"target": target, "options": options} for _, target, options in each]
    return Jobs(tuple(_named(name, options) for name, _, options in each), SEVERAL, {"robots": robots})


def _named(name: str, options: Mapping[str, Any]) -> str:
    """A robot's name, with the options that say what is to be done."""
    names = (str(options[key]).lower() for key in ("job", "task", "id") if key in options)
    return "/".join([name.rpartition(":")[2].lower(), *names])


# Chunks of controls as words, for language models that move robots, and back.
#
# A number is one of `bins` levels between its limits. `bins` says every number of every tick (OpenVLA, arXiv
# 2406.09246).
# `dct` says the lowest `keep` frequencies of each control over the chunk (FAST, 2501.09747, which merges their
# levels by
# byte pairs). A level is said in digits (VLA-0, 2510.13054), or as <a0>, <a1>, ... by models that have these tokens.


@dataclass(frozen=True)
class Speech:
    """How a language model says an action, and what it is told of the robot's state.

    Args:
        words: `bins` or `dct`, as above.
        spelled: levels in digits, with a space between them where they may have several, or as tokens.
        bins: levels of a number; odd, so that standing still can be said.
        keep: with `dct`, the frequencies of each control that are said.
        state: numbers of the robot's state to tell, each with the limits between which it is told in levels.
    """

    words: Literal["bins", "dct"] = "bins"
    spelled: Literal["digits", "tokens"] = "digits"
    bins: int = 21
    keep: int = 3
    state: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def write_speech(chunk: np.ndarray, controls: ActionSpec, speech: Speech) -> str:
    """A chunk float32 [K, A] within the limits, as words; the nearest that can be said."""
    middle, half = _limits(controls)
    numbers = (chunk - middle) / half  # [-1, 1]
    if speech.words == "dct":
        basis, reach = _basis(len(chunk), speech.keep)
        numbers = (basis @ numbers) / reach[:, None]
    return format_levels(numbers.ravel(), speech)


def read_speech(text: str, ticks: int, controls: ActionSpec, speech: Speech) -> np.ndarray | None:
    """Words as a chunk float32 [ticks, A] within the limits; None where they are no action."""
    rows = min(speech.keep, ticks) if speech.words == "dct" else ticks
    levels = _parse_levels(text, rows * len(controls), speech)
    if levels is None:
        return None
    middle, half = _limits(controls)
    numbers = levels.reshape(rows, len(controls))
    if speech.words == "dct":
        basis, reach = _basis(ticks, speech.keep)
        numbers = (basis.T @ (numbers * reach[:, None])).clip(-1, 1)
    return (middle + half * numbers).astype(np.float32)


def format_state(state: np.ndarray, names: Sequence[str], speech: Speech) -> str:
    """The chosen numbers of a state, in words. UserError where the robot's state has no such number."""
    chosen = []
    for name, (low, high) in speech.state.items():
        if name not in names:
            raise UserError(f"task.speech.state: {name!r}: must be of {', '.join(names)}")
        chosen.append((float(state[list(names).index(name)]) - low) / (high - low) * 2 - 1)
    return format_levels(np.array(chosen), speech)


def format_levels(numbers: np.ndarray, speech: Speech) -> str:
    """Numbers in [-1, 1] as levels 0 to bins - 1."""
    levels = ((numbers.clip(-1, 1) + 1) / 2 * (speech.bins - 1)).round().astype(int)
    if speech.spelled == "tokens":
        return "".join(f"<a{level}>" for level in levels)
    return _gap(speech).join(map(str, levels))


def _parse_levels(text: str, count: int, speech: Speech) -> np.ndarray | None:
    """Numbers in [-1, 1], float64 [count]; None where the text is not as many levels."""
    pattern = {"tokens": r"<a(\d{1,4})>", "digits": r"(\d{1,4})\s+" if _gap(speech) else r"(\d)"}[speech.spelled]
    levels = re.findall(pattern, text := f"{text.strip()} ", re.ASCII)
    if len(levels) != count or not re.fullmatch(rf"(?:{pattern})+\s*", text, re.ASCII):
        return None
    levels = np.array([int(level) for level in levels])
    return levels / (speech.bins - 1) * 2 - 1 if levels.max() < speech.bins else None


def _gap(speech: Speech) -> str:
    """What stands between two levels in digits."""
    return "" if speech.bins <= 10 else " "


def _limits(controls: ActionSpec) -> tuple[np.ndarray, np.ndarray]:
    """Middle and half width of each control's limits, float64 [A]."""
    low, high = controls.low.astype(np.float64), controls.high.astype(np.float64)
    return (low + high) / 2, (high - low) / 2


@functools.cache
def _basis(ticks: int, keep: int) -> tuple[np.ndarray, np.ndarray]:
    """The lowest frequencies of the orthonormal DCT-II [F, ticks], and the largest value [F] that each can have."""
    from scipy.fft import dct

    basis = dct(np.eye(ticks), axis=0, norm="ortho")[: min(keep, ticks)]
    return basis, np.abs(basis).sum(1)


# The task as the arms of a comparison play it: a policy, the robot's script, chance. Same scenes, same scores.

UNKNOWN = np.zeros(0, np.float32)  # log-probabilities of what is no policy
SCRIPTS = ("expert", "random")


class ArmTask(BaseTask):
    """A task as one arm plays it: what `vlrl.rollout.collect` asks of a task, and who acts.

    Args:
        task: `tasks.manipulation.Manipulation`.
        script: `expert`, the robot's script, `chunk` ticks at a time; `random`, controls drawn evenly within the
            limits, the same for a scene whatever is played beside it; '': a policy, which the caller has. Where the
            task is played in words, so are these.
        videos: sample id -> what `robot.env.VideoWriter` takes, of episodes to film.

    Raises:
        UserError: no such script, or the robot has none.
    """

    def __init__(self, task: Any, script: str = "", videos: Mapping[str, Mapping[str, Any]] | None = None):
        if script and script not in SCRIPTS:
            raise UserError(f"an arm {script!r}: must be of {', '.join(SCRIPTS)}")
        if script == "expert" and not task.pool.info.script:
            raise UserError(f"--against expert: the robot {task.name} has no script that could show the job")
        self.policy = {"": None, "expert": Nobody(), "random": Chance(task)}[script]
        self.max_parallel_envs, self.hz = task.max_parallel_envs, task.pool.info.hz
        self._task, self._scripted, self._videos = task, script == "expert", dict(videos or {})

    def environment(self, sample: Sample) -> Environment:
        played = self._task.environment(sample, self._videos.get(sample.id))
        return ScriptedEpisode(played) if self._scripted else played

    def samples(self, split: Split) -> Sequence[Sample]:
        return self._task.samples(split)

    def score(self, episode: Episode) -> Score:
        return self._task.score(episode)

    def reward(self, score: Score) -> float:
        return self._task.reward(score)

    def warm(self, samples: Sequence[Sample]) -> None:
        """Starts all workers, and asks a script once: neither is time of an episode, and what fails, fails now."""
        opened = [self.environment(sample) for sample in samples[: self.max_parallel_envs]]
        try:
            for environment in opened:
                environment.reset()
            if self._scripted:
                opened[0].plan()
        finally:
            for environment in opened:
                environment.close()


class ScriptedEpisode(Environment):
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
            return Step(self._shown, truncated=True, info=ending.info(), fault=ending.void)
        self._shown = step.observation
        return step

    def close(self) -> None:
        self._played.close()


class Nobody(Policy):
    """A policy that decides nothing."""

    def act(self, episodes: Sequence[Episode], observations: Sequence[Observation], **how: Any) -> list[Decision]:
        return [Decision("", UNKNOWN, UNKNOWN, False) for _ in episodes]


class Chance(Policy):
    """A policy that draws its actions evenly within the limits, from the scene's seed and the number of the turn."""

    def __init__(self, task: Any):
        self._controls, self._chunk, self._speech = task.controls, task.chunk, task.speech

    def act(self, episodes: Sequence[Episode], observations: Sequence[Observation], **how: Any) -> list[Decision]:
        return [Decision(self._draw(episode), UNKNOWN, UNKNOWN, False) for episode in episodes]

    def _draw(self, episode: Episode) -> str | np.ndarray:
        rng = np.random.default_rng([episode.sample.answer, len(episode.turns)])
        low, high = self._controls.low, self._controls.high
        chunk = rng.uniform(low, high, (self._chunk, len(low))).astype(np.float32)
        return write_speech(chunk, self._controls, self._speech) if self._speech else chunk


# An episode of a robot that is moved by words.


class Spoken(Environment):
    """An episode (`vlrl.types.Environment`) whose actions are words. What is no action ends it, as a failure.

    Args:
        chunk: ticks of an action.
        names: of the numbers of the state.
    """

    def __init__(self, play: PooledRobotEnv, speech: Speech, controls: ActionSpec, chunk: int, names: Sequence[str]):
        self._play, self._speech, self._controls, self._chunk, self._names = play, speech, controls, chunk, names
        self._shown: Observation | None = None

    def reset(self) -> Observation:
        self._shown = add_spoken_state(self._play.reset(), self._names, self._speech)
        return self._shown

    def step(self, action: str | np.ndarray, frames: Sequence[Frame] = ()) -> Step:
        chunk = read_speech(str(action), self._chunk, self._controls, self._speech)
        if chunk is None:
            self._play.close()
            ending = Ending("bad_action", "no action in these words")
            return Step(
                self._shown, terminated=True, info={"ticks": 0.0, "clipped": 0.0, "repeats": 0.0} | ending.info()
            )
        step = self._play.step(chunk)
        self._shown = add_spoken_state(step.observation, self._names, self._speech)
        # frequencies are of the whole chunk: all of them earn the credit
        used = step.executed if self._speech.words == "bins" else 1.0
        return replace(step, observation=self._shown, executed=used)

    def gold(self, frames: Sequence[Frame]) -> str:
        """What the robot's script would do next, in words."""
        return write_speech(self._play.plan(self._chunk), self._controls, self._speech)

    def close(self) -> None:
        self._play.close()


def add_spoken_state(shown: Observation, names: Sequence[str], speech: Speech) -> Observation:
    """The observation with what is told of the state behind the instruction."""
    if not speech.state:
        return shown
    *pictures, instruction = shown.content
    return Observation((*pictures, f"{instruction} {format_state(shown.state, names, speech)}"), shown.state)
