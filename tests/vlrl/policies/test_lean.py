"""Lean forward passes: a model's own values and gradients, and less to hold."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl as qwen

from vlrl.policies import fused_modules, generation
from vlrl.policies.fused_modules import forgotten, rms_norm, rotated, signed, silu_product
from vlrl.policies.generation import bare


def graded(function, *inputs):
    """A function's value and the gradients of its inputs for a fixed weight of each number."""
    inputs = [x.clone().requires_grad_() for x in inputs]
    value = function(*inputs)
    weight = torch.linspace(-1, 2, value.numel()).view(value.shape)
    return [value.detach(), *torch.autograd.grad((value * weight.to(value.dtype)).sum(), inputs)]


def same(one, other, tolerance=1e-5):
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * float(b.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_norm_is_that_of_transformers(dtype):
    """Every layer would see other numbers, or learn from wrong gradients."""
    torch.manual_seed(0)
    x, weight = torch.randn(3, 5, 16).to(dtype), torch.rand(16).to(dtype)
    module = qwen.Qwen2_5_VLRMSNorm(16).to(dtype)

    def theirs(x, weight):
        return torch.func.functional_call(module, {"weight": weight}, (x,))

    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    ours = graded(lambda x, weight: rms_norm(x, weight, 1e-6), x, weight)
    same(ours, graded(theirs, x, weight), tolerance)
    with torch.no_grad():
        same([rms_norm(x, weight, 1e-6)], ours[:1], tolerance)


def test_a_gate_is_that_of_transformers():
    """MLPs would learn from wrong gradients."""
    torch.manual_seed(0)
    gate, up = torch.randn(2, 4, 8), torch.randn(2, 4, 8)
    ours = graded(silu_product, gate, up)
    same(ours, graded(lambda gate, up: torch.nn.functional.silu(gate) * up, gate, up))
    with torch.no_grad():
        same([silu_product(gate, up)], ours[:1])


@pytest.mark.parametrize("turned", [None, 4])
def test_rotary_positions_are_those_of_transformers(turned):
    """Words and patches would stand in other places."""
    torch.manual_seed(0)
    x, angles = torch.randn(7, 6, 8), torch.randn(7, 4)
    angles = torch.cat([angles, angles], -1)
    cos, sin = angles.cos(), angles.sin()

    def theirs(x):
        many = x[:, :turned]
        made, _ = qwen.apply_rotary_pos_emb_vision(many, many, cos, sin)
        return torch.cat([made, x[:, 6 if turned is None else turned :]], 1)

    def ours(x):
        return rotated(1.0 * x, cos[:, None], signed(sin)[:, None], turned)  # in place: of a result that is nobody's

    same(graded(ours, x), graded(theirs, x))
    with torch.no_grad():
        same([ours(x)], [theirs(x)])


def test_what_is_forgotten_is_made_again_once():
    """Gradients would be of other numbers, or each layer that reads it would make it anew."""
    made = []

    def again():
        made.append(1)
        return x.detach() ** 2

    x = torch.randn(5, requires_grad=True)
    w, v = torch.randn(5, requires_grad=True), torch.randn(5, requires_grad=True)
    square = x**2
    with forgotten(square, again):
        out = (square * w).sum() + (square * v).sum()
    out.backward()
    assert len(made) == 1
    assert torch.equal(w.grad, x.detach() ** 2) and torch.equal(v.grad, w.grad)
    torch.testing.assert_close(x.grad, 2 * x.detach() * (w + v).detach())


def test_transformers_own_forward_pass_goes_on_working(make, questions):
    """A lean model could not be handed on: generate, export and other trainers would see other numbers."""
    policy = make()
    model = bare(policy.model).eval()
    plain = copy.deepcopy(model)
    fused_modules.drop(plain)
    prompt = policy.prompt(questions[0])
    given = {"input_ids": prompt.ids[None], "pixel_values": prompt.pixels, "image_grid_thw": prompt.grid,
             "mm_token_type_ids": prompt.types[None]}  # fmt: skip
    with torch.no_grad():
        torch.testing.assert_close(model(**given).logits, plain(**given).logits, rtol=1e-4, atol=1e-5)


def test_plain_gives_the_model_back_for_a_while(make):
    """The first-use check would compare the lean pass with itself."""
    model = bare(make().model)
    layer = model.model.language_model.layers[0]
    assert "forward" in vars(layer.mlp)
    with fused_modules.plain(model):
        assert not any("forward" in vars(module) for module in model.modules())
    assert "forward" in vars(layer.mlp) and "forward" in vars(model.model.visual.blocks[0].attn)
    assert "forward" in vars(model.model.visual.patch_embed)


def test_a_sampler_that_differs_is_found_out(make, act, capsys, monkeypatch):
    """Every ratio of a run would be of another law than the one that sampled."""
    policy = make()
    act(policy)
    assert policy.shared_prefix and not capsys.readouterr().err
    wrong, score = make(), generation.TokenScorer.score

    def shifted(scorer, hidden, target):
        logprobs, entropy = score(scorer, hidden, target)
        return logprobs + 0.01, entropy

    monkeypatch.setattr(generation.TokenScorer, "score", shifted)
    act(wrong)
    assert not wrong.shared_prefix and "off by up to 0.01" in capsys.readouterr().err
    assert "forward" not in vars(bare(wrong.model).model.language_model.layers[0])


def test_answers_of_earlier_weights_are_no_proof_against_the_sampler(make, act, capsys):
    """A run that resumes with what was answered long ago (SPO, replay) would go on slowly, and not as it was."""
    policy = make()
    old = [replace(decision, logprobs=decision.logprobs - 3.0) for decision in act(make())]
    policy.evaluate(old)
    assert policy.shared_prefix and not capsys.readouterr().err


@pytest.mark.parametrize("texts", [("C",) * 4, ("C", "Click the red", "C", "W")])
def test_completions_of_one_token_are_scored(make, questions, texts):
    """A run would stop at the first step whose completions all end at once."""
    scored = []
    for shared in (True, False):
        policy = make(shared_prefix=shared)
        ids = [policy.codec.tokens(text)[: 1 if text == "C" else None] for text in texts]
        asked = [policy.decide(questions[i // 2], text, key=f"q{i // 2}", ids=own)
                 for i, (text, own) in enumerate(zip(texts, ids, strict=True))]  # fmt: skip
        now = policy.evaluate(asked)
        now.logprobs.sum().backward()
        scored.append(now.logprobs.detach())
    torch.testing.assert_close(*scored, rtol=1e-5, atol=1e-5)
