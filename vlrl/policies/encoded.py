"""Frozen encoders of what a robot shows, and policies that act by their numbers: a vision model, or another policy.

A folder of one holds the encoder and the small policy that reads its numbers behind the state's.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError

from vlrl.policies import robot_common as common
from vlrl.policies.discrete import ControlPolicy
from vlrl.policies.flow import own_noise
from vlrl.policies.lerobot import KINDS as NOISY
from vlrl.policies.lerobot import chunks, noise_size
from vlrl.policies.lerobot_flow import LerobotFlowPolicy
from vlrl.policies.residual import NOBODY
from vlrl.policies.robot_common import ActorShape
from vlrl.system.hub import reach_model
from vlrl.types import Decision, Episode, Observation, Policy, Sample, UserError, first_line

FAMILY = "vlrl_encoded"
NOISE = "noise"  # the name of controls that are noise for the encoder's policy
ENCODER, ACTOR = "encoder", "actor"  # folders in one's own


class FrozenEncoder(ABC):
    """Numbers float32 [B, F] of B observations, the same whenever one is seen."""

    kind: str  # in config.json
    cameras: tuple[tuple[int, int], ...]  # width and height of each image
    size: int  # F

    @abstractmethod
    def __call__(self, observations: Sequence[Observation]) -> np.ndarray:
        """float32 [B, F]. UserError where the robot shows other images."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """A folder to make it from again."""


class VisionModel(FrozenEncoder):
    """A vision model of transformers: of each image its pooled output, or the mean of its last hidden states.

    Args:
        source: a folder, or a name on the hub.
        key: of the configuration that names it.

    Raises:
        UserError: there is none, or it is no model of images.
    """

    kind = "vision"

    def __init__(self, source: str, cameras: Sequence[tuple[int, int]], device: str = "cpu", key: str = "encoder.name"):
        from transformers import AutoImageProcessor, AutoModel

        try:
            reach_model(source)
            self.processor = AutoImageProcessor.from_pretrained(source)
            model: Any = AutoModel.from_pretrained(source, use_safetensors=True)
        except (OSError, ValueError, RuntimeError, ImportError, KeyError, SafetensorError, UserError) as error:
            raise UserError(f"{key}: no vision model {source!r}: {first_line(error)}") from None
        model = dict(model.named_children()).get("vision_model", model)  # CLIP and kin also read
        self.model, self.cameras = model.to(device).requires_grad_(False).eval(), tuple(cameras)
        self.size = self([Observation(tuple(Image.new("RGB", each) for each in self.cameras))]).shape[1]

    @torch.no_grad()
    def __call__(self, observations: Sequence[Observation]) -> np.ndarray:
        common.check_cameras(observations, self.cameras, ENCODER)
        images = [image.convert("RGB") for observation in observations for image in observation.images]
        inputs = self.processor(images=images, return_tensors="pt").to(next(self.model.parameters()).device)
        output = self.model(**inputs)
        pooled = output.get("pooler_output")
        features = pooled if pooled is not None else output["last_hidden_state"].mean(1)
        return features.reshape(len(observations), -1).float().cpu().numpy()

    def save(self, folder: Path) -> None:
        self.model.save_pretrained(folder)
        self.processor.save_pretrained(folder)


class FrozenPolicy(FrozenEncoder):
    """A policy that stays as it is: what its network makes of an observation, and the chunk that it plans there.

    The chunk stands last, R ticks of A numbers, a control's limits being -1 and 1. Where it begins with noise, that is
    drawn by a generator which the state alone seeds, so that an observation has one chunk.

    Args:
        source: a folder, a bundled name, or a name on the hub.
        policy: it. Of lerobot, or a `vlrl_control`.
        shape: of the robot; the first K ticks of the policy's chunks are carried out.

    Raises:
        UserError: it is no such policy, plans fewer ticks, or has noise in more than the first step.
    """

    kind = "policy"

    def __init__(self, policy: Any, shape: ActorShape, key: str = "start"):
        if not isinstance(policy, LerobotFlowPolicy | ControlPolicy):
            raise UserError(f"{key}: no policy of `vlrl clone` or lerobot's that can be built on (without a past)")
        policy.model.requires_grad_(False).eval()
        self.policy, self.shape, self.cameras = policy, shape, shape.cameras
        self.noise = (
            noise_size(policy) if isinstance(policy, LerobotFlowPolicy) and policy.model.config.type in NOISY else None
        )
        blank = Observation(
            (*(Image.new("RGB", each) for each in self.cameras), "go"), np.zeros(shape.state, np.float32)
        )
        try:
            self.size = self([blank]).shape[1]
        except UserError as error:
            raise UserError(f"{key}: {str(error).removeprefix('policy.model: ')}") from None

    def __call__(self, observations: Sequence[Observation]) -> np.ndarray:
        if isinstance(self.policy, ControlPolicy):
            decisions = self._decide(observations)
            chunk, features = np.stack([each.action for each in decisions]), self.policy.features(decisions)
        else:
            chunk, features = self.plan(observations), self.policy.encode([[each] for each in observations])
        low, high = (np.array(limit, np.float32) for limit in (self.shape.low, self.shape.high))
        unit = ((self._cut(chunk) - low) / (high - low) * 2 - 1).clip(-1, 1)
        return np.concatenate([features.float().cpu().numpy(), unit.reshape(len(unit), -1)], 1)

    def plan(self, observations: Sequence[Observation], noise: np.ndarray | None = None) -> np.ndarray:
        """Chunks float32 [B, K, A], physical, under noise [B, N, M], or [B, 1, M] that is the same at all ticks."""
        if self.noise is None:
            return self._cut(np.stack([each.action for each in self._decide(observations)]))
        if noise is None:
            noise = np.stack([own_noise(np.asarray(each.state), self.noise) for each in observations])
        noise = np.repeat(noise, self.noise[0] // noise.shape[1], 1)
        return self._cut(chunks(self.policy, [NOBODY] * len(observations), observations, noise))

    def save(self, folder: Path) -> None:
        self.policy.save(folder)

    def _decide(self, observations: Sequence[Observation]) -> list[Decision]:
        return self.policy.act([NOBODY] * len(observations), observations, greedy=True)

    def _cut(self, chunk: np.ndarray) -> np.ndarray:
        if chunk.shape[1] < self.shape.chunk or chunk.shape[2] != len(self.shape.low):
            expected = [self.shape.chunk, len(self.shape.low)]
            raise UserError(
                f"policy.model: plans chunks of {list(chunk.shape[1:])}; task.chunk and controls: {expected}"
            )
        return chunk[:, : self.shape.chunk]


class EncodedPolicy(Policy):
    """The policy (`vlrl.types.Policy`), which only acts.

    Args:
        encoder: an `FrozenEncoder`.
        inner: reads the encoder's numbers behind the state's, and gives chunks, or noise for the encoder's policy.
        shape: of the robot.
    """

    def __init__(self, encoder: Any, inner: Any, shape: ActorShape):
        self.encoder, self.inner, self.shape = encoder, inner, shape

    def check(self, sample: Sample) -> None:
        """UserError: who asks wants to train it with `vlrl train`."""
        self.inner.check(sample)

    def act(
        self, episodes: Sequence[Episode], observations: Sequence[Observation], greedy: bool = False, keep: bool = False
    ) -> list[Decision]:
        """One chunk, float32 [K, A], for each observation.

        Raises:
            UserError: the robot shows a state or images of other sizes.
        """
        common.check_cameras(observations, self.shape.cameras, "policy.model")
        states = np.concatenate([common.states(observations, self.shape), self.encoder(observations)], 1)
        decisions = self.inner.act(episodes, [Observation((), row) for row in states], greedy)
        if NOISE not in self.inner.shape.controls:
            return decisions
        return common.decisions(self.encoder.plan(observations, np.stack([each.action for each in decisions])))

    @staticmethod
    def save(folder: Path, encoder: FrozenEncoder, save: Callable[[Path], None], shape: ActorShape) -> None:
        """config.json, and the folders of the encoder and of what `save` writes: the policy that reads its numbers."""
        for name, write in ((ENCODER, encoder.save), (ACTOR, save)):
            (folder / name).mkdir(parents=True, exist_ok=True)
            write(folder / name)
        about = common.make_config(FAMILY, shape) | {"encoder": encoder.kind}
        (folder / "config.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def load_encoded(folder: Path, load: Callable[[str], Policy], device: str) -> EncodedPolicy:
    """The policy that `save` wrote.

    Args:
        load: makes a policy of a folder.

    Raises:
        UserError: the folder holds something else.
    """
    shape, more = common.chunks_read(folder, FAMILY, ("encoder",), "policy.model")
    source = str(folder / ENCODER)
    if more["encoder"] == VisionModel.kind:
        encoder: FrozenEncoder = VisionModel(source, shape.cameras, device, "policy.model")
    elif more["encoder"] == FrozenPolicy.kind:
        encoder = FrozenPolicy(load(source), shape, "policy.model")
    else:
        raise UserError(f"policy.model: {folder / 'config.json'} has an encoder of kind {more['encoder']!r}")
    return EncodedPolicy(encoder, load(str(folder / ACTOR)), shape)
