"""Rows of a data file that is too large to be held: each is read and checked when it is drawn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from tasks.readers.lines import Lines
from tasks.readers.row_groups import RowGroups
from vlrl.types import BadRow, UserError

if TYPE_CHECKING:
    from tasks.readers.rows import Judge, Named

Stored = Lines | RowGroups
FIRST, FURTHER = 512, 512  # rows that are checked at the start: with pictures of some milliseconds, seconds


class Large[R: Named](Sequence[R]):
    """As many rows as the file has. In place of a bad one stands the next good one, after the last the first.

    So which row stands at an index hangs on the file alone, not on what was drawn before: a killed run resumes exactly.
    The FIRST rows and FURTHER ones from all over the file are checked at once. Ids are compared among those only.

    Args:
        stored: the rows as the file has them.
        judge: what becomes of a row; each asks one thing.
        bad: where bad rows are noted when they are met, each once.

    Raises:
        UserError: none of the rows that are checked at once is good; a bad one, now or when it is drawn, where those
            stop; the file was changed.
    """

    def __init__(self, stored: Stored, judge: Judge[R], bad: list[BadRow]):
        self.stored, self._judge, self._bad = stored, judge, bad
        self._aside: set[int] = set()  # places of the bad rows that were met
        if not self._check():
            raise UserError(
                f"{stored.file}: no usable row among {len(self._aside):,} from all over the file, the first: "
                f"{bad[-len(self._aside)].problem}; give data.train and data.test files with rows"
            )

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        begin = range(len(self))[index]
        places = chain(range(begin, len(self)), range(begin))
        return next(row for row in map(self._good, places) if row is not None)

    def every(self) -> Iterator[R]:
        """Each good row once, in the file's order."""
        return (row for row in map(self._good, range(len(self))) if row is not None)

    def checked(self) -> Iterator[R]:
        """The good ones of the rows that are checked at once; they are read anew, as they may hold pictures."""
        return (row for row in map(self._good, looked_at(self.stored)) if row is not None)

    def _check(self) -> bool:
        """Whether any of the rows that are checked at once is good."""
        ids: set[str] = set()
        for place in looked_at(self.stored):
            row = self._good(place)
            if row is not None and row.id in ids:
                self._set_aside(place, self._judge.taken(place + 1, row.id))
            elif row is not None:
                ids.add(row.id)
        return bool(ids)

    def _good(self, place: int) -> R | None:
        """The row at a place of the file, None for a bad one."""
        if place in self._aside:
            return None
        found = self._judge.rows(place + 1, self.stored[place])
        if isinstance(found, BadRow):
            return self._set_aside(place, found)
        return found[0]

    def _set_aside(self, place: int, why: BadRow) -> None:
        self._aside.add(place)
        self._bad.append(why)


def looked_at(stored: Stored) -> Sequence[int]:
    """The places that are checked at once: the first, and others from all over the file up to the last."""
    if len(stored) <= FIRST + FURTHER:
        return range(len(stored))
    return [*range(FIRST), *stored.spread(FIRST, FURTHER)]


def sampled(stored: Stored) -> Iterator[Any]:
    """Rows with all keys that are known of: in parquet every row has them."""
    places = [0] if isinstance(stored, RowGroups) else looked_at(stored)
    return (stored[place] for place in places)


def every[R: Named](rows: Sequence[R]) -> Iterable[R]:
    """Each good row once, for tasks that need all of them: a large file is then read whole."""
    return rows.every() if isinstance(rows, Large) else rows


def checked[R: Named](rows: Sequence[R]) -> Iterable[R]:
    """The rows that were looked at before the run: all of a small file."""
    return rows.checked() if isinstance(rows, Large) else rows
