"""Tiny models: the embedded default, for runs without a download, and one of any type that transformers maps.

The embedded one has the classes, processor and chat format of the published Qwen models. Initialisation
differs where tiny models need it: linear layers at standard deviation 0.06 (three times the published value, for
hidden sizes thirty times smaller), the position embedding of Qwen3-VL's tower at 0.3. Without either, localisation
does not start within hundreds of steps.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch
import transformers
from PIL import Image
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from transformers import (
    CONFIG_MAPPING,
    FEATURE_EXTRACTOR_MAPPING,
    IMAGE_PROCESSOR_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    PROCESSOR_MAPPING,
    VIDEO_PROCESSOR_MAPPING,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2TokenizerFast,  # ty: ignore[missing-module-member]
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)

from vlrl.types import UserError, suggest

FOLDER = Path(__file__).parents[1] / "assets" / "tiny"
Family = Literal["qwen3_vl", "qwen2_5_vl"]
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
           "<|video_pad|>")  # fmt: skip
TAGS = ("<think>", "</think>", "<answer>", "</answer>")  # one token each: ordinary tokens, so they may be sampled
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{% if p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif p.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer_from(texts: Iterable[str], vocabulary: int = 512, levels: int = 0) -> Qwen2TokenizerFast:
    """A byte-level BPE tokenizer with Qwen's special tokens; digits stand alone.

    Args:
        levels: of a control, each a token: <a0>, <a1>, ...
    """
    spoken = (*TAGS, *(f"<a{level}>" for level in range(levels)))
    core = Tokenizer(models.BPE())
    words = pre_tokenizers.Split(Regex(r"\d| ?[A-Za-z]+|[^A-Za-z\d]"), "isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.pre_tokenizer = pre_tokenizers.Sequence([words, bytes_])
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(spoken), special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
    )  # fmt: skip
    core.train_from_iterator(texts, trainer)
    core.add_tokens(list(spoken))
    tokenizer = Qwen2TokenizerFast(
        tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>", unk_token=None, bos_token=None,
        additional_special_tokens=list(SPECIAL),
    )  # fmt: skip
    tokenizer.chat_template = CHAT
    return tokenizer


def _text_config(tokenizer, hidden: int, layers: int) -> dict:
    heads = max(4, hidden // 64)
    return {
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": heads // 2, "head_dim": hidden // heads, "intermediate_size": 2 * hidden,
        "initializer_range": 0.06, "bos_token_id": None, "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "vocab_size": -(-len(tokenizer) // 64) * 64, "max_position_embeddings": 4096, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "mrope_section": _sections(hidden // heads),
                            "mrope_interleaved": True},
    }  # fmt: skip


def _sections(head: int) -> list[int]:
    """Rotary frequencies for time, height, width: a quarter for time, as in the published configurations."""
    half = head // 2
    side = (half - half // 4) // 2
    return [half - 2 * side, side, side]


def _token_ids(tokenizer) -> dict[str, int]:
    names = {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>",
             "vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>"}  # fmt: skip
    return {name: tokenizer.convert_tokens_to_ids(token) for name, token in names.items()}


def build(
    tokenizer, *, family: Family = "qwen3_vl", hidden: int = 128, layers: int = 3, vision_hidden: int = 64,
    vision_layers: int = 2, patch: int = 8, space: str | None = "grid10", seed: int = 0,
    pixels: tuple[int, int] = (32 * 32, 1024 * 1024),
):  # fmt: skip
    """A randomly initialised model of a family and its processor.

    Args:
        space: coordinate space written into the configuration; None keeps the family's own.
        pixels: smallest and largest image in pixels.

    Returns:
        (model in float32, processor)
    """
    torch.manual_seed(seed)
    text, ids = _text_config(tokenizer, hidden, layers), _token_ids(tokenizer)
    vision = {"depth": vision_layers, "hidden_size": vision_hidden, "num_heads": 4, "patch_size": patch,
              "intermediate_size": 2 * vision_hidden, "spatial_merge_size": 2, "temporal_patch_size": 2,
              "out_hidden_size": hidden}  # fmt: skip
    size = {"shortest_edge": pixels[0], "longest_edge": pixels[1]}
    image_processor = Qwen2VLImageProcessor(patch_size=patch, merge_size=2, temporal_patch_size=2, size=size)
    if family == "qwen3_vl":
        # An 8 x 8 table: the patches of a 64-pixel image take its entries as they are, others interpolate.
        vision |= {"num_position_embeddings": 64, "deepstack_visual_indexes": [0]}
        config = Qwen3VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **ids)
        model, processor_class = Qwen3VLForConditionalGeneration(config), Qwen3VLProcessor
        video_processor = Qwen3VLVideoProcessor(patch_size=patch, merge_size=2, temporal_patch_size=2)
        _widen_vision(model)
    else:
        text["rope_parameters"].pop("mrope_interleaved")
        vision |= {"window_size": 8 * patch, "fullatt_block_indexes": [vision_layers - 1]}
        config = Qwen2_5_VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **ids)
        model, processor_class = Qwen2_5_VLForConditionalGeneration(config), Qwen2_5_VLProcessor
        video_processor = Qwen2VLVideoProcessor(patch_size=patch, merge_size=2, temporal_patch_size=2)
    if space:
        model.config.coordinate_space = space
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    processor = processor_class(image_processor, tokenizer, video_processor, chat_template=CHAT)
    return model, processor


def load_resized(folder: str | Path, patch: int, space: str, max_pixels: int | None = None):
    """A model that `build` made, for larger images: its patches and coordinates are finer or coarser from now on.

    The kernel that embeds a patch is resized with antialiasing and keeps its sum, so an image that is enlarged as the
    patches are looks the same to it (FlexiViT, arXiv 2212.08013): what was learned on 64 pixels holds on 224.

    Args:
        patch: new side of a patch, pixels.
        space: coordinate space written into the configuration.
        max_pixels: largest image, shrunk to it otherwise; default: as it was.

    Returns:
        (model in float32, processor)

    Raises:
        UserError: it is none of Qwen's vision models.
    """
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, use_safetensors=True)
    processor = transformers.AutoProcessor.from_pretrained(folder)
    vision = model.config.vision_config
    if model.config.model_type not in get_args(Family):
        raise UserError(f"start: {folder} is a {model.config.model_type}: patches are resized of {get_args(Family)}")
    old = model.model.visual.patch_embed.proj
    time, side = vision.temporal_patch_size, vision.patch_size
    kernel = old.weight.detach().reshape(-1, vision.in_channels * time, side, side)
    kernel = nn.functional.interpolate(kernel, size=(patch, patch), mode="bilinear", antialias=True)
    sizes = (time, patch, patch)
    new = nn.Conv3d(vision.in_channels, vision.hidden_size, sizes, stride=sizes, bias=old.bias is not None)
    new.load_state_dict(old.state_dict() | {"weight": kernel.reshape_as(new.weight) * (side / patch) ** 2})
    embed = model.model.visual.patch_embed
    embed.proj, embed.patch_size, vision.patch_size, model.config.coordinate_space = new, patch, patch, space
    for each in (processor.image_processor, processor.video_processor):
        each.patch_size = patch
    if max_pixels:
        processor.image_processor.size = {"shortest_edge": 32 * 32, "longest_edge": max_pixels}
    return model, processor


def _widen_vision(model) -> None:
    for module in model.model.visual.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.06)
    nn.init.normal_(model.model.visual.pos_embed.weight, std=0.3)


# Tiny random models of any type that transformers maps to image-text-to-text, from its own classes and defaults.
#
# Every size of the default configuration is shrunk by its name, the tokenizer is trained here, special tokens are
# those
# that the processor's own code spells, and images are small. For tests and for `vlrl doctor --models`: such a model
# knows
# nothing, but its code is all there.


IMAGE, PATCH, HIDDEN, LAYERS = 32, 8, 64, 2
PINPOINTS = [[IMAGE, 2 * IMAGE], [2 * IMAGE, IMAGE]]
TEXTS = (
    "Click the red square button. What is at [12, 7]? <answer>[3, 4]</answer> A user asks for 0 1 2 3 4 5 6 7 8 9.",
)
# a setting's name -> its tiny value; the first that matches counts
SIZES: tuple[tuple[str, int], ...] = (
    (r"num_experts_per_tok|moe_topk|moe_k|num_experts_per_token", 2),
    (r"n_group|topk_group|num_expert_group|n_shared_experts|moe_num_shared_experts", 1),
    (r"(num|n)_\w*experts|moe_num_experts", 4),
    (r"\w*(key_value|kv)_heads", 2),
    (r"\w*num_\w*heads|n_heads?|\w*attention_heads|num_heads", 4),
    (r"num_(hidden_|global_|encoder_|decoder_)?layers|depth|n_layers?|(encoder|decoder)_layers", LAYERS),
    (r"\w*head_dim|d_kv", 16),
    (r"\w*intermediate_\w*size|share_expert_dim|\w*ffn_dim|mlp_dim|d_ff|ffn_hidden_size", 96),
    (r"\w*hidden_size(_per_layer_input)?|embed_dim|d_model|dim|hidden_dim|proj\w*_(dim|size)|output_dim", HIDDEN),
    (r"(vision_)?image_size|img_size|max_image_size", IMAGE),
    (r"patch_size|spatial_patch_size", PATCH),
    (r"max_position_embeddings", 4096),
    (r"sliding_window|sliding_window_size|attention_chunk_size", 16),
    (r"num_position_embeddings", (IMAGE // PATCH) ** 2),
    (r"position_embedding_size", 64),
    (r"mm_tokens_per_image|image_seq_length", 4),
    (r"q_lora_rank|kv_lora_rank|lora_rank", 16),
)
ASKED = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What?"}]}
TEMPLATE = (
    "{{% if tools %}}<|im_start|>system\n{{{{ tools | tojson }}}}<|im_end|>\n{{% endif %}}"
    "{{% for m in messages %}}<|im_start|>{{{{ m.role }}}}\n"
    "{{% if m.content is string %}}{{{{ m.content }}}}{{% else %}}{{% for p in m.content %}}"
    "{{% if p.type == 'image' %}}{image}{{% elif p.type == 'video' %}}{video}"
    "{{% else %}}{{{{ p.text }}}}{{% endif %}}{{% endfor %}}{{% endif %}}<|im_end|>\n{{% endfor %}}"
    "{{% if add_generation_prompt %}}<|im_start|>assistant\n{{% endif %}}"
)


# of a processor: what it cannot know of a tiny tower
PROCESSOR: dict[str, Any] = {
    "patch_size": PATCH, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1,
    "image_seq_length": 4, "image_seq_len": 4, "num_image_tokens": (IMAGE // PATCH) ** 2, "img_size": IMAGE,
}  # fmt: skip

# of a processor class or a type
READS: dict[str, dict[str, Any]] = {
    "fast_vlm": {"patch_size": 64},
    "perception_lm": {"pooling_ratio": 1},
    "AriaProcessor": {"size_conversion": {980: 4}},
    "PixtralProcessor": {"spatial_merge_size": 2},
    "Idefics2Processor": {"image_seq_len": 64},
    "Ovis2Processor": {"image_seq_length": 16},
    "AyaVisionProcessor": {"patch_size": 2 * PATCH},
    "Granite4VisionProcessor": {"downsample_rate": "1/2"},
    "GraniteDoclingProcessor": {"image_seq_len": 1, "image_token": "<image>"},
    "Gemma3nProcessor": {"image_seq_length": 256},
    "LlavaOnevisionProcessor": {"vision_feature_select_strategy": "full"},
}

# what stands for an image in a chat template, where that is not the processor's `image_token`
SHOWN = {
    "PPChart2TableProcessor": "<image_token>",
    "QianfanOCRProcessor": "<image>",
    "Gemma3Processor": "<boi_token>",
    "HunYuanVLProcessor": "<image_start_token><image_token><image_end_token>",
}

# what stands for a video, likewise
FILMED = dict.fromkeys(("Glm4vProcessor", "Glm46VProcessor"), "<|begin_of_video|><video_token><|end_of_video|>")

# of image and video processors: sizes that are called otherwise, or that may not be those of `_small`
SHOWS: dict[str, dict[str, Any]] = {
    "gemma4": {"max_soft_tokens": 70},
    "aria": {"max_image_size": 980},
    "ernie4_5_vl_moe": {"draw_on_frames": False},
    "paligemma": {"image_seq_length": (IMAGE // PATCH) ** 2},
    "fast_vlm": {"size": {"shortest_edge": 8 * IMAGE}, "crop_size": {"height": 8 * IMAGE, "width": 8 * IMAGE}},
    "emu3": {"min_pixels": IMAGE**2, "max_pixels": 4 * IMAGE**2},
    "dots3_note": {"temporal_patch_size": 1},
    "deepseek_ocr2": {"size": {"height": 48 * PATCH, "width": 48 * PATCH}, "tile_size": 48 * PATCH},
    "nemotron_h_omni": {"max_num_patches": 64, "min_num_patches": 4},
    "cohere2_vision": {"patch_size": IMAGE // PATCH // 2},
    "deepseek_vl_hybrid": {"high_res_size": {"height": IMAGE, "width": IMAGE}},
    "inkling_mm_model": {"size": {"height": PATCH, "width": PATCH}},
    "inkling2": {"size": {"height": 2 * PATCH, "width": 2 * PATCH}},
    "step3p7": {"patch_size": IMAGE, "vision_patch_size": PATCH, "max_image_size": 2 * IMAGE},
}

# processors of types that transformers maps to none, as published models of the type name them
PROCESSORS = {
    "cosmos3_omni": "Qwen3VLProcessor", "fast_vlm": "LlavaProcessor", "glm_ocr": "Glm46VProcessor",
    "glmga": "Glm46VProcessor", "kosmos-2": "Kosmos2Processor", "kosmos-2.5": "Kosmos2_5Processor",
    "qwen2_5_omni_thinker": "Qwen2_5OmniProcessor", "qwen3_omni_moe_thinker": "Qwen3OmniMoeProcessor",
}  # fmt: skip

TURNED = {"glm46v", "glmga"}  # types whose language model, of another type, has rotary positions in three dimensions

# a type's name for a token -> the processor's name for it
TOKENS = {
    "qwen2_5_omni_thinker": {"vision_start_token_id": "vision_bos_token", "audio_start_token_id": "audio_bos_token"},
    "qwen3_omni_moe_thinker": {"vision_start_token_id": "vision_bos_token", "audio_start_token_id": "audio_bos_token"},
}

# types whose images are tokens of the vocabulary: how those are spelled
CODES = 16
PICTURES = {
    "emu3": ["<|extra_200|>", *(f"<|visual token {i:06d}|>" for i in range(CODES))],
}

# what the names do not say: sizes that a type's default leaves open, or that depend on each other
OWN: dict[str, dict[str, Any]] = {
    "emu3": {"vq_config": {"codebook_size": CODES, "base_channels": 32, "hidden_size": 128}},
    "aria": {
        "projector_patch_to_query_dict": {49: 4},
        "vision_config": {"image_size": 980, "patch_size": 140},
        "text_config": {"moe_topk": 2},
    },
    "vipllava": {"vision_feature_layers": [-1, -2]},
    "granite4_vision": {"downsample_rate": "1/2", "deepstack_layer_map": [[-1, 0]], "spatial_target_layers": [1]},
    "muse_glimmer": {"out_hidden_size": 4 * HIDDEN},
    "muse_spark": {"out_hidden_size": 4 * HIDDEN},
    "qwen4_exp": {
        "text_config": {
            "indexer_compress_ratio": 4,
            "indexer_budget": 16,
            "indexer_n_heads": 4,
            "indexer_kv_heads": 1,
            "indexer_head_dim": 16,
        }
    },
    "llama4": {"vision_config": {"intermediate_size": 4 * HIDDEN, "vision_output_dim": HIDDEN}},
    "step3p7": {"text_config": {"sliding_window": 16}},
    "hunyuan_vl": {"text_config": {"head_dim": 16}},
    "molmo2": {"adapter_config": {"vision_feature_layer": [1, 0]}},
    "ernie4_5_vl_moe": {"text_config": {"rope_parameters": {"mrope_section": [2, 2, 4]}}},
    "kimi_k25": {"text_config": {"num_key_value_heads": 4}},
    "mistral_large4": {"text_config": {"num_key_value_heads": 4}},
    "mllama": {"vision_config": {"vision_output_dim": 2 * HIDDEN}},
    "glm5_next": {"text_config": {"num_key_value_heads": 4}},
    "gemma3n": {
        "text_config": {"num_kv_shared_layers": 0},
        "vision_config": {"hidden_size": 2048, "model_args": {"channel_multiplier": 0.1}},
    },
    "perception_lm": {
        "vision_config": {
            "architecture": "vit_pe_lang_large_patch14_448",
            "model_args": {
                "depth": LAYERS,
                "embed_dim": HIDDEN,
                "num_heads": 4,
                "img_size": IMAGE,
                "patch_size": PATCH,
                "global_pool": "",
                "use_post_transformer_norm": False,
                "init_values": 0.1,
                "ref_feat_shape": [4, 4],
            },
        }
    },
    "fast_vlm": {
        "vision_config": {
            "hidden_size": 4 * HIDDEN,
            "model_args": {"layers": [1] * 5, "embed_dims": [16, 16, 32, 64, 2 * HIDDEN]},
        }
    },
    "deepseek_ocr2": {
        "text_config": {"mlp_layer_types": ["dense", "sparse"], "num_experts_per_tok": 2},
        "vision_config": {"sam_config": {"downsample_channels": [32, HIDDEN], "image_size": 48 * PATCH}},
    },
    "unlimited_ocr": {"vision_config": {"sam_config": {"downsample_channels": [32, HIDDEN]}}},
    "nemotron_h_omni": {"text_config": {"n_groups": 2}},
    "diffusion_gemma": {"text_config": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32}},
    "cohere_compass": {
        "text_config": {
            "rope_parameters": {
                kind: {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
                for kind in ("full_attention", "sliding_attention")
            }
        }
    },
    "dots3_note": {
        "text_config": {"num_key_value_heads": 4, "layer_types": ["indexed_attention"] * LAYERS, "index_topk": 16},
        "vision_config": {"adapter_in_dim": HIDDEN, "adapter_out_dim": HIDDEN},
        "audio_config": {"adapter_input_size": HIDDEN, "adapter_out_dim": HIDDEN},
    },
}


def types() -> list[str]:
    """The model types that transformers maps to image-text-to-text."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    return sorted(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)


