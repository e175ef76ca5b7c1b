"""From a client's prompt to the policy's: token ids, text or messages, with images."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from vlrl.engines.hosting.requests import RequestError
from vlrl.policies.codecs import Prompt, QwenCodec
from vlrl.policies.positions import positions_of
from vlrl.types import Frame, UserError

KEPT = 256  # prompts


class Prompts:
    """Prompts preprocessed, the latest of them kept: members of a group are often asked for one by one."""

    def __init__(self, codec: QwenCodec):
        self.codec = codec
        self._kept: OrderedDict[bytes, Prompt] = OrderedDict()

    def of(self, prompt: str | list[int] | list[dict[str, Any]], images: Sequence[Image.Image]) -> Prompt:
        """RequestError where the prompt is too long, or has not as many placeholders as its images need."""
        key = _key(prompt, images)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        try:
            made = self._made(prompt, images)
        except UserError as error:
            raise RequestError(str(error)) from None
        self._kept[key] = made
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return made

    def _made(self, prompt: Any, images: Sequence[Image.Image]) -> Prompt:
        """Messages are content; a text is the client's own rendering, in which special tokens are what they spell."""
        codec = self.codec
        made: Mapping[str, Any] = {}
        if isinstance(prompt, str):
            shown = [codec.see(image) for image in images] or None
            made = codec.processor(text=[prompt], images=shown, do_resize=False, return_tensors="pt")
            ids = made["input_ids"][0]
        elif isinstance(prompt[0], dict):
            ids, made = codec.tokenize(prompt, images)
        else:
            ids = torch.tensor(prompt)
            if images:
                shown = [codec.see(image) for image in images]
                made = codec.processor.image_processor(shown, do_resize=False, return_tensors="pt")
        if len(ids) > codec.max_prompt:
            raise RequestError(f"a prompt of {len(ids)} tokens: at most {codec.max_prompt}")
        if not len(codec.tokenizer) > int(ids.max()) >= int(ids.min()) >= 0:
            raise RequestError("prompt: ids that are no tokens of this model")
        return self._prompt(ids, made.get("pixel_values"), made.get("image_grid_thw"), images)

    def _prompt(self, ids: Tensor, pixels: Tensor | None, grid: Tensor | None, images: Sequence[Image.Image]) -> Prompt:
        codec, settings = self.codec, self.codec.processor.image_processor
        layers = [] if grid is None else [tuple(row) for row in grid.tolist()]
        types = (ids == codec.image_id).int()
        wanted = sum(t * h * w for t, h, w in layers) // settings.merge_size**2
        if int(types.sum()) != wanted or bool((ids == codec.video_id).any()):
            raise RequestError(f"prompt: {int(types.sum())} placeholders, but its images need {wanted}")
        grids = [(t, h // settings.merge_size, w // settings.merge_size) for t, h, w in layers]
        frames = tuple(
            Frame(codec.space, image.size, (w * settings.patch_size, h * settings.patch_size))
            for image, (_, h, w) in zip(images, layers, strict=True)
        )
        return Prompt(ids, types, positions_of(types, grids, [[0]] * len(grids)), pixels, grid, frames)


def _key(prompt: Any, images: Sequence[Image.Image]) -> bytes:
    hashed = hashlib.blake2b(repr(prompt).encode(), digest_size=16)
    for image in images:
        hashed.update(f"{image.mode} {image.size}".encode())
        hashed.update(image.tobytes())
    return hashed.digest()
