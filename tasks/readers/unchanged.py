"""A file that is read for as long as a run lasts, and must stay what it was."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from vlrl.types import UserError


class Unchanged:
    """What a file was when it was first looked at.

    Raises:
        OSError: the file cannot be looked at.
    """

    def __init__(self, file: Path):
        self._file, self._was = file, _stamp(file)

    @contextlib.contextmanager
    def asserted(self) -> Iterator[None]:
        """Around a look into the file.

        Raises:
            UserError: the file was changed or taken away since.
        """
        try:
            self._check()
            yield
            self._check()
        except OSError as error:
            raise UserError(f"{self._file}: can no longer be read ({error}); put it back and resume the run") from None

    def _check(self) -> None:
        if _stamp(self._file) != self._was:
            raise UserError(f"{self._file}: was changed while it is read; put back what it was and resume the run")


def _stamp(file: Path) -> tuple[int, int]:
    """What a file's changes show in."""
    found = file.stat()
    return found.st_size, found.st_mtime_ns
