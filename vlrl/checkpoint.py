"""Checkpoints, whole or not at all: a temporary folder, synced, then renamed. Tensors as safetensors, no pickle.

Each lists its files with their sizes and SHA-256, so that what a disk or a copy damaged later is seen before it is
loaded: a run then goes on from the newest one that is whole (`newest_whole`).
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from vlrl import io
from vlrl.config import find_data
from vlrl.decoders import load_json
from vlrl.distributed.world import by_main, get_world
from vlrl.io import checksums_of
from vlrl.metrics import write_text
from vlrl.types import UserError, first_line

# PARTS: the tensors that lay in parts in several processes, where any did
STATE, TENSORS, PARTS = "trainer.json", "trainer.safetensors", "trainer_parts.safetensors"


@contextmanager
def open_model(
    folder: Path, family: str, name: str, path: str = ""
) -> Iterator[tuple[dict[str, Any], dict[str, Tensor]]]:
    """Settings and tensors of a small model's folder, config.json and model.safetensors, to build the model from.

    Args:
        family: its `model_type`.
        name: what it is, in an error; `path`: the key that names the folder.

    Raises:
        UserError: the folder holds something else, or the body cannot build a model from it.
    """
    try:
        about = load_json(folder / "config.json", finite=False)
        if about.pop("model_type", None) != family:
            raise ValueError("another kind of model")
        yield about, load_file(folder / "model.safetensors")
    except (OSError, ValueError, TypeError, KeyError, AttributeError, SafetensorError, RuntimeError) as error:
        raise UserError(f"{path and f'{path}: '}{folder}: no {name}: {first_line(error)}") from None


def flatten(value: Any, tensors: dict[str, Tensor], path: str = "state") -> Any:
    """A nested state as JSON, its tensors moved into `tensors` and replaced by their name."""
    if isinstance(value, Tensor):
        name = f"{path}#{len(tensors)}"  # the number tells the keys 1 and "1", or "a.b" and a: b, apart
        tensors[name] = value.detach() if is_part(value) else value.detach().cpu().contiguous()
        return {"tensor": name}
    if isinstance(value, dict):
        # Pairs, because JSON turns integer keys (an optimizer's parameters) into text.
        return {"dict": [[k, flatten(v, tensors, f"{path}.{k}")] for k, v in value.items()]}
    if isinstance(value, (list, tuple)):
        return {"list": [flatten(v, tensors, f"{path}.{i}") for i, v in enumerate(value)]}
    return value


def unflatten(value: Any, tensors: dict[str, Tensor]) -> Any:
    """The inverse of `flatten`; tuples come back as lists."""
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "tensor":
        return tensors[inner]
    if kind == "dict":
        return {k: unflatten(v, tensors) for k, v in inner}
    return [unflatten(v, tensors) for v in inner]


def random_state() -> dict[str, Any]:
    """The state of every library's global generator."""
    version, keys, gauss = random.getstate()
    name, numpy_keys, position, has_gauss, cached = np.random.get_state()
    state = {"python": [version, list(keys), gauss], "torch": torch.get_rng_state()}
    state["numpy"] = [name, numpy_keys.tolist(), position, has_gauss, cached]
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def restore_random_state(state: dict[str, Any]) -> None:
    version, keys, gauss = state["python"]
    random.setstate((version, tuple(keys), gauss))
    name, numpy_keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(numpy_keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])


def is_part(value: Tensor) -> bool:
    """Whether other processes hold the rest of a tensor."""
    return isinstance(value, DTensor)


def save(
    folder: Path, state: dict[str, Any], save_model: Callable[[Path], None], in_parts: bool = False
) -> None:  # fmt: skip
    """Writes a checkpoint: the model by `save_model(folder)`, everything else from `state`. Called by all processes.

    in_parts: model and state lie in parts in the processes: each writes its own.

    Raises:
        UserError: the disk is full or not writable; earlier checkpoints stay valid.
    """
    main, temporary = get_world().is_rank_zero, folder.with_name(f".{folder.name}.part")
    if not main and not in_parts:
        return
    try:
        if main:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
        if in_parts:
            get_world().wait()
        save_model(temporary)
        tensors: dict[str, Tensor] = {}
        plain = flatten(state, tensors)
        if in_parts:
            from vlrl.policies.weights import write_parts  # transformers

            parts = {n: tensors.pop(n) for n in list(tensors) if is_part(tensors[n])}
            if parts:  # an optimizer that has made no step has none
                write_parts(parts, temporary / PARTS)
        if main:
            save_file(tensors, temporary / TENSORS)
            (temporary / STATE).write_text(json.dumps(plain))
            io.note(temporary)
            _sync(temporary)
            _put(temporary, folder)
        if in_parts:
            get_world().wait()
    except (OSError, SafetensorError, RuntimeError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error).splitlines()[0]
        older = latest(folder.parent)
        kept = f"the previous checkpoint {older} stays valid" if older else "there is no earlier checkpoint"
        raise UserError(f"cannot save the checkpoint {folder}: {reason}; {kept}") from None


def _put(temporary: Path, folder: Path) -> None:
    """Gives a whole folder its name. One that has it already is renamed first: at no moment is there neither."""
    older = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(older, ignore_errors=True)
    if folder.exists():
        os.replace(folder, older)
    os.replace(temporary, folder)
    _sync_folder(folder.parent)
    shutil.rmtree(older, ignore_errors=True)


