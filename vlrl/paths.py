"""The files and folders that a configuration names, looked for before anything heavy is loaded. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vlrl.bundled import maker
from vlrl.config import Config
from vlrl.types import UserError


def check_paths(config: Config) -> None:
    """UserError naming the first data file or model folder that is not there. What lies elsewhere is not looked for."""
    for key, path in find_data(config.model_dump()):
        if "://" not in path and not Path(path).exists():
            raise UserError(f"{path}: cannot be read (no such file or folder); check {key}")
    for key, source in (("policy.model", config.policy.model), ("policy.teacher", config.policy.teacher)):
        if source and not (source == "embedded" or source.startswith("embedded_")):
            check_model(source, key)


def check_model(source: str, key: str = "policy.model") -> None:
    """UserError for what is neither a local folder nor can be a name on the hub."""
    folder = Path(source)
    if folder.exists():
        return
    # `runs/nope`, or `models/nope` beside a folder `models`, is a mistyped folder, not a name on the hub
    if source.startswith((".", "/", "~", "runs/")) or source.count("/") != 1 or folder.parent.is_dir():
        raise UserError(f"{key}: there is no folder {source!r}, and it is no hub name (owner/name){maker(source)}")


def find_data(settings: Any, path: str = "") -> list[tuple[str, str]]:
    """Key and value of every `data.train` and `data.test` of a configuration, those of a mixture's parts too."""
    if not isinstance(settings, dict):
        return []
    own = settings.get("data")
    own = own if isinstance(own, dict) else {}
    named = [(f"{path}data.{split}", own[split]) for split in ("train", "test") if isinstance(own.get(split), str)]
    return named + [
        pair for key, value in settings.items() if key != "data" for pair in find_data(value, f"{path}{key}.")
    ]
