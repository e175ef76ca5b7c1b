"""The mean of several models' weights, as one model's folder.

Sources: model soups, arXiv 2203.05482; a long-thinking and a short model, Kimi k1.5, arXiv 2501.12599 (long to short).
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlrl.interop.export import Source, made_of, read
from vlrl.locks import make_folder
from vlrl.types import UserError

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS = ".safetensors"
SHAPE = ("model_type", "architectures", "text_config", "vision_config")  # of config.json: what weights fit into
APART = ("dtype", "torch_dtype", "rope_theta", "rope_scaling")  # may differ: the last two an export says twice


def average(models: Sequence[Source], out: Path, shares: Sequence[float] | None = None) -> None:
    """Writes the mean into a new folder; all but the weights is the first model's.

    Products and sums in float32, a tensor at a time; weights are kept in the first one's type.

    Args:
        models: two or more of one architecture, with whole weights.
        shares: of each; they sum to 1. Default: equal ones.

    Raises:
        UserError: `out` is there; shares that do not fit; an adapter; models of different make.
    """
    shares = list(shares) if shares is not None else [1 / len(models)] * len(models)
    _check(models, shares)
    from safetensors.torch import save_file

    with make_folder(out) as made, ExitStack() as opened:
        held = [_opened(model.folder, opened) for model in models]
        for model, tensors in zip(models[1:], held[1:], strict=True):
            _same_tensors(models[0], held[0], model, tensors)
        for file in made_of(models[0].folder):
            if file.suffix == WEIGHTS:
                names = [name for name, (there, _) in held[0].items() if there == file.name]
                save_file({name: _mean(held, name, shares) for name in names}, made / file.name, {"format": "pt"})
            else:
                shutil.copyfile(file, made / file.name)


def _check(models: Sequence[Source], shares: Sequence[float]) -> None:
    if len(models) < 2:
        raise UserError("average: name two models or more")
    if len(shares) != len(models) or abs(sum(shares) - 1) > 1e-6 or min(shares) <= 0:
        raise UserError(f"shares: {len(models)} numbers above 0 that sum to 1, not {', '.join(map(str, shares))}")
    for model in models:
        if model.adapter:
            raise UserError(f"{model.folder}: an adapter has no weights of its own: `vlrl export --merged` makes some")
        if _make(model) != _make(models[0]):
            raise UserError(f"{model.folder}: another architecture than {models[0].folder}: their mean means nothing")


def _make(model: Source) -> dict[str, Any]:
    """What its config.json says of its weights."""
    about = read(model.folder / "config.json")
    return {key: _plain(about.get(key)) for key in SHAPE}


def _plain(value: Any) -> Any:
    return {k: v for k, v in value.items() if k not in APART} if isinstance(value, dict) else value


def _opened(folder: Path, opened: ExitStack) -> dict[str, tuple[str, Any]]:
    """A tensor's name -> its file's name, and the open file."""
    from safetensors import safe_open

    found = {}
    for file in made_of(folder):
        if file.suffix == WEIGHTS:
            there = opened.enter_context(safe_open(file, framework="pt"))
            found |= {name: (file.name, there) for name in sorted(there.keys())}
    return found


def _same_tensors(first: Source, own: Mapping[str, Any], other: Source, theirs: Mapping[str, Any]) -> None:
    odd = sorted(own.keys() ^ theirs.keys()) or [
        name for name in own if _shape(own[name], name) != _shape(theirs[name], name)
    ]
    if odd or not own:
        raise UserError(f"{other.folder}: other weights than {first.folder}: {odd[0] if odd else 'none at all'}")


def _shape(held: tuple[str, Any], name: str) -> list[int]:
    return held[1].get_slice(name).get_shape()


def _mean(held: Sequence[Mapping[str, tuple[str, Any]]], name: str, shares: Sequence[float]) -> Tensor:
    parts = [tensors[name][1].get_tensor(name) for tensors in held]
    return sum(share * part.float() for share, part in zip(shares, parts, strict=True)).to(parts[0].dtype)
