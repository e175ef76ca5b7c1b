"""Recorded episodes and the memory of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from PIL import Image as PilImage
from PIL.Image import Image
from pydantic import Field, ValidationError, model_validator

from vlrl.config import Count, Section, explain
from vlrl.decoders import parse_log_row
from vlrl.io import make_folder
from vlrl.media import MediaError, load_image
from vlrl.types import (
    Decision,
    Episode,
    Frame,
    Message,
    Observation,
    Role,
    Sample,
    Score,
    Step,
    ToolCall,
    Turn,
    UserError,
    Video,
)

# Episodes on disk: `episodes.jsonl`, one episode a line, beside the images that they show. Plain text and PNG.

FILE, IMAGES = "episodes.jsonl", "images"

Finite = Annotated[float, Field(allow_inf_nan=False)]
Size = Annotated[list[Count], Field(min_length=2, max_length=2)]  # width, height


Name = Annotated[str, Field(pattern=r"^[0-9a-f]{32}\.png$")]  # in the folder `images`, named by its content


class ImageRow(Section):
    image: Name


class VideoRow(Section):
    """Frames, each kept as an image, see vlrl.types.Video."""

    video: Annotated[list[Name], Field(min_length=1)]
    times: list[Finite]
    fps: Finite
    duration: Finite


class FrameRow(Section):
    """The coordinates in which the action was written about one image, see vlrl.types.Frame."""

    space: str
    original: Size
    shown: Size


class StepRow(Section):
    reward: Finite
    done: bool
    cut: bool
    info: dict[str, Finite] = Field(default_factory=dict)  # what the environment counted, which a task may score by


class CallRow(Section):
    name: str
    arguments: dict[str, Any]


class MessageRow(Section):
    """A message of a conversation; its content are the next so many parts of the turn's."""

    role: Role
    parts: Annotated[int, Field(ge=0)]
    tool_calls: list[CallRow] = Field(default_factory=list)


class TurnRow(Section):
    content: list[str | ImageRow | VideoRow]  # what was shown, in reading order
    # of a conversation, in which the content came; []: one prompt of the user
    messages: list[MessageRow] = Field(default_factory=list)
    tools: list[dict[str, Any]] = Field(default_factory=list)  # schemas of the tools that could be called
    restart: bool = False
    action: str
    cut: bool  # the action was stopped by the length limit
    frames: list[FrameRow]
    step: StepRow

    @model_validator(mode="after")
    def _check_messages(self) -> TurnRow:
        parts = sum(message.parts for message in self.messages)
        if self.messages and parts != len(self.content):
            raise ValueError(f"its messages have {parts} parts of content, of which there are {len(self.content)}")
        return self


class EpisodeRow(Section):
    sample: str
    reward: Finite
    parts: dict[str, Finite]
    correct: Finite
    turns: Annotated[list[TurnRow], Field(min_length=1)]

    def images(self) -> Iterator[str]:
        for part in (part for turn in self.turns for part in turn.content if not isinstance(part, str)):
            yield from part.video if isinstance(part, VideoRow) else [part.image]


def recorded_write(folder: str | Path, episodes: Iterable[Episode]) -> int:
    """Writes scored episodes as they come and returns how many; the folder appears when the last one is in it.

    Where the episodes end in an error or an interruption, those before it are kept.

    Raises:
        UserError: the folder is not free; an episode is a robot's.
    """
    count, ended = 0, None
    with make_folder(Path(folder)) as part:
        (part / IMAGES).mkdir()
        with (part / FILE).open("w", encoding="utf-8") as file:
            try:
                for episode in episodes:
                    file.write(json.dumps(row_of(episode, partial(_saved, part / IMAGES))) + "\n")
                    count += 1
            except BaseException as error:
                if not count:
                    raise
                ended = error
    if ended:
        raise ended
    return count


def row_of(episode: Episode, save: Callable[[PilImage.Image], str]) -> dict[str, Any]:
    """A scored episode as an EpisodeRow's fields; `save` puts an image where it will be found by the returned name.

    Raises:
        UserError: the episode is a robot's: its states and actions are numbers.
    """
    return {
        "sample": episode.sample.id, "reward": float(episode.reward),
        "parts": {name: float(value) for name, value in episode.score.parts.items()},
        "correct": float(episode.score.correct),
        "turns": [turn_row(turn, partial(_medium_row, save)) for turn in episode.turns],
    }  # fmt: skip


