"""CLS-RL's rewards (2503.16188) for naming what a picture shows, with thoughts and without.

None of these raises on any completion. Source: github.com/minglllli/CLS-RL, grpo*.py; differences in docs/rewards.md.
"""

from __future__ import annotations

from rewards import parse
from rewards.format import tagged
from rewards.total import total


@total()
def accuracy(completion: str, truth: str, thinking: bool = True) -> float:
    """0 or 1: the answer is the truth; neither case nor white space around counts. An empty truth is worth 0."""
    written = parse.answer_text(completion, thinking)
    return float(not written.reason and bool(truth.strip()) and _plain(written.value) == _plain(truth))


@total()
def format(completion: str) -> float:
    """0 or 1: thoughts, then one answer that is not empty."""
    return tagged(completion, True, _not_empty)


@total()
def exact(completion: str, truth: str) -> float:
    """0 or 1: the completion is the truth, letter by letter: no thoughts, no tags. An empty truth is worth 0."""
    return float(completion == truth != "")


def _plain(text: str) -> str:
    return text.strip().lower()


def _not_empty(text: str) -> parse.Parsed:
    return parse.Parsed(text) if text.strip() else parse.Parsed(reason="empty_answer")
