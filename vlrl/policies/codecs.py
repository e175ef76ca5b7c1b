"""One codec per model family: how an observation becomes tokens and pixels, and how tokens become text.

A codec owns everything that is private to a family: resizing, chat template, placeholders, rotary positions, the
coordinate space its answers are written in, and the tokens it must never sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from PIL.Image import Image
from torch import Tensor

from vlrl.types import Frame, Observation, UserError


@dataclass(frozen=True, eq=False)
class Prompt:
    """A preprocessed observation, made once and shared by rollout and update. P prompt tokens, M image patches."""

    ids: Tensor  # int64 [P]
    types: Tensor  # int32 [P], 0 text, 1 image
    positions: Tensor  # int64 [3, P], rotary positions (time, height, width)
    pixels: Tensor | None  # float32 [M, patch values]
    grid: Tensor | None  # int64 [images, 3], patches (time, height, width)
    frames: tuple[Frame, ...]


class QwenCodec:
    """What Qwen2.5-VL and Qwen3-VL have in common. Patch sizes differ; they are read from the processor."""

    space: str  # of the coordinates the family writes; a checkpoint's `coordinate_space` takes precedence

    def __init__(self, processor, model, max_prompt: int | None = None):
        self.processor, self.tokenizer = processor, processor.tokenizer
        self.space = getattr(model.config, "coordinate_space", None) or type(self).space
        self.rope_index: Callable = model.model.get_rope_index
        self.max_prompt = max_prompt or model.config.text_config.max_position_embeddings
        config = model.config
        ends = model.generation_config.eos_token_id if model.generation_config else None
        self.stop_ids = tuple(ends if isinstance(ends, list) else [ends]) if ends is not None else ()
        self.stop_ids = self.stop_ids or (self.tokenizer.eos_token_id,)
        names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
        special = {getattr(config, name, None) for name in names} | set(self.tokenizer.all_special_ids)
        # A sampled placeholder would claim image features that do not exist when the reply is evaluated.
        self.banned_ids = tuple(sorted(i for i in special if i is not None and i not in self.stop_ids))
        self.pad_id = self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else self.stop_ids[0]

    def see(self, image: Image) -> Image:
        """The image as the model will be shown it: RGB, resized to whole patches within the processor's limits.

        Raises:
            UserError: no size within the limits keeps the image's proportions.
        """
        from qwen_vl_utils import fetch_image

        settings = self.processor.image_processor
        limits = {"min_pixels": settings.size["shortest_edge"], "max_pixels": settings.size["longest_edge"]}
        try:
            return fetch_image({"image": image, **limits}, image_patch_size=settings.patch_size)
        except ValueError:  # its sides differ by a factor of more than 200, or one would shrink to nothing
            raise UserError(f"an image of {image.width}x{image.height} pixels is too thin for the model") from None

    def encode(self, observation: Observation) -> Prompt:
        """Tokens, pixels and positions of one user turn.

        Raises:
            UserError: the prompt is longer than the model takes. It is never cut: a cut could go through an image.
        """
        shown = [self.see(image) for image in observation.images]
        content = [
            {"type": "text", "text": part} if isinstance(part, str) else {"type": "image"}
            for part in observation.content
        ]
        text = self.processor.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
        )
        made = self.processor(
            text=[text], images=shown or None, do_resize=False, return_mm_token_type_ids=True, return_tensors="pt"
        )
        length = made["input_ids"].shape[1]
        if length > self.max_prompt:
            raise UserError(
                f"a prompt of {length} tokens is longer than the {self.max_prompt} that the model takes: "
                "show smaller images (policy.max_pixels) or shorten the text"
            )
        positions, _ = self.rope_index(
            made["input_ids"], mm_token_type_ids=made["mm_token_type_ids"], image_grid_thw=made.get("image_grid_thw")
        )
        patch, grid = self.processor.image_processor.patch_size, made.get("image_grid_thw")
        frames = tuple(
            Frame(self.space, image.size, (int(w) * patch, int(h) * patch))
            for image, (_, h, w) in zip(observation.images, grid if grid is not None else (), strict=True)
        )
        return Prompt(
            made["input_ids"][0], made["mm_token_type_ids"][0], positions[:, 0], made.get("pixel_values"), grid, frames
        )

    def decode(self, ids: Sequence[int]) -> str:
        """Completion tokens -> text, without the stop token."""
        return self.tokenizer.decode([i for i in ids if i not in self.stop_ids], skip_special_tokens=False)

    def tokens(self, text: str) -> list[int]:
        """A completion's text -> tokens with the stop token, as the model would have sampled it."""
        return [*self.tokenizer.encode(text, add_special_tokens=False), self.stop_ids[0]]


class Qwen25VL(QwenCodec):
    """Qwen2.5-VL answers in pixels of the resized image."""

    space = "resized_px"


class Qwen3VL(QwenCodec):
    """Qwen3-VL answers in thousandths of the image's sides."""

    space = "rel1000"


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
