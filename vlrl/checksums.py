"""What a folder's files were when they were written: sizes and SHA-256, to see later that they are still that."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from vlrl.decoders import load_json

LIST = "files.json"


def note(folder: Path) -> None:
    """Writes the list of all files of a folder into it."""
    files = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
    (folder / LIST).write_text(json.dumps({name: of(folder / name) for name in files}))


def problem(folder: Path) -> str | None:
    """The first file of the list that is not what was noted; None: all are.

    Raises:
        FileNotFoundError: the folder has no list.
    """
    try:
        for name, noted in load_json(folder / LIST).items():
            if not (folder / name).is_file():
                return f"{name} is missing"
            if (folder / name).stat().st_size != noted["bytes"] or of(folder / name) != noted:
                return f"{name} is not what was saved"
    except (UnicodeDecodeError, ValueError, AttributeError, TypeError, KeyError):
        return f"{LIST} is no list of files"
    return None


def of(file: Path) -> dict[str, Any]:
    """A file's size and the SHA-256 of what it holds."""
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    return {"bytes": file.stat().st_size, "sha256": digest}