def build_family(family: str, seed: int = 0, texts: Iterable[str] = (), **settings: Any) -> tuple[PreTrainedModel, Any]:
    """A tiny random model of a type, float32, and its processor with a chat template.

    Args:
        texts: that its vocabulary is learned from, beside `TEXTS`.
        settings: of the configuration, put in place of the shrunk ones; a mapping for a part of it.

    Raises:
        UserError: there is no such type, or transformers has no processor for it.
    """
    if family not in types():
        raise UserError(f"{family!r} is no type that transformers maps to image-text-to-text{suggest(family, types())}")
    config_class = CONFIG_MAPPING[family]
    processor_class = _processor_class(family, config_class)
    tokenizer = tokenizer_of(processor_class, PICTURES.get(family, ()), texts)
    settings = _merged(dict(OWN.get(family, {})), settings)
    model_class = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[config_class]
    small_config = shrunk(_default_config(config_class), tokenizer)
    if (
        family != "cohere_compass" and "mrope_section" in inspect.getsource(inspect.getmodule(model_class))
    ) or family in TURNED:
        _turn(small_config.get("text_config", small_config))
    if family in PICTURES:
        names = ["<image>", *PICTURES[family]]
        small_config["vocabulary_map"] = dict(zip(names, tokenizer.convert_tokens_to_ids(names), strict=True))
        small_config["vocabulary_map"]["<image>"] = tokenizer.image_token_id
    config = config_class.from_dict(_merged(small_config, settings))
    processor = processor_of(config_class, processor_class, tokenizer)
    _agree(config, processor)
    for name, token in TOKENS.get(family, {}).items():
        setattr(config, name, tokenizer.convert_tokens_to_ids(getattr(processor, token)))
    torch.manual_seed(seed)
    model = model_class(config).float().eval()
    if model.can_generate():
        model.generation_config.eos_token_id = tokenizer.eos_token_id
        model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model, processor


