"""From the `policy:` section to a policy: local folders and hub names, adapters, freezing, precision."""

from __future__ import annotations

import functools
import re
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from vlrl.decoders import load_json
from vlrl.io import holds_final_model, is_unfinished
from vlrl.performance.memory import is_mixed
from vlrl.policies import arsq, discrete, encoded, flow, residual, robot_common
from vlrl.policies.flow import GUIDED_FAMILY, STEERED_FAMILY, load_guided, load_steered
from vlrl.policies.generation import Nucleus, bare
from vlrl.policies.lerobot import LerobotPolicy, checkpoint, read_lerobot
from vlrl.policies.plain import PlainVLM, missing
from vlrl.policies.processor import CODECS
from vlrl.policies.vlm import VLM
from vlrl.policies.weights import JointPasses
from vlrl.system.hub import reach_model
from vlrl.types import Policy, UserError, first_line, suggest

if TYPE_CHECKING:
    from vlrl.config import PolicySection

ASSETS = Path(__file__).parents[1] / "assets"
EMBEDDED = ASSETS / "tiny"
HUB = "; check its name, the network and `hf auth login`, or name a folder"
# families of small robot policies that only act, and what loads them
ACTING = {
    robot_common.FAMILY: robot_common.load_actor, STEERED_FAMILY: load_steered,
    GUIDED_FAMILY: load_guided,
    arsq.FAMILY: arsq.load_arsq,
}  # fmt: skip
# names of a part's layers, none of which gets an adapter where the part is frozen
PROJECTORS = r"merger|projector|connector|aligner|embed_vision|vision_adapter|perceiver|resampler"
FROZEN = {
    "vision": rf".*\b(visual|vision_tower|vision_model|vision_encoder|image_encoder|vit)\.(?!.*({PROJECTORS})).*",
    "projector": rf".*({PROJECTORS}).*",
    "language": r".*(language_model|text_model|lm_head).*",
}


def load(
    section: PolicySection, *, shared_prefix: bool | Literal["auto"] = "auto", seed: int = 0,
    device: str | None = None, passes_of: PassesOf | None = None,
) -> Policy:  # fmt: skip
    """The policy of a configuration, ready to act and to be trained (lerobot's: to act), without an engine.

    Args:
        passes_of: makes the passes of a policy whose weights are to lie in parts from the first on.
        shared_prefix: whether a prompt is forwarded once per group, where the model's cache lets it
            (`vlrl.policies.cache_forking`).

    Raises:
        UserError: no such model, one that lacks what is needed, or weights that do not fit.
    """
    source = newest_checkpoint(bundled(section.model))
    _warn_unfinished(section.model)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    about = described(source)
    if about.get("model_type") in (discrete.FAMILY, residual.FAMILY):
        options = {"temperature": section.temperature, "level": section.logprob_level, "seed": seed, "device": device}
        small = discrete.load_control if about["model_type"] == discrete.FAMILY else residual.load_residual
        return small(Path(source), **options)
    if about.get("model_type") == flow.FAMILY:
        options = {"level": section.logprob_level, "seed": seed, "device": device}
        noise = section.denoising
        return flow.load_flow(Path(source), noise=noise.noise, scale=noise.scale, **options)
    if about.get("model_type") == residual.CORRECTED_FAMILY:
        inner = Path(source) / residual.BASE
        base = load_base(str(inner), device, "policy.model") if inner.is_dir() else None
        return residual.load_corrected(Path(source), base, seed=seed, device=device)
    if about.get("model_type") == encoded.FAMILY:
        return encoded.load_encoded(
            Path(source),
            lambda folder: load(section.model_copy(update={"model": folder}), seed=seed, device=device),
            device,
        )
    if about.get("model_type") in ACTING:
        return ACTING[about["model_type"]](Path(source), seed=seed, device=device)
    if "type" in about and "model_type" not in about:
        return _load_lerobot(source, section, seed, device)
    mixed = is_mixed(section, on_gpu=device == "cuda")
    _check_memory_options(section, device, mixed)
    if passes_of is not None:
        return _load_parts(section, Path(source), passes_of, shared_prefix=shared_prefix, mixed=mixed, seed=seed)
    model, processor = _pretrained(source, section, device)
    fast = _is_fast(model, processor, source)
    _limit_pixels(processor, section)
    if section.liger_kernel:
        _use_liger(model, fast)
    model = _prepare(model if section.load_in_4bit else model.to(device), section, mixed)
    return _make_policy(model, processor, section, fast=fast, mixed=mixed, shared_prefix=shared_prefix, seed=seed)


