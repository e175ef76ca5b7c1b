"""An episode of a task, played by given answers or by gold actions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tasks.base import Task
from vlrl.types import Decision, Episode, Frame, Observation, Sample, Split, Turn


def play(task: Task, answers: Iterable[str], index: int = 0, split: Split = "train") -> Episode:
    """The episode of a sample up to its end, or to the last answer; not scored."""
    sample = task.samples(split)[index]
    environment = task.environment(sample)
    episode, shown = Episode(sample, 0), environment.reset()
    for answer in answers:
        step = environment.step(answer)
        episode.turns.append(Turn(shown, Decision(answer, None, None, False), step))
        shown = step.observation
        if step.terminated or step.truncated:
            break
    environment.close()
    return episode


def frames(shown: Observation, space: str = "rel1000") -> tuple[Frame, ...]:
    """The frame of each image that is shown."""
    return tuple(Frame(space, image.size, image.size) for image in shown.images)


def play_gold(
    task: Task, sample: Sample, answer: str | None = None,
    between: Callable[[Any, list[Turn]], None] = lambda environment, turns: None,
) -> Episode:  # fmt: skip
    """One scored episode of gold actions, or of `answer` every turn; `between` is called before each action."""
    episode, environment = Episode(sample, 0), task.environment(sample)
    shown = environment.reset()
    try:
        while not episode.turns or not (episode.turns[-1].step.terminated or episode.turns[-1].step.truncated):
            seen = frames(shown)
            between(environment, episode.turns)
            text = answer if answer is not None else environment.gold(seen)
            step = environment.step(text, seen)
            episode.turns.append(Turn(shown, Decision(text, None, None, False, seen), step))
            shown = step.observation
    finally:
        environment.close()
    episode.score = task.score(episode)
    return episode
