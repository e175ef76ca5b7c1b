"""The forward pass of a Hugging Face vision-language model in parts: the tower, the embeddings, the layers.

Both Qwen families are driven through their own modules; only the glue between them is ours. So what the tower has made
can be used again, keys and values keep their graph, and a token costs no mask building.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vlrl.policies.codecs import Prompt
from vlrl.policies.packing import Packed

Layers = Sequence[tuple[Tensor, Tensor]]  # keys and values [R, key heads, L, D] of each layer


@dataclass(frozen=True, eq=False)
class Seen:
    """What the tower makes of media with n tokens altogether."""

    embeds: Tensor  # [n, H]
    deep: tuple[Tensor, ...]  # Qwen3-VL: [n, H] each, added behind the first layers

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (self.embeds, *self.deep))

    def copy(self) -> Seen:
        return Seen(self.embeds.clone(), tuple(part.clone() for part in self.deep))

    def split(self, sizes: Sequence[int]) -> list[Seen]:
        parts = [part.split(sizes) for part in (self.embeds, *self.deep)]
        return [Seen(embeds, tuple(deep)) for embeds, *deep in zip(*parts, strict=True)]


def joined(parts: Sequence[Seen]) -> Seen | None:
    """Several media as one; None for none."""
    if not parts:
        return None
    return Seen(torch.cat([p.embeds for p in parts]), tuple(map(torch.cat, zip(*(p.deep for p in parts), strict=True))))


def see(base: nn.Module, pixels: Tensor, grid: Tensor) -> Seen:
    """The tower. pixels: [patches, values]; grid: [media, 3]."""
    made = base.model.get_image_features(pixels, grid)
    return Seen(torch.cat(made.pooler_output), tuple(map(torch.cat, getattr(made, "deepstack_features", ()))))


class Recorder:
    """A cache that only remembers what goes through it. A checkpointed layer's second pass changes nothing."""

    def __init__(self):
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        self._layers.setdefault(layer, (keys, values))
        return keys, values

    @property
    def layers(self) -> Layers:
        return [self._layers[i] for i in range(len(self._layers))]


class After:
    """A cache of prompts, which stays as it is. behind: int64 [R], the prompt that each row follows and sees."""

    def __init__(self, layers: Layers, behind: Tensor):
        self._layers = layers
        self._behind = slice(None) if behind.tolist() == list(range(len(layers[0][0]))) else behind

    def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        before = (part[self._behind] for part in self._layers[layer])
        return tuple(torch.cat(parts, 2) for parts in zip(before, (keys, values), strict=True))


def embedded(base: nn.Module, packed: Packed, seen: Seen | None) -> tuple[Tensor, Tensor]:
    """Token embeddings [R, L, H], media in their places, and where these are [R, L]."""
    embeds, where = base.get_input_embeddings()(packed.ids), packed.types.bool()
    if seen is not None:
        embeds = embeds.masked_scatter(where[..., None], seen.embeds.to(embeds.dtype))
    return embeds, where


def hidden_states(base: nn.Module, packed: Packed, seen: Seen | None, cache: Any = None) -> Tensor:
    """The last hidden states [R, L, H] of packed rows, whose media the tower has seen or sees now."""
    if seen is None and packed.pixels is not None:
        seen = see(base, packed.pixels, packed.grid)
    embeds, where = embedded(base, packed, seen)
    return through(base, embeds, packed.positions, packed.mask, cache, where, seen.deep if seen else ())


def plain_states(base: nn.Module, packed: Packed, seen: None = None) -> Tensor:
    """As `hidden_states`, by the model's own forward pass: for rows of one completion, nothing of which is reused."""
    return base.model(
        input_ids=packed.ids, position_ids=packed.positions, mm_token_type_ids=packed.types,
        pixel_values=packed.pixels, image_grid_thw=packed.grid, use_cache=False,
    ).last_hidden_state  # fmt: skip


def through(
    base: nn.Module, embeds: Tensor, positions: Tensor, mask: Any, cache: Any,
    where: Tensor | None = None, deep: Sequence[Tensor] = (),
) -> Tensor:  # fmt: skip
    """The language model's layers. mask: as `vlrl.policies.attention` takes it; cache: has `update`, or None."""
    language = base.model.language_model
    rotary, hidden = language.rotary_emb(embeds, positions), embeds
    for i, layer in enumerate(language.layers):
        hidden = layer(hidden, attention_mask=mask, position_embeddings=rotary, past_key_values=cache, use_cache=False)
        if i < len(deep):
            hidden = hidden + torch.zeros_like(hidden).masked_scatter(where[..., None], deep[i].to(hidden.dtype))
    return language.norm(hidden)


@dataclass(frozen=True, eq=False)
class Prefill:
    """Prompts forwarded once, with their graph where it is kept for the update that follows."""

    prompts: tuple[Prompt, ...]
    hidden: Tensor  # [R, P, hidden size], right-padded
    layers: Layers  # [R, key heads, P, D]

    def of(self, rows: Sequence[int]) -> Prefill:
        """Some of the prompts."""
        chosen = torch.tensor(rows, device=self.hidden.device)
        layers = [(keys[chosen], values[chosen]) for keys, values in self.layers]
        return Prefill(tuple(self.prompts[i] for i in rows), self.hidden[chosen], layers)


def prefilled(base: nn.Module, prompts: Sequence[Prompt], packed: Packed, seen: Seen | None) -> Prefill:
    """Forwards prompts, packed as rows without completions; under `torch.no_grad` or with a graph."""
    return Prefill(tuple(prompts), *recorded(base, packed, seen))


def recorded(base: nn.Module, packed: Packed, seen: Seen | None) -> tuple[Tensor, Layers]:
    """Hidden states [R, P, H], and every layer's keys and values."""
    cache = Recorder()
    return hidden_states(base, packed, seen, cache), cache.layers
