"""Reward classifiers: labels, training, report, serving."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from PIL import Image
from pydantic import Field
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from vlrl.checkpoint import open_model
from vlrl.config import Count, FitConfig, Rate
from vlrl.imitation.behaviour_cloning import cloning_read
from vlrl.imitation.datasets import DatasetEpisode, DatasetInfo, chances
from vlrl.runner import EvalResult, SupervisedLearner
from vlrl.types import Estimate, UserError, suggest, wilson
from vlrl.update import fit_supervised

# Frames of recorded episodes as examples of success and of its absence.

NEGATIVE, POSITIVE, UNSURE = 0, 1, -1
LEAST = 6  # successes and, of all, twice as many episodes: to learn from, to set the threshold by, to measure on


@dataclass(frozen=True)
class Spans:
    """Seconds at the end of an episode."""

    near: float  # before the first success that look like it already
    unsure: float  # before those, that are neither
    hard: float  # of a failure, to be learned from more often: it looks like the end, and is none


def labels(episode: DatasetEpisode, fps: float, spans: Spans) -> np.ndarray:
    """int64 [T]: POSITIVE, NEGATIVE or UNSURE."""
    marked = np.where(episode.success, POSITIVE, NEGATIVE)
    if episode.won:
        first = int(np.argmax(episode.success))
        near = max(0, first - round(spans.near * fps))
        marked[near:first] = POSITIVE
        marked[max(0, near - round(spans.unsure * fps)) : near] = UNSURE
    return marked


def hard(episode: DatasetEpisode, fps: float, spans: Spans) -> np.ndarray:
    """bool [T]: the end of a failure."""
    last = np.arange(len(episode)) >= len(episode) - round(spans.hard * fps)
    return last & (not episode.won)


def split(episodes: Sequence[DatasetEpisode], share: float, seed: int) -> tuple[list[int], list[int], list[int]]:
    """Places of the episodes to learn from, to set the threshold by, and to measure on: each with its successes.

    Whole episodes, since the frames of one are much alike.

    Raises:
        UserError: too few.
    """
    rng, parts = np.random.default_rng(seed), ([], [], [])
    won = [episode.won for episode in episodes]
    if sum(won) < LEAST or len(won) < 2 * LEAST:
        raise UserError(f"{sum(won)} successes in {len(won)} episodes: record at least {LEAST} in {2 * LEAST}")
    for kind in (True, False):
        places = rng.permutation([place for place, each in enumerate(won) if each == kind]).astype(int).tolist()
        held = round(share * len(places) / 2) or min(1, len(places) // 3)
        for part, chosen in zip(parts, (places[2 * held :], places[:held], places[held : 2 * held]), strict=True):
            part += chosen
    return parts


# The network that tells milestones from what lies between them (vlrl/contrib/process_rewards/visual.py), and how it
# learns.

MILESTONES_SHARES = (0.5, 0.25, 0.25)  # of a batch: milestones, other moments of successes, failures


def network(width: int, hidden: int, seed: int) -> nn.Module:
    """Logits [B, 1] of vectors float32 [B, width]; the weights hang on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(width, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 1)
        )


