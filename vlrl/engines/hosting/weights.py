"""New weights for a model that is served: checked as a whole, then put in place as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from vlrl.engines.hosting.requests import RequestError


def confined(folder: Path | None, name: str) -> Path:
    """A safetensors file inside the folder.

    Raises:
        RequestError: there is no folder for weights, the path leads out of it, or it is no such file.
    """
    if folder is None:
        raise RequestError("path: this server reads weights from no folder: start it with --weights-folder")
    root = folder.resolve()
    try:
        path = (root / name).resolve()  # links as well
    except (OSError, ValueError) as error:
        raise RequestError(f"path: {error}") from None
    if not path.is_relative_to(root) or path.suffix != ".safetensors":
        raise RequestError("path: has to be a .safetensors file inside the server's folder for weights")
    if not path.is_file():
        raise RequestError(f"path: there is no file {name!r}")
    return path


class Weights:
    """The parameters of a model, and what those that were changed began with: clients send what differs from there."""

    def __init__(self, base: nn.Module):
        self._named = dict(base.named_parameters(remove_duplicate=False))
        self._first: dict[str, Tensor] = {}  # on the CPU

    @torch.no_grad()
    def put(self, path: Path) -> int:
        """Writes a file's tensors into the parameters of their names, the others are as they began; how many.

        Raises:
            RequestError: it is no safetensors file; a name or shape is none of the model's; a number is not finite.
                Then nothing has changed.
        """
        try:
            with safe_open(path, "pt") as file:
                names = list(file.keys())
                for name in names:
                    self._check(name, file)
                for name in names:
                    self._first.setdefault(name, self._named[name].cpu().clone())
                    self._named[name].copy_(file.get_tensor(name))
        except (SafetensorError, OSError) as error:
            raise RequestError(f"weights: {str(error).splitlines()[0]}") from None
        for name in set(self._first) - set(names):
            self._named[name].copy_(self._first.pop(name))
        return len(names)

    def _check(self, name: str, file: Any) -> None:
        shape = tuple(file.get_slice(name).get_shape())
        if name not in self._named or shape != tuple(self._named[name].shape):
            raise RequestError(f"weights: {name} is no parameter of this model, or has another shape")
        if not torch.isfinite(file.get_tensor(name)).all():
            raise RequestError(f"weights: {name} holds numbers that are not finite")