PassesOf = Callable[[VLM, Callable[[], nn.Module]], JointPasses]


def _load_parts(
    section: PolicySection, source: Path, passes_of: PassesOf, *, shared_prefix: bool | Literal["auto"], mixed: bool,
    seed: int,
) -> VLM:  # fmt: skip
    """A policy of whose weights each process reads its part alone, and holds no more at any time.

    Raises:
        UserError: as `load_sizes`; the files are not this model's; its layers are not known here; it is in no folder.
    """
    from accelerate import init_empty_weights

    if not source.is_dir():
        raise UserError(f"policy.model: each process reads its part of the files: download {source}, name its folder")

    def build() -> VLM:
        return load_sizes(section, init_empty_weights, shared_prefix=shared_prefix, mixed=mixed, seed=seed)

    policy = build()
    policy.passes = passes_of(policy, lambda: build().scorer)
    policy.passes.fill(source)
    return policy


def _load_lerobot(source: str, section: PolicySection, seed: int, device: str) -> LerobotPolicy:
    parts = read_lerobot(source, device)
    config = parts[0].config
    if config.type == "diffusion" and config.n_obs_steps > 1:
        return LerobotPolicy(*parts, seed=seed)
    from vlrl.policies.lerobot_flow import LerobotFlowPolicy

    if section.denoising.noise != "sde":
        raise UserError("policy.denoising.noise: a head that learns it is for vlrl's own flows: take sde")
    return LerobotFlowPolicy(*parts, scale=section.denoising.scale, level=section.logprob_level, seed=seed)


def load_sizes(
    section: PolicySection, weightless: Callable[[], AbstractContextManager[Any]], *,
    shared_prefix: bool | Literal["auto"], mixed: bool, seed: int = 0,
) -> Any:  # fmt: skip
    """The policy that a folder's configuration and processor make, on the path of any model.

    Args:
        weightless: makes a context inside which weights take no memory and have no values.
        mixed: whether products are made in bfloat16.

    Raises:
        UserError: as `load`, as far as no weights are needed to see it.
    """
    from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor

    source = newest_checkpoint(bundled(section.model))
    check_architecture(source, section.trust_remote_code)
    trust = {"trust_remote_code": True} if section.trust_remote_code else {}
    attend = {"attn_implementation": section.attn_implementation} if section.attn_implementation else {}
    try:
        config, processor = (kind.from_pretrained(source, **trust) for kind in (AutoConfig, AutoProcessor))
        with weightless():
            model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32, **trust, **attend).eval()
    except (OSError, ValueError, RuntimeError, ImportError, KeyError) as error:
        raise UserError(f"policy.model: cannot read {source}: {first_line(error)}") from None
    fast = _is_fast(model, processor, source)
    _limit_pixels(processor, section)
    with weightless():
        model = _prepare(model, section, mixed)
    return _make_policy(model, processor, section, fast=fast, mixed=mixed, shared_prefix=shared_prefix, seed=seed)


def _prepare(model: nn.Module, section: PolicySection, mixed: bool) -> nn.Module:
    """What trains of the model, the types of its weights, and which layers are recomputed."""
    model = _trainable(model, section)
    if mixed:
        _narrow(model, all_weights=section.weights_dtype == "bfloat16")
    if section.recomputes_layers:
        bare(model).activation_checkpointing_enable({"use_reentrant": False})
    if section.gradient_checkpointing == "offload":
        for module in model.modules():
            if recompute := vars(module).get("_gradient_checkpointing_func"):
                vars(module)["_gradient_checkpointing_func"] = functools.partial(_keep_on_host, recompute)
    return model


