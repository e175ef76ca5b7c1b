"""Sheets of what tasks draw: objects with the boxes that tasks ask for, or questions, a row per topic.

python bench/learn.py sheets objects docs/pictures.png
python bench/learn.py sheets questions docs/visual_reasoning.png
"""

from __future__ import annotations

import argparse
import textwrap

import numpy as np
from PIL import Image, ImageDraw

from tasks.rendering.figures import font
from tasks.rendering.scenes import SOURCES
from tasks.visual_reasoning import DRAWN, VisualReasoning

SCENES = ("scenes", "digits", "robot")
QUESTIONS = ((1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1))  # level, number of the sample


def draw_objects(side: int = 128, columns: int = 6) -> Image.Image:
    sheet = Image.new("RGB", (columns * side, len(SCENES) * side))
    for row, name in enumerate(SCENES):
        source, rng = SOURCES[name], np.random.default_rng(0)
        for column in range(columns):
            labels = [str(label) for label in rng.choice(source.labels, 4)]
            image, objects = source.draw(rng, "train", labels, (side, side), (0.2, 0.35))
            pen = ImageDraw.Draw(image)
            for each in objects:
                x1, y1, x2, y2 = each.box
                pen.rectangle((x1, y1, x2 - 1, y2 - 1), outline=(255, 60, 60))
                pen.text((x1 + 2, y1), each.label, fill=(255, 255, 255), stroke_width=1, stroke_fill=(0, 0, 0))
            sheet.paste(image, (column * side, row * side))
    return sheet


def draw_questions(side: int = 144, line: int = 13) -> Image.Image:
    sheet = Image.new("RGB", (len(QUESTIONS) * (side + 8), len(DRAWN) * (side + 4 * line)), "white")
    pen = ImageDraw.Draw(sheet)
    for row, topic in enumerate(DRAWN):
        for column, (level, number) in enumerate(QUESTIONS):
            task = VisualReasoning(topics=(topic,), level=level, size=(side, side), options="none")
            sample = task.samples("test")[number]
            x, y = column * (side + 8) + 4, row * (side + 4 * line)
            sheet.paste(sample.prompt.images[0], (x, y))
            lines = textwrap.wrap(f"{sample.prompt.text} {sample.answer.answer}", 26)
            for i, text in enumerate(lines):
                pen.text((x, y + side + 1 + line * i), text, fill="black", font=font(11))
    return sheet


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("objects", "questions"))
    parser.add_argument("file")
    options = parser.parse_args()
    draw = {"objects": draw_objects, "questions": draw_questions}[options.kind]
    draw().save(options.file, optimize=True)
