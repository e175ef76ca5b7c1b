"""Hard samples: of those that `vlrl select` measured, the ones that are right as often as is wanted.

Source: adaptive hard-sample mining, Fleming-R1, arXiv 2509.15279 (its rule is not given); thresholds are the user's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vlrl import log, selection
from vlrl.selection import Row, Summary
from vlrl.types import UserError


def mined(rows: Sequence[Row], least: float, most: float) -> list[Row]:
    """The rows with `kept` set for those whose accuracy lies in least..most, both included."""
    return [row.model_copy(update={"kept": least <= row.accuracy <= most}) for row in rows]


def mine(measured: Path, out: Path, least: float, most: float) -> Summary:
    """Writes the list `out`, for `sampler: listed`. UserError where it keeps none."""
    rows = mined(selection.read(measured), least, most)
    total = selection.summary(rows)
    if not total.kept:
        raise UserError(f"{measured}: {total}: none is right with a rate in [{least:g}, {most:g}]: widen pass_rate")
    log.write_text(out, "".join(map(selection.line, rows)))
    return total
