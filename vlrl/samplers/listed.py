"""The samples of a list."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from vlrl import selection
from vlrl.methods import method
from vlrl.samplers.shuffled import Shuffled
from vlrl.types import Sample, UserError

LOOKS = 16  # samples whose ids are compared with a list's: making one may mean decoding a video


@method(source="variance-aware selection: Temporal-R1, github.com/appletea233/Temporal-R1; see `vlrl select`")
class Listed:
    """Shuffled epochs over the samples that `vlrl select` kept, and no others.

    Args:
        n: samples in the training split.
        seed: of the run.
        file: what `vlrl select --out` wrote.

    Raises:
        UserError: the file cannot be read, keeps nothing, or names samples that the split does not have.
    """

    def __init__(self, n: int, seed: int, *, file: str):
        self.n, self.file = n, file
        self.rows = [row for row in selection.read(file) if row.kept]
        if not self.rows:
            raise UserError(f"sampler: {file} keeps no sample: choose with a lower --least-variance, or more --samples")
        beyond = [row.position for row in self.rows if row.position >= n]
        if beyond:
            raise UserError(
                f"sampler: {file} names sample {beyond[0]}, but the training split ends at {n - 1}: select anew"
            )
        self._shuffled = Shuffled(len(self.rows), seed)

    def check(self, samples: Sequence[Sample]) -> None:
        """Compares some of the ids with the split's own, so that a list made for other data is refused.

        Raises:
            UserError: another sample stands in a row's place.
        """
        for row in self.rows[:: -(-len(self.rows) // LOOKS)]:
            own = samples[row.position].id
            if own != row.id:
                raise UserError(
                    f"sampler: {self.file} was made for other data: sample {row.position} is {row.id!r} there and "
                    f"{own!r} here: select anew"
                )

    @property
    def positions(self) -> Sequence[int]:
        """All that are ever drawn."""
        return [row.position for row in self.rows]

    def draw(self, count: int) -> list[int]:
        """The next positions in the split."""
        return [self.rows[i].position for i in self._shuffled.draw(count)]

    def _digest(self) -> int:
        return zlib.crc32(repr(self.positions).encode())

    def state_dict(self) -> dict[str, Any]:
        return self._shuffled.state_dict() | {"list": self._digest()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["list"] != self._digest():
            raise UserError(f"sampler: {self.file} is not the list that this run began with: put the old one back")
        self._shuffled.load_state_dict(state)


listed = Listed
