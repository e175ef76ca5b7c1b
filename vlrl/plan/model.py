"""The model that a configuration names, by its sizes alone: no weights, no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlrl.decoders import load_json
from vlrl.plan.geometry import Geometry, from_config
from vlrl.plan.published import MODELS
from vlrl.types import UserError

# smallest and largest image in pixels, of the published processors
PIXELS = {"qwen2_5_vl": (56 * 56, 12845056), "qwen3_vl": (65536, 16777216)}


@dataclass(frozen=True)
class Model:
    """pixels: of the smallest and the largest image; folder: where its files are, None where there are none."""

    geometry: Geometry
    source: str
    pixels: tuple[int, int]
    folder: Path | None = None


def model_of(name: str) -> Model:
    """A local folder's model, an embedded one, or a published one by its name.

    Raises:
        UserError: no sizes are known of it.
    """
    from vlrl.policies.load import bundled, newest_checkpoint

    folder = Path(newest_checkpoint(bundled(name)))
    if (folder / "config.json").is_file():
        return _local(folder, name)
    for known, geometry in MODELS.items():
        if name.split("/")[-1].lower().startswith(f"{known.lower()}-"):
            return Model(geometry, f"sizes of {known} built in", PIXELS[geometry.family])
    raise UserError(
        f"policy.model: no config.json in {name!r}, and no sizes built in under that name "
        f"(there are: {', '.join(MODELS)}); download the model's config.json and name its folder"
    )


def _local(folder: Path, name: str) -> Model:
    config = _read(folder / "config.json")
    try:
        geometry = from_config(config)
    except UserError as error:
        raise UserError(f"policy.model: {name} is {error}") from None
    except (KeyError, TypeError) as error:
        raise UserError(f"policy.model: {folder / 'config.json'} lacks a size: {error}") from None
    return Model(geometry, "config.json", _pixels(folder, geometry), folder)


def _pixels(folder: Path, geometry: Geometry) -> tuple[int, int]:
    """Of the folder's image processor; the published one's where it has none."""
    for file, part in (("processor_config.json", "image_processor"), ("preprocessor_config.json", None)):
        if (folder / file).is_file():
            found = _read(folder / file)
            found = found.get(part, {}) if part else found
            size = found.get("size") or {}
            low, high = (
                size.get(new) or found.get(old)
                for new, old in (("shortest_edge", "min_pixels"), ("longest_edge", "max_pixels"))
            )
            if low and high:
                return low, high
    return PIXELS[geometry.family]


def _read(file: Path) -> dict[str, Any]:
    try:
        read = load_json(file, finite=False)
    except (OSError, ValueError) as error:
        raise UserError(f"policy.model: cannot read {file}: {error}") from None
    if not isinstance(read, dict):
        raise UserError(f"policy.model: {file} is no JSON object")
    return read
