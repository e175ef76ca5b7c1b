"""Files of a data set: lines, parquet, the Hub, checksums."""

from __future__ import annotations

import contextlib
import csv
import os
import re
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from os.path import isdir, isfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tasks.data.images import leads_out
from vlrl.decoders import DecodeError, parse_json
from vlrl.system.hub import reach_hub
from vlrl.types import Split, UserError, first_line

# Data sets of the Hugging Face hub, and folders laid out as such, row by row (`datasets`, streaming).
#
# `hf://OWNER/NAME[@REVISION][:[CONFIG/]SPLIT][[FROM:TO]]`, or a folder in place of OWNER/NAME, which begins with `.`,
# `/` or `~`. `hf://rootsautomation/ScreenSpot:test[:200]`: of the split `test` its first 200 rows; no more is fetched.

MOST = 100_000  # rows without a range: they are held in memory, pictures and all
FORM = "hf://OWNER/NAME[@REVISION][:[CONFIG/]SPLIT][[FROM:TO]]"
NAME = re.compile(
    r"hf://(?:datasets/)?(?P<repo>[^@:\[\]]+)(?:@(?P<revision>[^:\[\]]+))?"
    r"(?::(?:(?P<config>[^/\[\]]+)/)?(?P<split>[^/\[\]]+))?(?:\[(?P<start>\d*):(?P<stop>\d*)\])?"
)
LOCAL = (".", "/", "~")


@dataclass(frozen=True)
class RowRange:
    """What a name says: rows `start` to `stop` (None: the end) of a split."""

    repo: str
    split: str
    config: str | None = None
    revision: str | None = None
    start: int = 0
    stop: int | None = None

    @property
    def file(self) -> Path:
        """What stands for a file's path in rows' ids: equal for equal data sets and splits."""
        return Path("hf", f"{Path(self.repo).name}:{self.split}".replace(".", "_"))


def named(name: str) -> bool:
    return name.startswith("hf:")


def source(name: str, split: Split) -> RowRange:
    """What a name means; without a split, the one that the key is called by.

    Raises:
        UserError: it is of another form.
    """
    match = NAME.fullmatch(name)
    if not match or not (match["repo"].startswith(LOCAL) or re.fullmatch(r"[\w.-]+/[\w.-]+", match["repo"])):
        raise UserError(f"data.{split}: {name!r}: must be {FORM}, or hf://./FOLDER for a folder")
    repo, start, stop = match["repo"], int(match["start"] or 0), int(match["stop"]) if match["stop"] else None
    if repo.startswith(LOCAL):
        repo = str(Path(repo).expanduser().resolve())
        if not Path(repo).is_dir():
            raise UserError(f"data.{split}: {name!r}: there is no folder {repo}")
    elif Path(repo).exists():  # which `datasets` would take for it
        raise UserError(
            f"data.{split}: {name!r}: there is a folder {repo} here; write hf://./{repo} for it, or move it"
        )
    if stop is not None and stop <= start:
        raise UserError(f"data.{split}: {name!r}: the range holds no row")
    return RowRange(repo, match["split"] or split, match["config"], match["revision"], start, stop)


def hub_rows(source: RowRange) -> list[dict[str, Any]]:
    """The rows, in the order of the data set's files; images as {bytes, path}, classes by their names.

    No code that comes with a data set is run.

    Raises:
        UserError: there is no such data set, config or split, or it cannot be fetched; more rows than are held.
    """
    if not source.repo.startswith(LOCAL):
        reach_hub(source.repo, "datasets")
    try:
        rows = list(_stream(source))
    except UserError:
        raise
    except Exception as error:  # `datasets`, and what fetches for it, raise what they like
        reason = first_line(error)
        raise UserError(f"hf://{source.repo}:{source.split}: {reason}") from None
    if source.stop is None and len(rows) > MOST:
        raise UserError(
            f"hf://{source.repo}:{source.split}: more than {MOST:,} rows, which would be held in memory: say how many, "
            f"as hf://{source.repo}:{source.split}[:{MOST}]"
        )
    return rows


def _stream(source: RowRange) -> Iterator[dict[str, Any]]:
    try:
        import datasets
    except ImportError:
        raise UserError("hf:// needs the package datasets: pip install 'vlrl[hub]'") from None
    if int(datasets.__version__.partition(".")[0]) < 4:  # before, data sets could be programs
        raise UserError(f"hf:// needs datasets 4 or newer, and this is {datasets.__version__}")
    dataset = datasets.load_dataset(
        source.repo, source.config, split=source.split, revision=source.revision, streaming=True
    )
    classes = {name: kind for name, kind in (dataset.features or {}).items() if isinstance(kind, datasets.ClassLabel)}
    last = source.start + MOST + 1 if source.stop is None else source.stop
    for values in islice(dataset.decode(False), source.start, last):
        named_ = {name: kind.int2str(values[name]) for name, kind in classes.items() if (values[name] or 0) >= 0}
        yield {name: _fetched(value, source.repo) for name, value in (values | named_).items()}


