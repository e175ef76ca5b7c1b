"""Recorded robot episodes as data sets for supervised learning, their examples in batches, and a pass over them."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from torch import Tensor

from vlrl.decoders import load_json
from vlrl.media import load_rgb, open_regular_file, open_video
from vlrl.policies.discrete import DiscreteShape
from vlrl.types import Decision, Observation, Policy, UserError, first_line
from vlrl.update import fit_supervised, linear_schedule

# One camera's pictures of an episode, kept as they were written and opened one by one.

LATE = 0.5  # of a frame's time by which a video's frame may differ from the row's


class Pictures(Sequence):
    """RGB pictures, from PNG or JPEG bytes or from uint8 [height, width, 3]."""

    def __init__(self, frames: Sequence[bytes | np.ndarray]):
        self._frames = frames

    def __len__(self) -> int:
        return len(self._frames)

    def __getitem__(self, t: int) -> Image.Image:
        frame = self._frames[t]
        if isinstance(frame, np.ndarray):
            return Image.fromarray(frame)
        return load_rgb(frame, name=f"the image of frame {t}")


def kept(column: pa.ChunkedArray, root: Path) -> Pictures:
    """Pictures of a data file: inside it, or beside the data set where it names their files."""

    def frame(cell: dict) -> bytes:
        if cell["bytes"] is not None:
            return cell["bytes"]
        file = (root / cell["path"]).resolve()
        if not file.is_relative_to(root.resolve()):
            raise ValueError(f"a picture outside the data set: {cell['path']}")
        with open_regular_file(file) as opened:
            return opened.read()

    return Pictures([frame(cell) for cell in column.to_pylist()])


def video(file: Path, start: float, count: int, fps: float) -> Pictures:
    """`count` frames of a video from `start` seconds on.

    Raises:
        ValueError: the video is damaged or ends before.
    """
    import av

    frames: list[np.ndarray] = []
    try:
        with open_video(file) as opened:
            stream = opened.streams.video[0]
            opened.seek(int(start / stream.time_base), stream=stream)  # to the key frame before it
            for frame in opened.decode(stream):
                if frame.time is not None and frame.time > start - LATE / fps:
                    frames.append(frame.to_ndarray(format="rgb24"))
                if len(frames) == count:
                    return Pictures(frames)
    except (av.FFmpegError, IndexError) as error:
        raise ValueError(f"{file.name}: {error}") from None
    raise ValueError(f"{file.name} has {len(frames)} of {count} frames")


# LeRobotDatasets v3 as they lie on the disk: what they hold. Read without the hub and without lerobot.
#
# Columns: `observation.state`, `observation.images.*` (PNG, or videos), `action`; where there are any `next.success`,
# `next.reward`, `source` (who drove: 0 nobody, 1 the policy, 2 a person, 3 held) or `intervention`.

POLICY, PERSON = 1, 2  # of `Recorded.driver`
STATE, ACTION, IMAGES = "observation.state", "action", "observation.images."
OPTIONAL = ("next.success", "next.reward", "source", "intervention")


class UnreadableError(UserError):
    """No data set, or one that is not whole: damaged, or being written now."""


@dataclass(frozen=True)
class DatasetInfo:
    """What a data set holds, by its meta/info.json."""

    path: Path
    fps: float
    state: tuple[str, ...]  # names, '' where it says none
    action: tuple[str, ...]
    cameras: tuple[tuple[str, int, int], ...]  # name, width, height, in the data set's order
    columns: tuple[str, ...]  # those of OPTIONAL that it has
    videos: bool
    episodes: int


@dataclass(frozen=True, eq=False)
class DatasetEpisode:
    """One episode of T frames. Rewards and success are of the tick that followed the frame."""

    number: int
    task: str
    state: np.ndarray  # float32 [T, S]
    action: np.ndarray  # float32 [T, A]
    success: np.ndarray  # bool [T]
    reward: np.ndarray  # float32 [T]
    driver: np.ndarray  # int64 [T]
    pictures: tuple[Pictures, ...]  # one for each camera

    def __len__(self) -> int:
        return len(self.state)

    @property
    def won(self) -> bool:
        return bool(self.success.any())

    def observation_at(self, t: int) -> Observation:
        """What a policy would see at frame t."""
        return Observation((*(camera[t] for camera in self.pictures), self.task), self.state[t])


def read_info(path: str | Path) -> DatasetInfo:
    """
    Raises:
        UnreadableError: there is no data set, it is of another version, or has no state and action.
    """
    path = Path(path)
    try:
        info = load_json(path / "meta" / "info.json")
        features, version = info["features"], str(info["codebase_version"])
        fps, count = float(info["fps"]), int(info["total_episodes"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UnreadableError(f"{path}: no LeRobotDataset: it has no readable meta/info.json") from None
    if not version.startswith("v3."):
        raise UnreadableError(f"{path}: a LeRobotDataset {version}; v3 is read: convert it with lerobot's own script")
    for name in (STATE, ACTION):
        if name not in features:
            raise UnreadableError(f"{path}: has no column {name}")
    pictures = {name: feature for name, feature in features.items() if name.startswith(IMAGES)}
    return DatasetInfo(
        path, fps, _names(features[STATE]), _names(features[ACTION]),
        tuple((name.removeprefix(IMAGES), *_size(feature)) for name, feature in pictures.items()),
        tuple(name for name in OPTIONAL if name in features),
        any(feature["dtype"] == "video" for feature in pictures.values()), count,
    )  # fmt: skip


def _names(feature: Mapping[str, Any]) -> tuple[str, ...]:
    names, (size, *_) = feature.get("names"), feature["shape"]
    names = names.get("motors", list(names)) if isinstance(names, dict) else names
    return tuple(map(str, names)) if names and len(names) == size else ("",) * size


def _size(feature: Mapping[str, Any]) -> tuple[int, int]:
    """Width and height; some data sets have the channels first."""
    a, b, c = feature["shape"]
    return (c, b) if a in (1, 3) and c > 4 else (b, a)


# The episodes of a LeRobotDataset v3, read with pyarrow: only those that are whole.


def episodes(data: DatasetInfo, but: Collection[int] = ()) -> Iterator[DatasetEpisode]:
    """The whole episodes in order, without those whose numbers are in `but`.

    Raises:
        UnreadableError: a file is damaged or half written.
    """
    try:
        tasks = _tasks(data.path)
        rows = [row for row in _rows(data.path) if row["episode_index"] not in but]
        files: dict[Path, list[dict[str, Any]]] = {}
        for row in rows:
            place = f"chunk-{row['data/chunk_index']:03d}/file-{row['data/file_index']:03d}.parquet"
            files.setdefault(data.path / "data" / place, []).append(row)
        for file, held in files.items():
            yield from _of_file(data, file, held, tasks)
    except (OSError, KeyError, ValueError, IndexError, pa.ArrowException) as error:
        reason = first_line(error)
        raise UnreadableError(f"{data.path}: damaged, or being written now: {reason}") from None


def _of_file(
    data: DatasetInfo, file: Path, rows: list[dict[str, Any]], tasks: Mapping[int, str]
) -> Iterator[DatasetEpisode]:
    pictures = [] if data.videos else [IMAGES + name for name, _, _ in data.cameras]
    columns = [STATE, ACTION, *data.columns, *pictures, "episode_index", "task_index"]
    table = pq.read_table(file, columns=columns, partitioning=None)
    numbers = table["episode_index"].to_numpy()
    for row in rows:
        places = np.flatnonzero(numbers == row["episode_index"])
        if len(places) != row["length"] or not len(places) or np.ptp(places) >= len(places):
            raise ValueError(f"episode {row['episode_index']} has {len(places)} of {row['length']} frames")
        yield _recorded(data, row, table.slice(places[0], len(places)), tasks)


def _recorded(data: DatasetInfo, row: dict[str, Any], table: pa.Table, tasks: Mapping[int, str]) -> DatasetEpisode:
    length = len(table)
    optional = {name: table[name].to_numpy().reshape(length) for name in data.columns}
    driver = optional.get("source")
    if driver is None:
        driver = np.where(optional.get("intervention", np.zeros(length, bool)), PERSON, POLICY)
    return DatasetEpisode(
        row["episode_index"],
        tasks.get(table["task_index"][0].as_py(), ""),
        _matrix(table, STATE),
        _matrix(table, ACTION),
        optional.get("next.success", np.zeros(length)).astype(bool),
        optional.get("next.reward", np.zeros(length)).astype(np.float32),
        driver.astype(np.int64),
        tuple(_pictures(data, row, table, name) for name, _, _ in data.cameras),
    )


def _pictures(data: DatasetInfo, row: dict[str, Any], table: pa.Table, name: str) -> Pictures:
    if not data.videos:
        return kept(table[IMAGES + name], data.path)
    about = f"videos/{IMAGES}{name}"
    place = f"chunk-{row[f'{about}/chunk_index']:03d}/file-{row[f'{about}/file_index']:03d}.mp4"
    file = data.path / "videos" / (IMAGES + name) / place
    return video(file, float(row[f"{about}/from_timestamp"]), len(table), data.fps)


def _matrix(table: pa.Table, name: str) -> np.ndarray:
    flat = table[name].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    values = flat.astype(np.float32).reshape(len(table), -1)
    if not np.isfinite(values).all():
        raise ValueError(f"{name} is not finite")
    return values


def _rows(path: Path) -> list[dict[str, Any]]:
    """What meta/episodes says of each episode, without its statistics."""
    rows: list[dict[str, Any]] = []
    for file in sorted((path / "meta" / "episodes").glob("*/*.parquet")):
        names = [name for name in pq.read_schema(file).names if not name.startswith("stats/")]
        rows += pq.read_table(file, columns=names, partitioning=None).to_pylist()
    return sorted(rows, key=lambda row: row["episode_index"])


def _tasks(path: Path) -> dict[int, str]:
    table = pq.read_table(path / "meta" / "tasks.parquet", partitioning=None).to_pydict()
    texts = table.get("task") or table["__index_level_0__"]  # the text is pandas' index
    return dict(zip(table["task_index"], texts, strict=True))


# Examples of recorded episodes in batches, and one pass of imitation over them.

DOUBT = 1.0  # seconds before a person takes over in which the policy is not imitated: they are why


@dataclass(frozen=True, eq=False)
class Example:
    """What was shown at a frame, and what was done from there by whoever drove."""

    decision: Decision
    ticks: int  # of the chunk's K, those that were recorded; the rest is padding and not learned from
    episode: DatasetEpisode | None = None  # None: not from a data set
    t: int = 0


@dataclass(frozen=True, eq=False)
class ExampleBatch:
    """What one step of an update sees. An update that values actions finds what came of them in the episodes."""

    examples: tuple[Example, ...]

    @property
    def decisions(self) -> list[Decision]:
        return [example.decision for example in self.examples]

    def mask(self) -> Tensor:
        """bool [B, K * A]: the numbers that were recorded."""
        chunk, controls = np.shape(self.examples[0].decision.action)
        ticks = torch.tensor([example.ticks for example in self.examples])
        return (torch.arange(chunk) < ticks[:, None]).repeat_interleave(controls, 1)


def examples(policy: Policy, chunk: int, episode: DatasetEpisode, frames: Sequence[int]) -> Iterator[Example]:
    """The chunks, `chunk` ticks long, that begin at these frames. They end where the driver changes, and with the
    episode.

    Raises:
        UserError: the policy was made for another state, other pictures or controls.
    """
    ends = _ends(episode.driver)
    for t in frames:
        done = episode.action[t : min(t + chunk, ends[t])]
        padded = np.concatenate([done, np.repeat(done[-1:], chunk - len(done), 0)])
        yield Example(policy.decide(episode.observation_at(t), padded), len(done), episode, t)


def by_person(episode: DatasetEpisode) -> np.ndarray:
    """The frames that a person drove."""
    return np.flatnonzero(episode.driver == PERSON)


def by_policy(episode: DatasetEpisode, fps: float) -> np.ndarray:
    """The frames of a success that the policy drove, without those just before a person took over."""
    person = episode.driver == PERSON
    taken = np.flatnonzero(person & ~np.concatenate([[False], person[:-1]]))
    mine = (episode.driver == POLICY) & episode.won
    for t in taken:
        mine[max(0, t - round(DOUBT * fps)) : t] = False
    return np.flatnonzero(mine)


def check_fit(data: DatasetInfo, shape: DiscreteShape) -> None:
    """UserError, in one line, where a policy of this shape cannot learn from a data set."""
    named = data.action if all(data.action) else shape.controls
    sizes = tuple((width, height) for _, width, height in data.cameras)
    if len(data.action) != len(shape.low) or named != shape.controls:
        theirs = ", ".join(filter(None, data.action)) or f"{len(data.action)} numbers"
        raise UserError(f"{data.path}: its action is {theirs}; the policy gives {', '.join(shape.controls)}")
    if len(data.state) != shape.state:
        raise UserError(f"{data.path}: its state has {len(data.state)} numbers; the policy takes {shape.state}")
    if all(data.state) and shape.names and data.state != shape.names:
        raise UserError(f"{data.path}: its state is {', '.join(data.state)}; the policy takes {', '.join(shape.names)}")
    if shape.hz and data.fps != shape.hz:
        raise UserError(f"{data.path}: {data.fps:g} frames a second; the policy gives {shape.hz:g} controls a second")
    if sizes != shape.cameras:
        raise UserError(f"{data.path}: its pictures are {_listed(sizes)}; the policy takes {_listed(shape.cameras)}")


def _listed(sizes: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"{width}x{height}" for width, height in sizes) or "none"


def _ends(driver: np.ndarray) -> np.ndarray:
    """For each frame, the first one after it that somebody else drove, or the end."""
    changes = np.append(np.flatnonzero(np.diff(driver)) + 1, len(driver))
    return changes[np.searchsorted(changes, np.arange(len(driver)), side="right")]


# Imitation: batches drawn from groups of examples at fixed shares, and the update that maximises their likelihood.


def chances(sizes: Mapping[str, int], shares: Mapping[str, float]) -> np.ndarray:
    """The probability [sum of sizes] of each example, its group's share divided among the group.

    The share of a group that has no examples goes to the others in proportion (RLPD draws demonstrations at a fixed
    share: arXiv 2302.02948). All 0 where nothing that has a share has examples.
    """
    total = sum(shares[name] for name, size in sizes.items() if size) or 1.0
    return np.concatenate([np.full(size, shares[name] / total / max(1, size)) for name, size in sizes.items()])


def draw_batches(
    examples: Sequence[Example], chance: np.ndarray | None, *, steps: int, size: int, rng: np.random.Generator
) -> Iterator[ExampleBatch]:
    """`steps` batches, each example drawn with its `chance`; None: all alike."""
    return (draw(examples, chance, size=size, rng=rng) for _ in range(steps))


def draw(
    examples: Sequence[Example], chance: np.ndarray | None, *, size: int, rng: np.random.Generator
) -> ExampleBatch:
    """One batch of `size` examples, or as many as there are; an example may come twice."""
    chosen = rng.choice(len(examples), size=min(size, len(examples)), p=chance)
    return ExampleBatch(tuple(examples[i] for i in chosen))


def imitate(policy: Policy, batches: Iterable[ExampleBatch], *, steps: int, lr: float) -> dict[str, float]:
    """The update of `vlrl learn`: behaviour cloning of what was recorded, one optimizer step a batch.

    Another update, such as an off-policy one that values actions, has the same form: a policy that is changed in
    place, batches, sizes; what it returns goes into the metrics.

    Args:
        steps: how many batches there are, for the schedule: linear rise, then linear fall to 0.

    Returns:
        loss: nats for each number of a control, the mean of the last 20 steps.
    """
    losses = fit_supervised(
        imitation_optimizer(policy, lr), batches, functools.partial(imitation_loss, policy),
        lr=linear_schedule(lr, steps),
    )  # fmt: skip
    tail = losses[-20:]
    return {"loss": sum(tail) / max(1, len(tail))}


def imitation_optimizer(policy: Policy, lr: float) -> torch.optim.Optimizer:
    """For all of a small robot policy's weights."""
    learned = [parameter for parameter in policy.model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(learned, lr=lr, weight_decay=1e-4)


def imitation_loss(policy: Policy, batch: ExampleBatch) -> Tensor:
    """The negative log-likelihood of what was done, nats for each number of a control."""
    logprobs = policy.evaluate(batch.decisions).logprobs
    mask = batch.mask().to(logprobs.device)
    return -(logprobs * mask).sum() / mask.sum()
