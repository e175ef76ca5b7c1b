"""A model of 32 billion parameters over 16 processes, without values: shapes, shards and the planner's numbers."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

# in a process of its own: the fake group of 16 is the process's only one
PROGRAM = """
import json
import torch
from accelerate import init_empty_weights
from torch import distributed
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoConfig, AutoModelForImageTextToText
from vlrl.performance.memory import MODELS
from vlrl.policies import fused_modules
from vlrl.policies.generation import TokenScorer
from vlrl.policies.loading import EMBEDDED
from vlrl.policies.prefix_sharing import Packed, hidden_states
from vlrl.policies.weights import allocate, split_scorer

PROCESSES, ROWS, TOKENS, LAYERS = 16, 2, 1024, 4
distributed.init_process_group("fake", store=FakeStore(), rank=5, world_size=PROCESSES)
sizes = MODELS["Qwen3-VL-32B"]


def build(layers):
    config = AutoConfig.from_pretrained(EMBEDDED)
    text, vision, language, tower = config.text_config, config.vision_config, sizes.language, sizes.tower
    text.num_hidden_layers, text.hidden_size, text.intermediate_size = layers, language.hidden, language.intermediate
    text.num_attention_heads, text.num_key_value_heads = language.heads, language.kv_heads
    text.head_dim, text.vocab_size = language.head, language.vocabulary
    text.rope_parameters["mrope_section"] = [24, 20, 20]
    config.tie_word_embeddings = text.tie_word_embeddings = language.tied
    vision.depth, vision.hidden_size, vision.intermediate_size = tower.depth, tower.hidden, tower.intermediate
    vision.out_hidden_size, vision.num_heads, vision.patch_size = tower.out, 16, tower.patch
    vision.deepstack_visual_indexes, vision.num_position_embeddings = [8, 16, 24], tower.table
    with init_empty_weights():
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    model.model.visual.requires_grad_(False)
    fused_modules.use_shared_prefix(model)
    fused_modules.use(model)
    scorer = TokenScorer(model, 1.0, [], hidden_states)
    split_scorer(scorer, torch.bfloat16, "cpu", PROCESSES)
    return model, scorer


model, _ = build(sizes.language.layers)
own = [p for p in model.parameters() if isinstance(p, DTensor)]
found = {
    "all": sum(p.numel() for p in model.parameters()), "language": sum(p.numel() for p in own),
    "shard": sum(p.to_local().numel() for p in own),
    "rows": [p.to_local().shape[0] * PROCESSES == p.shape[0] for p in own],
}
model, scorer = build(LAYERS)  # a pass through all 64 takes minutes without values too
with FakeTensorMode(allow_non_fake_inputs=True):
    allocate(scorer, "cpu")
    scorer.banned = torch.zeros(0, dtype=torch.int64)
    ids, targets = torch.zeros(ROWS, TOKENS, dtype=torch.int64), torch.arange(512)
    packed = Packed(ids, ids.int(), ids.expand(3, ROWS, TOKENS), None, None, None, targets, torch.zeros_like(targets))
    model.train()
    model.activation_checkpointing_enable({"use_reentrant": False})
    with FSDPMemTracker(scorer, None) as tracker:
        with torch.autocast("cpu", torch.bfloat16):
            logprobs, _ = scorer(packed)
        logprobs.sum().backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    found["grads"] = [g.shape == p.shape and g.to_local().shape == p.to_local().shape and g.dtype == torch.float32
                      for g, p in zip(grads, (p for p in model.parameters() if p.grad is not None), strict=True)]
    found["params"] = len([p for p in model.parameters() if isinstance(p, DTensor)])
    found["peak"] = sum(each["Total"] for each in tracker.get_tracker_snapshot("peak").values())
    block = sizes.language.block_matrices
    words = sizes.language.vocabulary * sizes.language.hidden
    found["whole"] = 4 * (LAYERS * block + 2 * words)
print(json.dumps(found))
"""


def test_32_billion_parameters_lie_evenly_on_16_processes():
    """Else a launch on 16 GPUs is the first to show that a shard, a gradient or the planner's bytes are off."""
    import json

    from vlrl.performance.memory import MODELS
    from vlrl.performance.profiling import parameters

    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    counts = parameters(MODELS["Qwen3-VL-32B"])
    assert found["all"] == counts.all and found["language"] == counts.language
    assert found["shard"] == counts.language / 16 and all(found["rows"])
    assert len(found["grads"]) == found["params"] and all(found["grads"])
    assert found["peak"] < found["whole"]  # never all of it: float32 weights alone would be that much