class ClassifierTrainer:
    """A network and its optimizer. What it becomes hangs on the seed and on what it is given alone.

    Inputs are centred and divided by one number, so that they measure about 1; both are taken from the first batch of
    vectors and then stay. They are not standardised one by one: an encoder's small numbers are small on purpose.
    """

    def __init__(self, width: int, *, hidden: int, lr: float, seed: int):
        self.width, self.seed = width, seed
        self.network = network(width, hidden, seed)
        self.optimizer = torch.optim.AdamW(self.network.parameters(), lr=lr, weight_decay=1e-3)
        self.centre, self.size = torch.zeros(width), 0.0  # 0: nothing was seen

    @torch.no_grad()
    def probability(self, vectors: np.ndarray) -> np.ndarray:
        """float64 [M] of vectors [M, D]."""
        return self.network(self._scaled(vectors))[:, 0].sigmoid().double().numpy()

    def learn(self, groups: Sequence[np.ndarray], *, steps: int, batch: int, step: int) -> float:
        """`steps` updates -> the mean cross-entropy.

        Args:
            groups: vectors [M, D]: milestones, other moments of successes, failures. Where one of the last two is empty
                the other takes its share.
            step: of training: with the seed it decides what is drawn.
        """
        rng, vectors_of_groups = np.random.default_rng([self.seed, step]), np.concatenate(groups)
        if not self.size:
            self._fit(vectors_of_groups)
        vectors, chance = self._scaled(vectors_of_groups), _chances([len(group) for group in groups])
        labels = (torch.arange(len(vectors)) < len(groups[0])).float()

        def loss(chosen: Tensor) -> Tensor:
            logits = self.network(vectors[chosen])[:, 0]
            return functional.binary_cross_entropy_with_logits(logits, labels[chosen])

        batches = (torch.from_numpy(rng.choice(len(vectors), size=batch, p=chance)) for _ in range(steps))
        return sum(fit_supervised(self.optimizer, batches, loss)) / steps

    def _fit(self, vectors: np.ndarray) -> None:
        self.centre = torch.from_numpy(vectors.mean(0))
        self.size = max(float(vectors.var(0).mean() ** 0.5), 1e-6)

    def _scaled(self, vectors: np.ndarray) -> Tensor:
        return (torch.from_numpy(np.ascontiguousarray(vectors)) - self.centre) / (self.size or 1.0)

    def state_dict(self) -> dict[str, Any]:
        return {"width": self.width, "network": dict(self.network.state_dict()), "centre": self.centre,
                "size": self.size, "optimizer": self.optimizer.state_dict()}  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.centre, self.size = state["centre"], state["size"]


def _chances(counts: Sequence[int]) -> np.ndarray:
    """How likely each vector is drawn, float64 [sum of counts]."""
    filled = [share if count else 0.0 for share, count in zip(MILESTONES_SHARES, counts, strict=True)]
    rest = filled[1] + filled[2]
    shares = [0.5, *(0.5 * share / rest if rest else 0.0 for share in filled[1:])]
    chance = np.concatenate([np.full(n, share / max(1, n)) for share, n in zip(shares, counts, strict=True)])
    return chance / chance.sum()


# The network of `vlrl.imitation.reward_classifier`: pictures, and a state if wanted, in; the logit of success out.

LONGEST = 128  # pixels of a picture's longer side that the network sees; larger ones are shrunk by a whole factor


@dataclass(frozen=True)
class RewardShape:
    """What a reward model sees, and its size."""

    cameras: tuple[tuple[str, int, int], ...]  # name, width, height, as recorded
    names: tuple[str, ...] = ()  # of the numbers of the recorded state; '' where not known
    seen: tuple[int, ...] = ()  # which of them the network sees
    maps: int = 32  # feature maps, so keypoints, of a picture
    hidden: int = 64


def factor_of(width: int, height: int) -> int:
    """By how much a picture is shrunk before the network."""
    return -(-max(width, height) // LONGEST)


class RewardNetwork(nn.Module):
    """Logits [B] of pictures uint8 [B, 3, height, width] each, shrunk already, and states float32 [B, S]."""

    def __init__(self, shape: RewardShape):
        super().__init__()
        self.shape = shape
        self.register_buffer("mean", torch.zeros(len(shape.names)))
        self.register_buffer("spread", torch.ones(len(shape.names)))
        self.eyes = nn.ModuleList(_eye(shape.maps) for _ in shape.cameras)
        width = 3 * shape.maps * len(shape.cameras) + len(shape.seen)
        self.head = nn.Sequential(nn.Linear(width, shape.hidden), nn.SiLU(), nn.Linear(shape.hidden, 1))

    def forward(self, pixels: Sequence[Tensor], state: Tensor) -> Tensor:
        views = [keypoints(eye(picture / 255 - 0.5)) for eye, picture in zip(self.eyes, pixels, strict=True)]
        scaled = ((state - self.mean) / self.spread)[:, list(self.shape.seen)]
        return self.head(torch.cat([*views, scaled], 1))[:, 0]


def _eye(maps: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=2, padding=2), nn.SiLU(),
        nn.Conv2d(16, maps, 3, stride=2, padding=1), nn.GroupNorm(4, maps), nn.SiLU(),
        nn.Conv2d(maps, maps, 3, padding=1),
    )  # fmt: skip