def _fetched(value: Any, repo: str) -> Any:
    """A value whose pictures are in memory, if they lie in the data set; others stay names, which readers judge."""
    if isinstance(value, list):
        return [_fetched(each, repo) for each in value]
    path = value.get("path") if isinstance(value, Mapping) and value.get("bytes", b"") is None else None
    if not isinstance(path, str) or not _within(path.rpartition("::")[2], repo):
        return value
    from datasets.utils.file_utils import xopen

    with xopen(path, "rb") as file:
        return {"bytes": file.read(), "path": None}


def _within(file: str, repo: str) -> bool:
    """Whether a file, or the archive that it lies in, is the data set's: rows come from strangers."""
    if not repo.startswith(LOCAL):
        return file.startswith((f"hf://datasets/{repo}/", f"hf://datasets/{repo}@"))
    return "://" not in file and Path(file).resolve().is_relative_to(Path(repo).resolve())


# What a user should know of a data file before the run.


def tell(text: str) -> None:
    """A line on stderr; of many processes, which read the same, one tells."""
    if os.environ.get("RANK", "0") == "0":
        print(f"vlrl: {text}", file=sys.stderr)


# A file that is read for as long as a run lasts, and must stay what it was.


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
    status = file.stat()
    return status.st_size, status.st_mtime_ns


# JSON lines too many to hold: found by where they end, decoded when they are asked for.

LARGEST = 1 << 28  # bytes of a line
BLOCK = 1 << 20  # bytes that are looked at together


@dataclass(frozen=True)
class BrokenLine:
    """A line that is not JSON."""

    reason: str = field(compare=False)  # its column counts bytes or characters of the line


class Lines(Sequence[Any]):
    """The rows of a file of JSON lines, a BrokenLine for one that is not JSON in UTF-8; 8 bytes of memory a row.

    Blank lines at the end are none. The file is opened for each row, so that nothing stays open for days.

    Raises:
        OSError: the file cannot be read.
        UserError: at a row, that the file was changed or taken away since it was first looked at.
    """

    def __init__(self, file: Path):
        self.file = file
        with file.open("rb") as opened:
            self._unchanged = Unchanged(file)
            self._ends = _lines_ends(opened)
            while len(self._ends) and not self._text(opened, len(self._ends) - 1).strip():
                self._ends = self._ends[:-1]

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> Any:
        place = range(len(self._ends))[index]
        with self._unchanged.asserted(), self.file.open("rb", buffering=0) as opened:
            text = self._text(opened, place)
        return lines_decoded(text)

    def spread(self, begin: int, count: int) -> list[int]:
        """So many places from `begin` to the last, evenly."""
        return np.linspace(begin, len(self) - 1, count).astype(int).tolist()

    def copies(self, wanted: Collection[bytes]) -> set[bytes]:
        """Those of the wanted lines, without space around them, that stand here too, to the byte."""
        with self.file.open("rb") as opened:
            return {text for line in opened if (text := line.strip()) in wanted}

    def _text(self, opened: BinaryIO, place: int) -> bytes:
        begin = int(self._ends[place - 1]) + 1 if place else 0
        opened.seek(begin)
        return opened.read(int(self._ends[place]) - begin)


def lines_decoded(line: str | bytes) -> Any:
    """What a line says, or why it is not read."""
    try:
        return parse_json(line, finite=False, max_size=LARGEST)
    except DecodeError as error:
        return BrokenLine(str(error))


def _lines_ends(opened: BinaryIO) -> np.ndarray:
    """int64: where each line's feed stands, or the file's end for a last line without one."""
    ends, read = [], 0
    for block in _blocks(opened):
        ends.append(np.flatnonzero(np.frombuffer(block, dtype=np.uint8) == ord("\n")) + read)
        read += len(block)
        last = block[-1:]
    if read and last != b"\n":
        ends.append(np.array([read]))
    return np.concatenate(ends) if ends else np.empty(0, dtype=np.int64)


def _blocks(opened: BinaryIO) -> Iterator[bytes]:
    while block := opened.read(BLOCK):
        yield block


# Parquet files too large to hold: row groups are read as rows are drawn, the latest of them stay in memory.

HELD = 64 << 20  # bytes of the row groups that stay, as pyarrow holds them; the latest one does whatever its size
LOOKED = 512 << 20  # bytes of the row groups that are read for rows from all over the file


