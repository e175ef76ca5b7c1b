"""Trained reward models that `classified` can ask: where they lie, and what pictures they see."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

from vlrl.decoders import load_json
from vlrl.types import UserError

PICTURES = "observation.images."
Sizes = dict[str, tuple[int, int] | None]  # cameras: name -> width and height, None where any will do


def load(model: str) -> tuple[Any, Sizes]:
    """An object with `compute_reward`, and its cameras.

    Raises:
        UserError: there is no such model.
    """
    if ":" in model:
        from vlrl import registry

        made = registry.find("reward model", model, "process: classified: model")()
        if not hasattr(made, "compute_reward"):
            raise UserError(f"process: classified: {model} gives an object without compute_reward(batch)")
        return made, {}
    from vlrl import reward_model

    about = _about(Path(model))
    if "type" in about and about.get("model_type") != reward_model.FAMILY:
        return _lerobots(model, about)
    own = reward_model.load(model)
    return own, {name: (width, height) for name, width, height in own.shape.cameras}


def _about(folder: Path) -> dict[str, Any]:
    try:
        about = load_json(folder / "config.json", finite=False)
    except (OSError, ValueError) as error:
        raise UserError(f"process: classified: no reward model in {folder}: {error}") from None
    return about if isinstance(about, dict) else {}


def _lerobots(folder: str, about: dict[str, Any]) -> tuple[Any, Sizes]:
    """One of lerobot's, behind its own pre-processing where the folder has it."""
    try:
        from lerobot.configs.rewards import RewardModelConfig
        from lerobot.rewards.factory import get_reward_model_class
    except ImportError as error:
        raise UserError(f"process: classified: needs lerobot: pip install 'vlrl[robot]' ({error})") from None
    try:
        family = get_reward_model_class(str(about["type"]))
        with contextlib.redirect_stdout(io.StringIO()):  # lerobot says that it is loading
            made = family.from_pretrained(folder, config=RewardModelConfig.from_pretrained(folder))
        return Prepared(made, _before(folder)), {
            name.removeprefix(PICTURES): tuple(reversed(feature.shape[1:]))
            for name, feature in made.config.input_features.items() if name.startswith(PICTURES)
        }  # fmt: skip
    except Exception as error:  # the border to lerobot, which raises what its many parts raise
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"process: classified: cannot load lerobot's reward model {folder}: {reason}") from None


class Prepared:
    """A reward model of lerobot behind its pre-processor, if it has one."""

    def __init__(self, model: Any, before: Any):
        self.model, self.before = model, before

    def compute_reward(self, batch: dict[str, Any]) -> Any:
        return self.model.compute_reward(self.before(batch) if self.before else batch)


def _before(folder: str) -> Any:
    from lerobot.processor import PolicyProcessorPipeline

    found = sorted(Path(folder).glob("*preprocessor.json"))
    return PolicyProcessorPipeline.from_pretrained(folder, config_filename=found[0].name) if found else None