def keypoints(maps: Tensor) -> Tensor:
    """Where each feature map [B, C, H, W] is strongest, and how strong it is there -> [B, 3 * C].

    Spatial soft-argmax (Levine et al. 2016, arXiv 1504.00702): x and y in -1..1; strength is the mean under that law.
    """
    law = maps.flatten(2).softmax(-1).view_as(maps)
    y, x = (torch.linspace(-1, 1, side, device=maps.device) for side in maps.shape[2:])
    return torch.cat([(law.sum(2) * x).sum(-1), (law.sum(3) * y).sum(-1), (law * maps).sum((2, 3))], 1)


# The YAML of `vlrl reward-model`.

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class RewardConfig(FitConfig):
    datasets: Annotated[list[str], Field(min_length=1)]  # LeRobotDatasets v3 with pictures and `next.success`
    state: list[str] = Field(default=[])  # numbers of the state that it may see beside the pictures, by name
    false_successes: Annotated[float, Field(gt=0, lt=1)] = 0.02  # of episodes: the share wanted; sets the threshold
    held_out: Annotated[float, Field(gt=0, lt=0.8)] = 0.4  # of episodes: half for the threshold, half to measure on
    near_s: Seconds = 0.1  # see vlrl.imitation.reward_classifier.Spans
    unsure_s: Seconds = 0.4
    hard_s: Seconds = 1.0
    steps: Count = 400
    batch_size: Annotated[int, Field(ge=4)] = 64
    lr: Rate = 1e-3

    @property
    def spans(self) -> Spans:
        return Spans(self.near_s, self.unsure_s, self.hard_s)


# How good a reward model is on episodes that it has not seen, and where its threshold should be.
#
# A policy that is rewarded by a model finds its errors: what counts is how many EPISODES are taken for won once, in any
# of their frames, that are not. The frames of an episode are much alike, so that intervals by frames are too narrow.

LOWEST = 0.5  # of a threshold


def threshold_for(scores: np.ndarray, label: np.ndarray, episode: np.ndarray, share: float) -> float:
    """The lowest threshold, at least 0.5, at which at most `share` of these episodes are taken for won wrongly.

    Args:
        scores: float [N], probabilities of the frames; label: [N]; episode: int [N].
    """
    most = [scores[mine].max() for mine in _each(label == NEGATIVE, episode)]
    allowed = math.floor(share * len(most))
    highest = sorted(most, reverse=True)[allowed] if allowed < len(most) else 0.0
    return max(LOWEST, float(np.nextafter(np.float32(highest), np.float32(2))))


def measured(scores: np.ndarray, label: np.ndarray, episode: np.ndarray, threshold: float) -> dict[str, Any]:
    """What the model says of frames and episodes at a threshold; counts as [k, n, low, high] with Wilson's 95 %."""
    alarms, negative, positive = scores >= threshold, label == NEGATIVE, label == POSITIVE
    wrongly = [bool(alarms[mine].any()) for mine in _each(negative, episode)]
    hits = [bool(alarms[mine].any()) for mine in _each(positive, episode)]
    sure = negative | positive
    return {
        "threshold": threshold,
        "auc": auc(scores[positive], scores[negative]),
        "accuracy": _counted((alarms == positive)[sure]),
        "false_success_frames": _counted(alarms[negative]),
        "found_success_frames": _counted(alarms[positive]),
        "false_success_episodes": _counted(np.array(wrongly)),
        "found_success_episodes": _counted(np.array(hits)),
    }


