"""What a video tells, who does what and when, and episodes of a simulated arm as such videos, with questions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image

from rewards.intervals import Interval
from robot.sim.tabletop import load_mujoco
from tasks.base import generator
from tasks.rendering.robot_world import (
    CONTROL,
    FIRST,
    LEVELS,
    PARTS,
    Handling,
    LooseObject,
    RenderJob,
    StateTrace,
    camera,
    draw_job,
    furnish,
    handled,
    played,
    renderer,
    simulator,
)
from vlrl.types import Split, UserError, Video

# What a drawn or simulated video tells: the truth of every question about it.

HISSING = ("ches", "shes", "sses", "xes")  # verbs that take -es


@dataclass(frozen=True)
class StoryEvent:
    """Something that one actor does for a while. `description` reads as 'the red circle grows'."""

    actor: str  # 'red circle', 'robot'
    action: str  # 'grows', 'grasps the blue cube'
    span: Interval  # seconds, inside the video

    @property
    def description(self) -> str:
        return f"the {self.actor} {self.action}"

    @property
    def bare(self) -> str:
        """The action behind an auxiliary verb: 'grow', 'grasp the blue cube'."""
        verb, space, rest = self.action.partition(" ")
        return verb[: -2 if verb.endswith(HISSING) else -1] + space + rest


@dataclass(frozen=True)
class Story:
    """A video and all that happens in it, in order of time. No two events say the same."""

    video: Video
    events: tuple[StoryEvent, ...]
    facts: Mapping[str, str] = field(default_factory=dict)  # what else is known: 'level', 'goal', ...


@dataclass(frozen=True)
class StoryQuestion:
    """A question about a story: `options` in order and the right one's position; without options `spans` answer it."""

    kind: str
    text: str
    options: tuple[str, ...] = ()
    answer: int = -1
    spans: tuple[Interval, ...] = ()  # when what decides it is seen, in seconds
    video: Video | None = None
    image: Image.Image | None = None  # what is seen now; shown behind the video
    level: str = ""  # L1, L2, L3 as in SEED-Bench-R1

    @property
    def letter(self) -> str:
        """'' without options."""
        return chr(ord("A") + self.answer) if self.options else ""

    def alphabetical(self) -> StoryQuestion:
        """The same with its options in the order of the alphabet."""
        right = self.options[self.answer]
        options = tuple(sorted(self.options))
        return replace(self, options=options, answer=options.index(right))

    @property
    def tags(self) -> dict[str, str]:
        """What results are broken down by."""
        return {"kind": self.kind} | ({"level": self.level} if self.level else {})

    @property
    def media(self) -> tuple[Video | Image.Image, ...]:
        return tuple(part for part in (self.video, self.image) if part is not None)


# Episodes of a robot arm that picks objects up and puts them down, simulated by MuJoCo, as videos with their events.
#
# The events and their times come from the simulator's state (`robot_events`); a script with noise moves the arm. Where
# what happened is not what the goal asks for, because a grasp slipped or an object fell, the episode is drawn again.

TRIES = 50  # episodes that are simulated for one that reaches its goal


@dataclass(frozen=True, eq=False)
class SimulatedEpisode:
    """What was simulated, not yet drawn."""

    level: str
    job: RenderJob
    record: StateTrace
    events: tuple[StoryEvent, ...]  # seconds of the simulation

    @property
    def facts(self) -> dict[str, str]:
        objects = ", ".join(thing.name for thing in self.job.scene.things)
        return {"level": self.level, "goal": self.job.goal, "task": self.job.name, "objects": objects}


def events(done: Sequence[Handling], things: Sequence[LooseObject]) -> tuple[StoryEvent, ...]:
    """The handlings in words, with their times in seconds."""
    listed = []
    for one in done:
        name, support = things[one.what].name, PARTS[one.support]
        support = things[one.support - FIRST].name if one.support >= FIRST else support
        actions = (
            f"reaches for the {name}",
            f"grasps the {name}",
            f"lifts the {name}",
            f"moves the {name} over the {support}",
            f"places the {name} {'in' if support == 'bin' else 'on'} the {support}",
        )
        spans = zip(one.steps, one.steps[1:], strict=False)
        listed += [
            StoryEvent("robot", action, (a * CONTROL, b * CONTROL))
            for action, (a, b) in zip(actions, spans, strict=True)
        ]
    return tuple(listed)


