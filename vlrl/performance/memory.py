"""Memory of a training step, by arithmetic alone: graphs, adapters, sizes of published models; and when it does not
suffice. Imports no torch."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlrl.performance.profiling import FAMILIES, Geometry, Group, Language, Tower, Update, parameters
from vlrl.types import Policy, UserError, first_line

if TYPE_CHECKING:
    from vlrl.config import PolicySection

# What the graph of a forward pass keeps, in bytes.
#
# Counted tensor by tensor, as vlrl/policies/fused_modules.py or the models of transformers write them, for plain
# float32 and for
# bfloat16 autocast over float32 weights, with attention that keeps no scores.

FULL = 4  # bytes of weights, gradients, optimizer states, and of what is computed in float32 in any case


def is_mixed(section: PolicySection, on_gpu: bool) -> bool:
    """Whether products are made in bfloat16."""
    return section.dtype == "bfloat16" or (section.dtype == "auto" and (on_gpu or section.weights_dtype == "bfloat16"))


@dataclass(frozen=True)
class MemoryInputs:
    """What the memory of a step hangs on.

    trained: parameters with gradients, adapters included; adapters: those that LoRA adds. whole: parameters, adapters
    included, that every GPU has for itself, and which of them have gradients.
    """

    geometry: Geometry
    group: Group
    update: Update
    prompts: int  # of a rollout
    micro: int  # prompts of one forward pass with gradient
    trained: int
    adapters: int = 0
    width: int = 4  # bytes of a number in a matrix product: 4 float32, 2 bfloat16 autocast
    states: float = 2.0  # numbers of the optimizer for one parameter
    copied: bool = False  # a second set of weights as the reference
    weight: int = 4  # bytes of a weight that trains and of its gradient: 4 float32, 2 bfloat16
    masters: bool = False  # float32 copies of weights that train
    quantised: float = 0  # weights that do not train, held in 4 bits
    slots: int | None = None  # completions that are written at once; None: all
    held_out: int = 0  # prompts of an evaluation that are answered at once
    shards: int = 1  # GPUs over which weights, gradients and optimizer are spread
    whole: int = 0
    whole_trained: int = 0
    stays: bool = False  # in parts between updates too, where another engine writes
    slices: int = 1  # GPUs over which a sequence is spread in updates, and where weights stay in parts in all passes


@dataclass(frozen=True)
class StepCost:
    """One device's part of a step. memory: part -> bytes at the peak, which `phase` names; flops: part -> FLOPs."""

    parameters: int
    trained: int  # adapters included
    width: int  # bytes of a number in a product
    mode: str  # how prompts are forwarded, as `Update.mode`
    phase: str
    memory: dict[str, float]
    flops: dict[str, float]
    decode_bytes: float  # that decoding reads
    launches: float  # operations of decoding that the host starts one by one


LAUNCHES, AROUND = 60, 60  # of one token: of each layer, and of what draws it (tests/vlrl/policies/test_decoding.py)


