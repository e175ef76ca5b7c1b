"""Plans of models of any type: a step without numbers, against the memory of the step itself."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils._pytree import tree_leaves

from vlrl.cli import main
from vlrl.config import Lora, PolicySection
from vlrl.performance.memory import is_mixed
from vlrl.policies import tiny
from vlrl.policies.loading import load
from vlrl.recipe_checks import load_config
from vlrl.tools.dry_run import DryPolicy, LiveTensors, StepSizes
from vlrl.tools.memory_planner import PlanOptions, plan_plan
from vlrl.types import Episode, Observation, Sample
from vlrl.update import StochasticAdamW

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

    step()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
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


@pytest.mark.slow
def test_a_plan_takes_any_model(tmp_path, capsys):
    """Planned from its configuration and processor: no weights are there to be read."""
    model, processor = tiny.build_family("llava")
    model.config.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    plan = ["plan", "configs/gui_grounding.yaml", f"policy.model={tmp_path}", "train.prompts_per_step=4"]
    assert main([*plan, "--gpu", "cpu", "--memory", "0.01", "--tflops", "0.1"]) == 0
    shown = capsys.readouterr().out
    assert "its own passes" in shown and "does not fit" in shown and "once per group" in shown
    # layers that are recomputed fork no cache, which saves nothing here and so is not named
    assert "train.micro_batch_size=1" in shown and "policy.gradient_checkpointing" not in shown
    assert "policy.max_pixels" not in shown
    assert main([*plan, "--visual", "9"]) == 2
    assert "--visual" in capsys.readouterr().err
    (tmp_path / "chat_template.jinja").unlink()
    assert main(plan) == 2
    error = capsys.readouterr().err
    assert "chat template" in error and error.count("\n") == 1


@pytest.mark.slow
def test_a_plan_of_any_model_knows_what_saves_memory(tmp_path):
    """Bytes a weight: 4 + 4 + 8 in float32, 2 + 2 + 8 in bfloat16, 4 more with copies; half a byte in 4 bits."""
    for part in tiny.build_family("llava"):
        part.save_pretrained(tmp_path)

    def plan(*changes: str) -> dict[str, float]:
        base = [f"policy.model={tmp_path}", "train.prompts_per_step=2", "train.group_size=2", "policy.max_tokens=4"]
        return plan_plan(load_config("configs/gui_grounding.yaml", [*base, *changes]), PlanOptions()).memory

    narrow, wide = "policy.weights_dtype=bfloat16", "policy.dtype=float32"
    found = {
        "wide": plan(wide), "narrow": plan(narrow), "copies": plan(narrow, "train.master_weights=true"),
        "adapted": plan("policy.lora.rank=2"), "packed": plan("policy.lora.rank=2", "policy.load_in_4bit=true"),
        "eight": plan(wide, "train.optimizer=adamw_8bit"),
    }  # fmt: skip
    assert found["narrow"]["weights"] == pytest.approx(found["wide"]["weights"] / 2, rel=0.01)
    assert found["narrow"]["gradients"] == found["wide"]["gradients"] / 2
    assert found["narrow"]["optimizer"] == found["wide"]["optimizer"] == 8 / 12 * found["copies"]["optimizer"]
    assert found["packed"]["weights"] < 0.7 * found["adapted"]["weights"]
    assert found["eight"]["optimizer"] < found["wide"]["optimizer"]
