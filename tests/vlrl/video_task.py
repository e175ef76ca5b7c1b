"""A user's own task, for tests that train on videos: copied beside their config, or found on the path."""

from functools import partial

import numpy as np

from tasks.base import Rendered, Task, generator
from vlrl.types import Observation, Sample, Score, Video


class Clips(Task):
    """Videos of noise; every other one of the answers is right, so that a model without skill gets a signal.

    graded: accuracies of 0, 0.25, ... 1 instead of 0 and 1. still: every second sample shows an image instead.
    """

    weights = {"accuracy": 1.0, "format": 1.0}  # noqa: RUF012

    def __init__(self, *, pool: int = 6, graded: bool = False, still: bool = False):
        self.pool, self.graded, self.still = pool, graded, still

    def samples(self, split):
        return Rendered(self.pool, partial(self._make, split))

    def _make(self, split, index):
        frames = generator(0, split, index).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
        shown = Video(frames, (0.0, 0.5, 1.0, 1.5), 2.0, 2.0)
        if self.still and index % 2:
            from PIL import Image

            shown = Image.fromarray(frames[0])
        return Sample(f"clips/{split}/{index}", Observation((shown, "What moves?")), "red")

    def score(self, episode):
        said = sum(map(ord, episode.completion))
        accuracy = said % 5 / 4 if self.graded else float(said % 2)
        return Score({"accuracy": accuracy, "format": 1.0}, float(accuracy > 0.5))

    def gold(self, sample, frames):
        return "<think>I see what moves in it.</think> <answer>red</answer>"
