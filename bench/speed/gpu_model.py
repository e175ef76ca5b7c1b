"""What `bench/speed.py gpu` trains: a randomly initialised Qwen2.5-VL of a geometry, and prompts of noise for it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import nn
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)

from vlrl.performance.memory import MODELS
from vlrl.performance.profiling import Geometry, Language, Tower
from vlrl.policies.generation import bare
from vlrl.policies.tiny import CHAT, tokenizer_from
from vlrl.policies.vlm import VLM
from vlrl.types import Episode, Observation, Sample

HEAD = 80  # the tower's numbers of a head, as published
ASKED, FILLER = "Click the red square. Give the point as <answer>[x, y]</answer>.", " think"
TINY = Geometry(
    "qwen2_5_vl", Tower(depth=2, hidden=HEAD, intermediate=96, out=64, full=1),
    Language(layers=2, hidden=64, intermediate=128, heads=4, kv_heads=2, head=16, vocabulary=512, tied=True),
)  # fmt: skip
GEOMETRIES = MODELS | {"tiny": TINY}


@dataclass(frozen=True)
class Row:
    """A workload: tokens of the image, of the text beside it, completions of a prompt, tokens of each, prompts."""

    visual: int
    text: int
    group: int
    tokens: int
    prompts: int

    @property
    def name(self) -> str:
        return "/".join(map(str, vars(self).values()))


def config_of(geometry: Geometry, tokenizer) -> Qwen2_5_VLConfig:
    """As the published config.json, with these sizes."""
    tower, language = geometry.tower, geometry.language
    side = (language.head // 2 - language.head // 8) // 2
    ids = {
        f"{token.removesuffix('_pad')}_token_id": tokenizer.convert_tokens_to_ids(f"<|{token}|>")
        for token in ("image_pad", "video_pad", "vision_start", "vision_end")
    }
    text = {
        "hidden_size": language.hidden, "num_hidden_layers": language.layers, "num_attention_heads": language.heads,
        "num_key_value_heads": language.kv_heads, "intermediate_size": language.intermediate,
        "vocab_size": language.vocabulary, "max_position_embeddings": 128000, "tie_word_embeddings": language.tied,
        "rms_norm_eps": 1e-6, "bos_token_id": None, "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e6, "mrope_section": [language.head // 2 - 2 * side, side, side],
        },
    }  # fmt: skip
    every = tower.depth // tower.full
    vision = {
        "depth": tower.depth, "hidden_size": tower.hidden, "intermediate_size": tower.intermediate,
        "num_heads": tower.hidden // HEAD, "out_hidden_size": tower.out, "patch_size": tower.patch,
        "spatial_merge_size": round(tower.merge**0.5), "temporal_patch_size": 2, "tokens_per_second": 2,
        "window_size": tower.patch * round(tower.window**0.5),
        "fullatt_block_indexes": list(range(every - 1, tower.depth, every)),
    }  # fmt: skip
    return Qwen2_5_VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=language.tied, **ids)


def processor_of():
    """Images as they are; a tokenizer that knows the words asked. What else the model writes has no text."""
    tokenizer = tokenizer_from([ASKED + FILLER])
    size = {"shortest_edge": 28 * 28, "longest_edge": 2**30}
    images = Qwen2VLImageProcessor(patch_size=14, merge_size=2, temporal_patch_size=2, size=size)
    videos = Qwen2VLVideoProcessor(patch_size=14, merge_size=2, temporal_patch_size=2)
    return Qwen2_5_VLProcessor(images, tokenizer, videos, chat_template=CHAT)


def model_of(geometry: Geometry, kind: str, processor, device: torch.device) -> nn.Module:
    """Made on the device, in the precision in which a run on a GPU has it: bfloat16 where frozen, else float32.

    Args:
        kind: `lora`: rank 16 in all linear layers, the tower frozen; `full`: all is trained, layers checkpointed.
    """
    torch.manual_seed(0)
    config, dtype = config_of(geometry, processor.tokenizer), torch.bfloat16 if kind == "lora" else torch.float32
    with torch.device(device):
        model = Qwen2_5_VLForConditionalGeneration._from_config(config, dtype=dtype)
    model.generation_config.eos_token_id = processor.tokenizer.eos_token_id
    model.generation_config.pad_token_id = processor.tokenizer.pad_token_id
    if kind == "full":
        return checkpointed(model)
    from peft import LoraConfig, get_peft_model  # rows that train all of it do without

    model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", lora_dropout=0.0))
    for name, parameter in model.named_parameters():
        if "visual" in name:
            parameter.requires_grad_(False)
        if not parameter.requires_grad:
            parameter.data = parameter.data.to(torch.bfloat16)
    return model


def checkpointed(model: nn.Module) -> nn.Module:
    """The model with layers that are recomputed in the backward pass: newer releases have a new name for it."""
    name = "activation_checkpointing_enable"
    getattr(model, name if hasattr(model, name) else "gradient_checkpointing_enable")({"use_reentrant": False})
    return model


def policy_of(model: nn.Module, processor, tokens: int, shared: bool, graphs: bool = False) -> VLM:
    """A policy that never stops early, so that all arms write as many tokens."""
    options = {"shared_prefix": shared, "cuda_graphs": graphs, "autocast": torch.bfloat16}
    policy = VLM(model, processor, max_tokens=tokens, **options)
    policy.codec.stop_ids = ()
    policy.codec.see = lambda image: image  # of the right size already; resizing needs one more package
    return policy


def text_of(processor, tokens: int) -> str:
    """A question of so many tokens, of no fewer than `ASKED`."""
    missing = tokens - len(processor.tokenizer.encode(ASKED, add_special_tokens=False))
    return ASKED + FILLER * missing


def noise(visual: int, rng: np.random.Generator) -> Image.Image:
    """An image of so many visual tokens, as near a square as they make."""
    low = next(n for n in range(int(visual**0.5), 0, -1) if visual % n == 0)
    return Image.fromarray(rng.integers(0, 256, (28 * low, 28 * (visual // low), 3), dtype=np.uint8))


def episodes_of(row: Row, processor, key: int) -> list[Episode]:
    """A step's episodes: every prompt an image of its own, new for each key."""
    rng, text = np.random.default_rng([key, row.visual]), text_of(processor, row.text)
    samples = [Sample(f"{key}/{p}", Observation((noise(row.visual, rng), text))) for p in range(row.prompts)]
    return [Episode(sample, p) for p, sample in enumerate(samples) for _ in range(row.group)]


def parameters_of(model: nn.Module) -> dict[str, int]:
    """How many there are, and how many are trained."""
    held = list(bare(model).parameters())
    return {"all": sum(p.numel() for p in held), "trained": sum(p.numel() for p in held if p.requires_grad)}
