"""Reward models from preferences: network, training."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from PIL import Image
from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from vlrl import checkpoint, registry
from vlrl.config import Plugin
from vlrl.contrib import encoders
from vlrl.contrib.preferences.labelling import (
    EpisodeMoments,
    PreferenceJudge,
    PreferencesConfig,
    StateAlbum,
    against,
    agreement,
    counted,
    moments,
    with_album,
)
from vlrl.contrib.process_rewards.progress import Form
from vlrl.decoders import load_json
from vlrl.methods import method
from vlrl.offpolicy.base import Transitions
from vlrl.offpolicy.learner import LEAST
from vlrl.types import Decision, Episode, Observation, Sample, Step, Turn, UserError, first_line

# The networks that preferences are learned by.


@dataclass(frozen=True)
class RewardModelShape:
    """What a preference model sees, and its size."""

    size: int  # D numbers of a moment: of its state, then of its vector
    names: tuple[str, ...]  # of the S numbers of the state
    seen: tuple[int, ...]  # which of them the networks see
    encoder: Mapping[str, Any] | None = None  # of the moment's vector: name and options; None: the state alone
    hidden: int = 128
    layers: int = 2
    members: int = 3


class Ensemble(nn.Module):
    """Rewards [E, B], one row a member, of moments float32 [B, D].

    Not bounded by tanh as RL-VLM-F's are, after PEBBLE (arXiv 2106.05091): far moments could then not be told apart.
    What keeps sure answers from driving rewards apart without end is the decay of the weights.
    """

    def __init__(self, shape: RewardModelShape):
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape.size))
        self.register_buffer("spread", torch.ones(shape.size))
        self.members = nn.ModuleList(_member(shape) for _ in range(shape.members))

    def forward(self, moments: Tensor) -> Tensor:
        return torch.stack([self.of(member, moments) for member in range(len(self.members))])

    def of(self, member: int, moments: Tensor) -> Tensor:
        """One member's rewards [...] of moments [..., D]."""
        return self.members[member]((moments - self.mean) / self.spread)[..., 0]


def _member(shape: RewardModelShape) -> nn.Module:
    widths = [shape.size, *[shape.hidden] * shape.layers]
    layers = (layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.SiLU()))
    return nn.Sequential(*layers, nn.Linear(shape.hidden, 1))


# A reward model that was learned from preferences: how near to its goal a moment looks, by the mean of an ensemble.
#
# A folder holds config.json, model.safetensors and report.json, what was measured on episodes held out.

FAMILY = "vlrl_preference"
BATCH = 4096  # moments at a time
ENCODER = "encoder/"  # before the names of its tensors


class PreferenceModel:
    """The networks, and the encoder where they see more than states."""

    def __init__(self, network: Ensemble, shape: RewardModelShape, encoder: Any = None):
        self.network, self.shape, self.encoder = network, shape, encoder

    def value(self, moments: Sequence[Observation]) -> np.ndarray:
        """Rewards float32 [N]: the members' mean."""
        return self.members(moments).mean(0)

    @torch.no_grad()
    def members(self, moments: Sequence[Observation]) -> np.ndarray:
        """Each member's rewards, float32 [E, N]."""
        inputs = inputs_of(moments, self.shape, self.encoder)
        return torch.cat([self.network(part) for part in inputs.split(BATCH)], 1).numpy()

    def compute_reward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Rewards float32 [B]: lerobot's interface of reward models, as
        `vlrl.imitation.reward_classifier.RewardModel` has it.

        Args:
            batch: `observation.state` [B, S] and, where there is an encoder of pictures, `observation.images.NAME`
                [B, 3, height, width], uint8 or 0..1, in the order in which they were shown.
        """
        cameras = [value for name, value in batch.items() if name.startswith("observation.images.")]
        states = batch["observation.state"].float().cpu().numpy()
        views = zip(*(map(_picture, camera) for camera in cameras), strict=True) if cameras else [()] * len(states)
        moments = [Observation(tuple(pictures), state) for pictures, state in zip(views, states, strict=True)]
        return torch.from_numpy(self.value(moments))

    def save(self, folder: Path) -> None:
        """config.json and model.safetensors."""
        folder.mkdir(parents=True, exist_ok=True)
        fitted: dict[str, Tensor] = {}
        state = checkpoint.flatten(self.encoder.state_dict(), fitted) if self.encoder else None
        about = {"model_type": FAMILY, **asdict(self.shape), "encoder_state": state}
        tensors = {name: value.contiguous() for name, value in self.network.state_dict().items()}
        save_file(tensors | {ENCODER + name: value for name, value in fitted.items()}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")

    def load_weights(self, folder: Path) -> None:
        """What `save` wrote of this model's networks, into them."""
        self.network.load_state_dict(model_load(folder).network.state_dict())