class RowGroups(Sequence[Any]):
    """The rows of a parquet file, each {column: value}; its metadata tells where they are. Images stay encoded.

    bytes: of all rows, not compressed.

    Raises:
        OSError, pyarrow.ArrowException: the file cannot be read, or is no parquet.
        UserError: at a row, that its group cannot be read, or that the file was changed or taken away.
    """

    def __init__(self, file: Path):
        from pyarrow import parquet

        self.file, self._unchanged = file, Unchanged(file)
        with parquet.ParquetFile(file) as opened:
            self._metadata = opened.metadata
        groups = [self._metadata.row_group(i) for i in range(self._metadata.num_row_groups)]
        self._ends = np.cumsum([group.num_rows for group in groups], dtype=np.int64)
        self._sizes = [group.total_byte_size for group in groups]
        self.bytes = sum(self._sizes)
        self._held: dict[int, tuple[Any, int]] = {}  # group -> table and its bytes, the latest last
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._metadata.num_rows

    def __getitem__(self, index: int) -> Any:
        place = range(len(self))[index]
        with self._unchanged.asserted():
            group = self._group(place)
            (row,) = self._table(group).slice(place - self._begin(group), 1).to_pylist()
        return row

    def spread(self, begin: int, count: int) -> list[int]:
        """So many places from `begin` to the last, evenly, of no more groups than LOOKED allows: two at least."""
        first = self._group(begin)
        most = max(2, LOOKED // max(1, max(self._sizes)))
        if len(self._sizes) - first <= most:
            return np.linspace(begin, len(self) - 1, count).astype(int).tolist()
        places: list[int] = []
        groups = np.linspace(first, len(self._sizes) - 1, most).astype(int).tolist()
        for i, group in enumerate(groups):
            share = (count - len(places)) // (len(groups) - i)
            low, high = max(begin, self._begin(group)), int(self._ends[group]) - 1
            places += np.linspace(high, low, share).astype(int).tolist()
        return sorted(set(places))

    def warn(self) -> None:
        """Says on stderr where drawing a sample takes long, and what to do."""
        if len(self._sizes) > 1 and max(self._sizes) > HELD:
            tell(
                f"{self.file}: row groups of up to {max(self._sizes) / 1e6:,.0f} MB, one of which is read for each "
                "sample that is drawn: write the file with a smaller row_group_size"
            )

    def _group(self, place: int) -> int:
        return int(np.searchsorted(self._ends, place, side="right"))

    def _begin(self, group: int) -> int:
        return int(self._ends[group - 1]) if group else 0

    def _table(self, group: int) -> Any:
        with self._lock:
            held = self._held.pop(group, None)
            if held is None:
                table = self._read(group)
                held = table, table.nbytes
                while self._held and held[1] + sum(size for _, size in self._held.values()) > HELD:
                    del self._held[next(iter(self._held))]
            self._held[group] = held
            return held[0]

    def _read(self, group: int) -> Any:
        from pyarrow import ArrowException, parquet

        try:
            with parquet.ParquetFile(self.file, metadata=self._metadata, pre_buffer=False) as opened:
                return opened.read_row_group(group, use_threads=False)
        except (ArrowException, OSError) as error:
            if (
                isinstance(error, OSError) and error.errno is not None
            ):  # the file is not there, and not what it holds wrong
                raise
            rows, why = f"{self._begin(group) + 1:,} to {self._ends[group]:,}", " ".join(str(error).split())
            raise UserError(f"{self.file}: rows {rows} cannot be read ({why}); mend the file") from None


LARGE = 100_000  # rows that are held in memory; of more JSON lines or parquet rows each is read as it is drawn
HEAVY = 1 << 30  # bytes of a parquet file, not compressed, that are; mostly pictures
LONG = 100_000_000  # bytes of a file that is read whole, from which on its user is told of JSON lines
ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp")  # of images
PICKLES = (".p", ".pkl", ".pickle")


def decoded(file: Path) -> list[Any] | Lines | RowGroups | Mapping[str, Any]:
    """All rows, a BrokenLine for a line of JSON lines that is not JSON; or the one object that a JSON file holds.

    More than LARGE JSON lines or parquet rows, or parquet of more than HEAVY bytes, are only counted.
    A csv file has a row of texts for each line, a text file a row {line}. A folder has a row {image, label} for each
    image of its folders, which are the classes. UserError: nothing of that name, broken, a pickle.
    """
    if file.is_dir():
        return _classes(file)
    if file.suffix == ".parquet":
        return _parquet(file)
    if file.suffix in PICKLES:
        raise UserError(
            f"{file}: a pickle runs code when it is opened, so it is not; use the data set's JSON or parquet form "
            "(docs/detection_data.md names them)"
        )
    try:
        if file.suffix == ".jsonl" and len(counted := Lines(file)) > LARGE:
            return counted
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: cannot be read ({error}); check data.train and data.test") from error
    if file.suffix != ".jsonl" and not text[:64].lstrip().startswith("{"):  # one object cannot be lines
        _tell_of_lines(file)
    if file.suffix == ".csv":
        return _table(file, text)
    if file.suffix == ".txt":
        return [{"line": line} for line in text.rstrip().split("\n")] if text.strip() else []
    if file.suffix == ".jsonl":
        return [lines_decoded(line) for line in text.rstrip().split("\n")] if text.strip() else []
    try:
        rows = parse_json(text, finite=False)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: not JSON ({error}); use .jsonl for one object a line") from error
    if not isinstance(rows, list | dict):
        raise UserError(f"{file}: holds no list of rows; use a JSON list or .jsonl")
    return rows


def _tell_of_lines(file: Path) -> None:
    """Says of a long file that there is a better form of it."""
    if (size := file.stat().st_size) > LONG:
        tell(
            f"{file}: {size / 1e6:,.0f} MB are read whole and stay in memory: write large data as JSON lines (.jsonl) "
            "or parquet, whose rows are read as they are drawn"
        )


def _table(file: Path, text: str) -> list[Any]:
    """The lines below the names of the columns, those without a value left out; None for a line of other length."""
    try:
        names, *lines = csv.reader(text.removeprefix("\ufeff").splitlines(keepends=True), strict=True)
    except (ValueError, csv.Error) as error:
        raise UserError(f"{file}: not csv ({error}); its first line must name the columns") from error
    return [dict(zip(names, line, strict=True)) if len(line) == len(names) else None for line in lines]


def _parquet(file: Path) -> list[dict[str, Any]] | RowGroups:
    """All rows of a parquet file; images stay encoded, in memory."""
    from pyarrow import ArrowException, parquet

    try:
        counted = RowGroups(file)
        if len(counted) > LARGE or counted.bytes > HEAVY:
            counted.warn()
            return counted
        with parquet.ParquetFile(file) as opened:
            return [row for batch in opened.iter_batches(batch_size=64) for row in batch.to_pylist()]
    except (OSError, ArrowException) as error:
        raise UserError(f"{file}: cannot be read ({error}); check data.train and data.test") from error


def _classes(folder: Path) -> list[dict[str, str]]:
    """The images under each folder of the folder, sorted; images beside those folders have no class."""
    images = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.suffix.lower() in ENDINGS)
    return [{"image": path.as_posix(), "label": path.parts[0] if len(path.parts) > 1 else ""} for path in images]