def _keep_on_host(recompute: Callable, forward: Callable, hidden: Tensor, *others: Any) -> Any:
    """A layer that is recomputed, whose input waits in the host's memory for the backward pass."""
    with torch.autograd.graph.save_on_cpu(pin_memory=hidden.is_cuda):
        return recompute(forward, hidden, *others)


def _make_policy(
    model: nn.Module, processor: Any, section: PolicySection, *, fast: bool, mixed: bool,
    shared_prefix: bool | Literal["auto"], seed: int,
) -> VLM:  # fmt: skip
    options = {
        "max_tokens": section.max_tokens, "temperature": section.temperature, "max_prompt": section.max_prompt_tokens,
        "nucleus": Nucleus(section.top_p, section.top_k), "stop": section.stop, "slots": section.max_num_seqs,
        "frame": section.frame, "seed": seed, "autocast": torch.bfloat16 if mixed else None,
        "shared_prefix": shared_prefix is not False,
    }  # fmt: skip
    if fast:
        return VLM(model, processor, cuda_graphs=section.cuda_graphs, **options)
    if section.engine.name != "local":
        raise UserError(f"policy.engine: {section.engine.name} writes for {', '.join(CODECS)} only: leave it out")
    return PlainVLM(model, processor, checkpointing=section.recomputes_layers, **options)


def _check_memory_options(section: PolicySection, device: str, mixed: bool) -> None:
    """UserError where an option that saves memory does not go with the device, the others, or what is installed."""
    if section.weights_dtype == "bfloat16" and section.lora:
        raise UserError(
            "policy.weights_dtype: under policy.lora the weights that do not train are bfloat16: leave it out"
        )
    if section.weights_dtype == "bfloat16" and not mixed:
        raise UserError("policy.weights_dtype: bfloat16 weights need policy.dtype: bfloat16 (or auto)")
    if section.load_in_4bit and not section.lora:
        raise UserError("policy.load_in_4bit: weights of 4 bits do not train: set policy.lora")
    options = {("load_in_4bit", "bitsandbytes", "lowbit"): section.load_in_4bit,
               ("liger_kernel", "liger_kernel", "liger"): section.liger_kernel}  # fmt: skip
    for option, package, extra in (names for names, is_set in options.items() if is_set):
        if device == "cpu":
            raise UserError(f"policy.{option}: its kernels are a GPU's, and this run is on a CPU: leave it out")
        if not find_spec(package):
            raise UserError(f"policy.{option}: needs {package}: pip install 'vlrl[{extra}]'")


def _use_liger(model: nn.Module, fast: bool) -> None:
    """Puts liger-kernel's modules in place of a model's norms, gates and rotary positions; losses stay ours."""
    if fast:
        raise UserError("policy.liger_kernel: the packed path has fused modules of its own: leave it out")
    from liger_kernel.transformers import _apply_liger_kernel_to_instance
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN

    family = model.config.model_type
    if family not in MODEL_TYPE_TO_APPLY_LIGER_FN:
        raise UserError(f"policy.liger_kernel: the liger-kernel installed has no kernels for {family}: leave it out")
    _apply_liger_kernel_to_instance(model=model, fused_linear_cross_entropy=False, cross_entropy=False)


def _is_fast(model: nn.Module, processor: Any, source: str) -> bool:
    """Whether the model's family is known to `vlrl.policies.vlm`.

    Raises:
        UserError: it is not, and lacks what models of any family need.
    """
    family = model.config.model_type
    if family in CODECS:
        return True
    if lacks := missing(model, processor):
        raise UserError(f"policy.model: {source} (type {family!r}) cannot be trained: {lacks}")
    return False


