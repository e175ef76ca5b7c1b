"""One codec per model family: how an observation becomes tokens and pixels, and how tokens become text.

A codec owns everything that is private to a family: resizing, chat template, placeholders, rotary positions, the
coordinate space its answers are written in, and the tokens it must never sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vlrl.policies.positions import positions_of
from vlrl.policies.text_encoder import TextEncoder
from vlrl.types import Frame, Observation, UserError, Video

# the names under which a processor gives patches and grids
MADE = {"image": ("pixel_values", "image_grid_thw"), "video": ("pixel_values_videos", "video_grid_thw")}


@dataclass(frozen=True, eq=False)
class Prompt:
    """A preprocessed observation, made once and shared by rollout and update. P prompt tokens, M patches.

    Images and videos are media alike from here on: a video's placeholders are written as an image's.
    """

    ids: Tensor  # int64 [P]
    types: Tensor  # int32 [P], 0 text, 1 image or video
    positions: Tensor  # int64 [3, P], rotary positions (time, height, width)
    pixels: Tensor | None  # float32 [M, patch values]
    grid: Tensor | None  # int64 [media, 3], patches (time, height, width), in reading order
    frames: tuple[Frame, ...]  # one per medium

    @property
    def nbytes(self) -> int:
        """What it holds in memory, pixels above all."""
        return sum(v.nbytes for v in (self.ids, self.types, self.positions, self.pixels, self.grid) if v is not None)


def going_on(prompt: Prompt, tokens: Sequence[int]) -> Prompt:
    """The prompt with text tokens behind it, from which a completion goes on."""
    if not tokens:
        return prompt
    behind = prompt.positions.max() + 1 + torch.arange(len(tokens))
    return replace(
        prompt, ids=torch.cat([prompt.ids, torch.as_tensor(tokens)]),
        types=torch.cat([prompt.types, prompt.types.new_zeros(len(tokens))]),
        positions=torch.cat([prompt.positions, behind.expand(3, -1)], 1),
    )  # fmt: skip


class QwenCodec:
    """What Qwen2.5-VL and Qwen3-VL have in common. Patch sizes differ; they are read from the processor."""

    space: str  # of the coordinates the family writes; a checkpoint's `coordinate_space` takes precedence

    def __init__(self, processor, model, max_prompt: int | None = None):
        self.processor, self.tokenizer = processor, processor.tokenizer
        self.space = getattr(model.config, "coordinate_space", None) or type(self).space
        self.max_prompt = max_prompt or model.config.text_config.max_position_embeddings
        config = model.config
        # Positions that a second of video counts for; where videos tell their times in words, none are counted.
        self.time_rate = getattr(config.vision_config, "tokens_per_second", 0)
        self.image_id, self.video_id = config.image_token_id, config.video_token_id
        ends = model.generation_config.eos_token_id if model.generation_config else None
        self.stop_ids = tuple(ends if isinstance(ends, list) else [ends]) if ends is not None else ()
        self.stop_ids = self.stop_ids or (self.tokenizer.eos_token_id,)
        names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
        special = {getattr(config, name, None) for name in names} | set(self.tokenizer.all_special_ids)
        special.discard(None)
        # A sampled placeholder would claim image features that do not exist when the reply is evaluated.
        self.banned_ids = tuple(sorted(special.difference(self.stop_ids)))
        self.text_encoder = TextEncoder(self.tokenizer, special.union(self.stop_ids))
        self.pad_id = self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else self.stop_ids[0]

    def see(self, image: Image.Image) -> Image.Image:
        """The image as the model will be shown it (`resized`)."""
        return resized(image, self.processor)

    def encode(self, observation: Observation) -> Prompt:
        """Tokens, pixels and positions of one user turn.

        Raises:
            UserError: the prompt is longer than the model takes. It is never cut: a cut could go through an image.
        """
        ids, made = self.tokenize(_turns(observation), observation.images, observation.videos)
        if len(ids) > self.max_prompt:
            raise UserError(
                f"a prompt of {len(ids)} tokens is longer than the {self.max_prompt} that the model takes: "
                "show smaller images (policy.max_pixels) or fewer frames, or shorten the text"
            )
        ids[ids == self.video_id] = self.image_id
        types = (ids == self.image_id).int()
        media = [part for part in observation.content if not isinstance(part, str)]
        pixels, grid = _in_order(made, media)
        layers = [] if grid is None else [tuple(row) for row in grid.tolist()]
        patch, merge = self.processor.image_processor.patch_size, self.processor.image_processor.merge_size
        positions = positions_of(
            types, [(t, h // merge, w // merge) for t, h, w in layers], [self._ticks(medium) for medium in media]
        )
        frames = tuple(
            Frame(self.space, medium.size, (w * patch, h * patch))
            for medium, (_, h, w) in zip(media, layers, strict=True)
        )
        return Prompt(ids, types, positions, pixels, grid, frames)

    def tokenize(
        self, turns: Sequence[Mapping[str, Any]], images: Sequence[Image.Image] = (), videos: Sequence[Video] = ()
    ) -> tuple[Tensor, Mapping[str, Any]]:
        """Token ids of turns in the chat template, and what the processor makes of their media.

        All that the turns say is plain text: a special token's spelling does not become that token.
        """
        protected, stand_ins = self.text_encoder.protect(turns)
        made = self.processor(
            text=[self.render(protected)], images=[self.see(image) for image in images] or None,
            **self._clips(videos), do_resize=False, return_tensors="pt",
        )  # fmt: skip
        return torch.tensor(self.text_encoder.restore(made["input_ids"][0].tolist(), stand_ins)), made

    def text(self, observation: Observation) -> str:
        """The user turn in the chat template, for servers that take text; `check_sendable` first."""
        return self.render(_turns(observation))

    def check_sendable(self, observation: Observation) -> None:
        """A server that takes text, not ids, reads the prompt as the trainer does.

        Raises:
            UserError: the content spells a special token, which the server would take for the token itself.
        """
        if special := self.text_encoder.find_special("".join(p for p in observation.content if isinstance(p, str))):
            raise UserError(
                f"policy.engine: a prompt spells the special token {special!r}, which a server that is sent text takes "
                "for the token itself: use api: vlrl or engine: local, which take token ids"
            )

    def render(self, turns: Sequence[Mapping[str, Any]]) -> str:
        """Turns in the chat template, one placeholder per image and video."""
        return self.processor.apply_chat_template(list(turns), add_generation_prompt=True, tokenize=False)

    def _clips(self, videos: Sequence[Video]) -> dict[str, Any]:
        """The processor's arguments for videos, each frame of which is shown as an image would be."""
        if not videos:
            return {}
        shown = [np.stack([self.see(Image.fromarray(frame)) for frame in video.frames]) for video in videos]
        # A clock of a thousand frames a second: real times, whether or not the source's frames come evenly.
        clocks = [[round(1000 * time) for time in video.times] for video in videos]
        metadata = [{"fps": 1000, "frames_indices": ms, "total_num_frames": ms[-1] + 1} for ms in clocks]
        # Given, because its absence is warned of; it concerns a resizing that is not done.
        cap = {"cap_pixels_per_frame": False} if hasattr(self.processor.video_processor, "cap_pixels_per_frame") else {}
        return {"videos": shown, "video_metadata": metadata, "do_sample_frames": False, **cap}

    def _ticks(self, medium: Image.Image | Video) -> list[int]:
        """How far each layer of a medium lies behind its first one, in positions of time."""
        if not isinstance(medium, Video):
            return [0]
        times = medium.times[:: self.processor.video_processor.temporal_patch_size]
        return [int(self.time_rate * (time - times[0]) + 1e-6) for time in times]  # 1e-6: thirds do not add up

    def decode(self, ids: Sequence[int]) -> str:
        """Completion tokens -> text, without the stop token."""
        return self.tokenizer.decode([i for i in ids if i not in self.stop_ids], skip_special_tokens=False)

    def tokens(self, text: str) -> list[int]:
        """A completion's text -> tokens with the stop token, as the model would have sampled it."""
        return [*self.text_encoder.encode(text), self.stop_ids[0]]