def count_launches(layers: int, completions: int, tokens: float, slots: int | None) -> float:
    """Operations of writing completions, `slots` of them at a time."""
    return -(-completions // (slots or completions)) * tokens * (layers * LAUNCHES + AROUND)


def tower_layer(tower: Tower, width: int, lean: bool = True, forgets: bool = True) -> float:
    """Bytes that one layer keeps of one patch.

    Args:
        lean: as vlrl/policies/fused_modules.py has it; else as transformers does.
        forgets: False in a lean layer that is recomputed, which keeps what it could make again.
    """
    hidden, wide = tower.hidden, tower.intermediate
    if lean:
        held = (6 * hidden + 2 * wide) * width  # two sums, queries, keys, values, what was seen; gate and up
        return held if forgets else held + (2 * hidden + wide * tower.gated) * width
    attention = 7 * hidden * width  # projected, rotated twice, out, joined
    if not tower.gated:
        return 4 * hidden * width + attention + 2 * wide * width
    copies = 3 if width < FULL else 2  # of the normalised input: every product casts its own
    return 2 * hidden * FULL + (2 + copies) * hidden * width + attention + 4 * wide * width


def language_layer(
    language: Language, width: int, trained: bool = True, normed: bool = False, lean: bool = True, forgets: bool = True
) -> float:
    """Bytes that one layer keeps of one token, attention's keys and values aside.

    Args:
        trained: False under LoRA, whose norms keep one tensor less where they are not lean.
        normed: queries and keys are normalised (Qwen3).
        lean, forgets: as of `tower_layer`.
    """
    hidden, wide = language.hidden, language.intermediate
    queries, keys = language.heads * language.head, language.kv_heads * language.head
    if lean:
        held = 2 * hidden * FULL + (2 * queries + 2 * wide + (queries + keys) * normed) * width
        return held if forgets else held + (2 * hidden + wide) * width
    copies = 5 if width < FULL else 2
    norms = (4 if trained else 2) * hidden * FULL
    rest = (copies * hidden + 2 * queries + 4 * wide) * width
    return norms + rest + (queries + keys) * (FULL + width) * normed


def prompts(run: MemoryInputs, rows: float) -> float:
    """What the graph of `rows` prompts keeps: of the tower, the merger, the language model."""
    return rows * (_tower_bytes(run) + run.group.prompt * _token(run, cached=True))


def pixels(run: MemoryInputs) -> float:
    """Of one prompt, as the processor makes them."""
    tower = run.geometry.tower
    return run.group.visual * tower.merge * tower.values * FULL


def _tower_bytes(run: MemoryInputs) -> float:
    """What the tower keeps of one prompt's media."""
    tower, patches = run.geometry.tower, run.group.visual * run.geometry.tower.merge
    mergers = 3 * patches * tower.hidden * run.width * (1 + tower.deepstack) if run.update.projector else 0
    if not run.update.vision:
        return mergers
    layer = tower.hidden * run.width if run.update.checkpointed else tower_layer(tower, run.width, _lean(run))
    layer *= not run.update.offloaded
    pixels = tower.values * run.width if run.update.vision == 2 else 0
    return mergers + patches * (pixels + tower.depth * layer)


def _token(run: MemoryInputs, cached: bool) -> float:
    """What the language model keeps of one token; cached: its keys and values too."""
    language, checkpointed = run.geometry.language, run.update.checkpointed
    normed = run.geometry.family == "qwen3_vl"
    whole = language_layer(language, run.width, run.update.language == 2, normed, _lean(run))
    layer = (language.hidden * FULL if checkpointed else whole) * (not run.update.offloaded)
    last = 2 * language.hidden * FULL  # the norm behind the layers
    whole = 3 * language.hidden * FULL * (run.slices > 1)  # embeddings, last states, and those on their way
    return whole + (language.layers * layer + last + (language.cached * run.width if cached else 0)) / run.slices


def replies(run: MemoryInputs) -> float:
    """What the graph keeps of the completions: their tokens, and in masked attention every key once per query head."""
    group, language = run.group, run.geometry.language
    tokens = group.members * max(group.completion - 1, 0)
    own = run.micro * tokens * _token(run, cached=run.update.mode != "kept")
    if run.update.mode == "naive" or group.members == 1:
        return own
    keys = group.prompt + tokens
    masked = keys * 2 * language.heads * language.head / run.slices + tokens * keys
    return own + run.micro * (1 if run.update.checkpointed else language.layers) * masked * run.width


def passing(run: MemoryInputs, rows: float) -> float:
    """What comes and goes with the layer that is at work, and the pixels."""
    tower, patches = run.geometry.tower, run.group.visual * run.geometry.tower.merge
    tower_activations = patches * tower_layer(tower, run.width, _lean(run), forgets=False)
    return rows * (pixels(run) + max(tower_activations, run.group.prompt * _layer(run)))


def _layer(run: MemoryInputs) -> float:
    language, normed = run.geometry.language, run.geometry.family == "qwen3_vl"
    layer = language_layer(language, run.width, normed=normed, lean=_lean(run), forgets=False)
    sent = 2 * (2 * language.heads + 2 * language.kv_heads) * language.head * run.width * (run.slices > 1)
    return (layer + sent) / run.slices


def _lean(run: MemoryInputs) -> bool:
    return run.update.mode != "naive" and run.geometry.family in FAMILIES


# How many parameters LoRA adds, as peft places it.


@dataclass(frozen=True)
class Linear:
    """Alike linear layers: `count` of `inputs` x `outputs`, in a section that `policy.freeze` names."""

    section: str
    name: str  # the module's path within a layer, as `policy.lora.targets` names its end
    inputs: int
    outputs: int
    count: int


def linears(geometry: Geometry) -> Iterator[Linear]:
    """Every linear layer but the head, which `all-linear` leaves out."""
    tower, language = geometry.tower, geometry.language
    hidden, wide = tower.hidden, tower.merge * tower.hidden
    yield Linear("vision", "attn.qkv", hidden, 3 * hidden, tower.depth)
    yield Linear("vision", "attn.proj", hidden, hidden, tower.depth)
    up, down = (("gate_proj", "up_proj"), "down_proj") if tower.gated else (("linear_fc1",), "linear_fc2")
    for name in up:
        yield Linear("vision", f"mlp.{name}", hidden, tower.intermediate, tower.depth)
    yield Linear("vision", f"mlp.{down}", tower.intermediate, hidden, tower.depth)
    first, second = ("mlp.0", "mlp.2") if tower.gated else ("linear_fc1", "linear_fc2")
    yield Linear("projector", f"merger.{first}", wide, wide, 1 + tower.deepstack)
    yield Linear("projector", f"merger.{second}", wide, tower.out, 1 + tower.deepstack)
    queries, keys = language.heads * language.head, language.kv_heads * language.head
    for name, outputs in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
        yield Linear("language", f"self_attn.{name}", language.hidden, outputs, language.layers)
    yield Linear("language", "self_attn.o_proj", queries, language.hidden, language.layers)
    for name in ("gate_proj", "up_proj"):
        yield Linear("language", f"mlp.{name}", language.hidden, language.intermediate, language.layers)
    yield Linear("language", "mlp.down_proj", language.intermediate, language.hidden, language.layers)


def adapters(geometry: Geometry, rank: int, targets: str | Sequence[str]) -> dict[str, int]:
    """Parameters that an adapter of `rank` adds to each section.

    Args:
        targets: `all-linear`, or the ends of the modules' names.
    """
    ends = None if targets == "all-linear" else [targets] if isinstance(targets, str) else list(targets)
    added = dict.fromkeys(("vision", "projector", "language"), 0)
    for layer in linears(geometry):
        if ends is None or any(f".{layer.name}".endswith(f".{end}") for end in ends):
            added[layer.section] += rank * (layer.inputs + layer.outputs) * layer.count
    return added


# Sizes of the published models, for plans without their files.
#
# Read from copies of their config.json: Qwen2.5-VL-7B, Qwen3-VL-4B. The others were not read; their parameter counts
# come out at those that the models are known by (tests/vlrl/test_cost.py). A local folder's
# config.json always takes precedence.


def _qwen2_5(layers, hidden, intermediate, heads, kv, vocabulary, tied, vision) -> Geometry:
    tower = Tower(depth=32, hidden=1280, intermediate=vision, out=hidden, full=4)
    return Geometry("qwen2_5_vl", tower, Language(layers, hidden, intermediate, heads, kv, 128, vocabulary, tied))


def _qwen2(layers, hidden, intermediate, heads, kv, vocabulary, tied) -> Geometry:
    tower = Tower(depth=32, hidden=1280, intermediate=5120, out=hidden, window=0, gated=False)
    return Geometry("qwen2_vl", tower, Language(layers, hidden, intermediate, heads, kv, 128, vocabulary, tied))


def _qwen3(layers, hidden, intermediate, heads, tied, depth, width, vision) -> Geometry:
    tower = Tower(depth, width, vision, out=hidden, patch=16, window=0, gated=False, deepstack=3, table=2304)
    return Geometry("qwen3_vl", tower, Language(layers, hidden, intermediate, heads, 8, 128, 151936, tied))


MODELS = {
    "Qwen2-VL-2B": _qwen2(28, 1536, 8960, 12, 2, 151936, True),
    "Qwen2-VL-7B": _qwen2(28, 3584, 18944, 28, 4, 152064, False),
    "Qwen2.5-VL-3B": _qwen2_5(36, 2048, 11008, 16, 2, 151936, True, 3420),
    "Qwen2.5-VL-7B": _qwen2_5(28, 3584, 18944, 28, 4, 152064, False, 3420),
    "Qwen2.5-VL-32B": _qwen2_5(64, 5120, 27648, 40, 8, 152064, False, 3456),
    "Qwen2.5-VL-72B": _qwen2_5(80, 8192, 29568, 64, 8, 152064, False, 3456),
    "Qwen3-VL-2B": _qwen3(28, 2048, 6144, 16, True, 24, 1024, 4096),
    "Qwen3-VL-4B": _qwen3(36, 2560, 9728, 32, True, 24, 1024, 4096),
    "Qwen3-VL-8B": _qwen3(36, 4096, 12288, 32, False, 27, 1152, 4304),
    "Qwen3-VL-32B": _qwen3(64, 5120, 25600, 64, False, 27, 1152, 4304),
}


# Memory of one step of training a Qwen vision-language model, by part, in bytes.
#
# Left out: what single kernels use inside, the allocator's gaps, CUDA itself (about 1 GB).

CHUNK = 2**25  # logits held at once while scoring (vlrl/policies/generation.py)
# tensors of the logits' size that are there at once: while a token is drawn, while scores are made and differentiated
DRAWN, SCORED = 4, 6
SCORED_ROWS = 64  # completions that are scored at once without gradient (vlrl/policies/vlm.py)

# Where each number of a plan comes from.
SOURCES = {
    "weights": "parameters by the model's sizes: 4 bytes of what trains, the products' type of the rest (or 4 bits)",
    "gradients": "as the weights that train",
    "optimizer": "AdamW's two moments in float32 (adamw_8bit, muon: what they keep instead)",
    "reference": "the weights once more; an adapter is switched off instead",
    "gathered weights": "all of them in the products' type, in each process that writes by itself",
    "activations": "tensor by tensor, beside a measured step within 11 % (tests/vlrl/test_footprint.py)",
    "pixels": "of the images as the processor cuts them, in float32",
    "weights for products": "autocast's copies; of weights in parts two gathered layers, the embeddings and the head",
    "cache": "keys and values of prompts and completions in the products' type",
    "logits": "of a chunk of tokens, as often as kernels hold it",
}


def held(run: MemoryInputs) -> dict[str, float]:
    """What is there all the time, gradients during an update."""
    every = parameters(run.geometry).all + run.adapters
    whole = _held(run, run.whole_trained, run.whole - run.whole_trained, 0)
    frozen = every - run.trained - run.whole + run.whole_trained
    parted = _held(run, run.trained - run.whole_trained, frozen, run.quantised)
    held = {name: whole[name] + parted[name] / run.shards for name in whole}
    copied = whole["weights"] + parted["weights"] / (run.shards if run.stays else 1)
    return held | {"reference": copied if run.copied else 0}


FOUR_BIT = 0.5 + (1 + 4 / 256) / 64  # bytes of a weight in NF4: a scale of 8 bits for 64, one of 32 bits for 256 scales


def _held(run: MemoryInputs, trained: float, frozen: float, quantised: float) -> dict[str, float]:
    """quantised: how many of the frozen are held in 4 bits."""
    return {
        # mixed precision narrows what does not train
        "weights": run.weight * trained + run.width * (frozen - quantised) + FOUR_BIT * quantised,
        "gradients": run.weight * trained,
        "optimizer": FULL * (run.states + run.masters) * trained,
    }


def rollout(run: MemoryInputs) -> dict[str, float]:
    """What sampling needs beside it: at its end, when the cache is longest. Gradients are gone by then.

    On a CPU also a copy of the language model's matrices, which no plan is made for (vlrl/policies/decode_step.py).
    """
    return _writing(run, run.prompts, run.group.members, run.update.mode == "kept")


def evaluation(run: MemoryInputs) -> dict[str, float]:
    """What greedy answers to held-out prompts need beside it."""
    return _writing(run, run.held_out, 1, kept=False)


def _writing(run: MemoryInputs, prompted: int, members: int, kept: bool) -> dict[str, float]:
    """kept: the prompts' graph is there for the update, so that all of them are."""
    group = run.group
    if run.slots and not kept:
        prompted = min(prompted, max(1, run.slots // members))
    rows = prompted * (members if run.update.mode == "naive" else 1)
    tokens = prompted * members * _room(group.completion)
    cached = tokens * _cached(run, run.width) + rows * group.prompt * _cached(run, 0 if kept else run.width)
    return {
        "gradients": 0,
        "gathered weights": run.width * (parameters(run.geometry).all + run.adapters - run.whole) * (run.shards > 1),
        "activations": (prompts(run, rows) if kept else 0) + passing(run, rows),
        "weights for products": _products(run, graphs=int(kept)),
        "cache": cached,
        "logits": DRAWN * FULL * prompted * members * run.geometry.language.vocabulary,
    }


def scoring(run: MemoryInputs) -> dict[str, float]:
    """What log-probabilities without gradient need beside it, where another engine writes and weights stay in parts."""
    members = run.group.members
    rows = run.prompts if run.copied else min(run.prompts, -(-SCORED_ROWS // members))  # a reference scores all at once
    tokens = rows * members * run.group.completion
    return {
        "gradients": 0,
        "activations": passing(run, rows) + tokens * _layer(run),
        "weights for products": _products(run, graphs=1),
        "logits": SCORED * FULL * min(tokens * run.geometry.language.vocabulary, CHUNK),
    }


def update(run: MemoryInputs) -> dict[str, float]:
    """What a forward pass with gradient and its backward pass need beside it."""
    group, kept = run.group, run.update.mode == "kept"
    rows = run.micro * (group.members if run.update.mode == "naive" else 1)
    scored = run.micro * group.members * group.completion
    return {
        # As gradients appear, activations go: beside those, only a recomputed layer counts.
        "activations": prompts(run, rows) + replies(run) + (passing(run, rows) if run.update.checkpointed else 0),
        "pixels": 0 if kept or run.width == FULL else rows * pixels(run),  # in float32 the graph's are the same
        "weights for products": _products(run, graphs=2 if kept else 1),
        "cache": run.prompts * group.prompt * _cached(run, 0) if kept else 0,
        "logits": SCORED * FULL * min(scored * run.geometry.language.vocabulary, CHUNK),
    }


def peak(run: MemoryInputs) -> tuple[str, dict[str, float]]:
    """The phase that needs most, and its parts with what is held all the time."""
    phases = {"scoring": scoring(run)} if run.stays else {"rollout": rollout(run)}
    phases["update"] = update(run)
    if run.held_out and not run.stays:
        phases["evaluation"] = evaluation(run)
    needs = {name: held(run) | parts for name, parts in phases.items()}
    phase = max(needs, key=lambda name: sum(needs[name].values()))
    return phase, needs[phase]


def _cached(run: MemoryInputs, values: int) -> float:
    """A token's keys, in the type of products, and its values of so many bytes.

    With a kept graph, whose own keys are counted with it, only those beside it are there: none in float32.
    """
    half = run.geometry.language.cached / 2
    return half * (run.width + values if values or run.width < FULL else 0)


def _room(completion: float, block: int = 32) -> float:
    """Tokens of a buffer that starts small (256 with `policy.cuda_graphs`) and doubles: vlrl/policies/generation.py."""
    while block < completion:
        block *= 2
    return block


def _products(run: MemoryInputs, graphs: int) -> float:
    """Matrices in bfloat16. Each graph holds its own; without one, autocast holds those of weights that are trained.

    Of weights in parts, two layers that are gathered, and for a whole pass the embeddings and the head.
    """
    tower, language = run.geometry.tower, run.geometry.language
    words = language.vocabulary * language.hidden
    gathered = run.width * (2 * language.block_matrices + 2 * words) if run.shards > 1 and graphs else 0
    if run.width == FULL:
        return gathered
    weights = tower.depth * tower.block_matrices + (1 + tower.deepstack) * tower.merger_matrices
    spoken = 0 if run.shards > 1 else language.layers * language.block_matrices + words
    if run.weight < FULL:  # products take weights as they are
        return gathered
    held = 0 if run.update.checkpointed else graphs
    return gathered + run.width * (
        max(held, run.update.language == 2) * spoken
        + max(held, run.update.vision == 2) * bool(run.update.vision) * weights
    )


# When memory does not suffice.

# what torch says on a CPU, of a GPU, and of a GPU's library, where the error has no type of its own
PHRASES = ("can't allocate memory", "not enough memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
ROLLOUT_REMEDIES = "lower train.group_size, policy.max_tokens or policy.max_pixels"
UPDATE_REMEDIES = f"{ROLLOUT_REMEDIES}, or set policy.gradient_checkpointing or policy.lora"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory did not suffice."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in PHRASES)


def make_room(policy: Policy) -> None:
    """Gives back what can be made anew. To be called outside of `except`: an error holds on to all that it went
    through.
    """
    policy.forget()
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextlib.contextmanager
def report_oom() -> Iterator[None]:
    """What is nowhere done with less at a time ends in one line."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        reason = first_line(error)
        raise UserError(
            f"out of memory ({reason}): {UPDATE_REMEDIES}, or lower eval.batch_size; `vlrl plan` says what each takes. "
            "The newest checkpoint, if there is one, is good"
        ) from None