def auc(positive: np.ndarray, negative: np.ndarray) -> float:
    """The chance that a success scores above another frame; a tie counts half. NaN without either."""
    if not len(positive) or not len(negative):
        return math.nan
    ordered = np.sort(negative)
    below, upto = (np.searchsorted(ordered, positive, side=side) for side in ("left", "right"))
    return float((below + upto).mean() / 2 / len(negative))


def reward_report_text(report: dict[str, Any]) -> str:
    """The measurement in one line."""

    def share(name: str) -> str:
        k, n, low, high = report[name]
        return f"{k}/{n} [{low:.2f}, {high:.2f}]"

    return (
        f"held out: AUC {report['auc']:.3f}; at threshold {report['threshold']:.3f} success is found in "
        f"{share('found_success_episodes')} episodes, false in {share('false_success_episodes')} episodes and "
        f"{share('false_success_frames')} frames, accuracy {share('accuracy')}"
    )


def _each(chosen: np.ndarray, episode: np.ndarray) -> list[np.ndarray]:
    """The chosen frames' places, episode by episode, where there are any."""
    places = np.flatnonzero(chosen)
    return [places[episode[places] == number] for number in np.unique(episode[places])]


def _counted(said: np.ndarray) -> list[float]:
    k, n = int(said.sum()), len(said)
    return [k, n, *(wilson(k, n) if n else (0.0, 1.0))]


# Success seen in pictures: a classifier that tells a robot whether its job is done (HIL-SERL, arXiv 2410.21845).
#
# A folder holds config.json, model.safetensors and report.json, what was measured on episodes held out.

FAMILY = "vlrl_reward"


class RewardModel:
    """The classifier. It is sure of success from `threshold` on."""

    def __init__(self, network: RewardNetwork, threshold: float = 0.5):
        self.network, self.shape, self.threshold = network.eval(), network.shape, threshold

    @torch.no_grad()
    def probability(self, pixels: Sequence[Tensor], state: Tensor) -> Tensor:
        """float32 [B] of pictures uint8 [B, 3, height, width] each, shrunk as `pixels_of` does, and states [B, S]."""
        return self.network(pixels, state).sigmoid()

    def compute_reward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """1 where the job is done, else 0, float32 [B]: lerobot's interface of reward models.

        Args:
            batch: `observation.images.NAME` [B, 3, height, width], uint8 or 0..1, and `observation.state` [B, S].
        """
        pixels = []
        for name, width, height in self.shape.cameras:
            picture = batch[f"observation.images.{name}"]
            picture = picture.float() if picture.dtype == torch.uint8 else picture.float() * 255
            factor = factor_of(width, height)
            pixels.append(functional.avg_pool2d(picture, factor, ceil_mode=True) if factor > 1 else picture)
        state = batch.get("observation.state", torch.zeros(len(pixels[0]), len(self.shape.names)))
        return (self.probability(pixels, state.float()) >= self.threshold).float()

    def save(self, folder: Path) -> None:
        """config.json and model.safetensors."""
        folder.mkdir(parents=True, exist_ok=True)
        about = {"model_type": FAMILY, "threshold": self.threshold, **asdict(self.shape)}
        (folder / "config.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        save_file({name: value.contiguous() for name, value in self.network.state_dict().items()},
                  folder / "model.safetensors")  # fmt: skip

    def load_weights(self, folder: Path) -> None:
        """What `save` wrote of this model, into it."""
        saved = reward_model_load(folder)
        self.network.load_state_dict(saved.network.state_dict())
        self.threshold = saved.threshold


def reward_model_load(folder: str | Path) -> RewardModel:
    """The model that `save` wrote.

    Raises:
        UserError: the folder holds something else.
    """
    with open_model(Path(folder), FAMILY, "reward model") as (about, tensors):
        threshold = float(about.pop("threshold"))
        cameras = tuple((str(name), int(width), int(height)) for name, width, height in about.pop("cameras"))
        lists = {name: tuple(about.pop(name)) for name in ("names", "seen")}
        network = RewardNetwork(RewardShape(cameras, **lists, **about))
        network.load_state_dict(tensors)
    return RewardModel(network, threshold)