def model_load(folder: str | Path) -> PreferenceModel:
    """The model that `save` wrote.

    Raises:
        UserError: the folder holds something else.
    """
    folder = Path(folder)
    try:
        about = load_json(folder / "config.json", finite=False)
        if about.pop("model_type", None) != FAMILY:
            raise ValueError("another kind of model")
        state, lists = about.pop("encoder_state"), {name: tuple(about.pop(name)) for name in ("names", "seen")}
        shape = RewardModelShape(**lists, **about)
        tensors = load_file(folder / "model.safetensors")
        fitted = {name.removeprefix(ENCODER): tensors.pop(name) for name in list(tensors) if name.startswith(ENCODER)}
        network = Ensemble(shape)
        network.load_state_dict(tensors)
        encoder = encoders.make(shape.encoder, f"{folder}: encoder") if shape.encoder else None
        if encoder is not None and state is not None:
            encoder.load_state_dict(checkpoint.unflatten(state, fitted))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, SafetensorError, RuntimeError) as error:
        reason = first_line(error)
        raise UserError(f"{folder}: no preference model: {reason}") from None
    return PreferenceModel(network, shape, encoder)


def inputs_of(moments: Sequence[Observation], shape: RewardModelShape, encoder: Any) -> Tensor:
    """What the networks see of moments, float32 [N, D].

    Raises:
        UserError: the states have another number of numbers, or there is nothing that the encoder could read.
    """
    states = np.stack([np.asarray(observation.state, np.float32) for observation in moments])
    if states.shape[1] != len(shape.names):
        raise UserError(f"preference model: made for states of {len(shape.names)} numbers, not {states.shape[1]}")
    parts = [states[:, list(shape.seen)]] + ([] if encoder is None else [vectors_of(moments, encoder)])
    return torch.from_numpy(np.concatenate(parts, 1))


def vectors_of(moments: Sequence[Observation], encoder: Any) -> np.ndarray:
    """The encoder's vectors of moments by themselves, as of episodes in which nothing happens: float32 [N, D]."""
    nothing = Decision("", None, None, False)
    episodes = [
        Episode(Sample("", observation), 0, [Turn(observation, nothing, Step(observation))]) for observation in moments
    ]
    return np.stack([vectors[0] for vectors in encoder.encode(episodes)])


def _picture(pixels: Tensor) -> Image.Image:
    """[3, height, width], uint8 or 0..1."""
    whole = pixels if pixels.dtype == torch.uint8 else (pixels * 255).round().to(torch.uint8)
    return Image.fromarray(whole.permute(1, 2, 0).contiguous().cpu().numpy())


# How preferences are learned: the preferred moment's reward should be the larger one (Bradley and Terry 1952).

DECAY = 1.0  # of the weights, times the learning rate


@dataclass(frozen=True, eq=False)
class LabelledPairs:
    """Pairs that were answered."""

    pairs: np.ndarray  # int64 [P, 2], places of moments
    answers: np.ndarray  # int64 [P], 0 or 1
    drawn: int  # answered or not


def bradley_terry(first: Tensor, second: Tensor, answer: Tensor) -> Tensor:
    """The mean of -log p(answer), with p(1) = exp(second) / (exp(first) + exp(second)).

    Args:
        first, second: rewards float [P] of the moments of each pair.
        answer: float [P], 0 where the first is preferred, 1 where the second is.
    """
    return functional.binary_cross_entropy_with_logits(second - first, answer)


def ensemble_loss(network: Ensemble, moments: Tensor, asked: LabelledPairs, chosen: Sequence[np.ndarray]) -> Tensor:
    """The members' losses, added.

    Args:
        moments: float32 [N, D].
        chosen: each member's pairs, as places [B] in `asked`.
    """
    targets = torch.from_numpy(asked.answers.astype(np.float32))
    parts = []
    for member, places in enumerate(chosen):
        values = network.of(member, moments[asked.pairs[places]])
        parts.append(bradley_terry(values[:, 0], values[:, 1], targets[places]))
    return torch.stack(parts).sum()


# From answers to a reward model, and what is measured of it.