def turn_row(turn: Turn, keep: Callable[[PilImage.Image | Video], dict[str, Any]]) -> dict[str, Any]:
    """A turn as a TurnRow's fields; `keep` says what stands for an image or a video.

    Raises:
        UserError: the turn is a robot's.
    """
    decision, step = turn.decision, turn.step
    if not is_text_turn(turn):
        raise UserError("only episodes of text actions on text, images and videos can be recorded")
    return {
        "content": [part if isinstance(part, str) else keep(part) for part in turn.observation.content],
        **_conversation_row(turn.observation),
        "action": decision.action, "cut": decision.truncated,
        "frames": [{"space": f.space, "original": [*f.original], "shown": [*f.shown]} for f in decision.frames],
        "step": {"reward": float(step.reward), "done": bool(step.terminated), "cut": bool(step.truncated),
                 "info": {name: float(value) for name, value in step.info.items()}},
    }  # fmt: skip


def is_text_turn(turn: Turn) -> bool:
    """Whether a turn is made of text, images and videos alone: no robot's."""
    return isinstance(turn.decision.action, str) and turn.observation.state is None


def _conversation_row(shown: Observation) -> dict[str, Any]:
    """What a turn adds to its content; {}: there are neither messages nor tools."""
    if not (shown.messages or shown.tools):
        return {}
    messages = [
        {"role": m.role, "parts": len(m.content),
         "tool_calls": [{"name": call.name, "arguments": dict(call.arguments)} for call in m.tool_calls]}
        for m in shown.messages
    ]  # fmt: skip
    return {"messages": messages, "tools": [dict(tool) for tool in shown.tools], "restart": shown.restart}


def _medium_row(save: Callable[[PilImage.Image], str], medium: PilImage.Image | Video) -> dict[str, Any]:
    if not isinstance(medium, Video):
        return {"image": save(medium)}
    frames = [save(PilImage.fromarray(frame)) for frame in medium.frames]
    return {"video": frames, "times": [*medium.times], "fps": float(medium.fps), "duration": float(medium.duration)}


def image_name(image: PilImage.Image) -> str:
    """The file name that an image's content gives."""
    content = f"{image.mode} {image.size} ".encode() + image.tobytes()
    return f"{hashlib.sha256(content).hexdigest()[:32]}.png"


def _saved(images: Path, image: PilImage.Image) -> str:
    """Saves an image once and returns its name."""
    path = images / image_name(image)
    if not path.exists():
        image.save(path, format="PNG")
    return path.name


class RecordedEpisodes(Sequence[Episode]):
    """Episodes from their rows. Images are opened when an episode is asked for; no decision has log-probabilities.

    Args:
        place: where the rows stand, for messages.
        file: an image's name -> its file.
    """

    def __init__(self, place: str, rows: Sequence[EpisodeRow], file: Callable[[str], Path | bytes]):
        self.place, self._rows, self._file = place, rows, file

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Episode:
        row = self._rows[index]
        observations = [_observation(turn, tuple(self._part(p, index) for p in turn.content)) for turn in row.turns]
        following = [*observations[1:], observations[-1]]  # what the last action led to is not kept
        turns = [
            Turn(now, _decision(turn), Step(then, turn.step.reward, turn.step.done, turn.step.cut, turn.step.info))
            for turn, now, then in zip(row.turns, observations, following, strict=True)
        ]
        return Episode(Sample(row.sample, observations[0]), index, turns, Score(row.parts, row.correct), row.reward)

    def _part(self, part: str | ImageRow | VideoRow, index: int) -> str | PilImage.Image | Video:
        if isinstance(part, str):
            return part
        if isinstance(part, ImageRow):
            return self._image(part.image, index)
        try:
            frames = np.stack([np.asarray(self._image(name, index)) for name in part.video])
            return Video(frames, tuple(part.times), part.fps, part.duration)
        except ValueError as error:  # frames of several sizes, or not as many times
            raise UserError(f"{self.place}: row {index + 1}: a video's {error}") from None

    def _image(self, name: str, index: int) -> PilImage.Image:
        try:
            return load_image(self._file(name))
        except MediaError as error:
            raise UserError(f"{self.place}: row {index + 1}: cannot read {name}: {error}") from None


