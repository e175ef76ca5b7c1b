"""Which weights a folder holds."""

from __future__ import annotations

import hashlib
from pathlib import Path

from vlrl.policies.load import bundled, newest_checkpoint

DIGITS = 16


def source_of(folder: str) -> str:
    """Where the policy of a folder lies now: a run folder stands for its newest checkpoint.

    Raises:
        UserError: an embedded model that there is not.
    """
    return newest_checkpoint(bundled(folder))


def version_of(source: str) -> str:
    """The first digits of the SHA-256 of a folder's weights; of a name on the hub, the name."""
    files = sorted(Path(source).glob("*.safetensors"))
    if not files:
        return source
    hashed = hashlib.sha256()
    for file in files:
        with file.open("rb") as opened:
            hashed.update(hashlib.file_digest(opened, "sha256").digest())
    return hashed.hexdigest()[:DIGITS]


def state_of(folder: str) -> tuple[object, ...]:
    """Changes when other weights lie there."""
    source = source_of(folder)
    files = sorted(Path(source).glob("*.safetensors"))
    return source, *((file.name, (at := file.stat()).st_mtime_ns, at.st_size) for file in files)
