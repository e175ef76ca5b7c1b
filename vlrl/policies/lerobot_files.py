"""What a checkpoint of lerobot says of itself, read and judged before lerobot acts on it.

lerobot 0.6.1 imports and calls whatever class a checkpoint's processor files name (`PolicyProcessorPipeline`,
`subprocess.Popen` included), and some of its models run code from the hub. So only what is named here is loaded.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from vlrl.decoders import load_json
from vlrl.types import UserError

# Models whose chunk hangs on the observations of one call alone, and that run no code that comes with weights.
TYPES = ("act", "diffusion", "smolvla", "pi0", "pi05")
SPEAKING = ("smolvla", "pi0", "pi05")  # of them, those made of models of transformers
# The steps that their processors are made of.
STEPS = (
    "rename_observations_processor", "to_batch_processor", "device_processor", "normalizer_processor",
    "unnormalizer_processor", "tokenizer_processor", "smolvla_new_line_processor", "pi0_new_line_processor",
    "pi05_prepare_state_tokenizer_processor_step", "relative_actions_processor", "absolute_actions_processor",
)  # fmt: skip
PROCESSORS = ("policy_preprocessor.json", "policy_postprocessor.json")


def checkpoint(source: str) -> str:
    """A run folder of `lerobot-train` stands for its last checkpoint; anything else for itself."""
    last = Path(source) / "checkpoints" / "last" / "pretrained_model"
    return str(last) if last.is_dir() else source


def fetched(source: str) -> str:
    """The folder of a checkpoint; one on the hub is brought first, so that what is judged is what is loaded.

    Raises:
        UserError: there is none.
    """
    if Path(source).is_dir():
        return source
    from huggingface_hub import snapshot_download

    try:
        return snapshot_download(source, allow_patterns=["*.json", "*.safetensors"])
    except (OSError, ValueError) as error:  # its errors are of these kinds
        raise UserError(f"policy.model: cannot fetch {source}: {str(error).strip().splitlines()[0]}") from None


def check_files(source: str) -> None:
    """Passes a checkpoint's folder whose model and processors are among those above.

    Raises:
        UserError: they are not, or there is none.
    """
    about = _read(source, "config.json")
    kind = about.get("type")
    if kind not in TYPES:
        raise UserError(f"policy.model: {source} is lerobot's {kind!r}; supported are {', '.join(TYPES)}")
    if kind in SPEAKING:
        _check_transformers(kind)
    if about.get("use_peft"):
        raise UserError(f"policy.model: {source} is an adapter: merge it into its model first")
    if about.get("temporal_ensemble_coeff") is not None:
        raise UserError(
            f"policy.model: {source} averages over time: set temporal_ensemble_coeff to null in config.json"
        )
    for name in PROCESSORS:
        for step in _steps(_read(source, name)):
            named = step if isinstance(step, dict) else {"class": step}
            called = named.get("registry_name", named.get("class"))
            if "registry_name" not in named or called not in STEPS:
                raise UserError(f"policy.model: {source}/{name} asks for the step {called!r}, which is not loaded here")


def _check_transformers(kind: str) -> None:
    """lerobot 0.6.1 goes with transformers before 5.6: with a newer one its SmolVLA fails at the first observation."""
    wanted = [each for each in map(Requirement, _requires("lerobot")) if each.name == "transformers"]
    here = metadata.version("transformers")
    if wanted and here not in wanted[0].specifier:
        raise UserError(
            f"policy.model: lerobot's {kind!r} needs transformers{wanted[0].specifier}, and this is {here}: "
            "evaluate it in an environment of its own"
        )


def _requires(package: str) -> list[str]:
    try:
        return metadata.requires(package) or []
    except metadata.PackageNotFoundError:
        return []


def _steps(about: dict[str, Any]) -> list[Any]:
    steps = about.get("steps")
    return steps if isinstance(steps, list) else [steps]


def _read(source: str, name: str) -> dict[str, Any]:
    try:
        about = load_json(Path(source) / name, finite=False)
    except (OSError, ValueError) as error:
        raise UserError(
            f"policy.model: cannot read {name} of {source}, which lerobot's policies have: {str(error).splitlines()[0]}"
        ) from None
    if not isinstance(about, dict):
        raise UserError(f"policy.model: {name} of {source} is no JSON object")
    return about
