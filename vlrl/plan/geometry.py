"""The sizes of a Qwen vision-language model, and how many parameters they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vlrl.types import UserError

FAMILIES = ("qwen2_5_vl", "qwen3_vl")


@dataclass(frozen=True)
class Tower:
    """The vision transformer and what merges its patches into tokens of the language model."""

    depth: int
    hidden: int
    intermediate: int
    out: int  # hidden size of the language model
    patch: int = 14  # pixels of a side
    merge: int = 4  # patches that make one token
    full: int | None = None  # layers that attend over a whole frame; the others over windows. None: all
    window: int = 64  # patches of a window
    gated: bool = True  # three matrices of an MLP instead of two
    deepstack: int = 0  # mergers of inner layers
    table: int = 0  # learned position embeddings

    @property
    def values(self) -> int:
        """Numbers of a patch: two frames of RGB."""
        return 2 * 3 * self.patch**2

    @property
    def block_matrices(self) -> int:
        """Weights of a layer's matrices."""
        return 4 * self.hidden**2 + (3 if self.gated else 2) * self.hidden * self.intermediate

    @property
    def merger_matrices(self) -> int:
        """Weights of one merger's matrices."""
        wide = self.merge * self.hidden
        return wide * (wide + self.out)


@dataclass(frozen=True)
class Language:
    """The language model."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head: int  # size of a head
    vocabulary: int
    tied: bool  # the head is the embedding

    @property
    def block_matrices(self) -> int:
        """Weights of a layer's matrices."""
        attention = 2 * self.heads * self.head + 2 * self.kv_heads * self.head
        return self.hidden * (attention + 3 * self.intermediate)

    @property
    def cached(self) -> int:
        """Numbers of a token's keys and values, all layers."""
        return self.layers * 2 * self.kv_heads * self.head


@dataclass(frozen=True)
class Geometry:
    family: str
    tower: Tower
    language: Language


@dataclass(frozen=True)
class Parameters:
    """Numbers of parameters by the parts that `policy.freeze` names, which can be trained apart."""

    vision: int
    projector: int
    language: int  # head included

    @property
    def all(self) -> int:
        return self.vision + self.projector + self.language


def from_config(config: Mapping[str, Any]) -> Geometry:
    """The geometry that a config.json describes, in today's layout or the flat one of Qwen2.5-VL's first checkpoints.

    Raises:
        UserError: of another family.
        KeyError: a size is missing.
    """
    family = config.get("model_type")
    if family not in FAMILIES:
        raise UserError(f"a model of type {family!r}; sizes are known of {', '.join(FAMILIES)}")
    text, vision = config.get("text_config", config), config["vision_config"]
    old = family == "qwen2_5_vl"
    heads = text["num_attention_heads"]
    patch, merge = vision["patch_size"], vision["spatial_merge_size"]
    tower = Tower(
        depth=vision["depth"], hidden=vision["hidden_size"], intermediate=vision["intermediate_size"],
        out=vision["out_hidden_size"], patch=patch, merge=merge**2, gated=old,
        full=len(vision["fullatt_block_indexes"]) if old else None,
        window=(vision["window_size"] // patch) ** 2 if old else 0,
        deepstack=0 if old else len(vision["deepstack_visual_indexes"]),
        table=0 if old else vision["num_position_embeddings"],
    )  # fmt: skip
    language = Language(
        layers=text["num_hidden_layers"], hidden=text["hidden_size"], intermediate=text["intermediate_size"],
        heads=heads, kv_heads=text["num_key_value_heads"],
        head=text.get("head_dim") or text["hidden_size"] // heads, vocabulary=text["vocab_size"],
        tied=config.get("tie_word_embeddings") or text.get("tie_word_embeddings", False),
    )  # fmt: skip
    return Geometry(family, tower, language)


def parameters(geometry: Geometry) -> Parameters:
    """Exactly what the model of transformers holds."""
    tower, language, old = geometry.tower, geometry.language, geometry.family == "qwen2_5_vl"
    hidden, wide, norm = tower.hidden, tower.merge * tower.hidden, 1 if old else 2  # LayerNorm has a bias too
    biases = 4 * hidden + (2 * tower.intermediate if tower.gated else tower.intermediate) + hidden
    embedding = tower.values * hidden + (0 if old else hidden) + tower.table * hidden
    vision = embedding + tower.depth * (tower.block_matrices + biases + 2 * norm * hidden)
    mergers = tower.merger_matrices + wide + tower.out + norm * hidden
    mergers += tower.deepstack * (tower.merger_matrices + wide + tower.out + norm * wide)
    queries, keys = language.heads * language.head, language.kv_heads * language.head
    small = 2 * language.hidden + (queries + 2 * keys if old else 2 * language.head)
    words = language.vocabulary * language.hidden * (1 if language.tied else 2)
    return Parameters(vision, mergers, words + language.layers * (language.block_matrices + small) + language.hidden)
