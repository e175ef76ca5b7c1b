"""An episode of a task, played by given answers."""

from __future__ import annotations

from collections.abc import Iterable

from tasks.base import Task
from vlrl.types import Decision, Episode, Split, Turn


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
