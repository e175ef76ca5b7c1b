"""From the `policy:` section to a policy: local folders and hub names, adapters, freezing, precision."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import nn

from vlrl import engines
from vlrl.config import PolicySection
from vlrl.decoders import load_json
from vlrl.paths import check_model
from vlrl.policies import actor, arsq, control, corrected, flow, lerobot_files, residual, steered
from vlrl.policies.codecs import CODECS
from vlrl.policies.sampling import Nucleus
from vlrl.policies.scorer import bare
from vlrl.policies.vlm import VLM
from vlrl.strict import suggest
from vlrl.types import Policy, UserError

ASSETS = Path(__file__).parents[1] / "assets"
EMBEDDED = ASSETS / "tiny"
HUB = "; check its name, the network and `hf auth login`, or name a folder"
# families of small robot policies that only act, and what loads them
ACTING = {
    actor.FAMILY: actor.load_actor, flow.FAMILY: flow.load_flow, steered.FAMILY: steered.load_steered,
    arsq.FAMILY: arsq.load_arsq, corrected.FAMILY: corrected.load_corrected,
}  # fmt: skip
# names of a part's layers, none of which gets an adapter where the part is frozen
FROZEN = {
    "vision": r".*\bvisual\.(?!.*merger).*",
    "projector": r".*merger.*",
    "language": r".*language_model.*|lm_head",
}


def load(section: PolicySection, *, shared_prefix: bool = True, seed: int = 0, device: str | None = None) -> Policy:
    """The policy of a configuration, ready to act and to be trained (lerobot's: to act).

    Raises:
        UserError: no such model, an unknown family, or weights that do not fit.
    """
    source = newest_checkpoint(bundled(section.model))
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    about = described(source)
    if about.get("model_type") in (control.FAMILY, residual.FAMILY):
        given = {"temperature": section.temperature, "level": section.level, "seed": seed, "device": device}
        small = control.load_control if about["model_type"] == control.FAMILY else residual.load_residual
        return small(Path(source), **given)
    if about.get("model_type") in ACTING:
        return ACTING[about["model_type"]](Path(source), seed=seed, device=device)
    if "type" in about and "model_type" not in about:
        from vlrl.policies.lerobot import load_lerobot

        return load_lerobot(source, device)
    mixed = section.dtype == "bfloat16" or (section.dtype == "auto" and device == "cuda")
    model, processor = _pretrained(source)
    _limit_pixels(processor, section)
    model = _trainable(model.to(device), section)
    if mixed:
        _narrow(model)
    if section.gradient_checkpointing:
        bare(model).activation_checkpointing_enable({"use_reentrant": False})
    policy = VLM(
        model, processor, max_tokens=section.max_tokens, temperature=section.temperature, max_prompt=section.max_prompt,
        nucleus=Nucleus(section.top_p, section.top_k), stop=section.stop, slots=section.slots,
        cuda_graphs=section.cuda_graphs, shared_prefix=shared_prefix, seed=seed,
        autocast=torch.bfloat16 if mixed else None,
    )  # fmt: skip
    policy.engine = engines.make(section.engine, policy, source)
    return policy


def bundled(model: str) -> str:
    """The folder of an embedded model: `embedded` speaks, `embedded_push` and others move a robot.

    Raises:
        UserError: there is none of that name.
    """
    if model != "embedded" and not model.startswith("embedded_"):
        return model
    folders = {"embedded": EMBEDDED} | {f"embedded_{f.name}": f for f in ASSETS.iterdir() if f != EMBEDDED}
    if model not in folders:
        raise UserError(f"policy.model: no embedded model {model!r}{suggest(model, list(folders))}")
    return str(folders[model])


def described(source: str) -> dict:
    """A local folder's config.json; {} for hub names, and where there is none to read."""
    try:
        about = load_json(Path(source) / "config.json", finite=False)
    except (OSError, ValueError):
        return {}
    return about if isinstance(about, dict) else {}


def newest_checkpoint(source: str) -> str:
    """A run folder, ours or of `lerobot-train`, stands for its newest checkpoint; anything else for itself."""
    saved = sorted((Path(source) / "checkpoints").glob("step_*"))
    return str(saved[-1]) if saved else lerobot_files.checkpoint(source)


def _pretrained(source: str) -> tuple[nn.Module, object]:
    """Weights in float32 and processor, of a full model or of an adapter's folder (with its base beneath it)."""
    from transformers import AutoModelForImageTextToText, AutoProcessor

    folder = Path(source)
    if folder.is_dir() and (folder / "adapter_config.json").exists():
        from peft import PeftModel

        if not (folder / "adapter_model.safetensors").is_file():
            raise UserError(f"{source}: holds no adapter_model.safetensors; other forms of weights are not opened")
        base = load_json(folder / "adapter_config.json", finite=False)["base_model_name_or_path"]
        model, _ = _pretrained(base)
        with _ignore_deprecations():
            adapted = PeftModel.from_pretrained(model, source)
        return adapted.merge_and_unload(), AutoProcessor.from_pretrained(source)
    check_architecture(source)
    try:
        model, info = AutoModelForImageTextToText.from_pretrained(
            source, dtype=torch.float32, output_loading_info=True, use_safetensors=True
        )
        processor = AutoProcessor.from_pretrained(source)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        hub = "" if folder.is_dir() else HUB
        raise UserError(f"cannot load the model {source!r}: {_first_line(error)}{hub}") from None
    if info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"]:
        odd = [*info["missing_keys"], *info["unexpected_keys"], *info["mismatched_keys"]]
        raise UserError(f"the weights in {source} do not fit their configuration: {len(odd)} keys, first {odd[0]}")
    return model, processor


def check_architecture(source: str) -> None:
    """UserError unless a local folder holds a model of a known family; hub names are checked when they are loaded."""
    folder = Path(source)
    check_model(source)
    if not folder.exists():
        return
    file = folder / "config.json"
    if not file.is_file():
        raise UserError(f"policy.model: {source} holds no config.json: not a model in Hugging Face layout")
    try:
        family = load_json(file, finite=False).get("model_type")
    except (ValueError, AttributeError):
        raise UserError(f"policy.model: {file} is no JSON object") from None
    if family not in CODECS:
        raise UserError(
            f"policy.model: {source} is a model of type {family!r}; supported are {', '.join(sorted(CODECS))}"
        )


def _limit_pixels(processor, section: PolicySection) -> None:
    """The user's pixel limits, always as a fresh mapping: the processor's default one is shared by the class."""
    size = processor.image_processor.size
    processor.image_processor.size = {
        "shortest_edge": section.min_pixels or size["shortest_edge"],
        "longest_edge": section.max_pixels or size["longest_edge"],
    }
    low, high = processor.image_processor.size["shortest_edge"], processor.image_processor.size["longest_edge"]
    if low > high:
        raise UserError(f"policy.max_pixels: {high} is below the smallest image, {low}: lower policy.min_pixels too")


def _ignore_deprecations() -> warnings.catch_warnings:
    """peft 0.21 reads a property of transformers that is deprecated there: nothing that a user can change."""
    return warnings.catch_warnings(action="ignore", category=FutureWarning)


def _trainable(model: nn.Module, section: PolicySection) -> nn.Module:
    """The model with the sections to be trained requiring gradients, inside an adapter if asked for."""
    if section.lora:
        from peft import LoraConfig, get_peft_model

        settings = LoraConfig(
            r=section.lora.rank,
            lora_alpha=section.lora.alpha,
            target_modules=section.lora.targets,
            lora_dropout=0.0,
            exclude_modules="|".join(FROZEN[part] for part in section.freeze) or None,
        )
        with _ignore_deprecations():
            model = get_peft_model(model, settings)
    parts = {"vision": ("visual",), "projector": ("merger",), "language": ("language_model", "lm_head")}
    for name, parameter in model.named_parameters():
        projector = "merger" in name
        frozen = {part for part in section.freeze for key in parts[part] if key in name}
        if "vision" in frozen and projector and "projector" not in section.freeze:
            frozen.discard("vision")
        if frozen:
            parameter.requires_grad_(False)
    return model


def _narrow(model: nn.Module) -> None:
    """Weights that do not train in bfloat16: autocast would convert them anew at every use."""
    for parameter in model.parameters():
        if not parameter.requires_grad:
            parameter.data = parameter.data.to(torch.bfloat16)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
