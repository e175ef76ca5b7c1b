"""What a judge answered, in a file that grows as the answers come: a killed run goes on, and no pair is asked twice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vlrl import log
from vlrl.decoders import parse_log_row
from vlrl.preferences.judge import Answer, Judge, Pair
from vlrl.strict import Component
from vlrl.types import UserError

POSSIBLE = (0, 1, None)


class Answers:
    """The answers in a file, by pair, goal and judge. A line that cannot be read, as a killed run leaves, is dropped.

    Args:
        path: JSON lines {pair, answer, said}.
        judge: its name and options: another judge's answers are not taken for its own.
    """

    def __init__(self, path: Path, judge: Component, goal: str):
        asked = json.dumps([goal, judge.name, judge.options], sort_keys=True)
        self._path, self._goal = path, goal
        self._asked = hashlib.sha256(asked.encode()).hexdigest()[:16]
        self._known = _read(path)

    def of(self, pair: Pair) -> Answer:
        """KeyError of a pair that was not asked."""
        return self._known[self._key(pair)]["answer"]

    def said(self, pair: Pair) -> str:
        """The judge's words, '' where it had none."""
        return self._known[self._key(pair)].get("said", "")

    def ask(self, judge: Judge, pairs: Sequence[Pair], size: int, told: Callable[[int, int], None]) -> None:
        """Asks what is not known, `size` pairs at a time, and writes each batch down.

        Args:
            told: called before each batch with how many pairs are known and how many there are.

        Raises:
            UserError: the judge did not answer 0, 1 or None once for each pair.
        """
        distinct = {self._key(pair): pair for pair in pairs}
        missing = [pair for key, pair in distinct.items() if key not in self._known]
        for start in range(0, len(missing), size):
            told(len(distinct) - len(missing) + start, len(distinct))
            batch = missing[start : start + size]
            given = list(judge.prefer(batch, self._goal))
            if len(given) != len(batch) or any(each not in POSSIBLE for each in given):
                raise UserError(
                    f"judge: gave {given[:8]!r} for {len(batch)} pairs: each takes one answer, 0, 1 or None"
                )
            said = getattr(judge, "said", None) or [""] * len(batch)
            for pair, answer, words in zip(batch, given, said, strict=True):
                self._add(self._key(pair), None if answer is None else int(answer), words)

    def _add(self, key: str, answer: Answer, said: str) -> None:
        row = {"pair": key, "answer": answer, **({"said": said} if said else {})}
        log.append_row(self._path, row)
        self._known[key] = row

    def _key(self, pair: Pair) -> str:
        return f"{pair.key}/{self._asked}"


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """The file's good rows; it then holds nothing else."""
    if not path.exists():
        return {}
    lines = path.read_bytes().decode("utf-8", "replace").splitlines()
    rows = [row for row in map(_row, lines) if row is not None]
    if len(rows) < len(lines):
        log.write_text(path, "".join(json.dumps(row) + "\n" for row in rows))
    return {row["pair"]: row for row in rows}


def _row(line: str) -> dict[str, Any] | None:
    try:
        row = parse_log_row(line)
    except ValueError:
        return None
    good = isinstance(row, dict) and isinstance(row.get("pair"), str) and "answer" in row
    return row if good and row["answer"] in POSSIBLE else None
