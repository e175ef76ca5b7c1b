"""Values as bytes between the processes of a run: JSON beside tensors. Nothing that is read can run code.

Known are None, booleans, numbers, texts, lists, tuples, dicts, tensors, numpy arrays and dataclasses of modules that
the reading process has loaded itself.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from vlrl.types import UserError, shallow

TREE = "tree"  # the JSON, among the tensors


def packed(value: Any) -> bytes:
    """Raises:
    UserError: the value holds something else than this module knows.
    """
    tensors: dict[str, Tensor] = {}
    tree = json.dumps(_plain(value, tensors)).encode()
    return save(tensors | {TREE: torch.frombuffer(bytearray(tree), dtype=torch.uint8)})


def unpacked(data: bytes) -> Any:
    tensors = load(data)
    return _value(json.loads(tensors.pop(TREE).numpy().tobytes()), tensors)


def _plain(value: Any, tensors: dict[str, Tensor]) -> Any:
    """What JSON can hold; all but scalars and lists is a dict of one kind and what it holds."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [_plain(each, tensors) for each in value]
    if isinstance(value, tuple):
        return {"tuple": [_plain(each, tensors) for each in value]}
    if isinstance(value, Mapping):
        return {"dict": [[_plain(k, tensors), _plain(v, tensors)] for k, v in value.items()]}
    if isinstance(value, Tensor | np.ndarray):
        return _kept(value, tensors)
    if isinstance(value, np.generic):
        return value.item()
    if is_dataclass(value) and not isinstance(value, type):
        known, own = shallow(value), [f.name for f in fields(value) if f.init]
        kind = [type(value).__module__, type(value).__qualname__]
        return {"class": [kind, {name: _plain(known[name], tensors) for name in own}]}
    raise UserError(
        f"an episode holds a {type(value).__name__}, which cannot be told to the other processes: use a number, a "
        "text, a list, a dict, a tensor or a dataclass there, or run one process"
    )


def _kept(value: Tensor | np.ndarray, tensors: dict[str, Tensor]) -> Any:
    array = isinstance(value, np.ndarray)
    name = str(len(tensors))
    try:
        tensors[name] = (torch.from_numpy(np.array(value)) if array else value.detach().cpu()).contiguous().clone()
    except TypeError:
        raise UserError(
            f"an episode holds an array of {value.dtype}, which no process can be told: convert it"
        ) from None
    return {"array" if array else "tensor": name}


def _value(plain: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(plain, list):
        return [_value(each, tensors) for each in plain]
    if not isinstance(plain, dict):
        return plain
    ((kind, inner),) = plain.items()
    if kind == "tuple":
        return tuple(_value(each, tensors) for each in inner)
    if kind == "dict":
        return {_value(k, tensors): _value(v, tensors) for k, v in inner}
    if kind in ("tensor", "array"):
        return tensors[inner] if kind == "tensor" else tensors[inner].numpy()
    (module, name), value = inner
    return _class(module, name)(**{key: _value(each, tensors) for key, each in value.items()})


def _class(module: str, name: str) -> type:
    place: Any = sys.modules.get(module)
    for part in name.split("."):
        place = getattr(place, part, None)
    if not (isinstance(place, type) and is_dataclass(place)):
        raise UserError(f"another process sent a {module}.{name}, which this one does not know: define it in a module")
    return place