class Qwen25VL(QwenCodec):
    """Qwen2.5-VL answers in pixels of the resized image."""

    space = "resized_px"


class Qwen3VL(QwenCodec):
    """Qwen3-VL answers in thousandths of the image's sides, and reads the seconds before each pair of frames."""

    space = "rel1000"

    def render(self, turns: Sequence[Mapping[str, Any]]) -> str:
        # Each pair of frames gets its own start and end. Around all of them the model knows none, but transformers 5
        # leaves the template's there (vllm-project/vllm#46817), where 4.57, as published, replaced them.
        wrapped, bare = "{0.vision_start_token}{0.video_token}{0.vision_end_token}", "{0.video_token}"
        return super().render(turns).replace(wrapped.format(self.processor), bare.format(self.processor))


def resized(image: Image.Image, processor: Any) -> Image.Image:
    """RGB, resized to whole patches within the processor's limits: how a model of the family is shown it.

    Raises:
        UserError: no size within the limits keeps the image's proportions.
    """
    from qwen_vl_utils import fetch_image

    settings = processor.image_processor
    limits = {"min_pixels": settings.size["shortest_edge"], "max_pixels": settings.size["longest_edge"]}
    try:
        return fetch_image({"image": image, **limits}, image_patch_size=settings.patch_size)
    except ValueError:  # its sides differ by a factor of more than 200, or one would shrink to nothing
        raise UserError(f"an image of {image.width}x{image.height} pixels is too thin for the model") from None


def _turns(observation: Observation) -> list[dict[str, Any]]:
    """What is shown, as one turn of the user for a chat template."""
    content = [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": kind_of(part)}
        for part in observation.content
    ]
    return [{"role": "user", "content": content}]


def kind_of(medium: Image.Image | Video) -> str:
    return "video" if isinstance(medium, Video) else "image"


def _in_order(made: dict[str, Tensor], media: Sequence[Image.Image | Video]) -> tuple[Tensor | None, Tensor | None]:
    """Patches and grids of all media in reading order; the processor gives images and videos apart."""
    if not media:
        return None, None
    of = {
        kind: zip(made[pixels].split(made[grid].prod(-1).tolist()), made[grid].split(1), strict=True)
        for kind, (pixels, grid) in MADE.items()
        if grid in made
    }
    shown = [next(of[kind_of(medium)]) for medium in media]
    return torch.cat([pixels for pixels, _ in shown]), torch.cat([grid for _, grid in shown])


CODECS: dict[str, type[QwenCodec]] = {"qwen2_5_vl": Qwen25VL, "qwen3_vl": Qwen3VL}


def codec_for(processor, model, max_prompt: int | None = None) -> QwenCodec:
    """The codec of a loaded model's family.

    Raises:
        UserError: no codec knows the family.
    """
    family = model.config.model_type
    if family not in CODECS:
        raise UserError(f"no codec for models of type {family!r}; known: {', '.join(sorted(CODECS))}")
    return CODECS[family](processor, model, max_prompt)
