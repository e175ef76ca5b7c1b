"""Plans of models of any type: a step without numbers, against the memory of the step itself."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils._pytree import tree_leaves

from vlrl.config import Lora, PolicySection
from vlrl.optim import StochasticAdamW
from vlrl.performance.memory import is_mixed
from vlrl.policies import tiny
from vlrl.policies.loading import load
from vlrl.tools.dry_run import DryPolicy, LiveTensors, StepSizes
from vlrl.types import Episode, Observation, Sample

pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
SIZES = StepSizes(prompts=2, micro=2, copies=4, tokens=12)
TEXTS = ("Click the red square.", "What is at [1, 2]? Click the button.")


def questions() -> list[Sample]:
    drawn = np.random.default_rng(0)
    images = [Image.fromarray(drawn.integers(0, 256, (48, side, 3), dtype=np.uint8)) for side in (32, 48)]
    return [Sample(text, Observation((image, text))) for text, image in zip(TEXTS, images, strict=True)]


def measure_step(section: PolicySection, shared: bool) -> tuple[float, str]:
    """The most bytes of tensors that a second step of the policy has, optimizer included, and how it is forwarded."""
    policy = load(section, shared_prefix=shared, device="cpu")
    trained = [p for p in policy.model.parameters() if p.requires_grad]
    narrow = section.weights_dtype == "bfloat16"
    optimizer = (
        StochasticAdamW(trained, lr=1e-6, betas=(0.9, 0.999), weight_decay=0.0)
        if narrow
        else torch.optim.AdamW(trained, lr=1e-6, fused=True)
    )
    episodes = [Episode(sample, g) for g, sample in enumerate(questions()) for _ in range(SIZES.copies)]

    shown = [e.sample.prompt for e in episodes]
    policy.act(episodes, shown)  # the first one looks at how the model can be forwarded
    policy.codec.stop_ids = ()  # completions end at their longest

    def step() -> None:
        decisions = policy.act(episodes, shown)
        assert {len(d.inputs.tokens) for d in decisions} == {SIZES.tokens}
        now = policy.evaluate(decisions)
        (-(now.logprobs - now.logprobs.detach()).exp()[now.mask].mean()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    step()
    gc.collect()  # an earlier test's model, freed in the middle, would be taken off
    states = [v for v in tree_leaves(list(optimizer.state.values())) if isinstance(v, torch.Tensor)]
    with LiveTensors([*policy.model.parameters(), *policy.model.buffers(), *states]) as live:
        step()
    return live.most, "shared" if policy.shared_prefix else "naive"


def slow(*case) -> object:
    return pytest.param(*case, marks=pytest.mark.slow)


CASES = [  # path, options
    ("llava", True, {}),
    ("gemma3", False, {"lora": Lora(rank=4, targets=".*(q_proj|v_proj)")}),
    slow("gemma3", True, {}),
    slow("lfm2_vl", True, {"freeze": ["vision"]}),
    slow("qwen3_5", True, {}),
    slow("llava", False, {"gradient_checkpointing": True}),
    slow("qwen3_vl_moe", True, {}),
    slow("llava", True, {"dtype": "bfloat16", "weights_dtype": "bfloat16"}),
    slow("llava", True, {"dtype": "bfloat16"}),
    slow("qwen3_vl_moe", True, {"dtype": "bfloat16", "weights_dtype": "bfloat16"}),
]


@pytest.mark.parametrize(("family", "shared", "options"), CASES)
def test_the_peak_of_a_step_without_numbers_is_that_of_the_step(family, shared, options, tmp_path):
    """A plan would send people to cards that are too small, or to knobs that they need not turn."""
    for part in tiny.build_family(family):
        part.save_pretrained(tmp_path)
    section = PolicySection(model=str(tmp_path), max_tokens=SIZES.tokens, **options)
    measured, mode = measure_step(section, shared)
    dry = DryPolicy(section, shared, mixed=is_mixed(section, on_gpu=False))
    cost = dry.measure([dry.policy.prompt(sample.prompt) for sample in questions()], SIZES)
    assert cost.mode == mode
    assert sum(cost.memory.values()) == pytest.approx(measured, rel=0.05)