def _observation(turn: TurnRow, content: tuple[str | PilImage.Image | Video, ...]) -> Observation:
    if not turn.messages:
        return Observation(content, tools=tuple(turn.tools))
    parts = iter(content)
    messages = [
        Message(row.role, tuple(islice(parts, row.parts)), tuple(ToolCall(c.name, c.arguments) for c in row.tool_calls))
        for row in turn.messages
    ]
    return Observation.from_messages(messages, turn.tools, turn.restart)


def _decision(turn: TurnRow) -> Decision:
    frames = tuple(Frame(frame.space, tuple(frame.original), tuple(frame.shown)) for frame in turn.frames)
    return Decision(turn.action, logprobs=None, entropy=None, truncated=turn.cut, frames=frames)


def recorded_read(folder: str | Path) -> RecordedEpisodes:
    """The episodes that `write` left in a folder.

    Raises:
        UserError: no such folder, no row, or a row that is no episode, with its number.
    """
    path = Path(folder) / FILE
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise UserError(f"cannot read {path}: {reason}; record episodes with `vlrl record`") from None
    if not lines:
        raise UserError(f"{path} holds no episodes")
    rows = [_checked(path, number, line) for number, line in enumerate(lines, start=1)]
    return RecordedEpisodes(str(path), rows, lambda name: path.parent / IMAGES / name)


def _checked(path: Path, number: int, line: str) -> EpisodeRow:
    """The row, once it is known to be an episode whose images are there."""
    try:
        row = EpisodeRow.model_validate(_object(line))
    except ValidationError as error:
        raise UserError(f"{path}: row {number}: {explain(error, EpisodeRow)}") from None
    except ValueError as error:
        raise UserError(f"{path}: row {number}: {error}") from None
    missing = next((name for name in row.images() if not (path.parent / IMAGES / name).is_file()), None)
    if missing:
        raise UserError(f"{path}: row {number}: there is no image {IMAGES}/{missing}")
    return row


def _object(line: str) -> Mapping[str, Any]:
    try:
        row = parse_log_row(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    return row


# The latest episodes of a run, kept as plain rows and PNG: small in memory, and whole in a checkpoint.


class EpisodeBuffer:
    """At most `capacity` episodes; the oldest make room. What comes back is what `vlrl.episode_store` keeps of an
    episode.

    Raises:
        UserError: an episode holds what `vlrl.episode_store` does not keep.
    """

    def __init__(self, capacity: int):
        self.capacity = capacity
        self._rows: list[EpisodeRow] = []
        self._images: dict[str, bytes] = {}  # name -> PNG, each once

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, episodes: Sequence[Episode]) -> None:
        rows = [EpisodeRow.model_validate(row_of(episode, self._save)) for episode in episodes]
        self._keep([*self._rows, *rows][-self.capacity :])

    def drop(self, count: int) -> None:
        """Forgets the oldest ones."""
        self._keep(self._rows[count:])

    def episodes(self) -> RecordedEpisodes:
        return RecordedEpisodes("this run's memory", self._rows, self._images.__getitem__)

    def _keep(self, rows: Iterable[EpisodeRow]) -> None:
        """These rows, and the images that they show."""
        self._rows = list(rows)
        names_in_rows = {name for row in self._rows for name in row.images()}
        self._images = {name: png for name, png in self._images.items() if name in names_in_rows}

    def _save(self, image: Image) -> str:
        name = image_name(image)
        if name not in self._images:
            file = BytesIO()
            image.save(file, format="PNG")
            self._images[name] = file.getvalue()
        return name

    def state_dict(self) -> dict[str, Any]:
        import torch

        images = {name: torch.frombuffer(bytearray(png), dtype=torch.uint8) for name, png in self._images.items()}
        return {"rows": [row.model_dump() for row in self._rows], "images": images}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._rows = [EpisodeRow.model_validate(row) for row in state["rows"]]
        self._images = {name: png.numpy().tobytes() for name, png in state["images"].items()}
