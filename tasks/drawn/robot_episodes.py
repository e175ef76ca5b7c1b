"""Episodes of a robot arm that picks objects up and puts them down, simulated by MuJoCo, as videos with their events.

The events and their times come from the simulator's state (`robot_events`); a script with noise moves the arm. Where
what happened is not what the goal asks for, because a grasp slipped or an object fell, the episode is drawn again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from robot.simulation import load_mujoco
from tasks.drawn import robot_tasks
from tasks.drawn.robot_events import FIRST, PARTS, Handling, Record, events, handled
from tasks.drawn.robot_looks import LEVELS
from tasks.drawn.robot_model import CONTROL
from tasks.drawn.robot_simulation import played
from tasks.drawn.robot_tasks import Job
from tasks.drawn.robot_world import camera, furnish, renderer, simulator
from tasks.drawn.story import Event, Story
from vlrl.types import Split, UserError, Video

TRIES = 50  # episodes that are simulated for one that reaches its goal


@dataclass(frozen=True, eq=False)
class Episode:
    """What was simulated, not yet drawn."""

    level: str
    job: Job
    record: Record
    events: tuple[Event, ...]  # seconds of the simulation

    @property
    def facts(self) -> dict[str, str]:
        objects = ", ".join(thing.name for thing in self.job.scene.things)
        return {"level": self.level, "goal": self.job.goal, "task": self.job.name, "objects": objects}


def draw(
    rng: np.random.Generator,
    split: Split,
    *,
    frames: int,
    size: tuple[int, int],
    duration: float | None,
    level: str = "L1",
) -> Story:
    """A video of `frames` frames of `size` (width, height), evenly over a whole episode, and its events.

    It lasts `duration` seconds, played faster or slower than it was simulated; None: as simulated, 5 to 20 seconds.
    UserError: no such level, a held-out level for training, no MuJoCo, no way to render.
    """
    episode = simulate(rng, split, level)
    simulated = episode.record.duration
    duration = duration or simulated
    shares = [(i + 0.5) / frames for i in range(frames)]
    pixels = render(episode, [share * simulated for share in shares], size)
    video = Video(pixels, tuple(share * duration for share in shares), frames / duration, duration)
    pace = simulated / duration
    told = tuple(replace(event, span=(event.span[0] / pace, event.span[1] / pace)) for event in episode.events)
    return Story(video, told, episode.facts)


def progress(rng: np.random.Generator, split: Split, *, frames: int, size: tuple[int, int], level: str = "L1") -> Story:
    """An episode's video up to a moment: `frames` frames of `size` (width, height), evenly, the last at the moment.

    At the moment one event begins, and each event has the same chance. All events are told, those still to come as
    well: the video's `duration` is the episode's, as simulated. UserError as `draw`.
    """
    episode = simulate(rng, split, level)
    now = moment(rng, episode)
    return until(episode, np.linspace(0, now, frames + 1)[1:].tolist(), size)


def moment(rng: np.random.Generator, episode: Episode) -> float:
    """The seconds at which one of the events begins, each with the same chance."""
    return episode.events[int(rng.integers(len(episode.events)))].span[0]


def until(episode: Episode, times: Sequence[float], size: tuple[int, int]) -> Story:
    """The whole episode told, shown at `times` only, ascending seconds of the simulation. UserError: no rendering."""
    rate = len(times) / max(times[-1], CONTROL)
    return Story(
        Video(render(episode, times, size), tuple(times), rate, episode.record.duration), episode.events, episode.facts
    )


def simulate(rng: np.random.Generator, split: Split, level: str = "L1") -> Episode:
    """An episode that reaches its goal. UserError: no such level, a held-out level for training, no MuJoCo."""
    if level not in LEVELS:
        raise UserError(f"robot videos: no level {level!r}: choose from {', '.join(LEVELS)}")
    if split == "train" and level != "L1":
        raise UserError(f"robot videos: level {level} is held out from training: use L1, or split test")
    for _ in range(TRIES):
        job = robot_tasks.draw(rng, level)
        record = played(rng, job)
        done = handled(record)
        if _reached(done, job):
            return Episode(level, job, record, events(done, job.scene.things))
    raise RuntimeError(f"none of {TRIES} simulated episodes reached its goal")


def render(episode: Episode, times: Sequence[float], size: tuple[int, int]) -> np.ndarray:
    """uint8 [T, height, width, 3]: the episode at `times`, seconds of the simulation. UserError: no way to render."""
    mujoco, drawer = load_mujoco(), renderer(size)
    model, data = simulator()
    furnish(episode.job.scene)
    view = camera(episode.job.scene.look)
    frames = np.empty((len(times), size[1], size[0], 3), np.uint8)
    for frame, time in zip(frames, times, strict=True):
        data.qpos[:] = episode.record.qpos[min(round(time / CONTROL), len(episode.record.qpos) - 1)]
        mujoco.mj_kinematics(model, data)
        mujoco.mj_camlight(model, data)
        drawer.update_scene(data, view)
        drawer.render(out=frame)
    frames.setflags(write=False)
    return frames


def _reached(done: Sequence[Handling], job: Job) -> bool:
    """Each object was put where the goal wants it, in its order, and nothing else was moved."""
    wanted = [
        (move.what, PARTS.index(job.scene.target) if move.onto is None else FIRST + move.onto) for move in job.moves
    ]
    return [(one.what, one.support) for one in done] == wanted