def load_base(model: str, device: str, key: str) -> Any:
    """A policy that can be corrected: a folder, a run's, or a bundled name.

    Args:
        key: of the configuration that names it.

    Raises:
        UserError: it is none that goes from the state alone to chunks of controls.
    """
    from vlrl.config import PolicySection

    try:
        base = load(PolicySection(model=model), device=device)
    except UserError as error:
        raise UserError(f"{key}: {str(error).removeprefix('policy.model: ')}") from None
    if base.shape is None or base.shape.cameras:
        raise UserError(f"{key}: {model} is no policy that goes from a robot's state alone to chunks of controls")
    return base


def sees_images(model: str) -> bool:
    """Whether a policy, by its config.json, may look at a robot's images: lerobot's, or one with cameras."""
    source = newest_checkpoint(bundled(model))
    about = described(source)
    on_hub = source.count("/") == 1 and not Path(source).exists()
    return ("type" in about and "model_type" not in about) or bool(about.get("cameras")) or on_hub


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
    """A run folder, ours or of `lerobot-train`, stands for its newest checkpoint; anything else for itself, also a
    supervised run that has ended: its model lies in the folder.
    """
    if holds_final_model(Path(source)):
        return source
    saved = sorted((Path(source) / "checkpoints").glob("step_*"))
    return str(saved[-1]) if saved else checkpoint(source)


@functools.cache
def _warn_unfinished(source: str) -> None:
    """Says, once, that a run was stopped: a start that is half made looks like one that cannot learn."""
    if is_unfinished(Path(source)):
        step = Path(newest_checkpoint(source)).name
        print(f"vlrl: {source} has not finished: its newest checkpoint, {step}, is the policy", file=sys.stderr)


def _pretrained(source: str, section: PolicySection, device: str) -> tuple[nn.Module, Any]:
    """Weights in float32 (with `load_in_4bit` linear layers in 4) and processor, of a full model or of an adapter's
    folder (with its base beneath it)."""
    from transformers import AutoModelForImageTextToText, AutoProcessor

    folder = Path(source)
    if folder.is_dir() and (folder / "adapter_config.json").exists():
        from peft import PeftModel

        if not (folder / "adapter_model.safetensors").is_file():
            raise UserError(f"{source}: holds no adapter_model.safetensors; other forms of weights are not opened")
        base = load_json(folder / "adapter_config.json", finite=False)["base_model_name_or_path"]
        if section.load_in_4bit:
            raise UserError(f"policy.load_in_4bit: {source} is an adapter, to be merged first: name {base}")
        model, _ = _pretrained(base, section, device)
        with _ignore_deprecations():
            adapted = PeftModel.from_pretrained(model, source)
        return adapted.merge_and_unload(), AutoProcessor.from_pretrained(source)
    check_architecture(source, section.trust_remote_code)
    reach_model(source)
    trust = {"trust_remote_code": True} if section.trust_remote_code else {}
    attend = {"attn_implementation": section.attn_implementation} if section.attn_implementation else {}
    try:
        model, info = AutoModelForImageTextToText.from_pretrained(
            source, dtype=torch.float32, output_loading_info=True, use_safetensors=True, **trust, **attend,
            **(four_bit(device) if section.load_in_4bit else {}),
        )  # fmt: skip
        processor = AutoProcessor.from_pretrained(source, **trust)
    except (OSError, ValueError, RuntimeError, ImportError, KeyError, SafetensorError) as error:
        hub = "" if folder.is_dir() else HUB
        attends = f" with policy.attn_implementation={section.attn_implementation}" if attend else ""
        raise UserError(f"cannot load the model {source!r}{attends}: {first_line(error).rstrip('.')}{hub}") from None
    if info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"]:
        odd = [*info["missing_keys"], *info["unexpected_keys"], *info["mismatched_keys"]]
        raise UserError(f"the weights in {source} do not fit their configuration: {len(odd)} keys, first {odd[0]}")
    return model, processor


def four_bit(device: str) -> dict[str, Any]:
    """Options of `from_pretrained` for linear layers of 4 bits: NF4, scales quantised too (QLoRA, arXiv 2305.14314)."""
    from transformers import BitsAndBytesConfig

    settings = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )  # fmt: skip
    return {"quantization_config": settings, "device_map": {"": device}}


