"""A sheet of simulated robot videos, one of each level, with events: `python bench/learn.py robot_videos FILE.png`.

`--measure N` prints what N episodes cost instead, and how often answers without looking are right.
"""

from __future__ import annotations

import argparse
import textwrap
import time

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from tasks.rendering.robot_videos import Story, StoryQuestion, draw_episode, planning, progress
from tasks.rendering.robot_world import LEVELS

SIDE, FRAMES, STRIP, HEAD = 96, 8, 36, 16
SEEDS = {"L1": 0, "L2": 6, "L3": 5}
FONT = ImageFont.load_default(9)


def sheet(file: str) -> None:
    """Saves a row of frames a level, with the events as captions."""
    height = HEAD + SIDE + STRIP
    picture = Image.new("RGB", (FRAMES * SIDE, len(LEVELS) * height), "white")
    for row, level in enumerate(LEVELS):
        rng = np.random.default_rng(SEEDS[level])
        story = draw_episode(rng, "test", frames=FRAMES, size=(SIDE, SIDE), duration=None, level=level)
        _row(picture, story, row * height)
    picture.save(file, optimize=True)


def _row(picture: Image.Image, story: Story, top: int) -> None:
    pen = ImageDraw.Draw(picture)
    pen.text((3, top + 2), f"{story.facts['level']}: {story.facts['goal']}", fill="black", font=FONT)
    for column, (frame, now) in enumerate(zip(story.video.frames, story.video.times, strict=True)):
        picture.paste(Image.fromarray(frame), (column * SIDE, top + HEAD))
        said = next((e.action for e in story.events if e.span[0] <= now < e.span[1]), "")
        caption = "\n".join([f"{now:.1f} s", *textwrap.wrap(said, 21)])
        pen.text((column * SIDE + 3, top + HEAD + SIDE + 1), caption, fill="black", font=FONT, spacing=1)


def measure(n: int) -> None:
    """Prints a Markdown table: CPU milliseconds an episode of 16 frames of 64 x 64, and blind accuracies."""
    print("| level | ms an episode | seconds of video | most frequent letter | most frequent action |")
    print("| --- | --- | --- | --- | --- |")
    draw_episode(np.random.default_rng(0), "test", frames=1, size=(64, 64), duration=None)  # compiles
    for level in LEVELS:
        stories, start = [], time.process_time()
        for seed in range(n):
            rng = np.random.default_rng(seed)
            stories.append(progress(rng, "test", frames=16, size=(64, 64), level=level))
        cost = (time.process_time() - start) / n * 1000
        asked = [planning(np.random.default_rng(i), story) for i, story in enumerate(stories)]
        length = np.mean([story.video.duration for story in stories])
        print(f"| {level} | {cost:.0f} | {length:.1f} | {_by_letter(asked):.3f} | {_by_action(asked):.3f} |")


def _by_letter(asked: list[StoryQuestion]) -> float:
    """Accuracy, on the second half, of the letter that is right most often in the first."""
    half = len(asked) // 2
    letters = [question.letter for question in asked]
    common = max(letters[:half], key=letters[:half].count)
    return letters[half:].count(common) / len(letters[half:])


def _by_action(asked: list[StoryQuestion]) -> float:
    """The same of whoever takes an option with the verb that is right most often, or else any."""
    half = len(asked) // 2
    verbs = [question.options[question.answer].split()[0] for question in asked[:half]]
    common = max(verbs, key=verbs.count)
    shares = []
    for question in asked[half:]:
        fitting = [option for option in question.options if option.startswith(common)] or question.options
        shares.append((question.options[question.answer] in fitting) / len(fitting))
    return float(np.mean(shares))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?")
    parser.add_argument("--measure", type=int, metavar="N")
    given = parser.parse_args()
    if given.measure:
        measure(given.measure)
    if given.file:
        sheet(given.file)
