"""VLM-RM: a picture earns what CLIP thinks of how near it is to a goal that is told in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from vlrl.encoders.base import seen, shown
from vlrl.methods import method
from vlrl.process.earning import Discount, Form, earning
from vlrl.strict import Count
from vlrl.types import Episode, Observation, Policy, UserError

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

Prompts = Annotated[list[str], Field(min_length=1)]


def check_model(options: Mapping[str, Any]) -> None:
    """UserError where the weights are neither in a folder nor in the cache and the hub does not give them, at once.

    transformers tries for most of a minute before it says so.
    """
    source = options["model"]
    if Path(source).is_dir():
        return
    from httpx import HTTPError
    from huggingface_hub import HfApi, try_to_load_from_cache

    try:
        if not isinstance(try_to_load_from_cache(source, "config.json"), str):
            HfApi().model_info(source, timeout=5)
    except (HTTPError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"process: vlm_rm: cannot load the model {source!r}, no folder and not in the hub's cache: {reason}"
        ) from None


@method(
    source="VLM-RM, arXiv 2310.12921, as released: github.com/AlignmentResearch/vlmrm, reward_model.py",
    check=check_model,
)
class VLMRM:
    """Steps earn `R(x) = 1 - |P (x - g)|^2 / 2` of the picture x that they led to.

    x is the picture's embedding, of length 1; g and b are the means of those of the goals and of the baselines, each of
    length 1 before the mean and not brought to it again, as in the released code; with `d = g - b`,
    `P = alpha d d^T / |d|^2 + (1 - alpha) I`. With alpha = 0 and one goal R is the cosine of x and g; with alpha = 1
    what counts is how far along the line from baseline to goal x lies.

    Args:
        model: a CLIP or SigLIP, any with text and image features: a folder, or a name on the hub.
        goal: what the picture shows when the job is done, in one or several wordings.
        baseline: what such a picture shows at any time.
        alpha: how much of what lies off the line is left out.
        coef: a step earns as many times R, as published, or with `form: potential` the difference that it made
            (`earning.earning`). R is mostly above 0: where success ends an episode the former pays to put it off.
        image: which of the pictures of an observation.
        batch: pictures at a time.

    Raises:
        UserError: there is no such model; an episode shows no such picture; goals and baselines mean the same.
    """

    def __init__(
        self, policy: Policy, task: Any, seed: int, *,
        model: str, goal: Prompts, baseline: Prompts, alpha: Annotated[float, Field(ge=0, le=1)] = 0.5,
        coef: float = 1.0, form: Form = "reward", gamma: Discount = 1.0, image: Annotated[int, Field(ge=0)] = 0,
        batch: Count = 64,
    ):  # fmt: skip
        import torch

        self.alpha, self.coef, self.form, self.gamma, self.image, self.batch = alpha, coef, form, gamma, image, batch
        self._processor, self._model = _pretrained(model)
        self._model = self._model.eval().requires_grad_(False).to("cuda" if torch.cuda.is_available() else "cpu")
        self._goal, self._baseline = (self._texts(prompts).mean(0) for prompts in (goal, baseline))
        if alpha and float((self._goal - self._baseline).norm()) < 1e-6:
            raise UserError("process: vlm_rm: goal and baseline mean the same to the model: say what sets them apart")
        self.metrics: dict[str, float] = {}

    def __call__(self, episodes: Sequence[Episode], step: int) -> list[Episode]:
        import numpy as np

        pictures = [self._picture(each) for episode in episodes for each in shown(episode)]
        values = projected(self._pictures(pictures), self._goal, self._baseline, self.alpha).double().numpy()
        self.metrics = {"vlm_rm/reward": float(values.mean())}
        of_each = np.split(values, np.cumsum([len(e.turns) + 1 for e in episodes])[:-1])
        return [
            earning(e, value, coef=self.coef, form=self.form, gamma=self.gamma)
            for e, value in zip(episodes, of_each, strict=True)
        ]

    def _picture(self, observation: Observation) -> Image:
        try:
            return seen(observation, self.image)
        except IndexError:
            told = f"the episodes show no picture {self.image} (its option `image`): give the robot a camera"
            raise UserError(f"process: vlm_rm: {told}") from None

    def _texts(self, prompts: Sequence[str]) -> Tensor:
        """float32 [P, D], of length 1."""
        import torch

        # SigLIP learned from texts that were all filled up
        whole = "max_length" if self._model.config.model_type.startswith("siglip") else True
        given = self._processor(text=list(prompts), padding=whole, truncation=True, return_tensors="pt")
        with torch.no_grad():
            return _unit(self._model.get_text_features(**given.to(self._model.device)))

    def _pictures(self, pictures: Sequence[Image]) -> Tensor:
        """float32 [M, D], of length 1."""
        import torch

        made = []
        for start in range(0, len(pictures), self.batch):
            given = self._processor(images=list(pictures[start : start + self.batch]), return_tensors="pt")
            with torch.no_grad():
                made.append(_unit(self._model.get_image_features(**given.to(self._model.device))))
        return torch.cat(made)


vlm_rm = VLMRM


def projected(x: Tensor, goal: Tensor, baseline: Tensor, alpha: float) -> Tensor:
    """R [M] of unit vectors x [M, D], the goal [D] and the baseline [D]."""
    away, line = x - goal, goal - baseline
    # P needs no matrix: what it makes of a vector is a share of it and a share of its part along the line
    along = (away @ line)[:, None] * line / line.dot(line) if alpha else 0.0
    return 1 - (alpha * along + (1 - alpha) * away).square().sum(1) / 2


def _unit(features: Any) -> Tensor:
    """Features [M, D] as transformers gives them, of length 1, float32 on the CPU."""
    vectors = getattr(features, "pooler_output", features).float().cpu()
    return vectors / vectors.norm(dim=-1, keepdim=True)


def _pretrained(source: str) -> tuple[Any, Any]:
    """Processor and model in float32; UserError where they cannot be loaded, or would be random in part."""
    import torch
    from transformers import AutoModel, AutoProcessor

    try:
        model, info = AutoModel.from_pretrained(
            source, dtype=torch.float32, output_loading_info=True, use_safetensors=True
        )
        processor = AutoProcessor.from_pretrained(source)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"process: vlm_rm: cannot load the model {source!r}: {reason}") from None
    if odd := [*info["missing_keys"], *info["mismatched_keys"]]:
        raise UserError(
            f"process: vlm_rm: the weights of {source!r} do not fit: {len(odd)} keys, first {sorted(odd)[0]}"
        )
    if not hasattr(model, "get_text_features") or not hasattr(model, "get_image_features"):
        raise UserError(f"process: vlm_rm: {source!r} is no model of texts and pictures, as CLIP and SigLIP are")
    return processor, model