def check_architecture(source: str, trust_remote_code: bool = False) -> None:
    """UserError unless a local folder holds a model that can be loaded; hub names are checked when they are loaded."""
    folder = Path(source)
    if not folder.exists():
        from vlrl.config import check_model  # with a model at hand, policies need no pydantic

        check_model(source)
        if trust_remote_code:
            raise UserError(f"policy.trust_remote_code: {source} is no folder: download it and read its code first")
        return
    file = folder / "config.json"
    if not file.is_file():
        raise UserError(f"policy.model: {source} holds no config.json: not a model in Hugging Face layout")
    try:
        about = load_json(file, finite=False)
        family, code = about.get("model_type"), about.get("auto_map")
    except (ValueError, AttributeError):
        raise UserError(f"policy.model: {file} is no JSON object") from None
    if code and trust_remote_code:
        return
    if reason := _not_known(family):
        own = "its code lies in the folder: read it, then say policy.trust_remote_code=true" if code else reason
        raise UserError(f"policy.model: {source} is a model of type {family!r}: {own}")


def _not_known(family: Any) -> str | None:
    """Why transformers makes no vision-language model of a type; None: it does."""
    import transformers
    from transformers import CONFIG_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

    if family not in CONFIG_MAPPING:
        return f"transformers {transformers.__version__} does not know it, a newer one may"
    if CONFIG_MAPPING[family] not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        return "no vision-language model (AutoModelForImageTextToText has no class for it)"
    return None


def _limit_pixels(processor, section: PolicySection) -> None:
    """The user's pixel limits, always as a fresh mapping: the processor's default one is shared by the class."""
    size = dict(processor.image_processor.size or {})
    if not {"shortest_edge", "longest_edge"} <= set(size):
        if section.min_pixels or section.max_pixels:
            kind = type(processor.image_processor).__name__
            raise UserError(f"policy.max_pixels: {kind} shows images at sizes of its own: leave the limits out")
        return
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
            target_modules=_lora_targets(model, section.lora.targets),
            lora_dropout=0.0,
            exclude_modules="|".join(FROZEN[part] for part in section.freeze) or None,
        )
        with _ignore_deprecations():
            try:
                model = get_peft_model(model, settings)
            except ValueError as error:  # nothing of that name, or layers that cannot be adapted
                kind = re.match(r"Target module (\w+)\(", str(error))
                reason = f"{kind[1]} is no layer that peft can adapt: name linear layers" if kind else first_line(error)
                raise UserError(f"policy.lora.targets: {reason}") from error
    for part in section.freeze:
        named = [p for name, p in model.named_parameters() if re.fullmatch(FROZEN[part], name)]
        if not named:
            raise UserError(f"policy.freeze: no parameters of a {type(bare(model)).__name__} are known as its {part}")
        for parameter in named:
            parameter.requires_grad_(False)
    return model


def _lora_targets(model: nn.Module, targets: str | list[str]) -> str | list[str]:
    """The targets, with a wrapped linear layer (Gemma 4 clips what goes in and out of one) in its wrapper's place."""
    if targets == "all-linear":
        return targets

    def matches(name: str) -> bool:
        if isinstance(targets, str):
            return re.fullmatch(targets, name) is not None
        return any(name == target or name.endswith(f".{target}") for target in targets)

    modules = {name: module for name, module in model.named_modules() if name and matches(name)}
    inner = {
        name: [f"{name}.{child}" for child, layer in module.named_children() if isinstance(layer, nn.Linear)]
        for name, module in modules.items()
    }
    return [layer for name in modules for layer in (inner[name] or [name])] if any(inner.values()) else targets


def _narrow(model: nn.Module, all_weights: bool = False) -> None:
    """Weights that do not train, or all, in bfloat16: autocast would convert them anew at every use."""
    for parameter in model.parameters():
        if (all_weights or not parameter.requires_grad) and parameter.is_floating_point():  # 4 bits are packed in bytes
            parameter.data = parameter.data.to(torch.bfloat16)
