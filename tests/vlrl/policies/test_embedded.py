"""The embedded model: what runs and tests use when nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

import torch

from tasks.gui_grounding import GuiGrounding
from vlrl.config import PolicySection
from vlrl.policies import tiny
from vlrl.policies.loading import load
from vlrl.policies.vlm import VLM
from vlrl.runner import evaluate
from vlrl.types import Episode, Observation, Sample


def test_the_bundled_model_answers(noise):
    """Otherwise the first command that a newcomer types fails."""
    policy = load(PolicySection(max_tokens=4), device="cpu")
    sample = Sample("one", Observation((noise(64, 64), "Click the red square.")))
    (decision,) = policy.act([Episode(sample, 0)], [sample.prompt])
    assert 1 <= len(decision.logprobs) <= 4
    assert torch.isfinite(decision.logprobs).all()


def test_the_bundled_model_is_small():
    """Otherwise every clone and every test run pays for it."""
    assert sum(file.stat().st_size for file in Path(tiny.FOLDER).iterdir()) < 8e6


def test_building_is_repeatable(build):
    """Otherwise a warm start cannot be reproduced from its seed."""
    one, other, different = (build(seed=seed)[0].state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not all(torch.equal(one[name], different[name]) for name in one)


def test_answer_tags_and_digits_are_single_tokens(tokenizer):
    """Otherwise tiny models must learn to spell markup and numbers."""
    for text in (*tiny.TAGS, *"0123456789"):
        assert len(tokenizer.encode(text)) == 1
    assert len(tokenizer.encode("42")) == 2


def test_larger_patches_of_larger_images_look_the_same():
    """A model for larger images would have to learn again what the small one knows."""
    settings = {"text_share": 0.0, "objects": 3, "seed": 5}
    small, large = GuiGrounding(size=(64, 64), **settings), GuiGrounding(size=(224, 224), **settings)
    old = load(PolicySection(max_tokens=12), device="cpu")
    new = VLM(*tiny.load_resized(tiny.FOLDER, 28, "grid10", 224 * 224), max_tokens=12)
    assert new.prompt(large.samples("test")[0].prompt).pixels.shape[0] == 64  # patches, as before
    known, seen = (evaluate(*each, samples=48).accuracy.value for each in ((old, small), (new, large)))
    assert known > 0.7 and seen > known - 0.15
