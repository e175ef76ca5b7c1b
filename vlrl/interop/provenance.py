"""Where a model comes from, as far as its run's folder and the files at hand tell; no network is asked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlrl import credentials
from vlrl.decoders import DecodeError, load_yaml, parse_yaml
from vlrl.interop.export import ADAPTER, Source, read

UNKNOWN = "not stated"
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class Origin:
    """A base model or a data set: how it is told, its name on the hub where it has one, its licence."""

    told: str
    hub: str | None = None
    licence: str = UNKNOWN


def config_of(source: Source) -> dict[str, Any]:
    """The run's resolved configuration without paths of the machine; {} where there is no run."""
    if source.run is None:
        return {}
    try:
        found = load_yaml(source.run / "config.yaml")
    except (OSError, DecodeError):
        return {}
    return shown(found) if isinstance(found, dict) else {}


def versions_of(source: Source) -> str:
    """The line of versions and commit that a run's configuration begins with."""
    if source.run is None:
        return ""
    first = (source.run / "config.yaml").read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("# ") if first.startswith("# vlrl") else ""


def shown(value: Any) -> Any:
    """A setting as strangers may see it: of a path its last part, of an address no password."""
    if isinstance(value, Mapping):
        return {key: shown(each) for key, each in value.items()}
    if isinstance(value, list):
        return [shown(each) for each in value]
    if not isinstance(value, str):
        return value
    if value.startswith(("/", "~", "hf:///", "hf://~")):
        return Path(value).name
    return credentials.hidden(value)


def base_of(source: Source, config: Mapping[str, Any]) -> Origin:
    """What the model was trained from."""
    named = (config.get("policy") or {}).get("model") or ""
    if source.adapter and not str(named).startswith("embedded"):
        named = read(source.folder / ADAPTER).get("base_model_name_or_path") or named
    named = str(named)
    if not named:
        return Origin(UNKNOWN)
    if named.startswith("embedded"):
        return Origin(f"vlrl's {named.replace('_', ' ')} model", licence="Apache-2.0")
    if HUB_NAME.fullmatch(named) and not Path(named).exists():
        return Origin(named, named, _licence(_cached(named, "model")))
    return Origin(f"a model of its maker's ({Path(named).name})", licence=_licence(Path(named) / "README.md"))


def data_of(config: Mapping[str, Any]) -> Origin:
    """What the model was trained on."""
    named = (config.get("data") or {}).get("train")
    if not named:
        return Origin("what the task renders or bundles", licence="as NOTICE.md of vlrl says")
    found = re.match(rf"hf://(?:datasets/)?({HUB_NAME.pattern})", named)
    if not found:
        return Origin(f"`{Path(named).name}`")
    return Origin(f"`{named}`", found[1], _licence(_cached(found[1], "dataset")))


def _cached(name: str, kind: str) -> Path | None:
    """The README of a repository of the hub, where it was fetched before."""
    from huggingface_hub import try_to_load_from_cache

    file = try_to_load_from_cache(name, "README.md", repo_type=kind)
    return Path(file) if isinstance(file, str) else None


def _licence(readme: Path | None) -> str:
    """What a README's first block says of the licence."""
    try:
        _, block, _ = readme.read_text(encoding="utf-8").split("---", 2)
        about = parse_yaml(block, readme)
        return str(about.get("license_name") or about.get("license") or UNKNOWN)
    except (AttributeError, OSError, ValueError):
        return UNKNOWN