def make_model(
    config: PreferencesConfig, names: tuple[str, ...], frames: EpisodeMoments, places: np.ndarray
) -> tuple[PreferenceModel, Tensor]:  # fmt: skip
    """A model that has learned nothing, and what it sees of all moments, float32 [N, D].

    Args:
        names: of the state's numbers.
        places: of the moments to learn from, which scales are taken from.
    """
    section, chosen = config.model, config.model.encoder
    component = {"name": chosen.name, **chosen.options} if chosen else None
    encoder = encoders.make(component, "model.encoder") if component else None
    observations = [frames.observation(place) for place in range(len(frames))]
    state_places = tuple(range(len(names)) if section.state is None else (names.index(name) for name in section.state))
    # an encoder that learns a scale learns it from what it sees first
    width = vectors_of([observations[place] for place in places], encoder).shape[1] if encoder else 0
    shape = RewardModelShape(
        len(state_places) + width, names, state_places, component, section.hidden, section.layers, section.members
    )
    moments = inputs_of(observations, shape, encoder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        network = Ensemble(shape)
    network.mean.copy_(moments[places].mean(0))
    network.spread.copy_(moments[places].std(0).clamp(min=LEAST))
    return PreferenceModel(network, shape, encoder), moments


def measured(
    config: PreferencesConfig,
    frames: EpisodeMoments,
    model: PreferenceModel,
    judge: PreferenceJudge,
    known: LabelledPairs,
    held: LabelledPairs,
) -> dict[str, Any]:
    """What the model says of the pairs that it learned from (`known`) and of those held out (`held`)."""
    each = model.members([frames.observation(place) for place in range(len(frames))])
    values = each.mean(0)
    answers = np.concatenate([known.answers, held.answers])
    report = {
        "judge": config.judge.name, "goal": config.goal, "moments": len(frames),
        "episodes": len(np.unique(frames.episode)), "pairs": known.drawn + held.drawn, "answered": len(answers),
        "first_preferred": counted(answers == 0),  # a judge that looks at places, not pictures, is far from a half
        "agreement": agreement(values, held.pairs, held.answers),
        "agreement_learned": agreement(values, known.pairs, known.answers),
        "agreement_members": [agreement(member, held.pairs, held.answers) for member in each],
    }  # fmt: skip
    progress = judge.progress(frames.state)
    if progress is not None and len(held.pairs):
        report["truth"] = against(values, progress, held.pairs)
    return report


# Another source's transitions, with rewards that were learned from preferences.

Finite = Annotated[float, Field(allow_inf_nan=False)]


@method(source="RL-VLM-F (arXiv 2402.03681), offline: arXiv 2411.05273; potential: Ng, Harada and Russell, ICML 1999")
def labelled(
    task: Any, seed: int, *, source: Plugin, model: str, form: Form = "potential", low: Finite = 0.0,
    high: Finite = 1.0, gamma: Annotated[float, Field(gt=0, le=1)] = 0.99,
) -> Transitions:  # fmt: skip
    """The source's transitions as they are, but `reward` is what a model of `vlrl preferences` thinks of them.

    The model's value v of a moment, in a scale on which the lowest of this data is `low` and the highest `high`, earns
    the decision that led to it v, times the share of its ticks that were carried out (`form: reward`, as published); or
    the difference that the decision made, `gamma^ticks * v' - v` (`potential`).

    What is done ends: with `reward` that costs whatever would still have been earned, so take low=-1, high=0, and only
    where no failure ends an episode, which would then be worth as much. With `potential` the end earns what is reached.

    Args:
        source: of the transitions, by its name or with options.
        model: folder.
        gamma: should be the run's.

    Raises:
        UserError: there is no such model, or it cannot see what these transitions show.
    """
    if low >= high:
        raise UserError(f"offline: labelled: low = {low:g} is not below high = {high:g}")
    judged, album = model_load(model), StateAlbum()
    transitions: Transitions = registry.make("source", source, "offline: labelled: source")(
        with_album(task, album), seed
    )
    states, before, after = moments(transitions)
    value = judged.value([_make_observation(state, album, judged.encoder is not None) for state in states])
    span = float(value.max() - value.min())
    if not np.isfinite(span) or span < 1e-6:
        raise UserError(f"offline: labelled: {model} thinks the same of all that this source gives")
    worth = low + (high - low) * (value.astype(np.float64) - value.min()) / span
    bonus = gamma ** transitions.ticks() * worth[after] - worth[before]
    reward = transitions.used * worth[after] if form == "reward" else bonus
    return Transitions(**transitions.columns() | {"reward": reward.astype(np.float32)})


def _make_observation(state: np.ndarray, album: Any, pictures: bool) -> Observation:
    images = album.of(state) if pictures else ()
    if images is None:
        raise UserError(
            "offline: labelled: one state was shown with different pictures, so that they cannot be told apart: "
            "let the robot's state hold all numbers"
        )
    return Observation(images, state)
