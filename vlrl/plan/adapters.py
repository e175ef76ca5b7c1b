"""How many parameters LoRA adds, as peft places it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vlrl.plan.geometry import Geometry


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