def load_state(folder: Path) -> dict[str, Any]:
    """Everything but the model.

    Raises:
        UserError: the checkpoint is damaged.
    """
    try:
        parts = load_file(folder / PARTS) if (folder / PARTS).exists() else {}  # read where they are looked at
        return unflatten(load_json(folder / STATE, finite=False), load_file(folder / TENSORS) | parts)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise UserError(
            f"the checkpoint {folder} is damaged ({error}): remove it to go on from an earlier one"
        ) from None


def latest(checkpoints: Path) -> Path | None:
    """The newest complete checkpoint, by its name; whether its files are still what was saved is not looked at."""
    saved = sorted(p for p in checkpoints.glob("step_*") if (p / STATE).exists())
    return saved[-1] if saved else None


def newest_whole(checkpoints: Path) -> Path | None:
    """The newest checkpoint whose files are what was saved, in every process the same; None: nothing was saved yet.

    Newer ones that are damaged are named on stderr and set aside as `damaged_step_N`.

    Raises:
        UserError: there are checkpoints, and all are damaged.
    """
    name, problem = get_world().gather(_searched(checkpoints) if get_world().is_rank_zero else None)[0]
    if problem:
        raise UserError(f"{problem}: copy one back, or start anew without --resume")
    return checkpoints / name if name else None


def _searched(checkpoints: Path) -> tuple[str | None, str | None]:
    """The name of the newest whole checkpoint; what is wrong where there are only damaged ones."""
    for older in checkpoints.glob(".step_*.old"):  # killed between two renames
        folder = checkpoints / older.name.removeprefix(".").removesuffix(".old")
        if not folder.exists():
            os.replace(older, folder)
    for rest in (*checkpoints.glob(".step_*.old"), *checkpoints.glob(".step_*.part")):  # killed while saving
        shutil.rmtree(rest, ignore_errors=True)
    damaged: dict[Path, str] = {}
    for folder in sorted(checkpoints.glob("step_*"), reverse=True):
        problem = damage(folder)
        if problem is None:
            for other, why in damaged.items():
                _set_aside(other, f"{other} is damaged ({why}): going on from {folder.name}")
            return folder.name, None
        damaged[folder] = problem
    newest = next((f"{folder}: {why}" for folder, why in damaged.items()), None)
    return None, newest and f"no checkpoint is whole ({newest})"


def _set_aside(folder: Path, why: str) -> None:
    print(f"vlrl: the checkpoint {why}", file=sys.stderr)
    aside = folder.with_name(f"damaged_{folder.name}")
    shutil.rmtree(aside, ignore_errors=True)
    os.replace(folder, aside)


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint's files; None: nothing. One without a list, of an older version, is only read."""
    try:
        return io.problem(folder)
    except FileNotFoundError:
        pass
    except OSError as error:
        return str(error)
    try:
        load_state(folder)
    except UserError:
        return f"{STATE} or {TENSORS} cannot be read"
    return None


@by_main
def prune(checkpoints: Path, keep: int, best: str | None) -> None:
    """Removes all but the newest `keep` and the best."""
    for old in sorted(checkpoints.glob("step_*"))[:-keep]:
        if old.name != best:
            shutil.rmtree(old, ignore_errors=True)


def _sync(folder: Path) -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# The data files that a run reads, as they were when it began: a resumed run learns from the same.

NAME = "data.json"


def describe_data_files(config: Any) -> dict[str, dict[str, Any]]:
    """Key of the configuration -> path, size and SHA-256 of the file that it names; what cannot be read is left out.

    Of a folder: of the names and sizes of the files in it.
    """
    entries: dict[str, dict[str, Any]] = {}
    for key, path in find_data(config.model_dump()):
        try:
            entries[key] = {"path": path} | (_folder(Path(path)) if Path(path).is_dir() else checksums_of(Path(path)))
        except OSError:  # the task says what is wrong with it
            continue
    return entries


@by_main
def note(out: Path, config: Any) -> None:
    """Writes what the data files are into the run folder, where no earlier note is."""
    if not (out / NAME).exists() and (files := describe_data_files(config)):
        write_text(out / NAME, json.dumps(files, indent=2) + "\n")


def datafiles_check(out: Path, config: Any) -> None:
    """UserError naming the first data file that is not what the run began with; runs without a note are let be."""
    file = out / NAME
    try:
        before = load_json(file)
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: cannot be read ({error}); remove it to go on with the data as it is now") from None
    now = describe_data_files(config)
    for key, entry in before.items():
        if key in now and now[key] != entry:
            raise UserError(
                f"{key}: {entry['path']} was changed since this run began ({entry['bytes']} bytes then, "
                f"{now[key]['bytes']} now): put it back, or remove {file} to go on with what it is now"
            )


def _folder(folder: Path) -> dict[str, Any]:
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    names = [f"{file.relative_to(folder).as_posix()} {file.stat().st_size}" for file in files]
    digest = hashlib.sha256("\n".join(names).encode(errors="surrogateescape")).hexdigest()
    return {"bytes": sum(file.stat().st_size for file in files), "sha256": digest}
