"""Folders in which data sets grow while we look: each whole episode is found once, and nothing half written is read."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from vlrl.learning.dataset import About, Recorded, UnreadableError, about
from vlrl.learning.reading import episodes


def data_sets(folder: Path) -> list[Path]:
    """The folder itself where it is a data set, or else those in it. Hidden ones are somebody's unfinished work."""
    if (folder / "meta" / "info.json").is_file():
        return [folder]
    try:
        inside = sorted(folder.iterdir())
    except OSError:  # not there yet
        return []
    return [path for path in inside if not path.name.startswith(".") and (path / "meta" / "info.json").is_file()]


class Watched:
    """What was found in some folders so far.

    An episode is known by its data set's folder and its number: a data set may grow, but not be made anew in place.
    """

    def __init__(self, folders: Iterable[str]):
        self._folders = [Path(folder) for folder in folders]
        self._found: dict[str, set[int]] = {}
        self._whole: dict[str, tuple[int, ...]] = {}  # the state of each info.json up to which all was read
        self._told: set[str] = set()

    @property
    def found(self) -> dict[str, list[int]]:
        """Data set -> numbers of its episodes."""
        return {path: sorted(numbers) for path, numbers in self._found.items()}

    def new(self) -> Iterator[tuple[About, Recorded]]:
        """The episodes that were not there when this was last asked. What cannot be read now is left for later."""
        for path in [path for folder in self._folders for path in data_sets(folder)]:
            try:
                data, read = self._read(path)
            except UnreadableError as error:
                self._tell(str(error))
                continue
            self._found.setdefault(str(path), set()).update(episode.number for episode in read)
            if data is not None:
                yield from ((data, episode) for episode in read)

    def _read(self, path: Path) -> tuple[About | None, Sequence[Recorded]]:
        state = _state(path / "meta" / "info.json")
        if self._whole.get(str(path)) == state:
            return None, []
        data, known = about(path), self._found.get(str(path), set())
        read = list(episodes(data, known))
        if len(read) + len(known) >= data.episodes:
            self._whole[str(path)] = state
        return data, read

    def _tell(self, problem: str) -> None:
        """Once: it may be there for long."""
        if problem not in self._told:
            self._told.add(problem)
            print(f"not read yet: {problem}", file=sys.stderr)


def fresh(found: Iterable[tuple[About, Recorded]], used: Mapping[str, Sequence[int]]) -> int:
    """How many of these episodes earlier rounds did not use."""
    return sum(episode.number not in used.get(str(data.path), ()) for data, episode in found)


def _state(file: Path) -> tuple[int, ...]:
    try:
        told = file.stat()
    except OSError:
        raise UnreadableError(f"{file.parent.parent}: is gone") from None
    return told.st_ino, told.st_mtime_ns, told.st_size
