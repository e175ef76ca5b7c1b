"""Completions that observe before they think: `<observe>`, `<think>`, `<answer>`, as Observe-R1 asks for."""

from __future__ import annotations

from rewards import parse
from rewards.parse import MAX_CHARS, Parsed
from rewards.total import total

OPEN, CLOSE = "<observe>", "</observe>"


def answer_text(completion: str) -> Parsed:
    """The text inside the only `<answer>`, behind thoughts and one observation before them or at their beginning.

    Observation and thoughts hold no other tag. Reasons: those of `parse.answer_text`, no_observe, many_observes,
    observe_misplaced. Never raises. Source: Observe-R1 (2505.12432).
    """
    if len(completion) > MAX_CHARS:
        return Parsed(reason="too_long")
    if OPEN not in completion or CLOSE not in completion:
        return Parsed(reason="no_observe")
    if completion.count(OPEN) > 1 or completion.count(CLOSE) > 1:
        return Parsed(reason="many_observes")
    before, _, rest = completion.partition(OPEN)
    seen, closed, after = rest.partition(CLOSE)
    placed = before.strip() in ("", "<think>") and closed and seen.strip()
    if not placed or any(tag in seen for tag in ("<think>", "</think>", "<answer>", "</answer>")):
        return Parsed(reason="observe_misplaced")
    return parse.answer_text(before + after, thinking=True)


@total()
def format(completion: str) -> float:
    """0 or 1: the tags are right and the answer is not empty. Never raises."""
    read = answer_text(completion)
    return float(read.reason is None and bool(read.value.strip()))
