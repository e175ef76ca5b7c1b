"""Memory: against the tensors that steps on tiny models hold and keep."""

from __future__ import annotations

import gc
import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from vlrl.config import Lora
from vlrl.performance import memory
from vlrl.performance.memory import MODELS, MemoryInputs, prompts, replies
from vlrl.performance.profiling import Group, Update
from vlrl.policies import generation
from vlrl.tools.dry_run import LiveTensors

_spec = importlib.util.spec_from_file_location("tiny_steps", Path(__file__).with_name("tiny_steps.py"))
tiny_steps = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tiny_steps)
Tiny = tiny_steps.Tiny

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning"),
]
BF16 = torch.bfloat16


def kept_by(tiny: Tiny) -> tuple[int, MemoryInputs]:
    """Bytes that a step's graphs keep, and the run as the model takes it."""
    tiny.step()  # the first one checks itself
    gc.collect()  # an earlier test's model, freed in the middle, would be taken off
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as seen:
        decisions = tiny.act()
        now = tiny.policy.evaluate(decisions)
    assert now.logprobs.requires_grad
    held = sum(event.self_cpu_memory_usage for event in seen.key_averages())
    held -= sum(prompt.nbytes for prompt in {d.inputs.prompt for d in decisions})  # as the processor made them
    return held, tiny.run(decisions[0].inputs.prompt)


def told(run: MemoryInputs) -> float:
    """What the graphs keep, all told: scores with three tensors of the logits' size."""
    scored = run.micro * run.group.members * run.group.completion
    graphs = 2 if run.update.mode == "kept" else 1
    sent = run.micro * (run.group.members if run.update.mode == "naive" else 1)
    logits = 3 * 4 * scored * run.geometry.language.vocabulary
    return prompts(run, sent) + replies(run) + memory._products(run, graphs) + logits