def pixels_of(image: Image.Image | np.ndarray) -> Tensor:
    """A picture as the network takes it: uint8 [3, height, width], shrunk where it is large."""
    image = Image.fromarray(image) if isinstance(image, np.ndarray) else image.convert("RGB")
    factor = factor_of(*image.size)
    return torch.from_numpy(np.array(image.reduce(factor) if factor > 1 else image)).permute(2, 0, 1)


# How a reward model learns: batches half of successes, a quarter of other frames, a quarter of failures' ends.

REWARD_TRAINING_SHARES = {"positive": 0.5, "negative": 0.25, "hard": 0.25}
SHIFT = 0.05  # of a side: the most by which a picture is shifted
TINT = 0.2  # the most by which contrast and each colour are changed


@dataclass(frozen=True, eq=False)
class Frames:
    """N frames of some episodes."""

    pixels: tuple[Tensor, ...]  # uint8 [N, 3, height, width] of each camera, shrunk
    state: Tensor  # float32 [N, S]
    label: Tensor  # int64 [N]
    hard: Tensor  # bool [N]
    episode: Tensor  # int64 [N], which of them


def frames_of(found: Sequence[tuple[DatasetInfo, DatasetEpisode]], spans: Spans) -> Frames:
    """Every frame, opened: 49 kB for a picture of 128 x 128."""
    cameras = range(len(found[0][0].cameras))
    pixels = tuple(
        torch.stack([pixels_of(picture) for _, episode in found for picture in episode.pictures[camera]])
        for camera in cameras
    )
    fps = [data.fps for data, _ in found]
    each = [episode for _, episode in found]
    return Frames(
        pixels,
        torch.from_numpy(np.concatenate([episode.state for episode in each])),
        torch.from_numpy(np.concatenate([labels(*pair, spans) for pair in zip(each, fps, strict=True)])),
        torch.from_numpy(np.concatenate([hard(*pair, spans) for pair in zip(each, fps, strict=True)])),
        torch.from_numpy(np.repeat(np.arange(len(each)), [len(episode) for episode in each])),
    )


def changed(pixels: Tensor, rng: np.random.Generator) -> Tensor:
    """Pictures uint8 [B, 3, H, W] -> float32, each shifted a little, its contrast and colours changed a little."""
    count, _, height, width = pixels.shape
    high, wide = round(SHIFT * height), round(SHIFT * width)
    padded = functional.pad(pixels.float(), (wide, wide, high, high), mode="replicate")
    tops, lefts = rng.integers(0, 2 * high + 1, count), rng.integers(0, 2 * wide + 1, count)
    shifted = torch.stack([
        picture[:, top : top + height, left : left + width]
        for picture, top, left in zip(padded, tops.tolist(), lefts.tolist(), strict=True)
    ])  # fmt: skip
    scale = torch.from_numpy(rng.uniform(1 - TINT, 1 + TINT, (count, 3, 1, 1)).astype(np.float32))
    light = torch.from_numpy(rng.uniform(-TINT, TINT, (count, 1, 1, 1)).astype(np.float32))
    return (shifted * scale + 128 * light).clamp(0, 255)


# `vlrl reward-model`: a success classifier from recorded episodes.

Found = list[tuple[DatasetInfo, DatasetEpisode]]


