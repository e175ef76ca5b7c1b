"""Videos that rows name: found in a folder, by a whole name or without its ending, and probed once."""

from __future__ import annotations

from functools import cached_property
from os.path import isdir, isfile
from pathlib import Path

from tasks.readers import files

ENDINGS = (".mp4", ".mkv", ".webm", ".avi", ".mov", ".m4v", ".mpg", ".mpeg", ".ts", ".flv", ".3gp", ".wmv", ".gif")


class Videos:
    """The videos of one file's rows. Each is probed once, however many rows it serves."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._found: dict[Path, float | str] = {}

    def find(self, name: str) -> Path:
        """The file of that name in the folder, else the only one below it; the ending may be left out.

        BadVideoError: none, or several.
        """
        from tasks.video.reader import BadVideoError  # late: it imports rows, and decoders where rows have no video

        if files.leads_out(self.folder, name):
            raise BadVideoError(f"video {name} leads out of {self.folder}; set data.images to a folder above it")
        for ending in ("", *ENDINGS):
            if isfile(self.folder / f"{name}{ending}"):  # unlike Path's, False for what no file can be called
                return self.folder / f"{name}{ending}"
        below = [file for file in self._below.get(Path(name).name, ()) if _ends(file, name)]
        if len(below) > 1:
            raise BadVideoError(f"video {name} is {below[0]} or {below[1]}: name its folder in the row or data.images")
        if not below and isdir(self.folder / name):
            raise BadVideoError(
                f"video {self.folder / name} is a folder of frames, which is not read: make it one file"
            )
        if not below:
            raise BadVideoError(f"no such video {self.folder / name}")
        return below[0]

    def duration(self, file: Path) -> float:
        """Seconds of a video whose frames are all there, as its frames tell, else BadVideoError."""
        from tasks.video.reader import BadVideoError, probe

        if file not in self._found:
            try:
                self._found[file] = probe(file).duration
            except BadVideoError as problem:
                self._found[file] = str(problem)
        found = self._found[file]
        if isinstance(found, str):
            raise BadVideoError(found)
        return found

    @cached_property
    def _below(self) -> dict[str, list[Path]]:
        """Name, with and without its ending -> the videos below the folder that have it."""
        found: dict[str, list[Path]] = {}
        for file in sorted(self.folder.rglob("*")):
            if file.suffix.lower() in ENDINGS:
                for name in (file.name, file.stem):
                    found.setdefault(name, []).append(file)
        return found


def _ends(file: Path, name: str) -> bool:
    """Whether the file lies in the folders that the name has."""
    folders = Path(name).parent.parts
    return file.parent.parts[len(file.parent.parts) - len(folders) :] == folders
