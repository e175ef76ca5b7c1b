"""The data files that a run reads, as they were when it began: a resumed run learns from the same."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from vlrl import checksums, log
from vlrl.decoders import load_json
from vlrl.parallel import by_main
from vlrl.paths import find_data
from vlrl.types import UserError

NAME = "data.json"


def told(config: Any) -> dict[str, dict[str, Any]]:
    """Key of the configuration -> path, size and SHA-256 of the file that it names; what cannot be read is left out.

    Of a folder: of the names and sizes of the files in it.
    """
    found: dict[str, dict[str, Any]] = {}
    for key, path in find_data(config.model_dump()):
        try:
            found[key] = {"path": path} | (_folder(Path(path)) if Path(path).is_dir() else checksums.of(Path(path)))
        except OSError:  # the task says what is wrong with it
            continue
    return found


@by_main
def note(out: Path, config: Any) -> None:
    """Writes what the data files are into the run folder, where no earlier note is."""
    if not (out / NAME).exists() and (files := told(config)):
        log.write_text(out / NAME, json.dumps(files, indent=2) + "\n")


def check(out: Path, config: Any) -> None:
    """UserError naming the first data file that is not what the run began with; runs without a note are let be."""
    file = out / NAME
    try:
        before = load_json(file)
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: cannot be read ({error}); remove it to go on with the data as it is now") from None
    now = told(config)
    for key, noted in before.items():
        if key in now and now[key] != noted:
            raise UserError(
                f"{key}: {noted['path']} was changed since this run began ({noted['bytes']} bytes then, "
                f"{now[key]['bytes']} now): put it back, or remove {file} to go on with what it is now"
            )


def _folder(folder: Path) -> dict[str, Any]:
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    names = [f"{file.relative_to(folder).as_posix()} {file.stat().st_size}" for file in files]
    digest = hashlib.sha256("\n".join(names).encode(errors="surrogateescape")).hexdigest()
    return {"bytes": sum(file.stat().st_size for file in files), "sha256": digest}
