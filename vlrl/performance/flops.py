"""Floating-point operations and bytes of a model's steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from vlrl.types import UserError

# The sizes of a Qwen vision-language model, and how many parameters they make.

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


# Floating point operations of a Qwen vision-language model and of one step of training it.
#
# A multiplication and its addition count as two. Counted are matrices and attention; norms, activations, rotations and
# sampling are left out (well below 1 % at published sizes).


@dataclass(frozen=True)
class Flops:
    """Of matrices and of attention, which has no weights and is not always counted."""

    linear: float = 0.0
    attention: float = 0.0

    @property
    def total(self) -> float:
        return self.linear + self.attention

    def backward(self, factor: int) -> Flops:
        """Of the backward pass of such a forward pass, which costs two of its attention whatever is trained.

        factor: 2 weights are trained, 1 gradients pass through (LoRA, frozen), 0 none does.
        """
        return Flops(factor * self.linear, 2 * self.attention if factor else 0.0)

    def __add__(self, other: Flops) -> Flops:
        return Flops(self.linear + other.linear, self.attention + other.attention)

    def __mul__(self, times: float) -> Flops:
        return Flops(times * self.linear, times * self.attention)


@dataclass(frozen=True)
class Group:
    """A prompt and its completions."""

    prompt: float  # tokens, visual ones included
    visual: float  # tokens
    completion: float  # tokens, mean
    members: int
    frames: float = 1  # that the tower looks at one by one: images, pairs of a video's frames
    before: float = 0  # tokens of a conversation that the prompt goes on from, whose keys are kept


@dataclass(frozen=True)
class Update:
    """What a step does beside sampling.

    mode: `naive` forwards a prompt once per completion, `shared` once per group, `kept` takes the rollout's prefill
    with its graph as the update's forward pass of the prompt (one update a step, under the weights that sampled).
    """

    mode: Literal["naive", "shared", "kept"] = "kept"
    passes: int = 0  # forward passes over prompts and completions without gradient: the reference
    epochs: int = 1
    vision: int = 2  # factors of `Flops.backward`
    projector: int = 2
    language: int = 2
    checkpointed: bool = False  # layers are forwarded again in the backward pass
    chunked: bool = False  # so is the head


@dataclass(frozen=True)
class StepFlops:
    """FLOPs of one group's step by part. The tower is counted apart from the language model, in all passes."""

    tower: Flops  # without backward
    prefill: Flops
    decode: Flops
    reference: Flops
    forward: Flops
    backward: Flops  # of the tower too
    recompute: Flops  # of checkpoints: no progress, not in an MFU

    @property
    def all(self) -> Flops:
        return sum(vars(self).values(), Flops())


def factors(learning: Mapping[str, int], lora: bool) -> dict[str, int]:
    """What each part's backward pass costs (`Flops.backward`): gradients pass what lies above what learns.

    Args:
        learning: vision, projector, language -> parameters that train; a part may be missing.
    """
    own = {part: (1 if lora else 2) * bool(count) for part, count in learning.items()}
    vision = own.get("vision", 0)
    projector = max(own.get("projector", 0), int(vision > 0))
    language = max(own.get("language", 0), int(projector > 0))
    return {"vision": vision, "projector": projector, "language": language}


def embedding(geometry: Geometry, visual: float) -> Flops:
    """The tower's first layer, over pixels."""
    tower = geometry.tower
    return Flops(2 * visual * tower.merge * tower.values * tower.hidden)


def blocks(geometry: Geometry, visual: float, frames: float = 1) -> Flops:
    """The tower's layers over `visual` tokens' patches, in `frames` of one size."""
    tower = geometry.tower
    patches = visual * tower.merge
    frame = patches / max(frames, 1)
    full = tower.depth if tower.full is None else tower.full
    keys = full * frame + (tower.depth - full) * min(tower.window, frame)
    return Flops(2 * patches * tower.depth * tower.block_matrices, 4 * patches * tower.hidden * keys)


def merger(geometry: Geometry, visual: float) -> Flops:
    """What makes tokens of patches, once for each layer that the language model sees."""
    return Flops(2 * visual * geometry.tower.merger_matrices * (1 + geometry.tower.deepstack))


def layers(geometry: Geometry, tokens: float, before: float = 0.0) -> Flops:
    """The language model's layers over `tokens` that see `before` earlier ones and, causally, each other."""
    language = geometry.language
    attention = 4 * language.layers * language.heads * language.head
    linear = 2 * tokens * language.layers * language.block_matrices
    return Flops(linear, attention * tokens * (before + tokens / 2))


def head(geometry: Geometry, tokens: float) -> Flops:
    """Logits of `tokens`."""
    return Flops(2 * tokens * geometry.language.hidden * geometry.language.vocabulary)


def step(geometry: Geometry, group: Group, update: Update) -> StepFlops:
    """One group's rollout and update. The last token of a completion is scored, not forwarded."""
    copies = group.members if update.mode == "naive" else 1
    pixels, seen = embedding(geometry, group.visual) * copies, blocks(geometry, group.visual, group.frames) * copies
    merged = merger(geometry, group.visual) * copies
    prompt = layers(geometry, group.prompt, group.before) * copies
    replies = layers(geometry, max(group.completion - 1, 0), group.before + group.prompt) * group.members
    scored = head(geometry, group.completion * group.members)
    still = update.mode != "naive" and update.vision == update.projector == 0  # features are made once and kept
    again = update.epochs - 1 if update.mode == "kept" else update.epochs  # forward passes of the prompt in updates
    image = seen.backward(update.vision) + merged.backward(update.projector)
    if update.vision == 2:
        image += Flops(pixels.linear)  # pixels take no gradient, only their weights do
    redone = scored if update.chunked else Flops()
    if update.checkpointed:
        redone += _redone(geometry, prompt + replies, seen if update.vision else Flops())
    return StepFlops(
        tower=(pixels + seen + merged) * (1 if still else 1 + update.passes + again),
        prefill=prompt,
        decode=replies + scored,
        reference=(prompt + replies + scored) * update.passes,
        forward=prompt * again + (replies + scored) * update.epochs,
        backward=(image + (prompt + replies + scored).backward(update.language)) * update.epochs,
        recompute=redone * update.epochs,
    )


def _redone(geometry: Geometry, text: Flops, seen: Flops) -> Flops:
    """Of checkpoints: layers anew but for their last matrix, of which the backward pass needs the input alone."""
    tower, language = geometry.tower, geometry.language
    left = 1 - language.hidden * language.intermediate / language.block_matrices
    left_seen = 1 - tower.hidden * tower.intermediate / tower.block_matrices
    return Flops(left * text.linear + left_seen * seen.linear, text.attention + seen.attention)