# Videos that rows name: found in a folder, by a whole name or without its ending, and probed once.

VIDEOS_ENDINGS = (
    ".mp4",
    ".mkv",
    ".webm",
    ".avi",
    ".mov",
    ".m4v",
    ".mpg",
    ".mpeg",
    ".ts",
    ".flv",
    ".3gp",
    ".wmv",
    ".gif",
)


class Videos:
    """The videos of one file's rows. Each is probed once, however many rows it serves."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._found: dict[Path, float | str] = {}

    def find(self, name: str) -> Path:
        """The file of that name in the folder, else the only one below it; the ending may be left out.

        BadVideoError: none, or several.
        """
        from tasks.data.video import BadVideoError  # late: decoders, which rows without video need not have

        if leads_out(self.folder, name):
            raise BadVideoError(f"video {name} leads out of {self.folder}; set data.images to a folder above it")
        for ending in ("", *VIDEOS_ENDINGS):
            if isfile(self.folder / f"{name}{ending}"):  # unlike Path's, False for what no file can be called
                return self.folder / f"{name}{ending}"
        below = [file for file in self._below.get(Path(name).name, ()) if _videos_ends(file, name)]
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
        from tasks.data.video import BadVideoError, probe

        if file not in self._found:
            try:
                self._found[file] = probe(file).duration
            except BadVideoError as problem:
                self._found[file] = str(problem)
        value = self._found[file]
        if isinstance(value, str):
            raise BadVideoError(value)
        return value

    @cached_property
    def _below(self) -> dict[str, list[Path]]:
        """Name, with and without its ending -> the videos below the folder that have it."""
        files_of: dict[str, list[Path]] = {}
        for file in sorted(self.folder.rglob("*")):
            if file.suffix.lower() in VIDEOS_ENDINGS:
                for name in (file.name, file.stem):
                    files_of.setdefault(name, []).append(file)
        return files_of


def _videos_ends(file: Path, name: str) -> bool:
    """Whether the file lies in the folders that the name has."""
    folders = Path(name).parent.parts
    return file.parent.parts[len(file.parent.parts) - len(folders) :] == folders
