"""The task of `line_task` with a picture of the point and its goal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from line_task import Line, LineTask
from PIL import Image


class SeenLine(Line):
    def reset(self):
        picture = np.zeros((8, 8, 3), np.uint8)
        for value, channel in ((self.place, 0), (self.goal, 1)):
            picture[:, int(np.clip(4 + 2.5 * value, 0, 7)), channel] = 255
        shown = super().reset()
        return replace(shown, content=(Image.fromarray(picture), *shown.content))


class ImageLine(LineTask):
    line = SeenLine
