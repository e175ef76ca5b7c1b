"""Data sets of the Hugging Face hub, and folders laid out as such, row by row (`datasets`, streaming).

`hf://OWNER/NAME[@REVISION][:[CONFIG/]SPLIT][[FROM:TO]]`, or a folder in place of OWNER/NAME, which begins with `.`,
`/` or `~`. `hf://rootsautomation/ScreenSpot:test[:200]`: of the split `test` its first 200 rows; no more is fetched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from vlrl.types import Split, UserError

MOST = 100_000  # rows without a range: they are held in memory, pictures and all
FORM = "hf://OWNER/NAME[@REVISION][:[CONFIG/]SPLIT][[FROM:TO]]"
NAME = re.compile(
    r"hf://(?:datasets/)?(?P<repo>[^@:\[\]]+)(?:@(?P<revision>[^:\[\]]+))?"
    r"(?::(?:(?P<config>[^/\[\]]+)/)?(?P<split>[^/\[\]]+))?(?:\[(?P<start>\d*):(?P<stop>\d*)\])?"
)
LOCAL = (".", "/", "~")


@dataclass(frozen=True)
class Source:
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


def source(name: str, split: Split) -> Source:
    """What a name means; without a split, the one that the key is called by.

    Raises:
        UserError: it is of another form.
    """
    found = NAME.fullmatch(name)
    if not found or not (found["repo"].startswith(LOCAL) or re.fullmatch(r"[\w.-]+/[\w.-]+", found["repo"])):
        raise UserError(f"data.{split}: {name!r}: must be {FORM}, or hf://./FOLDER for a folder")
    repo, start, stop = found["repo"], int(found["start"] or 0), int(found["stop"]) if found["stop"] else None
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
    return Source(repo, found["split"] or split, found["config"], found["revision"], start, stop)


def rows(source: Source) -> list[dict[str, Any]]:
    """The rows, in the order of the data set's files; images as {bytes, path}, classes by their names.

    No code that comes with a data set is run.

    Raises:
        UserError: there is no such data set, config or split, or it cannot be fetched; more rows than are held.
    """
    try:
        found = list(_stream(source))
    except UserError:
        raise
    except Exception as error:  # `datasets`, and what fetches for it, raise what they like
        told = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"hf://{source.repo}:{source.split}: {told}") from None
    if source.stop is None and len(found) > MOST:
        raise UserError(
            f"hf://{source.repo}:{source.split}: more than {MOST:,} rows, which would be held in memory: say how many, "
            f"as hf://{source.repo}:{source.split}[:{MOST}]"
        )
    return found


def _stream(source: Source) -> Iterator[dict[str, Any]]:
    try:
        import datasets
    except ImportError:
        raise UserError("hf:// needs the package datasets: pip install 'vlrl[hub]'") from None
    if int(datasets.__version__.partition(".")[0]) < 4:  # before, data sets could be programs
        raise UserError(f"hf:// needs datasets 4 or newer, and this is {datasets.__version__}")
    made = datasets.load_dataset(
        source.repo, source.config, split=source.split, revision=source.revision, streaming=True
    )
    classes = {name: kind for name, kind in (made.features or {}).items() if isinstance(kind, datasets.ClassLabel)}
    last = source.start + MOST + 1 if source.stop is None else source.stop
    for values in islice(made.decode(False), source.start, last):
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
