"""Floating-point operations and bytes of a model's steps, and the seconds, work and memory of a step on a device."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from vlrl.types import Policy, UserError, suggest

if TYPE_CHECKING:
    import torch

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
    tower, language, old = geometry.tower, geometry.language, geometry.family != "qwen3_vl"
    norm = 1 if geometry.family == "qwen2_5_vl" else 2  # LayerNorm has a bias too
    hidden, wide = tower.hidden, tower.merge * tower.hidden
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
    offloaded: bool = False  # what they are forwarded from waits in the host's memory
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
    pixels, tower_flops = (
        embedding(geometry, group.visual) * copies,
        blocks(geometry, group.visual, group.frames) * copies,
    )
    merged = merger(geometry, group.visual) * copies
    prompt = layers(geometry, group.prompt, group.before) * copies
    replies = layers(geometry, max(group.completion - 1, 0), group.before + group.prompt) * group.members
    scored = head(geometry, group.completion * group.members)
    still = update.mode != "naive" and update.vision == update.projector == 0  # features are made once and kept
    again = update.epochs - 1 if update.mode == "kept" else update.epochs  # forward passes of the prompt in updates
    image = tower_flops.backward(update.vision) + merged.backward(update.projector)
    if update.vision == 2:
        image += Flops(pixels.linear)  # pixels take no gradient, only their weights do
    redone = scored if update.chunked else Flops()
    if update.checkpointed:
        redone += _redone(geometry, prompt + replies, tower_flops if update.vision else Flops())
    return StepFlops(
        tower=(pixels + tower_flops + merged) * (1 if still else 1 + update.passes + again),
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
    tower_rest = 1 - tower.hidden * tower.intermediate / tower.block_matrices
    return Flops(left * text.linear + tower_rest * seen.linear, text.attention + seen.attention)


# NVIDIA GPUs by name: peak, memory and bandwidth as their data sheets give them.


@dataclass(frozen=True)
class Device:
    """What a plan and an MFU ask of a device. None: not known."""

    name: str
    tflops: float | None  # dense bfloat16 with float32 accumulation, 1e12 FLOPs a second
    memory: float  # GB, 1e9 bytes
    bandwidth: float | None  # of the memory, TB a second

    @property
    def short(self) -> str:
        """As a command line names it: h100, a100-80, 4090."""
        return self.name.lower().removeprefix("rtx ").replace("gb", "").replace(" ", "-")


# Data sheets, without sparsity. Where a card has several forms, the longer name comes before the shorter.
GPUS = (
    Device("B200", 2250, 180, 7.7),
    Device("GH200", 989, 96, 4.0),
    Device("H200", 989, 141, 4.8),
    Device("H100 PCIe", 756, 80, 2.0),
    Device("H100 NVL", 835, 94, 3.9),
    Device("H100", 989, 80, 3.35),
    Device("H800", 989, 80, 3.35),
    Device("H20", 148, 96, 4.0),
    Device("A100 80GB", 312, 80, 2.0),
    Device("A100 40GB", 312, 40, 1.55),
    Device("A800", 312, 80, 2.0),
    Device("L40S", 362, 48, 0.864),
    Device("L40", 181, 48, 0.864),
    Device("L4", 121, 24, 0.3),
    Device("A10G", 70, 24, 0.6),
    Device("A10", 125, 24, 0.6),
    Device("RTX 6000 Ada", 364, 48, 0.96),
    Device("RTX A6000", 155, 48, 0.768),
    Device("RTX 5090", 209, 32, 1.79),
    Device("RTX 4090", 165, 24, 1.01),
    Device("RTX 3090", 71, 24, 0.936),
)


def named(name: str) -> Device | None:
    """The GPU that torch.cuda.get_device_name calls `name`, for example "NVIDIA A100-SXM4-80GB"; None: not known."""
    words = _words(name)
    if {"laptop", "mig"} & words:  # another chip, a part of one
        return None
    return next((gpu for gpu in GPUS if _words(gpu.name) <= words), None)


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", name.lower()))


def find_device(name: str, tflops: float | None = None, memory: float | None = None) -> Device:
    """The device that a command line names: `h100`, `a100-80`, `24GB` (of a card not listed), `cpu`.

    Args:
        tflops, memory: where told, they take precedence.

    Raises:
        UserError: an unknown name; a CPU whose memory is not told.
    """
    short, size = name.lower(), re.fullmatch(r"(\d+(?:\.\d+)?)gb", name.lower())
    if size:
        device = Device(name, None, float(size[1]), None)
    elif short == "cpu":
        if memory is None:
            raise UserError("--gpu cpu: give --memory, its GB, and --tflops, its peak, where seconds are wanted")
        device = Device("cpu", None, memory, None)
    else:
        known = {gpu.short: gpu for gpu in GPUS}
        if short not in known:
            raise UserError(f"--gpu: unknown {name!r}{suggest(short, list(known))}; or its memory, for example 24GB")
        device = known[short]
    return replace(device, tflops=tflops or device.tflops, memory=memory or device.memory)


# What a run forwards and where its seconds go, gathered between two looks.

# Counts, each of all that was forwarded (a backward pass is no forward), beside what a step cannot do without.
COUNTS = (
    "patches",  # of images and video frames through the tower
    "patches_distinct",  # of them, the different ones: each prompt's once
    "tokens",  # through the language model
    "tokens_distinct",  # each prompt's and each completion's once
    "conversation_tokens",  # of conversations' prompts
    "cached_tokens",  # of them, those whose keys and values were kept from the turn before
    "tower_calls",
    "processor_calls",
    "flops",  # of the step without repetition (vlrl/performance/flops.py): what an MFU counts
)
PARTS = ("media", "prefill", "decode", "logprob", "forward", "backward", "optimizer", "reward", "environment")


class StepProfiler:
    """Counts that add up and seconds by part. Belongs to one thread.

    Args:
        device: on CUDA, a part's work is awaited before its time is read.
        clock: seconds that only grow.
    """

    def __init__(self, device: torch.device | str = "cpu", clock: Callable[[], float] = time.perf_counter):
        self.device, self._clock = str(device), clock
        self._counts: dict[str, float] = {}
        self._seconds: dict[str, float] = {}
        self._open: list[str] = []  # parts under way, the innermost last
        self._since = 0.0  # up to here, time has gone to its part

    def add(self, **counts: float) -> None:
        """Adds to counts; names are those of COUNTS.

        Raises:
            KeyError: another name.
        """
        for name, count in counts.items():
            self._counts[_known(name, COUNTS)] = self._counts.get(name, 0) + count

    @contextlib.contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Adds the seconds inside to a part of PARTS. Seconds of a block within go to that block's part alone.

        Raises:
            KeyError: another name.
        """
        _known(part, PARTS)
        self._charge()
        self._open.append(part)
        try:
            yield
        finally:
            self._charge()
            self._open.pop()

    def absorb(self, other: StepProfiler) -> None:
        """Adds what another has gathered, which forgets it."""
        other._charge()
        for mine, theirs in ((self._counts, other._counts), (self._seconds, other._seconds)):
            for name, value in theirs.items():
                mine[name] = mine.get(name, 0) + value
        other._counts, other._seconds = {}, {}

    def taken(self) -> dict[str, float]:
        """What has gathered since the last call, and forgets it: counts by name, seconds as `<part>_s`."""
        self._charge()  # of a part under way, what has passed so far
        row = self._counts | {f"{part}_s": seconds for part, seconds in self._seconds.items()}
        self._counts, self._seconds = {}, {}
        return row

    def _charge(self) -> None:
        """The time since the last call goes to the innermost part under way."""
        if self.device.startswith("cuda"):
            import torch

            torch.cuda.synchronize(self.device)
        now = self._clock()
        if self._open:
            self._seconds[self._open[-1]] = self._seconds.get(self._open[-1], 0.0) + now - self._since
        self._since = now


def timed(policy: Policy, part: str) -> contextlib.AbstractContextManager[None]:
    """`Work.timed` of a policy that keeps one (`work`)."""
    return policy.work.timed(part) if policy.work else contextlib.nullcontext()


def mfu(flops: float, seconds: float, device: torch.device | str) -> float | None:
    """The share of a GPU's dense bfloat16 peak that `flops` in `seconds` make; None where the peak is not known.

    Float32 runs are measured by the same peak.
    """
    if not str(device).startswith("cuda"):
        return None
    import torch

    known = named(torch.cuda.get_device_name(device))
    return flops / seconds / (known.tflops * 1e12) if known and seconds > 0 else None


def _known(name: str, names: tuple[str, ...]) -> str:
    if name not in names:
        raise KeyError(f"{name!r} is none of {', '.join(names)}")
    return name
