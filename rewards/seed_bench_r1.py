"""SEED-Bench-R1's reward (2503.24376) for multiple choice: the capital letter of the option comes first.

`answers.multiple_choice` also takes `b` and `The answer is B`. Nothing here raises on any text.
Source: github.com/TencentARC/SEED-Bench-R1, grpo.py; differences in docs/rewards.md.
"""

from __future__ import annotations

from rewards import answers, parse
from rewards.total import total


@total()
def accuracy(completion: str, truth: str, thinking: bool = True) -> float:
    """0 or 1: the answer inside the tags is the right `option`."""
    read = parse.answer_text(completion, thinking)
    return 0.0 if read.reason else option(read.value, truth)


@total()
def option(predicted: str, truth: str) -> float:
    """0 or 1: both begin with the same capital letter, alone or before the option's text: `B`, `B.`, `B. cat`."""
    first = truth.strip()[:1]
    same = "A" <= first <= "Z" and predicted.lstrip()[:1] == first
    return answers.multiple_choice(predicted, truth) if same else 0.0
