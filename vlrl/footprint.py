"""Memory of one step of training a Qwen vision-language model, by part, in bytes.

Left out: what single kernels use inside, the allocator's gaps, CUDA itself (about 1 GB).
"""

from __future__ import annotations

from vlrl.plan.activations import FULL, Run, passing, pixels, prompts, replies
from vlrl.plan.geometry import parameters

CHUNK = 2**25  # logits held at once while scoring (vlrl/policies/scorer.py)
# tensors of the logits' size that are there at once: while a token is drawn, while scores are made and differentiated
DRAWN, SCORED = 4, 6


def held(run: Run) -> dict[str, float]:
    """What is there all the time, gradients during an update."""
    every = parameters(run.geometry).all + run.adapters
    whole = _held(run, run.whole_trained, run.whole - run.whole_trained)
    parted = _held(run, run.trained - run.whole_trained, every - run.trained - run.whole + run.whole_trained)
    held = {name: whole[name] + parted[name] / run.shards for name in whole}
    return held | {"reference": whole["weights"] + parted["weights"] if run.copied else 0}


def _held(run: Run, trained: float, frozen: float) -> dict[str, float]:
    return {
        "weights": FULL * trained + run.width * frozen,  # mixed precision narrows what does not train
        "gradients": FULL * trained,
        "optimizer": FULL * run.states * trained,
    }


def rollout(run: Run) -> dict[str, float]:
    """What sampling needs beside it: at its end, when the cache is longest. Gradients are gone by then.

    On a CPU also a copy of the language model's matrices, which no plan is made for (vlrl/policies/token.py).
    """
    group, kept = run.group, run.update.mode == "kept"
    rows = run.prompts * (group.members if run.update.mode == "naive" else 1)
    written = run.prompts * group.members * _room(group.completion)
    cached = written * _cached(run, run.width) + rows * group.prompt * _cached(run, 0 if kept else run.width)
    return {
        "gradients": 0,
        "gathered weights": run.width * (parameters(run.geometry).all + run.adapters - run.whole) * (run.shards > 1),
        "activations": (prompts(run, rows) if kept else 0) + passing(run, rows),
        "weights for products": _products(run, graphs=int(kept)),
        "cache": cached,
        "logits": DRAWN * FULL * run.prompts * group.members * run.geometry.language.vocabulary,
    }


def update(run: Run) -> dict[str, float]:
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


def peak(run: Run) -> tuple[str, dict[str, float]]:
    """The phase that needs most, and its parts with what is held all the time."""
    phases = {"rollout": rollout(run), "update": update(run)}
    needs = {name: held(run) | parts for name, parts in phases.items()}
    phase = max(needs, key=lambda name: sum(needs[name].values()))
    return phase, needs[phase]


def _cached(run: Run, values: int) -> float:
    """A token's keys, in the type of products, and its values of so many bytes.

    With a kept graph, whose own keys are counted with it, only those beside it are there: none in float32.
    """
    half = run.geometry.language.cached / 2
    return half * (run.width + values if values or run.width < FULL else 0)


def _room(completion: float, block: int = 32) -> float:
    """Tokens of a buffer that starts small (256 with `policy.cuda_graphs`) and doubles: vlrl/policies/decoding.py."""
    while block < completion:
        block *= 2
    return block


def _products(run: Run, graphs: int) -> float:
    """Matrices in bfloat16. Each graph holds its own; without one, autocast holds those of weights that are trained.

    Of weights in parts, two layers that are gathered, and for a whole pass the embeddings and the head.
    """
    tower, language = run.geometry.tower, run.geometry.language
    words = language.vocabulary * language.hidden
    gathered = run.width * (2 * language.block_matrices + 2 * words) if run.shards > 1 and graphs else 0
    if run.width == FULL:
        return gathered
    seen = tower.depth * tower.block_matrices + (1 + tower.deepstack) * tower.merger_matrices
    spoken = 0 if run.shards > 1 else language.layers * language.block_matrices + words
    held = 0 if run.update.checkpointed else graphs
    return gathered + run.width * (
        max(held, run.update.language == 2) * spoken
        + max(held, run.update.vision == 2) * bool(run.update.vision) * seen
    )