@pytest.mark.parametrize(
    ("family", "mode", "autocast"),
    [
        ("qwen2_5_vl", "kept", None),
        ("qwen2_5_vl", "kept", BF16),
        ("qwen2_5_vl", "shared", BF16),
        ("qwen2_5_vl", "naive", None),
        ("qwen3_vl", "kept", None),
        ("qwen3_vl", "kept", BF16),
        ("qwen3_vl", "shared", None),
    ],
)
def test_graphs_keep_what_is_told(family, mode, autocast):
    """A plan would send people to cards that are too small, or to knobs that they need not turn."""
    measured, run = kept_by(Tiny(family, mode, autocast=autocast))
    assert told(run) == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize(
    ("family", "mode", "sizes"),
    [
        ("qwen2_5_vl", "shared", {"autocast": BF16}),
        ("qwen2_5_vl", "kept", {"hidden": 512, "layers": 7, "prompts": 1}),
        ("qwen3_vl", "kept", {"autocast": BF16}),
        ("qwen3_vl", "shared", {}),
    ],
)
def test_the_peak_of_a_step_is_told(family, mode, sizes):
    """The number that is held against a card's memory."""
    tiny = Tiny(family, mode, **sizes)
    tiny.step()
    parameters = list(tiny.policy.model.parameters())
    states = [state[name] for state in tiny.optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    with LiveTensors([*parameters, *(p.grad for p in parameters if p.grad is not None), *states]) as living:
        prompt = tiny.step()
    _, parts = memory.peak(tiny.run(prompt))
    assert sum(parts.values()) == pytest.approx(living.most, rel=0.15)


LESS = [
    {"lora": Lora(rank=4)},
    {"lora": Lora(rank=4), "freeze": ["vision"]},
    {"freeze": ["vision"]},
    {"freeze": ["vision", "projector"]},
    {"freeze": ["language"]},
    {"gradient_checkpointing": True},
]


@pytest.mark.parametrize(("family", "policy"), [*(("qwen2_5_vl", p) for p in LESS), ("qwen3_vl", LESS[0])])
def test_knobs_leave_what_is_told(family, policy):
    """What a plan recommends would give less than it says."""
    measured, run = kept_by(Tiny(family, "kept", **policy))
    assert told(run) == pytest.approx(measured, rel=0.2)


def test_a_larger_model_keeps_what_is_told():
    """Sizes that are small against images in tiny models are what counts in published ones."""
    tiny = Tiny("qwen3_vl", "kept", hidden=512, layers=7, prompts=1)
    assert sum(p.numel() for p in tiny.policy.model.parameters()) > 16e6
    measured, run = kept_by(tiny)
    assert told(run) == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize("policy", [{}, LESS[1], LESS[2]])
def test_what_is_held_all_the_time_is_exact(policy):
    """Weights, gradients and optimizer states are most of a large model's memory."""
    tiny = Tiny("qwen3_vl", "kept", **policy)
    run = tiny.run(tiny.step())
    parameters = list(tiny.policy.model.parameters())
    states = [state[name] for state in tiny.optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    assert memory.held(run) == {
        "weights": sum(p.nbytes for p in parameters),
        "gradients": sum(p.nbytes for p in parameters if p.requires_grad),
        "optimizer": sum(state.nbytes for state in states),
        "reference": 0,
    }


def test_a_reference_is_a_second_set_of_weights():
    """With a KL term a run would not fit that was planned to."""
    tiny = Tiny("qwen3_vl", "kept")
    run = replace(tiny.run(tiny.step()), copied=True)
    tiny.policy.freeze_reference()
    copy = list(tiny.policy._frozen.parameters())
    assert memory.held(run)["reference"] == sum(p.nbytes for p in copy)


def test_chunks_and_buffers_are_the_policys():
    """The plan has its own copies of these, so that it loads no policy."""
    assert memory.CHUNK == generation.CHUNK
    assert [memory._room(tokens) for tokens in (1, generation.BLOCK, generation.BLOCK + 1)] == [
        generation.BLOCK,
        generation.BLOCK,
        2 * generation.BLOCK,
    ]


def large(mode: str = "kept", **update: object) -> MemoryInputs:
    return MemoryInputs(
        MODELS["Qwen2.5-VL-3B"], Group(1500, 1400, 50, 8), Update(mode, **update), 16, 16, 3_754_622_976, width=2
    )


def test_sharing_a_prompt_keeps_less():
    """At eight completions a naive forward pass keeps more than five times as much."""
    naive, shared = (memory.update(large(mode))["activations"] for mode in ("naive", "shared"))
    assert naive > 5 * shared


def test_a_smaller_forward_pass_keeps_less_in_the_update_alone():
    """A plan would promise that `train.micro_batch_size` helps a rollout too."""
    whole, part = large("shared"), replace(large("shared"), micro=4)
    assert memory.update(part)["activations"] == memory.update(whole)["activations"] / 4
    assert memory.rollout(part) == memory.rollout(whole)


def test_checkpoints_keep_a_tenth():
    """The first knob that is recommended has to be worth it."""
    plain, checkpointed = (memory.update(large(checkpointed=redone))["activations"] for redone in (False, True))
    assert checkpointed < 0.2 * plain


def test_more_gpus_share_what_is_held():
    """Under FSDP each holds its part."""
    one, four = memory.held(large()), memory.held(replace(large(), shards=4))
    assert four == {name: size / 4 for name, size in one.items()}


def test_what_is_not_in_parts_is_counted_on_every_gpu():
    """The tower is whole on each, and in a rollout the rest too: a plan would say that more GPUs make room for both."""
    four = replace(large(), shards=4)
    tower = replace(four, whole=600_000_000, whole_trained=600_000_000)
    more = {name: size - memory.held(four)[name] for name, size in memory.held(tower).items()}
    assert more["weights"] == more["gradients"] == pytest.approx(4 * 600e6 * 3 / 4)
    assert more["optimizer"] == pytest.approx(8 * 600e6 * 3 / 4)
    assert memory.rollout(large())["gathered weights"] == 0
    gathered = [memory.rollout(run)["gathered weights"] for run in (four, tower)]
    assert gathered[0] - gathered[1] == four.width * 600e6 and gathered[1] > 0
