"""Writes the robot's planning questions as files in the form of SEED-Bench-R1 (2503.24376)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image

from tasks.base import generator
from tasks.drawn.robot_episodes import moment, simulate, until
from tasks.drawn.robot_looks import LEVELS
from tasks.drawn.robot_questions import begun, planning
from vlrl.types import Split

SOURCE = "Robot"
FPS = 10
SIZE = (128, 128)  # width and height, even numbers


def write(
    folder: str | Path, n: int, split: Split, seed: int, levels: Sequence[str], size: tuple[int, int] = SIZE
) -> tuple[Path, ...]:
    """`n` questions a level: `SPLIT_LEVEL.jsonl` and, beside it, `videos/Robot/*.mp4` and `images/Robot/*.png`.

    A video is the progress so far: h264, FPS frames a second, of `size` (width, height). An image is what is seen now.
    The same arguments write the same questions. Returns the JSON lines files.
    UserError: no such level, a held-out level for training, no MuJoCo, no way to render.
    """
    folder, written = Path(folder), []
    for kind in ("videos", "images"):
        (folder / kind / SOURCE).mkdir(parents=True, exist_ok=True)
    for level in levels:
        rows = [_row(folder, split, seed, level, index, size) for index in range(n)]
        file = folder / f"{split}_{level}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        written.append(file)
    return tuple(written)


def _row(folder: Path, split: Split, seed: int, level: str, index: int, size: tuple[int, int]) -> dict[str, Any]:
    """Writes one question's video and image; the question as SEED-Bench-R1's validation files have it."""
    rng = generator(len(LEVELS) * seed + LEVELS.index(level), split, index)
    episode = simulate(rng, split, level)
    now = moment(rng, episode)
    story = until(episode, [*np.arange(0, now, 1 / FPS).tolist(), now], size)
    asked, name = planning(rng, story), f"{split}_{level}_{seed}_{index:06d}"
    encode(folder / "videos" / SOURCE / f"{name}.mp4", story.video.frames[:-1])
    Image.fromarray(story.video.frames[-1]).save(folder / "images" / SOURCE / f"{name}.png")
    done, _ = begun(story, now)
    return {
        "sample_id": name,
        "video_source": SOURCE,
        "video_basename": f"{name}.mp4",
        "current_observation_basename": f"{name}.png",
        "task_goal": story.facts["goal"],
        "question": asked.text,
        "answer": asked.options[asked.answer],
        "task_progress_metadata": [
            {"narration_text": e.bare, "start_frame": round(e.span[0] * FPS), "stop_frame": round(e.span[1] * FPS)}
            for e in done
        ],
        **{f"choice_{letter}": option for letter, option in zip("abcd", asked.options, strict=True)},
        "golden_choice_idx": asked.letter,
    }


def encode(file: Path, frames: np.ndarray) -> None:
    """Writes uint8 [T, height, width, 3] as an h264 video of FPS frames a second."""
    with av.open(str(file), "w") as container:
        stream = container.add_stream("libx264", rate=FPS, options={"crf": "18"})
        stream.height, stream.width, stream.pix_fmt = *frames.shape[1:3], "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
