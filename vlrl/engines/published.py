"""A policy's weights on their way to engines: which they are, and the file or folder that holds them."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlrl.types import UserError

if TYPE_CHECKING:
    from torch import Tensor, nn

MINUTES = 30  # that weights may take to be written


@dataclass(frozen=True)
class Published:
    """Weights that lie ready. shared: whether the server sees the path as well."""

    version: str
    path: Path  # a safetensors file of what trains, or the folder of a whole checkpoint
    shared: bool


class Store:
    """Where published weights lie: the newest only.

    Args:
        policy: a VLM.
        folder: one that the servers see as well, under the same path; None: a temporary one of this process.
        whole: the whole model in Hugging Face layout instead of one file of what trains.

    Raises:
        UserError: the folder cannot be made.
    """

    def __init__(self, policy: Any, folder: str | None, whole: bool):
        self._policy, self._whole, self._shared = policy, whole, folder is not None
        try:
            if folder:
                Path(folder).mkdir(parents=True, exist_ok=True)
            self._folder = Path(folder).resolve() if folder else Path(tempfile.mkdtemp(prefix="vlrl-weights-"))
        except OSError as error:
            raise UserError(f"policy.engine: folder: cannot make {folder}: {error.strerror}") from None
        self.newest: Published | None = None

    def follow(self, policy: Any) -> None:
        """From here on another policy's weights are the present ones."""
        self._policy = policy

    def take(self) -> Published:
        """The policy's present weights, written anew where they are others than the newest."""
        version = version_of(self._policy.model)
        if self.newest is None or self.newest.version != version:
            old, path = self.newest, self._folder / (version if self._whole else f"{version}.safetensors")
            save = functools.partial(_save_whole if self._whole else _save_learned, self._policy, path)
            _once(path, save) if self._shared else save()
            self.newest = Published(version, path, self._shared)
            if old is not None:
                _remove(old.path)
        return self.newest

    def close(self) -> None:
        """Removes what was written."""
        if not self._shared:
            shutil.rmtree(self._folder, ignore_errors=True)
        elif self.newest is not None:
            _remove(self.newest.path)


def version_of(model: nn.Module) -> str:
    """A name of the weights that train, by what they are: the same in every process, another after any update."""
    import torch

    learned = [p.detach() for p in model.parameters() if p.requires_grad]
    if not learned:
        return "start"
    # two moments of each tensor: a digest of all of it would have to leave the device
    sums = torch.stack([torch.stack([p.sum(dtype=torch.float64), p.double().square().sum()]) for p in learned])
    return hashlib.sha256(sums.cpu().numpy().tobytes()).hexdigest()[:12]


def learned_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Names and values, in the bare model's own names, of what differs from where it began; adapters are merged."""
    from vlrl.policies.scorer import bare

    base, merged = bare(model), set()
    for name, module in base.named_modules():
        if hasattr(module, "base_layer") and hasattr(module, "get_delta_weight"):
            weight = module.base_layer.weight.detach()
            delta = sum(module.get_delta_weight(adapter) for adapter in module.active_adapters)
            merged.add(name)
            yield f"{name}.weight", (weight + delta.to(weight.dtype)).detach()
    for name, parameter in base.named_parameters():
        if parameter.requires_grad and not any(name.startswith(f"{each}.") for each in merged):
            yield name, parameter.detach()


def _once(path: Path, save: Callable[[], None]) -> None:
    """Has a path that several processes of a run share written by the first that asks; the others wait for it.

    One that has claimed it and written nothing for MINUTES, as a killed one, is not waited for any longer.
    """
    claim = path.with_name(f"{path.name}.claim")
    try:
        claim.touch(exist_ok=False)
    except FileExistsError:
        patient = time.monotonic() + 60 * MINUTES
        while not path.exists() and claim.exists() and time.monotonic() < patient:
            time.sleep(0.05)
        if path.exists():
            return
    try:
        if not path.exists():
            save()
    finally:
        claim.unlink(missing_ok=True)


def _save_learned(policy: Any, path: Path) -> None:
    """What trains, as one safetensors file that appears at once and complete."""
    from safetensors.torch import save_file

    weights = {name: value.contiguous().cpu() for name, value in learned_weights(policy.model)}
    part = _part(path)
    save_file(weights, str(part))
    part.replace(path)


def _save_whole(policy: Any, path: Path) -> None:
    """The model with its adapters merged, and the processor, as `from_pretrained` reads them."""
    from vlrl.policies.scorer import bare

    base, part = bare(policy.model), _part(path)
    state = base.named_parameters(remove_duplicate=False)  # they are whole here, where `state_dict` may part them
    own = {name.replace(".base_layer.", "."): value.detach() for name, value in state if ".lora_" not in name}
    base.save_pretrained(part, state_dict=own | dict(learned_weights(policy.model)), safe_serialization=True)
    policy.processor.save_pretrained(part)
    try:
        part.replace(path)
    except OSError:  # another process of the run was faster, with the same
        _remove(part)


def _part(path: Path) -> Path:
    """Where a process writes what is to appear at once."""
    return path.with_name(f"{path.name}.{os.getpid()}.part")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