class RewardClassifierLearner(SupervisedLearner):
    """A reward model, and what is measured of it on held-out episodes (`vlrl reward-model`)."""

    command = "reward-model"
    name = "success"
    config: RewardConfig
    policy: RewardModel

    def setup(self, saved: Path | None = None) -> None:
        """
        Raises:
            UserError: data sets that cannot be read, differ, show no pictures, say nothing of success, or hold too
                little.
        """
        super().setup(saved)
        config, self.found = self.config, _read(self.config)
        parts = split([episode for _, episode in self.found], config.held_out, config.seed)
        self.learned, self.tuned, self.held = (frames_of([self.found[i] for i in part], config.spans) for part in parts)
        torch.manual_seed(config.seed)
        network = RewardNetwork(_shape(self.found[0][0], config.state))
        network.mean.copy_(self.learned.state.mean(0))
        network.spread.copy_(self.learned.state.std(0).clamp(min=1e-3))
        self.policy = RewardModel(network)
        self.optimizer = torch.optim.AdamW(network.parameters(), lr=config.lr, weight_decay=1e-3)
        negative = self.learned.label == NEGATIVE
        groups = {
            "positive": np.flatnonzero(self.learned.label == POSITIVE),
            "negative": np.flatnonzero(negative & ~self.learned.hard),
            "hard": np.flatnonzero(negative & self.learned.hard),
        }
        self.places = np.concatenate(list(groups.values()))
        self.chance = chances({name: len(group) for name, group in groups.items()}, REWARD_TRAINING_SHARES)

    def draw(self) -> tuple[list[Tensor], Tensor, Tensor]:
        """Pictures of each camera, changed a little, states and labels."""
        chosen = torch.from_numpy(
            self.places[self.rngs[0].choice(len(self.places), self.config.batch_size, p=self.chance)]
        )
        pixels = [changed(camera[chosen], self.rngs[0]) for camera in self.learned.pixels]
        return pixels, self.learned.state[chosen], (self.learned.label[chosen] == POSITIVE).float()

    def loss(self, batch: tuple[list[Tensor], Tensor, Tensor]) -> Tensor:
        pixels, state, label = batch
        return functional.binary_cross_entropy_with_logits(self.policy.network(pixels, state), label)

    def evaluate(self, i: int, progress: Callable[[int, int], None]) -> EvalResult:
        """The share of held-out frames that it is right about; sets the threshold by episodes that are others."""
        report = self.measure()
        k, n, low, high = report["accuracy"]
        return EvalResult(Estimate(k / n, low, high, n), metrics={name: report[name] for name in ("auc", "threshold")})

    def measure(self) -> dict[str, Any]:
        """What the model says of held-out frames and episodes, at a threshold that others set."""
        model = self.policy
        model.threshold = threshold_for(*_scored(model, self.tuned), self.config.false_successes)
        return measured(*_scored(model, self.held), model.threshold)

    def report(self) -> dict[str, Any]:
        """For report.json."""
        failures = sum(not episode.won for _, episode in self.found)
        loss = super().summary({})
        return {"episodes": len(self.found), "failures": failures, **loss, **self.measure()}


def summary_text(report: Mapping[str, Any]) -> str:
    """A report in a line."""
    lacks = "" if report["failures"] else " (none: what a failure looks like at its end was not learned; record some)"
    return f"{report['episodes']} episodes, {report['failures']} of them failures{lacks}; {reward_report_text(report)}"


def _read(config: RewardConfig) -> Found:
    sources = cloning_read(config.datasets)
    first = sources[0].about
    for source in sources:
        info = source.about
        if "next.success" not in info.columns:
            raise UserError(f"{info.path}: has no column next.success")
        if not info.cameras:
            raise UserError(f"{info.path}: has no pictures (columns observation.images.*)")
        if (info.cameras, info.state) != (first.cameras, first.state):
            raise UserError(f"{info.path}: its pictures or its state are others than those of {first.path}")
    return [(source.about, episode) for source in sources for episode in source.episodes]


def _shape(data: DatasetInfo, state: Sequence[str]) -> RewardShape:
    unknown = [name for name in state if name not in data.state]
    if unknown:
        raise UserError(f"state: {data.path} has no {unknown[0]!r}{suggest(unknown[0], list(data.state))}")
    return RewardShape(data.cameras, data.state, tuple(data.state.index(name) for name in state))


def _scored(model: RewardModel, frames: Frames, size: int = 256) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probability, label and episode of each frame."""
    starts = range(0, len(frames.label), size)
    parts = [([camera[a : a + size] for camera in frames.pixels], frames.state[a : a + size]) for a in starts]
    scores = [model.probability(*part) for part in parts]
    return torch.cat(scores).numpy(), frames.label.numpy(), frames.episode.numpy()