def _processor_class(family: str, config_class: type[PreTrainedConfig]) -> type:
    if family in PROCESSORS:
        return getattr(transformers, PROCESSORS[family])
    if config_class not in PROCESSOR_MAPPING or PROCESSOR_MAPPING[config_class] is None:
        raise UserError(f"transformers has no processor for models of type {family!r}")
    return PROCESSOR_MAPPING[config_class]


def _default_config(config_class: type[PreTrainedConfig]) -> dict[str, Any]:
    """A type's default configuration; with a tower where the default has none, as published models have."""
    config = config_class().to_dict()
    tower = config_class.sub_configs.get("vision_config")
    if tower is not None and config.get("vision_config") is None:
        config["vision_config"] = tower().to_dict()
    return config


def shrunk(config: Mapping[str, Any], tokenizer: Any) -> dict[str, Any]:
    """A configuration with every size that is known by its name made tiny, and the tokenizer's ids."""
    layers = next((config[n] for n in ("num_hidden_layers", "depth", "num_layers", "encoder_layers") if n in config), 0)
    values: dict[str, Any] = {}
    for name, value in config.items():
        if name in ("id2label", "label2id", "transformers_version", "per_layer_config"):
            continue
        if isinstance(value, Mapping):
            values[name] = shrunk(value, tokenizer) if all(isinstance(key, str) for key in value) else value
        elif name == "image_grid_pinpoints":
            values[name] = PINPOINTS
        elif isinstance(value, list | tuple) and name in ("image_size", "patch_size"):
            values[name] = [IMAGE if name == "image_size" else PATCH] * len(value)
        elif name in ("vocab_size", "vocab_size_per_layer_input"):
            values[name] = -(-len(tokenizer) // 64) * 64
        elif re.search(r"[a-z]_token_(id|index)$", name) and (isinstance(value, int) or value is None):
            values[name] = _token(name, tokenizer, value)
        elif isinstance(value, list) and layers > LAYERS and len(value) == layers:
            values[name] = _kinds(value)
        elif isinstance(value, list | tuple) and name.endswith(("indexes", "indices", "feature_layers")):
            values[name] = [0]
        else:
            size = next((size for names, size in SIZES if re.fullmatch(names, name)), None)
            values[name] = (
                min(value, size) if isinstance(value, int) and not isinstance(value, bool) and size else value
            )
    return values


def _agree(config: Any, processor: Any) -> None:
    """The placeholders that the configuration names are those that the processor writes for an image."""
    try:
        prompt = processor.apply_chat_template([ASKED], add_generation_prompt=True, tokenize=False)
        ids = processor(text=[prompt], images=[[Image.new("RGB", (96, 64))]], return_tensors="pt")["input_ids"]
    except Exception:  # what the processor cannot do shows where it is used
        return
    extra = Counter(ids[0].tolist()) - Counter(processor.tokenizer(prompt)["input_ids"])
    special = Counter({token: n for token, n in extra.items() if token in processor.tokenizer.added_tokens_decoder})
    own = getattr(processor, "image_token_id", None)
    image = own if own in special or not special else special.most_common(1)[0][0]
    # one name may stand for both: the image's counts
    for kind, token in (("video", getattr(processor, "video_token_id", None)), ("image", image)):
        for name in (f"{kind}_token_id", f"{kind}_token_index"):
            if token is not None and hasattr(config, name):
                setattr(config, name, token)


def _token(name: str, tokenizer: Any, value: int | None) -> int | None:
    """The id of a token that a configuration names: end, padding, or the one of its name that was made for it."""
    role = re.sub(r"_(id|index)$", "", name)
    special = {
        "eos_token": tokenizer.eos_token_id, "pad_token": tokenizer.pad_token_id, "bos_token": tokenizer.bos_token_id,
    }  # fmt: skip
    if role in special:
        return special[role]
    ids = tokenizer.convert_tokens_to_ids(f"<{role}>")
    return ids if ids is not None else value and min(value, len(tokenizer) - 1)


SPELLED = r"[\"'](<[^<>\"'\s]{1,40}>|\[[A-Z_]{2,20}\]|\|[A-Z]+\||\]<\][^\"{}]+\[>\[)[\"']"
ENDS = {"eos_token", "pad_token", "bos_token", "unk_token", "add_bos_token", "add_eos_token"}


def _kinds(values: list[Any]) -> list[Any]:
    """As many as there are layers, of two kinds where there are two."""
    other = next((value for value in values if value != values[0]), values[0])
    return [values[0], other][:LAYERS]


def _turn(text: dict[str, Any]) -> None:
    """Rotary frequencies for time, height and width that make a tiny head."""
    rope = dict(text.get("rope_parameters") or {"rope_type": "default", "rope_theta": 10000.0})
    half = int(16 * rope.get("partial_rotary_factor", 1.0)) // 2
    side = (half - half // 4) // 2
    text["rope_parameters"] = rope | {"mrope_section": [half - 2 * side, side, side]}


def _merged(config: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in settings.items():
        config[name] = _merged(dict(config.get(name) or {}), value) if isinstance(value, Mapping) else value
    return config


def tokenizer_of(
    processor_class: type, others: Sequence[str] = (), texts: Iterable[str] = ()
) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with every special token that a processor's code spells or asks its tokenizer for.

    Args:
        others: further special tokens.
        texts: that words are learned from, beside `TEXTS`.
    """
    source = inspect.getsource(inspect.getmodule(processor_class))
    spelled = set(re.findall(SPELLED, source))
    roles = set(re.findall(r"tokenizer(?:,\s*\"|\.)(\w+_token)\b(?!\",\s*\"<)", source)) - ENDS
    if 'self.image_token = "' not in source:
        roles.add("image_token")
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    special = [
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<s>",
        *sorted(spelled),
        *others,
        *(f"<{r}>" for r in sorted(roles)),
    ]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator((*TEXTS, *texts), trainers.BpeTrainer(
        vocab_size=512 - len(TAGS), special_tokens=list(dict.fromkeys(special)), initial_alphabet=alphabet,
        show_progress=False,
    ))  # fmt: skip
    core.add_tokens(list(TAGS))
    return PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>", bos_token="<s>",
        extra_special_tokens={role: f"<{role}>" for role in sorted(roles)},
    )  # fmt: skip


def processor_of(config_class: type, processor_class: type, tokenizer: Any) -> Any:
    """A type's processor for small images."""
    parts: dict[str, Any] = {"tokenizer": tokenizer}
    if "feature_extractor" in processor_class.get_attributes():
        parts["feature_extractor"] = _listener(config_class, processor_class)
    for name, mapping in (("image_processor", IMAGE_PROCESSOR_MAPPING), ("video_processor", VIDEO_PROCESSOR_MAPPING)):
        if name in processor_class.get_attributes():
            mapped_name = _mapped(mapping, config_class, processor_class)
            if mapped_name is None:
                raise UserError(f"transformers maps {config_class.__name__} to no {name}")
            kind = next(iter(mapped_name.values())) if isinstance(mapped_name, dict) else mapped_name
            parts[name] = _small(kind, SHOWS.get(config_class.model_type, {}))
    known = inspect.signature(processor_class.__init__).parameters
    settings = PROCESSOR | READS.get(processor_class.__name__, {}) | READS.get(config_class.model_type, {})
    if "qformer_tokenizer" in known:
        parts["qformer_tokenizer"] = tokenizer
    parts |= {name: value for name, value in settings.items() if name in known and name not in parts}
    takes = any(kind.kind is inspect.Parameter.VAR_KEYWORD for kind in known.values())
    if "chat_template" not in known and not takes:
        raise UserError(f"{processor_class.__name__} takes no chat template")
    processor = processor_class(**parts)
    names = {kind: getattr(processor, f"{kind}_token", None) or f"<{kind}>" for kind in ("image", "video")}
    names["image"] = SHOWN.get(processor_class.__name__, names["image"])
    names["video"] = FILMED.get(processor_class.__name__, names["video"])
    processor.chat_template = TEMPLATE.format(**names)
    return processor


def _listener(config_class: type, processor_class: type) -> Any:
    """A type's reader of sound: mapped, or beside its processor, or Whisper's."""
    if FEATURE_EXTRACTOR_MAPPING.get(config_class, None):
        return FEATURE_EXTRACTOR_MAPPING[config_class]()
    package = processor_class.__module__.rpartition(".")[0]
    try:
        module = importlib.import_module(f"{package}.feature_extraction_{package.rpartition('.')[2]}")
    except ModuleNotFoundError:
        return transformers.WhisperFeatureExtractor()
    kinds = (kind for name, kind in vars(module).items() if name.endswith("FeatureExtractor"))
    return next(kind for kind in kinds if kind.__module__ == module.__name__)()


def _mapped(mapping: Any, config_class: type, processor_class: type) -> Any:
    """What a mapping has for a configuration, or for another one with the same processor; None: nothing."""
    if config_class in mapping:
        return mapping[config_class]
    others = (other for other in mapping if other in PROCESSOR_MAPPING and PROCESSOR_MAPPING[other] is processor_class)
    return mapping[other] if (other := next(others, None)) else None


def _small(kind: type, own: Mapping[str, Any]) -> Any:
    """An image or video processor whose sizes are a tiny model's."""
    config = kind()
    size = dict(config.size or {})
    if "shortest_edge" in size and "longest_edge" in size:
        pixels = size["longest_edge"] > 10000
        size = {"shortest_edge": IMAGE**2, "longest_edge": 4 * IMAGE**2} if pixels else dict.fromkeys(size, IMAGE)
    else:
        size = dict.fromkeys(size, IMAGE)
    square = {"height": IMAGE, "width": IMAGE}
    settings = {"size": size, "crop_size": square, "patch_size": PATCH, "encoder_patch_size": PATCH, "tile_size": IMAGE,
                "overlap_margins": [0, 0], "min_image_tokens": 1, "max_image_tokens": 16,
                "max_image_size": {"longest_edge": IMAGE}, "image_grid_pinpoints": PINPOINTS}  # fmt: skip
    known = {name: value for name, value in settings.items() if getattr(config, name, None)}
    if isinstance(getattr(config, "max_image_size", None), int):
        known["max_image_size"] = IMAGE
    return kind(**known | own)
