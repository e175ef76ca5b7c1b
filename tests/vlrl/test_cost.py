"""FLOPs: against published sizes worked out by hand, and against torch's counter on steps that are run."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForImageTextToText

from vlrl.performance.memory import MODELS
from vlrl.performance.profiling import (
    Group,
    Update,
    blocks,
    embedding,
    from_config,
    head,
    layers,
    merger,
    parameters,
    step,
)

_spec = importlib.util.spec_from_file_location("tiny_steps", Path(__file__).with_name("tiny_steps.py"))
tiny_steps = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tiny_steps)
Tiny, group_of = tiny_steps.Tiny, tiny_steps.group_of

SMALL = MODELS["Qwen2.5-VL-3B"]
# tokens of a prompt, visual ones, of a completion; frames
GROUNDING, DETECTION, VIDEO, REASONING = (
    (1500, 1400, 50, 1),
    (3000, 2800, 200, 1),
    (8000, 7680, 300, 16),
    (600, 400, 1000, 1),
)
KL = {"passes": 1}
# 1e12 FLOPs of a group of Qwen2.5-VL-3B: naive, shared, kept. By hand from the sizes, a naive step as TRL's.
BY_HAND = [
    (GROUNDING, 8, {}, (539, 77, 60)),
    (GROUNDING, 16, {}, (1079, 87, 71)),
    (DETECTION, 4, {}, (583, 163, 128)),
    (VIDEO, 8, {}, (3112, 461, 366)),
    (REASONING, 8, {}, (384, 230, 224)),
    (REASONING, 16, {}, (768, 438, 432)),
    (GROUNDING, 8, KL, (674, 96, 79)),
    (DETECTION, 16, KL, (2913, 288, 253)),
    (VIDEO, 4, KL, (1945, 525, 430)),
    (REASONING, 16, KL, (960, 547, 542)),
]


@pytest.mark.parametrize(("sizes", "members", "update", "expected"), BY_HAND)
def test_a_step_costs_what_is_worked_out_by_hand(sizes, members, update, expected):
    """A plan, an MFU and the promise of what sharing saves would be off for the models that people train."""
    prompt, visual, completion, frames = sizes
    group = Group(prompt, visual, completion, members, frames)
    for mode, teraflops in zip(("naive", "shared", "kept"), expected, strict=True):
        assert step(SMALL, group, Update(mode, **update)).all.total / 1e12 == pytest.approx(teraflops, rel=1e-2)


def test_constants_of_the_3b_model():
    """5.125 GFLOPs in the tower and 5.549 in the language model for a visual token, 0.622 for a scored one."""
    tower = embedding(SMALL, 1) + blocks(SMALL, 1) + merger(SMALL, 1)
    measured = [tower.linear, layers(SMALL, 1).linear, head(SMALL, 1).linear]
    assert [round(flops / 1e9, 3) for flops in measured] == [5.125, 5.549, 0.622]


def test_a_frozen_tower_is_looked_through_once():
    """With `freeze: [vision, projector]` features are kept: a plan would count the tower three times."""
    group, frozen = Group(1500, 1400, 50, 8), {"vision": 0, "projector": 0, "language": 1, "passes": 1}
    once = embedding(SMALL, 1400) + blocks(SMALL, 1400) + merger(SMALL, 1400)
    assert step(SMALL, group, Update("kept", **frozen)).tower == once
    assert step(SMALL, group, Update("naive", **frozen)).tower.total == 8 * 3 * once.total


def test_windows_bound_the_towers_attention():
    """Large images would seem to cost the square of their patches in all layers, six times too much."""
    one, two = (blocks(SMALL, visual).attention for visual in (1024, 2048))
    assert 2 < two / one < 4
    assert blocks(SMALL, 2048, frames=2).attention == pytest.approx(2 * one)
    whole = MODELS["Qwen3-VL-4B"]
    assert blocks(whole, 2048).attention == 4 * blocks(whole, 1024).attention


def test_checkpoints_are_no_progress():
    """An MFU would rise by checkpointing, which makes a step slower."""
    group = Group(1500, 1400, 50, 8)
    plain, again = (Update("kept", checkpointed=redone, chunked=redone) for redone in (False, True))
    assert step(SMALL, group, again).all.total > 1.2 * step(SMALL, group, plain).all.total
    redone = step(SMALL, group, again)
    assert redone.all.total - redone.recompute.total == step(SMALL, group, plain).all.total


MEASURED = [
    ("qwen2_5_vl", {}, "kept"),
    ("qwen2_5_vl", {}, "shared"),
    ("qwen2_5_vl", {}, "naive"),
    ("qwen2_5_vl", {"freeze": ["vision", "projector"]}, "kept"),
    ("qwen2_5_vl", {"freeze": ["language"]}, "kept"),
    ("qwen2_5_vl", {"gradient_checkpointing": True}, "shared"),
    ("qwen3_vl", {}, "kept"),
    ("qwen3_vl", {}, "shared"),
    ("qwen3_vl", {"freeze": ["vision"]}, "kept"),
    ("qwen3_vl", {"gradient_checkpointing": True}, "shared"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "policy", "mode"), MEASURED)
def test_a_step_that_is_run_costs_what_is_told(family, policy, mode):
    """The model of the cost would count passes that the policy does not make, or miss some that it does."""
    tiny = Tiny(family, mode, **policy)
    tiny.step()  # the first one checks itself
    counter = FlopCounterMode(display=False)
    with counter:
        prompt = tiny.step()
    counted = {op._overloadpacket.__name__ if hasattr(op, "_overloadpacket") else op.__name__: flops
               for op, flops in counter.get_flop_counts()["Global"].items()}  # fmt: skip
    linear = sum(
        flops for name, flops in counted.items() if name in ("mm", "addmm", "convolution", "convolution_backward")
    )
    # without attention, whose kernels the counter does not always know
    expected = tiny.prompts * step(tiny.geometry, group_of(tiny, prompt), tiny.update).all.linear
    assert expected == pytest.approx(linear, rel=0.02)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_parameters_are_those_of_the_model(family):
    """Weights, gradients and optimizer states hang on this number."""
    tiny = Tiny(family, "kept")
    sections = {"vision": 0, "projector": 0, "language": 0}
    for name, parameter in tiny.policy.model.named_parameters():
        section = "projector" if "merger" in name else "vision" if "visual" in name else "language"
        sections[section] += parameter.numel()
    assert vars(parameters(tiny.geometry)) == sections


# as the hub shows them
@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("Qwen2.5-VL-3B", 3_754_622_976),
        ("Qwen2.5-VL-7B", 8_292_166_656),
        ("Qwen2.5-VL-32B", 33_452_718_336),
        ("Qwen2.5-VL-72B", 73_410_777_344),
        ("Qwen3-VL-2B", 2_127_532_032),
        ("Qwen3-VL-4B", 4_437_815_808),
        ("Qwen3-VL-8B", 8_767_123_696),
        ("Qwen3-VL-32B", 33_357_390_064),
    ],
)
def test_built_in_sizes_make_the_published_parameter_counts(name, count):
    """A wrong layer count or width plans another model."""
    assert parameters(MODELS[name]).all == count


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_parameters_of_a_large_model_without_its_weights(family):
    """What holds for tiny models, whose parts are equally wide, might not for published ones."""
    sizes = {"hidden_size": 2048, "num_hidden_layers": 2, "num_attention_heads": 16, "num_key_value_heads": 2,
             "intermediate_size": 11008, "vocab_size": 151936, "head_dim": 96}  # fmt: skip
    if family == "qwen2_5_vl":
        sizes.pop("head_dim")  # it has none of its own
    vision = {"depth": 3, "hidden_size": 1280, "intermediate_size": 3420, "out_hidden_size": 2048, "num_heads": 16}
    config = AutoConfig.for_model(family, text_config=sizes, vision_config=vision, tie_word_embeddings=False)
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)
    assert parameters(from_config(config.to_dict())).all == sum(p.numel() for p in model.parameters())