def draw_episode(
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
    events = tuple(replace(event, span=(event.span[0] / pace, event.span[1] / pace)) for event in episode.events)
    return Story(video, events, episode.facts)


def progress(rng: np.random.Generator, split: Split, *, frames: int, size: tuple[int, int], level: str = "L1") -> Story:
    """An episode's video up to a moment: `frames` frames of `size` (width, height), evenly, the last at the moment.

    At the moment one event begins, and each event has the same chance. All events are told, those still to come as
    well: the video's `duration` is the episode's, as simulated. UserError as `draw`.
    """
    episode = simulate(rng, split, level)
    now = moment(rng, episode)
    return until(episode, np.linspace(0, now, frames + 1)[1:].tolist(), size)


def moment(rng: np.random.Generator, episode: SimulatedEpisode) -> float:
    """The seconds at which one of the events begins, each with the same chance."""
    return episode.events[int(rng.integers(len(episode.events)))].span[0]


def until(episode: SimulatedEpisode, times: Sequence[float], size: tuple[int, int]) -> Story:
    """The whole episode told, shown at `times` only, ascending seconds of the simulation. UserError: no rendering."""
    rate = len(times) / max(times[-1], CONTROL)
    return Story(
        Video(render(episode, times, size), tuple(times), rate, episode.record.duration), episode.events, episode.facts
    )


def simulate(rng: np.random.Generator, split: Split, level: str = "L1") -> SimulatedEpisode:
    """An episode that reaches its goal. UserError: no such level, a held-out level for training, no MuJoCo."""
    if level not in LEVELS:
        raise UserError(f"robot videos: no level {level!r}: choose from {', '.join(LEVELS)}")
    if split == "train" and level != "L1":
        raise UserError(f"robot videos: level {level} is held out from training: use L1, or split test")
    for _ in range(TRIES):
        job = draw_job(rng, level)
        record = played(rng, job)
        done = handled(record)
        if _reached(done, job):
            return SimulatedEpisode(level, job, record, events(done, job.scene.things))
    raise RuntimeError(f"none of {TRIES} simulated episodes reached its goal")


def render(episode: SimulatedEpisode, times: Sequence[float], size: tuple[int, int]) -> np.ndarray:
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


def _reached(done: Sequence[Handling], job: RenderJob) -> bool:
    """Each object was put where the goal wants it, in its order, and nothing else was moved."""
    targets = [
        (move.what, PARTS.index(job.scene.target) if move.onto is None else FIRST + move.onto) for move in job.moves
    ]
    return [(one.what, one.support) for one in done] == targets


# Questions about the robot's videos: what it did and when, and what it should do next to reach its goal.
#
# Text alone cannot decide: the options of one question are of one kind, all of its own scene and goal, and each is
# right
# with the same chance. Planning questions are put as SEED-Bench-R1 puts them (2503.24376): a goal, a video of the
# progress so far, an image of what is seen now. Their options are events of the same episode: whoever always chooses
# the
# kind of action or the position that is right most often is right in a quarter of them.

OPTIONS = 4
ORDINALS = ("first", "second", "third")
NEXT = "Considering the progress shown in the video and what the image shows now, what should the robot do next?"
Rng = np.random.Generator


def perception(rng: Rng, story: Story, kinds: Sequence[str] = ("first", "order", "when")) -> StoryQuestion:
    """What was done, in which order, or when, in a whole episode (`robot_episodes.draw`); each kind as often."""
    return PERCEPTION[kinds[int(rng.integers(len(kinds)))]](rng, story)


def planning(rng: Rng, story: Story) -> StoryQuestion:
    """What comes next after a video that ends as an event begins (`robot_episodes.progress`).

    The right option is the next event, the wrong ones are others of the same episode. There is no video where nothing
    has been done yet. ValueError: nothing comes next.
    """
    now = story.video.times[-1]
    done, ahead = split_events(story, now)
    if not ahead:
        raise ValueError(f"nothing comes after {now} s: planning questions are about videos that end before an event")
    others = [event.bare for event in story.events if event is not ahead[0]]
    text = f"Goal: {story.facts['goal']} {NEXT}"
    question = _chosen(rng, story, "planning", text, ahead[0].bare, others, (ahead[0].span,))
    return replace(question, video=story.video if done else None, image=Image.fromarray(story.video.frames[-1]))


def split_events(story: Story, now: float) -> tuple[tuple[StoryEvent, ...], tuple[StoryEvent, ...]]:
    """The events that began before a time in seconds, and those that did not."""
    done = tuple(event for event in story.events if event.span[0] < now)
    return done, story.events[len(done) :]


def _first(rng: Rng, story: Story) -> StoryQuestion:
    """Which object the first reach is for: among all on the table."""
    event = story.events[0]
    others = [f"reach for the {name}" for name in _objects(story)]
    others.remove(event.bare)
    return _chosen(rng, story, "first", "What does the robot do first?", event.bare, others, (event.span,))


def _order(rng: Rng, story: Story) -> StoryQuestion:
    """Which object was lifted, or grasped, at which place in the order."""
    verb = str(rng.choice(("lifts", "grasps")))
    events = [event for event in story.events if event.action.startswith(verb)]
    place = int(rng.integers(len(events)))
    right = events[place].action.removeprefix(f"{verb} the ")
    others = [name for name in _objects(story) if name != right]
    text = f"Which object does the robot {verb.removesuffix('s')} {ORDINALS[place]}?"
    return _chosen(rng, story, "order", text, right, others, (events[place].span,))


def _when(rng: Rng, story: Story) -> StoryQuestion:
    event = story.events[int(rng.integers(len(story.events)))]
    text, level = f"When does the robot {event.bare}?", story.facts["level"]
    return StoryQuestion("when", text, spans=(event.span,), video=story.video, level=level)


def _objects(story: Story) -> list[str]:
    return story.facts["objects"].split(", ")


def _chosen(
    rng: Rng, story: Story, kind: str, text: str, right: str, others: Sequence[str], spans: tuple[Interval, ...]
) -> StoryQuestion:
    """The right option at any place among OPTIONS - 1 of the others."""
    listed = [right, *(others[i] for i in rng.permutation(len(others))[: OPTIONS - 1])]
    mixed = tuple(listed[i] for i in rng.permutation(len(listed)))
    return StoryQuestion(kind, text, mixed, mixed.index(right), spans, story.video, level=story.facts["level"])


PERCEPTION: dict[str, Callable[[Rng, Story], StoryQuestion]] = {"first": _first, "order": _order, "when": _when}


# Writes the robot's planning questions as files in the form of SEED-Bench-R1 (2503.24376).

SOURCE = "Robot"
FPS = 10
SIZE = (128, 128)  # width and height, even numbers


def write_robot_dataset(
    folder: str | Path, n: int, split: Split, seed: int, levels: Sequence[str], size: tuple[int, int] = SIZE
) -> tuple[Path, ...]:
    """`n` questions a level: `SPLIT_LEVEL.jsonl` and, beside it, `videos/Robot/*.mp4` and `images/Robot/*.png`.

    A video is the progress so far: h264, FPS frames a second, of `size` (width, height). An image is what is seen now.
    The same arguments write the same questions. Returns the JSON lines files.
    UserError: no such level, a held-out level for training, no MuJoCo, no way to render.
    """
    folder, lines = Path(folder), []
    for kind in ("videos", "images"):
        (folder / kind / SOURCE).mkdir(parents=True, exist_ok=True)
    for level in levels:
        rows = [_row(folder, split, seed, level, index, size) for index in range(n)]
        file = folder / f"{split}_{level}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        lines.append(file)
    return tuple(lines)


def _row(folder: Path, split: Split, seed: int, level: str, index: int, size: tuple[int, int]) -> dict[str, Any]:
    """Writes one question's video and image; the question as SEED-Bench-R1's validation files have it."""
    rng = generator(len(LEVELS) * seed + LEVELS.index(level), split, index)
    episode = simulate(rng, split, level)
    now = moment(rng, episode)
    story = until(episode, [*np.arange(0, now, 1 / FPS).tolist(), now], size)
    question, name = planning(rng, story), f"{split}_{level}_{seed}_{index:06d}"
    encode(folder / "videos" / SOURCE / f"{name}.mp4", story.video.frames[:-1])
    Image.fromarray(story.video.frames[-1]).save(folder / "images" / SOURCE / f"{name}.png")
    done, _ = split_events(story, now)
    return {
        "sample_id": name,
        "video_source": SOURCE,
        "video_basename": f"{name}.mp4",
        "current_observation_basename": f"{name}.png",
        "task_goal": story.facts["goal"],
        "question": question.text,
        "answer": question.options[question.answer],
        "task_progress_metadata": [
            {"narration_text": e.bare, "start_frame": round(e.span[0] * FPS), "stop_frame": round(e.span[1] * FPS)}
            for e in done
        ],
        **{f"choice_{letter}": option for letter, option in zip("abcd", question.options, strict=True)},
        "golden_choice_idx": question.letter,
    }


def encode(file: Path, frames: np.ndarray) -> None:
    """Writes uint8 [T, height, width, 3] as an h264 video of FPS frames a second."""
    with av.open(str(file), "w") as container:
        stream = container.add_stream("libx264", rate=FPS, options={"crf": "18"})
        stream.height, stream.width, stream.pix_fmt = *frames.shape[1:3], "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
