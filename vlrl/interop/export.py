"""A trained model as a folder that other programs load: weights, processor and a card; the trainer's state stays here.

What serves or continues a model (transformers, vLLM, SGLang, TRL) reads `config.json`, `generation_config.json`, the
tokenizer's files, `chat_template.jinja`, the processor's and the weights as safetensors.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vlrl import checksums
from vlrl.decoders import load_json
from vlrl.locks import make_folder, read_folder
from vlrl.types import UserError

OWN = ("trainer.json", "trainer.safetensors", checksums.LIST)  # to go on with a run, and no model's
KINDS = (".json", ".jinja", ".model", ".safetensors", ".txt")  # what a model is made of; nothing else goes along
ADAPTER = "adapter_config.json"
Width = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class Source:
    """A model's folder, and the run that made it (None: not known)."""

    folder: Path
    run: Path | None

    @property
    def adapter(self) -> bool:
        return (self.folder / ADAPTER).is_file()

    @property
    def family(self) -> str:
        """`model_type` of ours and of transformers, `type` of lerobot's; '' of an adapter."""
        about = read(self.folder / "config.json")
        return str(about.get("model_type") or about.get("type") or "")


@contextmanager
def open_source(source: str | Path) -> Iterator[Source]:
    """A model to read. A run folder, which stands for its newest checkpoint, is held: no run may prune that meanwhile.

    Raises:
        HeldError: the run is still being trained.
        UserError: neither a run nor a model's folder.
    """
    located(source)
    with read_folder(Path(source)) if is_run(source) else nullcontext():
        yield located(source)


def is_run(source: str | Path) -> bool:
    return any((Path(source) / "checkpoints").glob("step_*"))


def located(source: str | Path) -> Source:
    """A run folder stands for its newest checkpoint; a checkpoint belongs to the run that it lies in.

    Raises:
        UserError: neither a run nor a model's folder.
    """
    folder = Path(source).resolve()
    saved = sorted((folder / "checkpoints").glob("step_*"))
    if saved:
        return Source(saved[-1], folder)
    if not any((folder / name).is_file() for name in ("config.json", ADAPTER)) or (folder / "config.yaml").is_file():
        raise UserError(f"{source}: neither a run with a checkpoint nor a model's folder (config.json)")
    run = folder.parent.parent
    return Source(folder, run if (run / "config.yaml").is_file() else None)


def export(source: Source, out: Path, *, merged: bool = False, dtype: Width | None = None) -> None:
    """Writes the model into a new folder; transformers 4.57 and 5 load it, and what is built on them.

    Args:
        merged: an adapter becomes part of its base's weights.
        dtype: of the weights; default: as saved.

    Raises:
        UserError: the folder is there already; `merged` without an adapter; `dtype` of an adapter alone.
    """
    if merged and not source.adapter:
        raise UserError(f"{source.folder}: holds no adapter, so there is nothing to merge: leave --merged out")
    if dtype and source.adapter and not merged:
        raise UserError("--dtype goes with --merged: an adapter is small, and is trained in float32")
    with make_folder(out) as made:
        if merged or dtype:
            _loaded(source, made, dtype)
        else:
            for file in made_of(source.folder):
                shutil.copyfile(file, made / file.name)
        older_readers(made)


def made_of(folder: Path) -> list[Path]:
    """The files of a model's folder that are the model."""
    return [
        file for file in sorted(folder.iterdir())
        if file.is_file() and file.suffix in KINDS and file.name not in OWN and not file.name.startswith(".")
    ]  # fmt: skip


def _loaded(source: Source, out: Path, dtype: Width | None) -> None:
    import torch

    from vlrl.config import PolicySection
    from vlrl.policies.load import load

    policy = load(PolicySection(model=str(source.folder)), device="cpu")
    if not hasattr(policy, "processor"):
        raise UserError("--dtype is for vision-language models; a robot's policy is small")
    if dtype:
        policy.model.to(getattr(torch, dtype))
        for part in ("text_config", "vision_config"):
            getattr(policy.model.config, part).dtype = getattr(torch, dtype)
    policy.save(out)


def older_readers(folder: Path) -> None:
    """Says again, under the names that transformers 4.57 reads, what 5 writes under others; 5 takes both.

    The rotary embedding (`rope_parameters`), the processors (one file for all), the list of special tokens.
    """
    if not (folder / "processor_config.json").is_file():
        return
    about = read(folder / "config.json")
    for part in (about, *(each for each in about.values() if isinstance(each, dict))):
        rope = part.get("rope_parameters")
        if isinstance(rope, dict) and "rope_theta" in rope:
            part["rope_theta"] = rope["rope_theta"]
            part["rope_scaling"] = {key: value for key, value in rope.items() if key != "rope_theta"}
    if about:
        _write(folder / "config.json", about)
    processor = read(folder / "processor_config.json")
    for name in ("image_processor", "video_processor"):
        if isinstance(processor.get(name), dict):
            file = "preprocessor_config.json" if name == "image_processor" else "video_preprocessor_config.json"
            _write(folder / file, processor[name] | {"processor_class": processor.get("processor_class")})
    tokens = read(folder / "tokenizer_config.json")
    if isinstance(tokens.get("extra_special_tokens"), list):
        tokens["additional_special_tokens"] = tokens.pop("extra_special_tokens")
        _write(folder / "tokenizer_config.json", tokens)


def read(file: Path) -> dict[str, Any]:
    """A JSON object; {} where there is none to read."""
    try:
        about = load_json(file, finite=False)
    except (OSError, ValueError):
        return {}
    return about if isinstance(about, dict) else {}


def _write(file: Path, about: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(about, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
