"""Parquet files too large to hold: row groups are read as rows are drawn, the latest of them stay in memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tasks.readers.told import tell
from tasks.readers.unchanged import Unchanged
from vlrl.types import UserError

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
            if getattr(error, "errno", None) is not None:  # the file is not there, and not what it holds wrong
                raise
            rows, why = f"{self._begin(group) + 1:,} to {self._ends[group]:,}", " ".join(str(error).split())
            raise UserError(f"{self.file}: rows {rows} cannot be read ({why}); mend the file") from None
