"""What faults make of answers on their way: lost, late, garbled, twice."""

from __future__ import annotations

from dataclasses import dataclass

from robot.emulator.faults import Faults


@dataclass(frozen=True)
class Piece:
    """Bytes to send after a delay in seconds."""

    data: bytes
    delay: float = 0.0


def garble(faults: Faults, arm: str, servo: str, answer: bytes) -> Piece | None:
    """An answer as it arrives; None: it does not."""
    strike = lambda kind: faults.strike(kind, servo, arm)  # noqa: E731
    if strike("drop"):
        return None
    late = strike("late")
    if fault := strike("corrupt"):
        answer = _flipped(faults, answer, int(fault.amount))
    if fault := strike("short"):
        answer = answer[: max(len(answer) - int(fault.amount), 0)]
    if strike("duplicate"):
        answer += answer
    if fault := strike("noise"):
        answer = faults.rng.bytes(int(fault.amount)) + answer
    return Piece(answer, late.amount / 1000 if late else 0.0)


def _flipped(faults: Faults, answer: bytes, bits: int) -> bytes:
    """Different bits behind the header and the length flipped: the check no longer holds."""
    changed, first = bytearray(answer), 4 if len(answer) > 4 else 0
    places = faults.rng.permutation(8 * (len(answer) - first))[:bits]
    for place in places.tolist():
        changed[first + place // 8] ^= 1 << place % 8
    return bytes(changed)
