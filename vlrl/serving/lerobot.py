"""lerobot's policies as servables: each observation by itself, with real-time chunking where lerobot has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot.serving.spec import Asked, Feature, Picture, Spec
from vlrl.policies.lerobot import LerobotPolicy
from vlrl.serving.ours import shown
from vlrl.types import UserError


class Lerobot:
    """A policy of lerobot. It begins each inference with the same noise, so equal observations have equal answers.

    Of real-time chunking (arXiv 2506.07339), done by lerobot's own code, only those are capable whose `supports_rtc()`
    says so: of the kinds that are loaded here SmolVLA, pi0 and pi0.5. They give their whole chunk, of which a part
    overlaps with the next; others its first `n_action_steps`. A policy that sees a past sees the present in its place.
    """

    def __init__(self, name: str, version: str, policy: LerobotPolicy, hz: float, about: Any = None):
        self.name, self.version, self._policy = name, version, policy
        self._model, self._before, self._after = policy.model, policy._before, policy._after
        rtc = _prepared(self._model)
        self.spec = spec_of(policy, rtc, hz, about)

    @torch.no_grad()
    def infer(self, asked: Sequence[Asked]) -> list[np.ndarray]:
        """All of one shape: pictures, prefix and delay."""
        inputs = self._policy.inputs
        self._model.reset()
        self._model.eval()
        batch = self._before(inputs.batch([[shown(each)] * inputs.past for each in asked]))
        guided = {} if asked[0].prefix is None else self._guidance(asked)
        device = next(self._model.parameters()).device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(0)  # lerobot draws from the global generator
            chunk = self._model.predict_action_chunk(batch, **guided)
        return list(self._after(chunk[:, : self.spec.chunk]).float().cpu().numpy())

    def forget(self, session: str) -> None:
        """It remembers nothing."""

    def _guidance(self, asked: Sequence[Asked]) -> dict[str, Any]:
        horizon = self._model.config.rtc_config.execution_horizon
        prefix = torch.from_numpy(np.stack([each.prefix[:horizon] for each in asked]))
        return {"prev_chunk_left_over": self._as_the_model_has_it(prefix), "inference_delay": asked[0].delay}

    def _as_the_model_has_it(self, prefix: Tensor) -> Tensor:
        """Actions [B, P, A] in physical units -> as the network gives them; after the observation was processed."""
        from lerobot.policies.rtc import reanchor_relative_rtc_prefix
        from lerobot.processor import (
            NormalizerProcessorStep,
            RelativeActionsProcessorStep,
            TransitionKey,
            create_transition,
        )

        steps, device = self._before.steps, next(self._model.parameters()).device
        normalizer = next((each for each in steps if isinstance(each, NormalizerProcessorStep)), None)
        relative = next((s for s in steps if isinstance(s, RelativeActionsProcessorStep) and s.enabled), None)
        if relative is not None:
            states = relative.get_cached_state()
            anchored = [
                reanchor_relative_rtc_prefix(one, state, relative, normalizer, device)
                for one, state in zip(prefix, states, strict=True)
            ]
            return torch.stack([each.reshape(prefix.shape[1:]) for each in anchored])
        transition = create_transition(action=prefix.to(device))
        return (normalizer(transition) if normalizer else transition)[TransitionKey.ACTION]


def _prepared(model: Any) -> bool:
    """Switches real-time chunking on where the policy is capable of it, as lerobot's rollout does."""
    if not getattr(model, "supports_rtc", bool)():
        return False
    from lerobot.policies.rtc import RTCConfig

    model.config.rtc_config = getattr(model.config, "rtc_config", None) or RTCConfig()
    model.init_rtc_processor()
    return True


def spec_of(policy: LerobotPolicy, rtc: bool, hz: float, about: Any) -> Spec:
    """What its configuration says; names of the state and the rate, which it does not say, from `about` the robots.

    Raises:
        UserError: it sees states of several sizes.
    """
    config, inputs = policy.model.config, policy.inputs
    sizes = set(inputs.states.values()) or {0}
    if len(sizes) > 1:
        raise UserError(f"--policy: it sees states of {sorted(sizes)} numbers, but a robot has one state")
    (size,), width = sizes, config.output_features["action"].shape[0]
    named = list(getattr(config, "action_feature_names", None) or ())
    states = about.names if about and len(about.names) == size else ("",) * size
    actions = named if len(named) == width else ("",) * width
    units = ("",) * width
    if about and len(about.controls) == width:
        actions, units = about.controls.names, about.controls.units
    return Spec(
        state=tuple(map(Feature, states)),
        pictures=tuple(_picture(key, each) for key, each in inputs.cameras.items()),
        action=tuple(map(Feature, actions, units)),
        hz=hz or (about.hz if about else 0.0),
        chunk=int(config.chunk_size if rtc else config.n_action_steps),
        rtc=rtc,
    )


def _picture(key: str, size: tuple[int, int] | None) -> Picture:
    width, height = size or (0, 0)
    return Picture(key.removeprefix("observation.images.").removeprefix("observation."), height, width)
