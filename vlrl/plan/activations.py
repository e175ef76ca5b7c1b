"""What the graph of a forward pass keeps, in bytes.

Counted tensor by tensor, as vlrl/policies/lean.py or the models of transformers write them, for plain float32 and for
bfloat16 autocast over float32 weights, with attention that keeps no scores.
"""

from __future__ import annotations

from dataclasses import dataclass

from vlrl.cost import Group, Update
from vlrl.plan.geometry import Geometry, Language, Tower

FULL = 4  # bytes of weights, gradients, optimizer states, and of what is computed in float32 in any case


@dataclass(frozen=True)
class Run:
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
    shards: int = 1  # GPUs over which weights, gradients and optimizer are spread
    whole: int = 0
    whole_trained: int = 0


def tower_layer(tower: Tower, width: int, lean: bool = True, forgets: bool = True) -> float:
    """Bytes that one layer keeps of one patch.

    Args:
        lean: as vlrl/policies/lean.py has it; else as transformers does.
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


def prompts(run: Run, rows: float) -> float:
    """What the graph of `rows` prompts keeps: of the tower, the merger, the language model."""
    return rows * (_seen(run) + run.group.prompt * _token(run, cached=True))


def pixels(run: Run) -> float:
    """Of one prompt, as the processor makes them."""
    tower = run.geometry.tower
    return run.group.visual * tower.merge * tower.values * FULL


def _seen(run: Run) -> float:
    """What the tower keeps of one prompt's media."""
    tower, patches = run.geometry.tower, run.group.visual * run.geometry.tower.merge
    mergers = 3 * patches * tower.hidden * run.width * (1 + tower.deepstack) if run.update.projector else 0
    if not run.update.vision:
        return mergers
    layer = tower.hidden * run.width if run.update.checkpointed else tower_layer(tower, run.width, _lean(run))
    shown = tower.values * run.width if run.update.vision == 2 else 0
    return mergers + patches * (shown + tower.depth * layer)


def _token(run: Run, cached: bool) -> float:
    """What the language model keeps of one token; cached: its keys and values too."""
    language, checkpointed = run.geometry.language, run.update.checkpointed
    normed = run.geometry.family == "qwen3_vl"
    whole = language_layer(language, run.width, run.update.language == 2, normed, _lean(run))
    layer = language.hidden * FULL if checkpointed else whole
    last = 2 * language.hidden * FULL  # the norm behind the layers
    return language.layers * layer + last + (language.cached * run.width if cached else 0)


def replies(run: Run) -> float:
    """What the graph keeps of the completions: their tokens, and in masked attention every key once per query head."""
    group, language = run.group, run.geometry.language
    tokens = group.members * max(group.completion - 1, 0)
    own = run.micro * tokens * _token(run, cached=run.update.mode != "kept")
    if run.update.mode == "naive" or group.members == 1:
        return own
    keys = group.prompt + tokens
    masked = keys * 2 * language.heads * language.head + tokens * keys
    return own + run.micro * (1 if run.update.checkpointed else language.layers) * masked * run.width


def passing(run: Run, rows: float) -> float:
    """What comes and goes with the layer that is at work, and the pixels."""
    tower, patches = run.geometry.tower, run.group.visual * run.geometry.tower.merge
    seen = patches * tower_layer(tower, run.width, _lean(run), forgets=False)
    return rows * (pixels(run) + max(seen, run.group.prompt * _layer(run)))


def _layer(run: Run) -> float:
    normed = run.geometry.family == "qwen3_vl"
    return language_layer(run.geometry.language, run.width, normed=normed, lean=_lean(run), forgets=False)


def _lean(run: Run) -> bool:
    return run.update.mode != "naive"
